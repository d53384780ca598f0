def late(b, h, q, kv):
    return q - kv

def near(b, h, q, kv):
    return kv

mask_mod = or_masks(late, near)
