score_mod = clamp(score)
