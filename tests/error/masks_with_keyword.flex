mask_mod = and_masks(causal, other=causal)
