score_mod = max(score)
