score_mod = score + rel_bias[h, q_idx - kv_idx]
