score_mod {
  a, c = score, 1
  score
}
