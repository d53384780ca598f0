buffer slopes: f32[H] grad
score_mod = score + slopes[h] * (kv_id - q_idx)
