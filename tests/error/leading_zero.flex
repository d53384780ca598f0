score_mod = score * 007
