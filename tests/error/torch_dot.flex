buffer a: f32[Q_LEN, 4]
score_mod = score + torch.dot(a[q_idx], a[kv_idx])
