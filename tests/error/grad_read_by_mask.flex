buffer gate: f32[Q_LEN] grad
score_mod = score + gate[q_idx]
mask_mod = gate[q_idx] > 0
