@torch.compile
def mod(score, b, h, q, kv):
    return score
