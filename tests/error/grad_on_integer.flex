buffer doc: i32[KV_LEN] grad
mask_mod = doc[q_idx] == doc[kv_idx]
