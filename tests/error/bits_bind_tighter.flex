const W = 16
mask_mod = q_idx >= kv_idx & q_idx - kv_idx <= W
