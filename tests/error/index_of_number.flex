score_mod = score[0] + q_idx[1]
