score_mod {
  score * 2
  + q_idx
}
