"""Trains a small model with a learned attention bias on the CPU, with flexc and with PyTorch beside it.

    python tests/python/train_learned_bias.py

The task: say again, after a gap, what stood DISTANCE places before. Content does not help to find the place, so the
model must learn it in its bias by distance. PyTorch's side computes the same attention with a matrix of scores.
"""
import math

import torch

from flexc.torch import create_block_mask, flex_attention

LENGTH, WORDS, HEADS, DIM, DISTANCE = 48, 12, 2, 16, 7


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


class Model(torch.nn.Module):
    def __init__(self, fused):
        super().__init__()
        torch.manual_seed(0)
        self.fused = fused
        self.words = torch.nn.Embedding(WORDS, HEADS * DIM)
        self.to_qkv = torch.nn.Linear(HEADS * DIM, 3 * HEADS * DIM)
        self.bias = torch.nn.Parameter(torch.zeros(LENGTH, HEADS))
        self.to_words = torch.nn.Linear(HEADS * DIM, WORDS)
        self.mask = create_block_mask(causal, None, None, LENGTH, LENGTH)

    def by_distance(self, score, b, h, q_idx, kv_idx):
        return score + self.bias[(q_idx - kv_idx).clamp(min=0), h]

    def attention(self, q, k, v):
        if self.fused:
            return flex_attention(q, k, v, self.by_distance, self.mask)
        distance = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)
        scores = q @ k.transpose(-1, -2) / math.sqrt(DIM) + self.bias[distance.clamp(min=0)].permute(2, 0, 1)
        return torch.softmax(scores.masked_fill(distance < 0, -math.inf), -1) @ v

    def forward(self, text):
        qkv = self.to_qkv(self.words(text)).unflatten(-1, (3, HEADS, DIM)).permute(2, 0, 3, 1, 4)
        return self.to_words(self.attention(*qkv).transpose(1, 2).flatten(-2))


def train(fused, steps):
    """The loss of each step."""
    model = Model(fused)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    random = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(steps):
        text = torch.randint(0, WORDS, (16, LENGTH), generator=random)
        said = model(text)[:, DISTANCE:]
        loss = torch.nn.functional.cross_entropy(said.flatten(0, 1), text[:, :-DISTANCE].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    print(" step   flexc  PyTorch")
    for step, (ours, theirs) in enumerate(zip(train(True, 150), train(False, 150))):
        if step % 10 == 9:
            print(f"{step + 1:5} {ours:7.4f}  {theirs:7.4f}")
