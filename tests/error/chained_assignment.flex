score_mod {
  a = b = score
  score
}
