buffer t: f32[H] gradient
buffer u: f32[2] = 3
