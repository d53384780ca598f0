fn f(x, y, x) = x
score_mod = f(score, 1, 2)
