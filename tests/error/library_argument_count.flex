mask_mod = causal() and sliding_window()
