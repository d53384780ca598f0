buffer a: f32
