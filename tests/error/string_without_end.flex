score_mod = float("inf)
