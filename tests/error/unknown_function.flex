score_mod = sofcap(score, 30.0)
