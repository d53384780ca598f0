mask_mod = q_idx => kv_idx and q_idx <> 3 and h === 2
