score_mod = score + torch.square(score) / torch.clip(score, 0, 1)
