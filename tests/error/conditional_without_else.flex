score_mod = score if q_idx > 3
