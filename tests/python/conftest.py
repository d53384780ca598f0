"""References in float64, and random programs that mean the same in flexc's language and in Python's."""
import math
import os
import pathlib
import random

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def seeds(count):
    """The seeds of a random test; FLEXC_TEST_SEED sets the first."""
    first = int(os.environ.get("FLEXC_TEST_SEED", "1"))
    return range(first, first + count)


NAMES = {"where": np.where, "abs": np.abs, "tanh": np.tanh, "exp": np.exp, "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
         "min": np.minimum, "max": np.maximum, "sqrt": np.sqrt, "sin": np.sin, "cos": np.cos, "floor": np.floor,
         "sign": np.sign, "softplus": lambda x: np.logaddexp(x, 0), "log": np.log, "inf": math.inf}


class Reference:
    """Attention with Python's own meaning of a program's expressions, in float64.

    One entry may be request b of B, whose queries begin at q_start. sink is the score of a key without a value.
    """

    def __init__(self, q, k, v, score="score", mask="True", buffers=None, params=None, scale=None, request=None,
                 q_start=0, sink=None):
        q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
        heads, kv_heads = q.shape[1], k.shape[1]
        k, v = (np.repeat(x, heads // kv_heads, axis=1) for x in (k, v))
        scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
        b, h, q_idx, kv_idx = np.ogrid[:q.shape[0], :heads, :q.shape[2], :k.shape[2]]
        first, batch = request or (0, q.shape[0])
        b, q_idx = b + first, q_idx + q_start
        self.names = {**NAMES, "b": b, "h": h, "h_kv": h // (heads // kv_heads), "q_idx": q_idx, "kv_idx": kv_idx,
                      "B": batch, "H": heads, "Q_LEN": q.shape[2], "KV_LEN": k.shape[2],
                      **(buffers or {}), **(params or {})}
        self.score = np.einsum("bhqd,bhkd->bhqk", q, k) * scale
        with np.errstate(all="ignore"):
            modified = np.broadcast_to(eval(score, {}, {**self.names, "score": self.score}), self.score.shape)
            visible = np.broadcast_to(eval(mask, {}, self.names), self.score.shape)
            self.modified = np.where(visible, modified, -np.inf)
            highest = self.modified.max(-1, keepdims=True, initial=-np.inf)
            drain = -np.inf if sink is None else np.broadcast_to(eval(sink, {}, self.names), highest.shape)
            highest = np.maximum(highest, drain)
            weights = np.where(np.isneginf(self.modified), 0, np.exp(self.modified - np.where(
                np.isneginf(highest), 0, highest)))
            seen = weights.sum(-1, keepdims=True)
            total = seen if sink is None else np.where(seen > 0, seen + np.exp(drain - highest), 0)
            self.weights = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
            self.out = self.weights @ v
            self.lse = (np.log(seen) + highest)[..., 0]


class Programs:
    """Random expressions over a program's names."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def real(self, depth):
        pick = self.random.choice
        if depth == 0:
            return pick(["score", "score", "slopes[h]", "bias[q_idx]", "bias[kv_idx]", "table[h, kv_idx % 5]", "0.5",
                         "-1.25", "cap", "(q_idx - kv_idx) * 0.1", "h * 0.25"])
        x, y = self.real(depth - 1), self.real(self.random.randrange(depth))
        return pick([f"({x} + {y})", f"({x} - {y})", f"({x} * {y} * 0.1)", f"tanh({x})", f"abs({x})",
                     f"min({x}, {y})", f"max({x}, {y})", f"where({self.mask(depth - 1)}, {x}, {y})", f"sigmoid({x})",
                     f"sin({x})", f"({x} / 3.0)", f"softplus({x})", f"sqrt(abs({x}) + 1.0)"])

    def integer(self):
        return self.random.choice(["q_idx", "kv_idx", "q_idx - kv_idx", "kv_idx // 4", "q_idx % 7", "doc[q_idx]",
                                   "doc[kv_idx]", "h", "b", "window", "q_idx + kv_idx", "3"])

    def mask(self, depth):
        if depth <= 0:
            return f"({self.integer()} {self.random.choice(['<', '<=', '>', '>=', '==', '!='])} {self.integer()})"
        x, y = self.mask(depth - 1), self.mask(depth - 1)
        return self.random.choice([f"({x} & {y})", f"({x} | {y})", f"({x} ^ {y})"])


def close(actual, wanted, tolerance=1e-5):
    actual, wanted = np.asarray(actual, np.float64), np.asarray(wanted, np.float64)
    assert actual.shape == wanted.shape
    finite = np.isfinite(wanted)
    assert np.array_equal(np.isneginf(actual), np.isneginf(wanted))
    size = max(1.0, float(np.abs(wanted[finite]).max(initial=0)))
    worst = float(np.abs(actual[finite] - wanted[finite]).max(initial=0))
    assert worst <= tolerance * size, f"differs by {worst}, of {size}"


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory):
    """Tests compile anew."""
    os.environ["FLEXC_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))
