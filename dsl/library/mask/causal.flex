# Each query sees the keys up to its own position.

fn causal() = q_idx >= kv_idx

mask_mod = causal()
