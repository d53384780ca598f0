def make(n):
    def mask(b, h, q, kv):
        return q >= kv
    return mask[0]

mask_mod = make(3)
