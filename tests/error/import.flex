import torch
from math import log
def mod(score, b, h, q, kv):
    return score
