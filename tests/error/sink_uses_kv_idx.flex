buffer sinks: f32[KV_LEN]
sink = sinks[kv_idx]
score_mod = score
