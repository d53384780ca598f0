buffer slopes: f32[H]
score_mod = score + slopes(h) + h(3)
