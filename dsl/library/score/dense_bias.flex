# Adds a learned number for every head, query and key.
buffer bias: f32[H, Q_LEN, KV_LEN] grad

fn dense_bias(score, bias) = score + bias[h, q_idx, kv_idx]

score_mod = dense_bias(score, bias)
