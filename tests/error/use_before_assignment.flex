score_mod {
  score += bias
  bias = q_idx - kv_idx
  score
}
