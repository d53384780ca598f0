def make(n):
    def mask(b, h, q, kv):
        return mask(b, h, q, kv)
    return mask

mask_mod = make(3)
