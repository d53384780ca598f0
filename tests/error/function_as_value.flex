mask_mod = causal
