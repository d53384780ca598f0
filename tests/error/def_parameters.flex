def mod(score, h):
    return score
