score_mod = score + float("three")
