# Causal, and at most n positions back.
param window: i32 = 1024

fn sliding_window(n) = q_idx >= kv_idx and q_idx - kv_idx <= n

mask_mod = sliding_window(window)
