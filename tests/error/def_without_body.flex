def mod(score, b, h, q, kv):
mask_mod = true
