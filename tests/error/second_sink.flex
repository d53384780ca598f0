sink = 1
score_mod = score
sink { 2 }
