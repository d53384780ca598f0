def late(b, h, q, kv):
    return q >= kv

score_mod = and_masks(late, sliding_window)
