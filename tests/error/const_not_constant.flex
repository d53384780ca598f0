const W = q_idx + 1
const V = Q_LEN // 2
mask_mod = q_idx - kv_idx <= W
