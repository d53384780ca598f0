buffer a: fp16[H]
buffer c: torch.Float32[H]
param x: fp32 = 1
score_mod = score + a[h] + c[h] + x
