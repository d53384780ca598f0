buffer slopes: f32[H]
score_mod = score + slopes(h) + 2(score) + h(3)
