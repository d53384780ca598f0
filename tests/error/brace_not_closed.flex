score_mod {
  score * 2
