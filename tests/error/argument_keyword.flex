score_mod = clamp(score, lowest=0) + gelu(score, approximate=1) + clamp(score, min=0, min=1) + clamp(min=0, score)
