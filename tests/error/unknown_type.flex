buffer a: float32[H]
buffer c: f33[H]
param n: f16 = 1.0
param m: long
