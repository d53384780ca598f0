score_mod = { score }
