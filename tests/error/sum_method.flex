buffer a: f32[Q_LEN, 4]
score_mod = score + (a[q_idx] * a[kv_idx]).sum(-1)
