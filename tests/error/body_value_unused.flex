score_mod {
  score * 2
  score
}
