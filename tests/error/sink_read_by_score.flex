buffer sinks: f32[H]
sink = sinks[h]
score_mod = score + sink
