score_mod {
  distance = q_idx - kv_idx
  score + distance
}
mask_mod = distance >= 0
