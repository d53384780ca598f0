fn near(n) = q_idx - kv_idx <= n
mask_mod = near(3, 4)
score_mod = where(q_idx > 3, score)
