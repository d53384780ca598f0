buffer t: f32[4]
score_mod {
  t[0] = score
  score
}
