score_mod = score }
