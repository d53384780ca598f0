H = 8
score_mod = score * H
