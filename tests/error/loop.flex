def mod(score, b, h, q, kv):
    for i in range(3):
        score += i
    while True:
        score += 1
    return score
