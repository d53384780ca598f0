def shifted(score, b, h, q, kv):
    return score + q - kv

def causal(b, h, q, kv):
    return q >= kv

mask_mod = and_masks(causal, shifted)
