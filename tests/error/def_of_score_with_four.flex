def tilted(score, b, q_idx, kv_idx):
    return score + q_idx - kv_idx
