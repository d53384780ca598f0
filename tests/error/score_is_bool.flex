score_mod = q_idx >= kv_idx
