buffer table: f32[32]
score_mod = score + table[-1] + table[32]
