buffer table: f32[32]
score_mod = score + table[(q_idx - kv_idx) / 2]
