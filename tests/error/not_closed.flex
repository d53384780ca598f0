score_mod = score + (q_idx - kv_idx
mask_mod = q_idx >= kv_idx
