buffer bias: f32[Q_LEN] grad
score_mod = score
