param slopes: f32[H]
