score_mod = score * 2
score_mod = score * 3
