def make(slopes):
    def middle(x):
        def inner(y):
            return y + 1
        return inner(x)
    def mod(score, b, h, q, kv):
        return score + middle(q)
    return mod

score_mod = make(1)
