buffer sinks: f32[H] grad
buffer bias: f32[H] grad
sink = sinks[h]
