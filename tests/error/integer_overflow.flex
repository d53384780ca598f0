const BIG = 9223372036854775807
score_mod = score + (BIG + 1) + 10 ** 30 + (1 << 63)
