"""Kernels on NumPy's arrays, against float64."""
import numpy as np
import pytest

import flexc
from conftest import Programs, Reference, close, seeds


def tensors(seed=0, b=2, h=4, h_kv=2, q=37, kv=29, d=8, dv=8):
    random = np.random.default_rng(seed)
    return [random.standard_normal(shape).astype(np.float32)
            for shape in ((b, h, q, d), (b, h_kv, kv, d), (b, h_kv, kv, dv))]


def compiled(text="score", **options):
    return flexc.compile(text, **{"dtype": "f32", "head_dim": 8, "device": "cpu", **options})


def test_learned_alibi():
    q, k, v = tensors()
    slopes = np.linspace(-1, 1, 4).astype(np.float32)
    kernel = compiled("score + slopes[h] * (kv_idx - q_idx)", mask_mod="q_idx >= kv_idx",
                      buffers={"slopes": "f32[H] grad"})
    out, lse = kernel.forward(q, k, v, {"slopes": slopes})
    wanted = Reference(q, k, v, "score + slopes[h] * (kv_idx - q_idx)", "q_idx >= kv_idx", {"slopes": slopes})
    close(out, wanted.out)
    close(lse, wanted.lse)
    d_out = np.random.default_rng(1).standard_normal(out.shape).astype(np.float32)
    gradients = kernel.backward(q, k, v, out, lse, d_out, {"slopes": slopes})

    def loss(of_slopes):
        return (Reference(q, k, v, "score + slopes[h] * (kv_idx - q_idx)", "q_idx >= kv_idx",
                          {"slopes": of_slopes}).out * d_out).sum()
    for i in range(4):
        step = np.zeros(4)
        step[i] = 1e-4
        close(gradients.buffers["slopes"][i], (loss(slopes + step) - loss(slopes - step)) / 2e-4, 1e-4)
    # dv = P^T d_out, summed over the heads of a group.
    dv = np.einsum("bhqk,bhqd->bhkd", wanted.weights, d_out).reshape(2, 2, 2, 29, 8).sum(2)
    close(gradients.v, dv)
    assert gradients.q.shape == q.shape and gradients.k.shape == k.shape


@pytest.mark.parametrize("seed", seeds(25))
def test_random_programs(seed):
    programs = Programs(seed)
    score, mask = programs.real(4), programs.mask(1)
    random = np.random.default_rng(seed)
    q, k, v = tensors(seed, b=1, h=2, h_kv=1, q=19, kv=33)
    buffers = {"slopes": random.standard_normal(2).astype(np.float32),
               "bias": random.standard_normal(40).astype(np.float32),
               "table": random.standard_normal((2, 5)).astype(np.float32),
               "doc": random.integers(0, 3, 40).astype(np.int32)}
    params = {"cap": 1.5, "window": 6}
    declared = {"slopes": "f32[H]", "bias": "f32[N]", "table": "f32[H, 5]", "doc": "i32[M]"}
    kernel = compiled(score, mask_mod=mask, buffers=declared, params={"cap": 2.0, "window": 1}, backward=False,
                      disk_cache=False)
    out, lse = kernel.forward(q, k, v, buffers, params=params)
    wanted = Reference(q, k, v, score, mask, buffers, params)
    close(out, wanted.out, 2e-5)
    close(lse, wanted.lse, 2e-5)


def test_strides():
    q, k, v = tensors(q=20, kv=24)
    kernel = compiled()
    wanted = Reference(q, k, v).out
    for turn in (lambda x: np.ascontiguousarray(x.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3),
                 lambda x: np.ascontiguousarray(x[..., ::-1])[..., ::-1],
                 lambda x: np.repeat(x, 2, axis=2)[:, :, ::2]):
        close(kernel.forward(turn(q), turn(k), turn(v))[0], wanted)
    one = np.broadcast_to(k[:1], k.shape)
    close(kernel.forward(q, one, v)[0], Reference(q, one, v).out)
    out = np.zeros((2, 20, 4, 8), np.float32)
    kernel.forward(q, k, v, out=out.transpose(0, 2, 1, 3))
    close(out.transpose(0, 2, 1, 3), wanted)


def test_read_only():
    q, k, v = tensors()
    for array in (q, k, v):
        array.flags.writeable = False
    out, _ = compiled().forward(q, k, v)
    close(out, Reference(q, k, v).out)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="o: is read-only"):
        compiled().forward(q, k, v, out=out)


def test_half():
    q, k, v = (x.astype(np.float16) for x in tensors())
    out, lse = compiled(dtype=np.float16).forward(q, k, v)
    assert out.dtype == np.float16 and lse.dtype == np.float32
    close(out, Reference(q, k, v).out, 2e-3)


def test_plan_serves_many_calls():
    kernel = compiled("score * gain", mask_mod="doc[q_idx] == doc[kv_idx]",
                      buffers={"doc": "i32[KV_LEN]"}, params={"gain": 1.0})
    q, k, v = tensors(q=29)
    doc = (np.arange(29) // 10).astype(np.int32)
    plan = kernel.plan(q, k, v, {"doc": doc}, params={"gain": 0.5}, scale=0.25)
    for seed in range(3):
        q, k, v = tensors(seed, q=29)
        close(plan.forward(q, k, v, {"doc": doc})[0],
              Reference(q, k, v, "score * 0.5", "doc[q_idx] == doc[kv_idx]", {"doc": doc}, scale=0.25).out)
    doc[:] = np.arange(29) // 7
    plan.update({"doc": doc})
    close(plan.forward(q, k, v, {"doc": doc})[0],
          Reference(q, k, v, "score * 0.5", "doc[q_idx] == doc[kv_idx]", {"doc": doc}, scale=0.25).out)


def test_shard():
    q, k, v = tensors(q=16, kv=16)
    whole = compiled("score - 0.1 * (q_idx - kv_idx)", mask_mod="q_idx >= kv_idx")
    wanted, _ = whole.forward(q, k, v)
    out, _ = whole.forward(np.ascontiguousarray(q[:, :, 8:]), k, v, q_offset=8, global_q_len=16)
    close(out, wanted[:, :, 8:])


def test_some_of_the_heads():
    q, k, v = (np.concatenate([a, a[:, ::-1] * 0.5], 1) for a in tensors())
    heads, kv_heads = q.shape[1], k.shape[1]
    slopes = np.linspace(0.1, 0.9, heads, dtype=np.float32)
    text, buffers = "score + slopes[h] * (kv_idx - q_idx) / H", {"slopes": "f32[H]"}
    wanted, _ = compiled(text, buffers=buffers).forward(q, k, v, {"slopes": slopes})
    part = compiled(text, buffers=buffers, part_of_heads=True)
    q, k, v = (np.ascontiguousarray(a[:, a.shape[1] // 2:]) for a in (q, k, v))
    out, _ = part.forward(q, k, v, {"slopes": slopes}, head_offset=heads // 2, global_heads=heads,
                          global_kv_heads=kv_heads)
    close(out, wanted[:, heads // 2:])
    with pytest.raises(flexc.errors.InvalidOption, match="part_of_heads"):
        compiled(text, buffers=buffers).forward(q, k, v, {"slopes": slopes[:heads // 2]}, head_offset=1)


def test_batch_invariant():
    q, k, v = tensors(q=1, kv=3000, b=5)
    kernel = compiled(batch_invariant=True)
    out, lse = kernel.forward(q, k, v)
    for b in range(5):
        alone = kernel.forward(*(np.ascontiguousarray(a[b:b + 1]) for a in (q, k, v)))
        assert (alone[0] == out[b:b + 1]).all() and (alone[1] == lse[b:b + 1]).all()


@pytest.mark.parametrize("q_len, kv_len", [(37, 29), (2, 3000)])
def test_max_scores(q_len, kv_len):
    q, k, v = tensors(q=q_len, kv=kv_len)
    text, mask = "score - 0.01 * abs(q_idx - kv_idx)", "q_idx != 1"
    kernel = compiled(text, mask_mod=mask, max_scores=True, sink="9")
    out, lse, max_scores = kernel.forward(q, k, v)
    wanted = Reference(q, k, v, text, mask, sink="9")
    close(out, wanted.out)
    close(max_scores, wanted.modified.max(-1))
    given = np.empty_like(max_scores)
    assert kernel.forward(q, k, v, max_scores=given)[2] is given and (given == max_scores).all()
    with pytest.raises(flexc.Error, match="max_scores: expected shape"):
        kernel.forward(q, k, v, max_scores=given[0])
    with pytest.raises(flexc.Error, match="set CompileOptions::max_scores"):
        compiled().forward(q, k, v, max_scores=given)


@pytest.mark.parametrize("q_len", [1, 37])
def test_int8_keys(q_len):
    q, k, v = tensors(q=q_len)
    scales = np.abs(k).max(axis=(2, 3)) / 127, np.abs(v).max(axis=(0, 2, 3)) / 127
    k_int, v_int = (np.round(array / scale.reshape(-1, 2, 1, 1)).astype(np.int8)
                    for array, scale in zip((k, v), scales))
    out, _ = compiled("score", kv_dtype="i8").forward(q, k_int, v_int, k_scale=scales[0].astype(np.float32),
                                                      v_scale=scales[1].astype(np.float32))
    close(out, Reference(q, k_int * scales[0].reshape(-1, 2, 1, 1), v_int * scales[1].reshape(-1, 2, 1, 1)).out)
    with pytest.raises(flexc.Error, match="k_scale: expected shape"):
        compiled("score", kv_dtype="i8").forward(q, k_int, v_int, k_scale=np.ones(3, np.float32))
    with pytest.raises(flexc.Error, match="set kv_dtype"):
        compiled("score").forward(q, k, v, k_scale=np.ones(2, np.float32))


def test_arguments():
    q, k, v = tensors()
    kernel = compiled("score + bias[kv_idx]", buffers={"bias": "f32[KV_LEN]"})
    with pytest.raises(flexc.errors.InvalidOption, match="bias"):
        kernel.forward(q, k, v)
    with pytest.raises(flexc.errors.InvalidOption, match="no buffer bais"):
        kernel.forward(q, k, v, {"bais": np.zeros(29, np.float32)})
    with pytest.raises(flexc.Error, match="bias"):
        kernel.forward(q, k, v, {"bias": np.zeros(28, np.float32)})
    with pytest.raises(flexc.errors.InvalidOption, match="buffers are a dict"):
        compiled().forward(q, k, v, q)
    with pytest.raises(TypeError, match="__dlpack__"):
        kernel.forward(q, k, v, {"bias": [0.0] * 29})
    with pytest.raises(TypeError, match="elements must be"):
        kernel.forward(q, k, v, {"bias": np.zeros(29, np.complex64)})
    with pytest.raises(TypeError, match="byte order"):
        kernel.forward(q, k, v, {"bias": np.zeros(29, ">f4")})
    with pytest.raises(flexc.Error):
        kernel.forward(q.astype(np.float64), k, v, {"bias": np.zeros(29, np.float32)})
    with pytest.raises(flexc.errors.InvalidOption, match="4 dims"):
        kernel.forward(q[0], k, v, {"bias": np.zeros(29, np.float32)})


class Exported:
    """An array that only DLPack shows, as libraries without a function table have it."""

    def __init__(self, array, versions):
        self.array, self.shape, self.dtype, self.versions = array, array.shape, array.dtype, versions
        self.exports = 0

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, **given):
        if not self.versions and "max_version" in given:
            raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
        self.exports += 1
        try:
            return self.array.__dlpack__(**given)
        except TypeError:
            return self.array.__dlpack__()


@pytest.mark.parametrize("versions", [False, True])
def test_dlpack(versions):
    q, k, v = tensors()
    q, k, v = (Exported(x, versions) for x in (q, k, v))
    out, lse = np.empty((2, 4, 37, 8), np.float32), np.empty((2, 4, 37), np.float32)
    compiled().forward(q, k, v, out=out, lse=lse)
    close(out, Reference(q.array, k.array, v.array).out)
    assert q.exports == k.exports == v.exports == 1
