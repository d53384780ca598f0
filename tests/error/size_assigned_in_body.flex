score_mod {
  H = 8
  score * H
}
