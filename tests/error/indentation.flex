def mod(score, b, h, q, kv):
    a = 1
      c = 2
    return score + a
