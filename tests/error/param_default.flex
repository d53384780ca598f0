param n: i32 = 1.5
param f: bool = 2
param s: f32 = score
