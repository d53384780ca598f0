const W = 3
param cap: f32 = 1.0
buffer t: f32[4]
score_mod {
  W = 4
  cap *= 2
  t = score
  H = 3
  pi = 4
  score
}
