buffer scale: f32[]
score_mod = score * scale[]
