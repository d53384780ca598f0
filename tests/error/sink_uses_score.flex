buffer sinks: f32[H]
fn gate(x) = x * score
sink = gate(sinks[h])
