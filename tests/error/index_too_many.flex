buffer slopes: f32[H]
buffer scale: f32[]
score_mod = score + slopes[h, q_idx] + slopes[h][q_idx] + scale[0]
