buffer sinks: f32[H]
sink = sinks
