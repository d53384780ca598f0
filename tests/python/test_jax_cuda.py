"""flexc.jax on GPUs: kernels for 16 bits, the order of streams, several devices. test_jax.py runs there too."""
import functools
import math
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import flexc
from conftest import ROOT, close
from test_layouts import CAUSAL, Batch

jax = pytest.importorskip("jax", reason="JAX is not installed")
import jax.numpy as jnp  # noqa: E402

from flexc.jax import attention  # noqa: E402
from test_jax import gpus  # noqa: E402

GPUS = gpus()
pytestmark = pytest.mark.skipif(not GPUS, reason="JAX has no GPU")
ALIBI = "buffer slopes: f32[H] grad\nscore_mod = score + slopes[h] * (kv_idx - q_idx)\nmask_mod = q_idx >= kv_idx"


def inputs(dtype, dim, length=300, device=None, seed=0):
    """q, k, v, slopes and weights of a loss."""
    random = np.random.default_rng(seed)
    shapes = (2, 4, length, dim), (2, 2, length, dim), (2, 2, length, dim), (2, 4, length, dim)
    q, k, v, weights = (jnp.asarray(random.standard_normal(shape), dtype) for shape in shapes)
    given = q, k, v, jnp.asarray([0.5, 0.25, 0.125, 0.0625], jnp.float32), weights
    return jax.device_put(given, device or GPUS[0])


def wanted(q, k, v, slopes):
    """In float32."""
    q, k, v = (x.astype(jnp.float32) for x in (q, jnp.repeat(k, 2, 1), jnp.repeat(v, 2, 1)))
    score = jnp.einsum("bhqd,bhkd->bhqk", q, k, precision="highest") / math.sqrt(q.shape[-1])
    q_idx, kv_idx = jnp.arange(q.shape[2])[:, None], jnp.arange(k.shape[2])
    score = score + slopes[:, None, None] * (kv_idx - q_idx)
    score = jnp.where(q_idx >= kv_idx, score, -jnp.inf)
    return (jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(score, -1), v, precision="highest"),
            jax.scipy.special.logsumexp(score, -1))


def ours(q, k, v, slopes):
    return attention(q, k, v, ALIBI, {"slopes": slopes}, return_lse=True)


def results(function, q, k, v, slopes, weights):
    """(out, lse, gradients of q, k, v and slopes)"""
    def loss(*given):
        out, lse = function(*given)
        return (out.astype(jnp.float32) * weights).sum() + lse.sum(), (out, lse)
    gradients, kept = jax.grad(loss, argnums=(0, 1, 2, 3), has_aux=True)(q, k, v, slopes)
    return *kept, *gradients


TOLERANCES = {"float32": 1e-4, "float16": 4e-3, "bfloat16": 2e-2}


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("dim", [64, 80, 128])
def test_gradients(dtype, dim):
    given = inputs(dtype, dim)
    expected = results(wanted, *given)
    for call in (results, jax.jit(results, static_argnums=0)):
        got = call(ours, *given)
        assert all(x.devices() == {GPUS[0]} for x in got) and got[0].dtype == dtype
        for a, b in zip(got, expected):
            close(a, b, TOLERANCES[dtype])


def test_order_of_the_stream():
    """Work of XLA's own before, between and after, with memory that it uses again; other values at each call."""
    @functools.partial(jax.jit, static_argnums=0)
    def step(function, q, k, v, slopes):
        def layer(x, _):
            out, lse = function(jnp.sin(x), k * 0.5, v + 1, slopes)
            return (x + out.astype(x.dtype) * jnp.tanh(lse)[..., None].astype(x.dtype)), lse.sum()
        return jax.lax.scan(layer, q, None, length=4)
    for seed in range(6):
        q, k, v, slopes, _ = inputs("float32", 64, seed=seed)
        for a, b in zip(step(ours, q, k, v, slopes), step(wanted, q, k, v, slopes)):
            close(a, b, 1e-3)


def test_command_buffers():
    """What XLA makes graphs of around the calls leaves these as they are."""
    code = ("import sys; sys.path.insert(0, 'tests/python')\n"
            "import test_jax_cuda\ntest_jax_cuda.test_order_of_the_stream()\ntest_jax_cuda.check_packed(range(3))")
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_gpu_graph_min_graph_size=1"
    environment = {**os.environ, "XLA_FLAGS": flags, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


@jax.jit
def packed(q, k, v, cu_seqlens_q, cu_seqlens_k):
    return attention(q, k, v, mask_mod=CAUSAL, return_lse=True, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)


def check_packed(seeds):
    for seed in seeds:
        random = np.random.default_rng(seed)
        q_lens = random.multinomial(40, [0.2, 0.3, 0.5]).tolist()
        kv_lens = random.multinomial(50, [0.4, 0.3, 0.3]).tolist()
        batch = Batch(q_lens, kv_lens, seed=seed)
        out, lse = packed(*jax.device_put((batch.q, batch.k, batch.v, batch.cu_seqlens_q, batch.cu_seqlens_k), GPUS[0]))
        batch.check(np.asarray(out), np.asarray(lse), "score", CAUSAL, tolerance=1e-4)


def test_lengths_of_threads():
    """Each call reads its own lengths, whatever others enqueue meanwhile."""
    check_packed([0])
    problems = []

    def work(first):
        try:
            check_packed(range(first, first + 10))
        except BaseException as problem:
            problems.append(problem)
    threads = [threading.Thread(target=work, args=(10 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems


def test_calls_do_not_wait():
    shape = 4, 16, 8192, 128
    q, k, v = (jax.random.normal(jax.random.key(i), shape, jnp.bfloat16) for i in range(3))
    call = jax.jit(lambda q: attention(q, k, v))
    jax.block_until_ready([call(q) for _ in range(8)])  # which XLA then has memory for
    start = time.perf_counter()
    results = [call(q) for _ in range(8)]
    returned = time.perf_counter() - start
    jax.block_until_ready(results)
    done = time.perf_counter() - start
    assert returned < done / 2, f"calls returned after {returned} s, were done after {done} s"


def test_errors():
    q, k, v, slopes, _ = inputs("bfloat16", 64)
    with pytest.raises(Exception, match="'slopes': expected"):
        jax.block_until_ready(attention(q, k, v, "buffer slopes: f32[3]\nscore * slopes[0]", {"slopes": slopes}))
    with pytest.raises(Exception, match="head dim 2048"):
        wide = jnp.zeros((1, 1, 16, 2048), jnp.bfloat16)
        jax.block_until_ready(attention(wide, wide, wide))
    with pytest.raises(flexc.errors.Unsupported, match="not of int32"):
        attention(*(x.astype(jnp.int32) for x in (q, k, v)))
    close(*(results(function, *inputs("bfloat16", 64))[0] for function in (ours, wanted)), 2e-2)  # as if nothing was


@pytest.mark.skipif(len(GPUS) < 2, reason="there is one GPU")
def test_several_gpus():
    given = [inputs("bfloat16", 64, device=device, seed=i) for i, device in enumerate(GPUS)]
    call = jax.jit(results, static_argnums=0)
    got = [call(ours, *one) for one in given]
    for device, one, result in zip(GPUS, given, got):
        assert all(x.devices() == {device} for x in result)
        for a, b in zip(result, results(wanted, *one)):
            close(a, b, 2e-2)


@pytest.mark.skipif(len(GPUS) < 2, reason="there is one GPU")
def test_sharded_batch():
    mesh = jax.sharding.Mesh(np.array(GPUS[:2]), ("batch",))
    batch, alike = jax.sharding.PartitionSpec("batch"), jax.sharding.PartitionSpec()
    q, k, v, slopes, _ = (np.asarray(x.astype(jnp.float32)) for x in inputs("float32", 64))
    call = jax.jit(jax.shard_map(ours, mesh=mesh, in_specs=(batch, batch, batch, alike), out_specs=batch))
    for a, b in zip(call(q, k, v, slopes), wanted(q, k, v, slopes)):
        close(a, b, 1e-4)
