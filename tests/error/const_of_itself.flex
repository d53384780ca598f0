const A = C + 1
const C = A + 1
score_mod = score * A
