score_mod = (score + 1]
