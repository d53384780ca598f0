def make(slopes):
    def mod(score, b, h, q, kv):
        return score + slopes[h]
    return mod
