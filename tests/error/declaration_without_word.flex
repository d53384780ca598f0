slopes: f32[H] grad
