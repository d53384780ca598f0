buffer table: f32[32, 4]
score_mod = score + table[:, 0]
