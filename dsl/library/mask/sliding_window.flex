# Causal, and at most n positions back.
param window: i32 = 1024

fn sliding_window(n) = 0 <= q_idx - kv_idx <= n

mask_mod = sliding_window(window)
