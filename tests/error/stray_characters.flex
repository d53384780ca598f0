score_mod = score $ 2
mask_mod = true /* everything */
