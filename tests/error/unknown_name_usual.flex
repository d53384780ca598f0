mask_mod = q >= kv_idx
