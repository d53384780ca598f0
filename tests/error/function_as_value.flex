mask_mod = q_idx > 3 and causal
