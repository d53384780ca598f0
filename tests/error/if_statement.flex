def alibi(score, b, h, q, kv):
    if q >= kv:
        bias = q - kv
        return score + bias
    else:
        return score
    return nonsense +
