# A penalty that grows with distance, with a learned slope for each head.
buffer slopes: f32[H] grad

fn alibi(score, slopes) = score + slopes[h] * (kv_idx - q_idx)

score_mod = alibi(score, slopes)
