# The first prefix[b] keys are seen by every query; the rest is causal.
buffer prefix: i32[B]

fn prefix_lm(prefix) = kv_idx < prefix[b] or q_idx >= kv_idx

mask_mod = prefix_lm(prefix)
