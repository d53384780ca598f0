score_mod = score * 2 ** -(h + 1)
