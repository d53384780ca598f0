def tiles(w, x, y, z):
    def mask(b, h, q, kv):
        return q - kv < w + x + y + z
    return mask
