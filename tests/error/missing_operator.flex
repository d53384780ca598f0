score_mod = 2 score
