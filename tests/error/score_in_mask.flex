fn strong(x) = score > x
mask_mod = strong(0.5)
