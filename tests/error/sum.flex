buffer t: f32[H, 64]
fn count(n) = sum(i in 0..n: t[h, i])
score_mod {
  long = sum(i in 0..65537: t[h, i])
  inner = sum(i in 0..64: sum(j in 0..17: t[i, j]))
  open = sum(i in 0..q_idx: t[h, i])
  read = sum(i in 0..int(t[0, 0]): t[h, i])
  real = sum(i in 0..2.5: t[h, i])
  outside = sum(i in 0..3: t[h, i]) + i
  called = sum(t)
  count(4) + count(kv_idx)
}
