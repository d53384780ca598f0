score_mod = score +
