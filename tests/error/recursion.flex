fn even(n) = odd(n - 1)
fn odd(n) = even(n - 1)
mask_mod = even(q_idx)
