fn half(x) = sum(i in 0, 3: x)
fn other(x) = sum(i in 0..3, x)
mask_mod = true
