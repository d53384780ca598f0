buffer bias: f32[H, Q_LEN, KV_LEN]
score_mod = score + bias[h][q_idx]
