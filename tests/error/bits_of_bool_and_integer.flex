mask_mod = bool(q_idx >= kv_idx and 3 > 2 | q_idx == kv_idx)
score_mod = score + ((q_idx > 3) & kv_idx)
