buffer bias: f32[Q_LEN]
const bias = 3
fn bias(x) = x
