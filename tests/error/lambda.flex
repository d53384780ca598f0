score_mod = lambda score, b, h, q, kv: score * 2
