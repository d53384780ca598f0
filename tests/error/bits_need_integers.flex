score_mod = (score ^ 2) + (score << 1) + (~score)
