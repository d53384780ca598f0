buffer flags: i32[KV_LEN]
mask_mod = flags[kv_idx] and not q_idx or !score
