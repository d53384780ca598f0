mask_mod = q_idx = kv_idx
score_mod = where(q_idx = 3, score, 0)
