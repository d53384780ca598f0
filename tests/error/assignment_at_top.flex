distance = q_idx - kv_idx
score_mod = score + distance
