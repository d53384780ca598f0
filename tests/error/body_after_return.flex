score_mod {
  return score
  score = 2
}
