"""flexc.jax against the same attention written in jax.numpy."""
import math

import numpy as np
import pytest

import flexc
from conftest import close

jax = pytest.importorskip("jax", reason="JAX is not installed")
import jax.numpy as jnp  # noqa: E402

from flexc.jax import attention  # noqa: E402

PROGRAM = """
buffer slopes: f32[H] grad
buffer doc: i32[KV_LEN]
param cap: f32
score_mod = cap * tanh(score / cap) + slopes[h] * (kv_idx - q_idx)
mask_mod = q_idx >= kv_idx and doc[q_idx] == doc[kv_idx]
"""


def wanted(q, k, v, slopes, doc, cap, scale=None):
    groups = q.shape[1] // k.shape[1]
    k, v = (jnp.repeat(x, groups, axis=1) for x in (k, v))
    score = jnp.einsum("bhqd,bhkd->bhqk", q, k, precision="highest") * (scale or 1 / math.sqrt(q.shape[-1]))
    q_idx, kv_idx = jnp.arange(q.shape[2])[:, None], jnp.arange(k.shape[2])
    score = cap * jnp.tanh(score / cap) + slopes[:, None, None] * (kv_idx - q_idx)
    score = jnp.where((q_idx >= kv_idx) & (doc[q_idx] == doc[kv_idx]), score, -jnp.inf)
    return (jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(score, -1), v, precision="highest"),
            jax.scipy.special.logsumexp(score, -1))


def inputs(seed=0):
    random = np.random.default_rng(seed)
    shapes = (2, 4, 24, 16), (2, 2, 24, 16), (2, 2, 24, 16), (4,)
    return [jnp.asarray(random.standard_normal(shape), jnp.float32) for shape in shapes]


def test_forward_and_gradients():
    q, k, v, slopes = inputs()
    doc = jnp.arange(24, dtype=jnp.int32) // 10

    def ours(q, k, v, slopes):
        return attention(q, k, v, PROGRAM, {"slopes": slopes, "doc": doc}, {"cap": 3.0}, return_lse=True)
    for call in (ours, jax.jit(ours)):
        for a, b in zip(call(q, k, v, slopes), wanted(q, k, v, slopes, doc, 3.0)):
            close(a, b)

    def loss(function):
        def total(*given):
            out, lse = function(*given)
            return (out ** 2).sum() + lse.sum()
        return jax.grad(total, argnums=(0, 1, 2, 3))
    expected = loss(lambda *given: wanted(*given, doc, 3.0))(q, k, v, slopes)
    for gradients in (loss(ours)(q, k, v, slopes), jax.jit(loss(ours))(q, k, v, slopes)):
        for a, b in zip(gradients, expected):
            close(a, b, 1e-4)


def test_bfloat16_and_scale():
    q, k, v, _ = (x.astype(jnp.bfloat16) for x in inputs())
    out = attention(q, k, v, scale=0.2)
    assert out.dtype == jnp.bfloat16
    score = jnp.einsum("bhqd,bhkd->bhqk", *(x.astype(jnp.float32) for x in (q, jnp.repeat(k, 2, 1)))) * 0.2
    close(out.astype(jnp.float32), jax.nn.softmax(score, -1) @ jnp.repeat(v, 2, 1).astype(jnp.float32), 2e-2)


def test_vmap():
    q, k, v, slopes = inputs()
    many = jax.vmap(lambda x: attention(q, k, v, "buffer slopes: f32[H]\nscore * slopes[h]", {"slopes": x}))
    both = many(jnp.stack([slopes, slopes * 2]))
    close(both[1], attention(q, k, v, "buffer slopes: f32[H]\nscore * slopes[h]", {"slopes": slopes * 2}))


def test_errors():
    q, k, v, slopes = inputs()
    with pytest.raises(flexc.errors.ProgramError, match="kv_idy"):
        attention(q, k, v, "score + kv_idy")
    with pytest.raises(flexc.errors.InvalidOption, match="buffers slopes"):
        attention(q, k, v, "buffer slopes: f32[H]\nscore * slopes[h]")
    with pytest.raises(flexc.errors.InvalidOption, match="one type"):
        attention(q, k.astype(jnp.float16), v)
    with pytest.raises(Exception, match="slopes"):
        jax.block_until_ready(attention(q, k, v, "buffer slopes: f32[3]\nscore * slopes[0]", {"slopes": slopes}))
