fn table_of(t, i) = t[i]
fn twice(t) = 2 * table_of(t, q_idx)
score_mod = twice(score)
