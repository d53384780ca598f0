score_mod = score
  + q_idx
