score > 0 and q_idx >= kv_idx
