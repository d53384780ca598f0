# Adds the signed distance from key to query.

fn relative_position(score) = score + (q_idx - kv_idx)

score_mod = relative_position(score)
