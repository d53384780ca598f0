mask_mod = q_idx - kv_idx
