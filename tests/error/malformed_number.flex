score_mod = score * 1.0f + 2x + 0x + 1__0
