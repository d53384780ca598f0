"""flexc.jax against the same attention written in jax.numpy."""
import math

import numpy as np
import pytest

import conftest
import flexc
from conftest import Reference
from test_layouts import ALIBI, CAUSAL, SLOPES, Batch, normal

jax = pytest.importorskip("jax", reason="JAX is not installed")
import jax.numpy as jnp  # noqa: E402

from flexc.jax import attention  # noqa: E402


def gpus():
    try:
        return jax.devices("cuda")
    except RuntimeError:
        return []


@pytest.fixture(autouse=True, params=["cpu", "cuda"])
def platform(request):
    """Each test runs on a CPU and on a GPU."""
    devices = jax.devices("cpu") if request.param == "cpu" else gpus()
    if not devices:
        pytest.skip("JAX has no GPU")
    with jax.default_device(devices[0]):
        yield request.param


def least_tolerance():
    """As tests/api has it of the two: on GPUs, products of f32 are sums of narrower ones."""
    return 1e-5 if jnp.zeros(()).device.platform == "cpu" else 1e-4


def close(actual, wanted, tolerance=0):
    conftest.close(actual, wanted, max(tolerance, least_tolerance()))

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


def test_a_step_compiles_once():
    q, k, v, slopes = inputs()
    program = "buffer slopes: f32[H] grad\nscore + slopes[h] * (kv_idx - q_idx) * 1.375"
    before = flexc.cache.statistics()["misses"]

    def loss(q, slopes):
        return attention(q, k, v, program, {"slopes": slopes}).sum()
    jax.block_until_ready(jax.jit(jax.grad(loss, argnums=(0, 1)))(q, slopes))
    assert flexc.cache.statistics()["misses"] == before + 1


def test_bfloat16_and_scale():
    q, k, v, _ = (x.astype(jnp.bfloat16) for x in inputs())
    out = attention(q, k, v, scale=0.2)
    assert out.dtype == jnp.bfloat16
    score = jnp.einsum("bhqd,bhkd->bhqk", *(x.astype(jnp.float32) for x in (q, jnp.repeat(k, 2, 1)))) * 0.2
    close(out.astype(jnp.float32), jax.nn.softmax(score, -1) @ jnp.repeat(v, 2, 1).astype(jnp.float32), 2e-2)


SCALED = "buffer slopes: f32[H] grad\nscore * slopes[h]"


def one_by_one(function, *batched):
    """vmap as a loop; None stands for what all have alike."""
    count = next(len(x) for x in batched if x is not None)
    results = [function(*[None if x is None else x[i] for x in batched]) for i in range(count)]
    return jax.tree.map(lambda *parts: jnp.stack(parts), *results)


@pytest.mark.parametrize("what", ["q", "k", "slopes", "all"])
def test_vmap(what):
    alike = dict(zip(("q", "k", "v", "slopes"), inputs()))
    batched = dict(zip(alike, (jnp.stack([x, y, x + y]) for x, y in zip(inputs(1), inputs(2)))))
    chosen = list(alike) if what == "all" else [what]

    def loss(*given):
        tensors = {**alike, **dict(zip(chosen, given))}
        slopes = tensors.pop("slopes")
        out, lse = attention(*tensors.values(), SCALED, {"slopes": slopes}, return_lse=True)
        return (out ** 2).sum() + lse.sum(), out
    both = jax.value_and_grad(loss, argnums=tuple(range(len(chosen))), has_aux=True)
    given = [batched[name] for name in chosen]
    for call in (jax.vmap(both), jax.jit(jax.vmap(both))):
        for a, b in zip(jax.tree.leaves(call(*given)), jax.tree.leaves(one_by_one(both, *given))):
            close(a, b, 1e-4)
    # Of what all have alike the gradients are sums.
    v, total = alike["v"], 0

    def of_v(v, *given):
        return jnp.sin(attention(*given, v, SCALED, {"slopes": alike["slopes"]})).sum()
    many = jax.grad(lambda v: jax.vmap(lambda q, k: of_v(v, q, k))(batched["q"], batched["k"]).sum())(v)
    for i in range(3):
        total += jax.grad(of_v)(v, batched["q"][i], batched["k"][i])
    close(many, total, 1e-4)


def test_vmap_of_vmap():
    q, k, v, slopes = inputs()
    many = jnp.stack([slopes, slopes * 2, slopes * 3])
    function = jax.vmap(jax.vmap(lambda q, x: attention(q, k, v, SCALED, {"slopes": x}), (None, 0)), (0, None))
    out = function(jnp.stack([q, q + 1]), many)
    for i in range(2):
        for j in range(3):
            close(out[i, j], attention(q + i, k, v, SCALED, {"slopes": many[j]}))


def test_mask_and_sink():
    q, k, v, slopes = (np.asarray(x) for x in inputs())
    program = "buffer slopes: f32[H] grad\nscore_mod = score"
    out, lse = attention(q, k, v, "buffer slopes: f32[H]\nscore", {"slopes": slopes}, mask_mod="q_idx >= kv_idx",
                         sink="slopes[h]", return_lse=True)
    expected = Reference(q, k, v, "score", "q_idx >= kv_idx", {"slopes": slopes}, sink="slopes[h]")
    close(out, expected.out)
    close(lse, expected.lse)
    text = attention(q, k, v, program + "\nmask_mod = q_idx >= kv_idx\nsink = slopes[h]", {"slopes": slopes})
    close(text, expected.out)


def test_values_near_each_other():
    q, k, v, _ = inputs()
    for scale in (1e-7, 2e-7):
        _, lse = attention(1e6 * q, k, v, scale=scale, return_lse=True)
        close(lse, Reference(1e6 * q, k, v, scale=scale).lse)


LEARNED = "buffer slopes: f32[H] grad\nbuffer gain: f32[B] grad\nscore * gain[b] + slopes[h] * (kv_idx - q_idx)"


def test_packed():
    """Requests of their own lengths, in one computation for all lengths."""
    traces = []

    @jax.jit
    def step(q, k, v, slopes, gain, cu_seqlens_q, cu_seqlens_k, weights):
        traces.append(1)

        def loss(q, k, v, slopes, gain):
            out, lse = attention(q, k, v, LEARNED, {"slopes": slopes, "gain": gain}, mask_mod=CAUSAL, return_lse=True,
                                 cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
            return (out * weights).sum(), (out, lse)
        return jax.grad(loss, argnums=(0, 1, 2, 3, 4), has_aux=True)(q, k, v, slopes, gain)
    for q_lens, kv_lens in [([5, 1, 6], [7, 1, 9]), ([0, 11, 1], [3, 12, 2]), ([4, 4, 2], [4, 8, 1])]:
        batch, rows, keys = Batch(q_lens, kv_lens), 12, 17
        q, k, v = (np.zeros((n, *x.shape[1:]), np.float32)
                   for n, x in ((rows, batch.q), (keys, batch.k), (keys, batch.v)))
        q[:len(batch.q)], k[:len(batch.k)], v[:len(batch.v)] = batch.q, batch.k, batch.v
        gain, weights = np.array([0.5, 1.0, 1.5], np.float32), normal(9, *q.shape)
        gradients, (out, lse) = step(q, k, v, SLOPES, gain, batch.cu_seqlens_q, batch.cu_seqlens_k, weights)
        given = {"slopes": SLOPES, "gain": gain}
        batch.check(out, lse, "score * gain[b] + slopes[h] * (kv_idx - q_idx)", CAUSAL, given,
                    tolerance=least_tolerance())
        kernel = flexc.compile(LEARNED, mask_mod=CAUSAL, dtype="f32", head_dim=8, device="cpu", query_layout="ragged",
                               key_layout="ragged")
        plan = kernel.plan(q, k, v, given, cu_seqlens_q=batch.cu_seqlens_q, cu_seqlens_k=batch.cu_seqlens_k)
        wanted_gradients = plan.backward(q, k, v, *plan.forward(q, k, v, given), weights, given)
        for a, b in zip(gradients, (*wanted_gradients[:3], *wanted_gradients.buffers.values())):
            close(a, b)
        for array, used in ((out, batch.q), (lse, batch.q), (gradients[0], batch.q), (gradients[1], batch.k)):
            assert (np.asarray(array)[len(used):] == 0).all()
    assert len(traces) == 1


def test_pages():
    pages_of, q_lens, kv_lens = [[3, 9], [5], [0, 2, 4, 6]], [5, 1, 2], [7, 3, 16]
    batch = Batch(q_lens, kv_lens, pages_of)
    table = np.array([pages + [0] * (4 - len(pages)) for pages in pages_of], np.int32)

    @jax.jit
    def step(q, k, v, slopes, **lengths):
        return attention(q, k, v, "buffer slopes: f32[H]\n" + ALIBI, {"slopes": slopes}, mask_mod=CAUSAL,
                         return_lse=True, **lengths)
    for pages in ({"seqused_k": np.array(kv_lens), "page_table": table}, batch.csr()):
        out, lse = step(batch.q, batch.k, batch.v, SLOPES, cu_seqlens_q=batch.cu_seqlens_q, **pages)
        batch.check(out, lse, ALIBI, CAUSAL, {"slopes": SLOPES}, tolerance=least_tolerance())
    with pytest.raises(flexc.errors.Unsupported, match="pages have no gradients"):
        jax.grad(lambda q: attention(q, batch.k, batch.v, cu_seqlens_q=batch.cu_seqlens_q, seqused_k=np.array(kv_lens),
                                     page_table=table).sum())(batch.q)


def test_vmap_of_lengths():
    batches = [Batch([5, 1, 6], [7, 1, 9], seed=0), Batch([2, 9, 1], [3, 10, 4], seed=1)]
    out = jax.vmap(lambda q, k, v, x, y: attention(q, k, v, mask_mod=CAUSAL, cu_seqlens_q=x, cu_seqlens_k=y))(
        *(np.stack([getattr(batch, name) for batch in batches])
          for name in ("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k")))
    for batch, one in zip(batches, out):
        close(one, attention(batch.q, batch.k, batch.v, mask_mod=CAUSAL, cu_seqlens_q=batch.cu_seqlens_q,
                             cu_seqlens_k=batch.cu_seqlens_k))


def test_refusals(platform):
    q, k, v, _ = inputs()
    with pytest.raises(flexc.errors.Unsupported, match="no second ones"):
        jax.grad(lambda x: jax.grad(lambda q: attention(q, k, v).sum())(x).sum())(q)
    with pytest.raises((TypeError, flexc.errors.Unsupported)):
        jax.jvp(lambda q: attention(q, k, v), (q,), (q,))
    with pytest.raises(flexc.errors.InvalidOption, match="q has 4 dims"):
        attention(q[0], k, v)
    with pytest.raises(flexc.errors.InvalidOption, match="q has 3 dims"):
        attention(q, k[0], v[0], cu_seqlens_q=[0, 24], cu_seqlens_k=[0, 24])
    with pytest.raises(flexc.errors.InvalidOption, match=r"cap: is not known .* f32\[\]"):
        jax.jit(lambda cap: attention(q, k, v, "param cap: f32\nscore * cap", params={"cap": cap}))(2.0)
    with pytest.raises(flexc.errors.Unsupported, match="not of int32"):
        attention(*(x.astype(jnp.int32) for x in (q, k, v)))
    with pytest.raises(flexc.errors.InvalidOption, match="flexc.jax.attention"):
        flexc.compile("score", dtype="f32", head_dim=16, device=platform).forward(q, k, v)
    with pytest.raises(flexc.errors.InvalidOption, match="do not fit"):
        attention(q, k, v[:, :, :3])
    with pytest.raises(flexc.errors.InvalidOption, match="seqused_k: q, k and v are dense"):
        attention(q, k, v, seqused_k=[3, 4])
    with pytest.raises(flexc.errors.InvalidOption, match="cu_seqlens_q: expected integers"):
        attention(q[0], k[0], v[0], cu_seqlens_q=[0.0, 2.0], cu_seqlens_k=[0, 2])
    with pytest.raises(flexc.errors.InvalidOption, match="query_start is one of"):
        attention(q, k, v, query_start="begin")
    with pytest.raises(flexc.errors.InvalidOption, match=r"page_table: expected \[B, MAX_PAGES\]"):
        attention(q, k[0, :, :, None], v[0, :, :, None], seqused_k=[3, 4], page_table=[0, 1])
    with pytest.raises(flexc.errors.InvalidOption, match="seqused_q: expected one dim"):
        attention(q[0], k[0], v[0], cu_seqlens_q=[0, 2], cu_seqlens_k=[0, 2], seqused_q=[[1]])


def test_wrong_lengths(platform):
    q, k, v, _ = inputs()
    given = [x[0].swapaxes(0, 1) for x in (q, k, v)]
    lengths = {"cu_seqlens_q": [0, 3, 1], "cu_seqlens_k": [0, 3, 4]}
    if platform == "cpu":
        with pytest.raises(Exception, match=r"cu_seqlens_q\[2\] is 1"):
            jax.block_until_ready(attention(*given, **lengths))
        return
    # A GPU finds out too late for an error: the first request has what it can have.
    out = attention(*given, **lengths)
    close(out[:1], attention(*given, cu_seqlens_q=[0, 3], cu_seqlens_k=[0, 3])[:1])


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
