def window(size=4):
    def mask(b, h, q, kv):
        return q - kv < size
    return mask
