"""flexc.torch against PyTorch in float64, whose own vmap evaluates the mods, and against its eager flex_attention."""
import functools
import gc
import math
import os
import threading
import warnings
import weakref

import pytest

import flexc
from conftest import Programs, seeds

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
try:
    from torch.nn.attention import flex_attention as theirs
except ImportError:
    pytest.skip("this PyTorch has no FlexAttention", allow_module_level=True)
from torch.overrides import TorchFunctionMode  # noqa: E402

from flexc.torch import (AuxRequest, and_masks, attention, create_block_mask, create_mask,  # noqa: E402
                         flex_attention, or_masks)
from flexc.torch import flex  # noqa: E402
from flexc.torch.captures import Captures  # noqa: E402


class Reads(TorchFunctionMode):
    """array[index] as an operator that vmap knows."""

    def __torch_function__(self, function, types, given=(), named=None):
        if function is torch.Tensor.__getitem__:
            index = given[1] if isinstance(given[1], tuple) else (given[1],)
            if any(isinstance(i, torch.Tensor) for i in index):
                own = [i if isinstance(i, torch.Tensor) else torch.tensor(i) for i in index]
                return torch.ops.aten.index(given[0], own)
        return function(*given, **(named or {}))


def over(mod, *dims):
    """The mod over whole axes of its last four arguments, and of its score if it has one."""
    lead = len(dims)
    for i in (3, 2, 1, 0):
        mod = torch.vmap(mod, in_dims=(0,) * lead + tuple(0 if i == j else None for j in range(4)))
    return mod


def scores(query, key, score_mod=None, mask_mod=None, scale=None):
    """What the softmax takes, -inf where nothing is visible."""
    score = query.double() @ key.double().transpose(-1, -2)
    score = score * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    index = [torch.arange(n, dtype=torch.int32) for n in score.shape]
    with Reads():
        if score_mod is not None:
            score = over(score_mod, 0)(score, *index).double()
        if mask_mod is not None:
            score = score.masked_fill(~over(mask_mod)(*index).expand(score.shape), -math.inf)
    return score


def wanted(query, key, value, score_mod=None, mask_mod=None, scale=None):
    groups = query.shape[1] // key.shape[1]
    key, value = (x.expand(query.shape[0], -1, -1, -1).repeat_interleave(groups, 1) for x in (key, value))
    score = scores(query, key, score_mod, mask_mod, scale)
    hidden = (score == -math.inf).all(-1, keepdim=True)
    weights = torch.softmax(score.masked_fill(hidden, 0), -1).masked_fill(hidden, 0)
    return weights @ value.double(), torch.logsumexp(score, -1)


def close(actual, expected, tolerance=2e-5):
    assert actual.shape == expected.shape
    size = max(1.0, expected.masked_fill(expected.isinf(), 0).abs().max().item())
    torch.testing.assert_close(actual.double(), expected.double(), atol=tolerance * size, rtol=0)


def tensors(b=2, h=4, h_kv=None, q=35, kv=35, d=16, dv=None, dtype=torch.float32, seed=0):
    random = torch.Generator().manual_seed(seed)
    shapes = (b, h, q, d), (b, h_kv or h, kv, d), (b, h_kv or h, kv, dv or d)
    return [torch.randn(shape, generator=random).to(dtype).requires_grad_() for shape in shapes]


def same(score_mod=None, mask_mod=None, captured=(), tolerance=5e-5, scale=None, **shape):
    """Forward, lse and all gradients are PyTorch's."""
    inputs = tensors(**shape)
    lengths = inputs[0].shape[2], inputs[1].shape[2]
    block_mask = None if mask_mod is None else create_block_mask(mask_mod, None, None, *lengths)
    out, lse = flex_attention(*inputs, score_mod, block_mask, scale, enable_gqa=True, return_lse=True)
    expected, expected_lse = wanted(*inputs, score_mod, mask_mod, scale)
    close(out, expected, tolerance)
    close(lse, expected_lse, tolerance)
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    finite = torch.isfinite(expected_lse)
    leaves = [*inputs, *captured]
    ours = torch.autograd.grad((out * weights).sum() + lse[finite].sum(), leaves, allow_unused=True)
    theirs_ = torch.autograd.grad((expected * weights).sum() + expected_lse[finite].sum(), leaves, allow_unused=True)
    for leaf, a, b in zip(leaves, ours, theirs_):
        assert a is not None and a.dtype == leaf.dtype
        close(a, torch.zeros_like(leaf) if b is None else b, tolerance)
    return out


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def window(size):
    def near(b, h, q_idx, kv_idx):
        return q_idx - kv_idx < size
    return near


SCALE_OF_MODULE = 0.5


class Learned(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(71, 4))
        self.cap = 3.0

    def mod(self, score, b, h, q_idx, kv_idx):
        return self.cap * torch.tanh(score / self.cap) + self.bias(h, q_idx - kv_idx)

    def bias(self, h, distance):
        return self.table[distance + 35, h]


def parameter(*shape):
    return torch.randn(shape, requires_grad=True)


def score_mods():
    slopes, table, pair, matrix = parameter(4), parameter(71, 4), parameter(35, 6), parameter(4, 35, 35)
    number, rows, doc = parameter(), torch.randn(35), torch.arange(35) // 9
    ends = torch.tensor([9, 15, 30])
    half = torch.randn(35).bfloat16().requires_grad_()
    return {
        "alibi": (lambda s, b, h, q, k: s + slopes[h] * (k - q), [slopes]),
        "softcap": (lambda s, b, h, q, k: 20 * torch.tanh(s / 20), []),
        "t5": (lambda s, b, h, q, k: s + table[torch.clamp(k - q, -8, 8) + 8, h], [table]),
        "negative index": (lambda s, b, h, q, k: s + table[k - q, h], [table]),
        "dense": (lambda s, b, h, q, k: s + matrix[h, q, k], [matrix]),
        "two reads": (lambda s, b, h, q, k: s + pair[q, 0] * pair[k, 1], [pair]),
        "dot": (lambda s, b, h, q, k: s + (pair[q] * pair[k]).sum(-1), [pair]),
        "chained": (lambda s, b, h, q, k: s + pair[q][2] + table[doc[q]][h], [pair, table]),
        "scalar": (lambda s, b, h, q, k: s * number, [number]),
        "view": (lambda s, b, h, q, k: s + matrix.transpose(-1, -2)[h, k, q] + rows[5:][k % 30], [matrix]),
        "where": (lambda s, b, h, q, k: torch.where(doc[q] == doc[k], s, -float("inf")), []),
        "where two": (lambda s, b, h, q, k: torch.where(h % 2 == 0, s * rows[q], s + 1), []),
        "minimum": (lambda s, b, h, q, k: torch.minimum(s, rows[k]) + torch.maximum(s, rows[q]), []),
        "functions": (lambda s, b, h, q, k: torch.sigmoid(s) + torch.exp(-s.abs()) + torch.log1p(s * s) + s.sin(), []),
        "gelu": (lambda s, b, h, q, k: torch.nn.functional.gelu(s) + torch.nn.functional.silu(s), []),
        "clamp": (lambda s, b, h, q, k: s.clamp(min=-0.5) + s.clamp(-1, 1), []),
        "power": (lambda s, b, h, q, k: s ** 2 + s.pow(3) + 2.0 ** (q - k).clamp(max=0), []),
        "integers": (lambda s, b, h, q, k: s + (q // 3 - k % 5) * 0.1 + ((q ^ k) & 7) * 0.1 + (q << 1), []),
        "cast": (lambda s, b, h, q, k: s + (q >= k).to(s.dtype) + (q - k).float() * 0.1 + rows[q].double(), []),
        "bfloat16 buffer": (lambda s, b, h, q, k: s + half[q], [half]),
        "score unused": (lambda s, b, h, q, k: rows[q] + slopes[h] * k, [slopes]),
        "constant tensor": (lambda s, b, h, q, k: s + torch.tensor(0.25) + torch.tensor([1.0, 2.0, 3.0, 4.0])[h], []),
        "stack": (lambda s, b, h, q, k: s + torch.stack([rows, rows * 2])[h % 2, q], []),
        "computed array": (lambda s, b, h, q, k: s + torch.exp(slopes)[h] * (rows * 2 + 1)[q], [slopes]),
        "mean": (lambda s, b, h, q, k: s + pair[q].mean() + pair.sum(0)[h], [pair]),
        "arange": (lambda s, b, h, q, k: s + torch.arange(4)[h] * 0.5, []),
        "new ones": (lambda s, b, h, q, k: s + torch.ones_like(s) + s.new_zeros(()), []),
        "isnan": (lambda s, b, h, q, k: torch.where(torch.isnan(s) | torch.isinf(s), 0.0, s), []),
        "logical": (lambda s, b, h, q, k: torch.where(torch.logical_and(q > k, ~(h == 1)), s, s * 0.5), []),
        "division": (lambda s, b, h, q, k: s + torch.div(q - k, 3, rounding_mode="floor") * 0.1
                     + torch.div(q - k, 3, rounding_mode="trunc") * 0.1 + (q - k) / 7 + torch.fmod(s, 2), []),
        "module number": (lambda s, b, h, q, k: s * SCALE_OF_MODULE, []),
        "norms": (lambda s, b, h, q, k: s - torch.linalg.norm(pair[q] - pair[k]) - (pair[q] - pair[k]).norm(p=1)
                  - (pair[q] - pair[k]).norm(p=math.inf), [pair]),
        "unpacked": (lambda s, b, h, q, k: s + unpacked(pair[q], table[k]), [pair, table]),
        "flipped": (lambda s, b, h, q, k: s + table.flip(0)[q, h] + pair.flip((0, 1))[k, h], [table, pair]),
        "largest": (lambda s, b, h, q, k: s + pair[q].max() - pair[k].min(), [pair]),
        "searched": (lambda s, b, h, q, k: s + slopes[torch.searchsorted(ends, q, right=True)]
                     + slopes[torch.bucketize(k, ends)], [slopes]),
        "is in": (lambda s, b, h, q, k: torch.where(torch.isin(k, ends), s * 0.5, s + torch.isin(q, ends, invert=True)),
                  []),
        "lerp": (lambda s, b, h, q, k: torch.lerp(s, s * s, 0.3) + torch.addcmul(s, s, s, value=0.1)
                 + torch.addcdiv(s, s, 1 + s * s, value=0.5) + torch.xlogy(s * s, 1 + s * s), []),
        "finite": (lambda s, b, h, q, k: s + torch.nan_to_num(rows[q] / (k - q), nan=1.0, posinf=2.0, neginf=-3.0), []),
    }


def unpacked(row, other):
    x, y, *_ = row
    first, second = other.chunk(2)
    return x * y + first.sum() - second.prod() + row.split([1, 5])[1].sum()


functional = torch.nn.functional
ACTIVATIONS = {
    "celu": functional.celu, "celu 2": lambda x: functional.celu(x, 2.0), "elu": functional.elu,
    "elu 0.5": lambda x: functional.elu(x, 0.5), "hardshrink": lambda x: functional.hardshrink(x, 0.3),
    "hardsigmoid": lambda x: functional.hardsigmoid(2 * x), "hardswish": lambda x: functional.hardswish(2 * x),
    "hardtanh": functional.hardtanh, "hardtanh 3": lambda x: functional.hardtanh(4 * x, -2.0, 3.0),
    "leaky_relu": lambda x: functional.leaky_relu(x, 0.2), "logsigmoid": functional.logsigmoid,
    "mish": functional.mish, "relu6": lambda x: functional.relu6(5 * x), "selu": functional.selu,
    "softplus": functional.softplus, "softplus 2": lambda x: functional.softplus(x, 2.0, 1.0),
    "softshrink": lambda x: functional.softshrink(x, 0.3), "softsign": functional.softsign,
    "tanhshrink": functional.tanhshrink, "threshold": lambda x: functional.threshold(x, 0.1, -2.0),
}


@pytest.mark.parametrize("name", list(ACTIVATIONS))
def test_activation(name):
    same(lambda s, b, h, q, k: ACTIVATIONS[name](s), q=19, kv=19)


def test_modules():
    """A mod may call modules of PyTorch, whose weights are found though no code of the mod names them."""
    torch.manual_seed(0)
    made = [torch.nn.Sequential(torch.nn.Linear(2, 6), torch.nn.Tanh(), torch.nn.Linear(6, 4)) for _ in range(2)]
    bias = torch.nn.Embedding(69, 4, padding_idx=36)

    def mod_of(layers):
        def mod(score, b, h, q, k):
            return score + layers(torch.stack([q * 0.1, k * 0.1]))[h] + bias(q - k + 34)[h]
        return mod
    for layers in made:
        same(mod_of(layers), captured=[*layers.parameters(), bias.weight])
    with torch.no_grad():
        for layers in made:
            layers[0].weight.mul_(2)
    same(mod_of(made[0]), captured=[*made[0].parameters(), bias.weight])

    class Owner(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.slopes = torch.nn.ParameterList([torch.nn.Parameter(torch.randn(4)) for _ in range(2)])
            self.layers = torch.nn.ModuleList([torch.nn.Linear(4, 4)])

        def mod(self, score, b, h, q, k):
            return score + self.slopes[1][h] * (k - q)

        def unseen(self, score, b, h, q, k):
            return score + self.layers[0].weight[h, h]
    owner = Owner()
    same(owner.mod, captured=[owner.slopes[1]])
    with pytest.raises(flexc.errors.CannotTrace, match="does not follow"):
        flex_attention(*tensors(), owner.unseen)


@pytest.mark.parametrize("name", list(score_mods()))
def test_score_mod(name):
    torch.manual_seed(0)
    score_mod, captured = score_mods()[name]
    same(score_mod, captured=captured, tolerance=2e-4)


@pytest.mark.parametrize("name", list(score_mods()))
def test_score_mod_under_a_mask(name):
    torch.manual_seed(0)
    score_mod, captured = score_mods()[name]
    same(score_mod, and_masks(causal, or_masks(window(9), lambda b, h, q, k: k < 3)), captured, 2e-4)


def test_detached_read():
    table = parameter(4)
    same(lambda s, b, h, q, k: s + table[h] * table.detach()[h], captured=[table], tolerance=1e-4)
    with pytest.raises(flexc.errors.CannotTrace, match="depends on the score"):
        same(lambda s, b, h, q, k: s * s.detach())


def test_masks():
    doc = torch.tensor([0] * 10 + [1] * 9 + [2] * 16)
    offsets = torch.tensor([0, 10, 19])
    lengths = torch.tensor([20, 31])

    def of_documents(b, h, q_idx, kv_idx):
        inner = causal(b, h, q_idx - offsets[doc[q_idx]], kv_idx - offsets[doc[kv_idx]])
        return (doc[q_idx] == doc[kv_idx]) & inner
    for mask in (causal, window(4), of_documents, lambda b, h, q, k: k < lengths[b],
                 lambda b, h, q, k: (q + k + h) % 2 == 0, lambda b, h, q, k: (q > 3) & (k < q - 3)):
        same(None, mask)


def test_shapes():
    same(h=6, h_kv=2, mask_mod=causal)
    same(q=1, kv=50)
    same(q=70, kv=3, mask_mod=causal)
    same(d=20, dv=8)
    same(scale=0.3)
    query, key, value = tensors(b=1)
    query = torch.randn(3, 4, 35, 16)
    close(flex_attention(query, key, value), wanted(query, key, value)[0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half(dtype):
    slopes = parameter(4)
    same(lambda s, b, h, q, k: s + slopes[h] * (k - q), causal, [slopes], tolerance=2e-2, dtype=dtype)


def test_strides():
    query, key, value = (torch.randn(2, 35, 4, 16).transpose(1, 2) for _ in range(3))
    out = flex_attention(query, key, value)
    close(out, wanted(query, key, value)[0])
    assert out.stride() == query.stride()
    close(flex_attention(query[..., ::2], key[..., ::2], value), wanted(query[..., ::2], key[..., ::2], value)[0])
    leaf = torch.randn(2, 35, 4, 16, requires_grad=True)
    flex_attention(leaf.transpose(1, 2), key, value).sum().backward()
    mirror = leaf.detach().clone().requires_grad_()
    wanted(mirror.transpose(1, 2), key, value)[0].sum().backward()
    close(leaf.grad, mirror.grad)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_strides_on_a_gpu():
    """One kernel with tensors that TMA can walk and others, in any order."""
    wide = [torch.randn(2, 4, 100, 67, device="cuda", dtype=torch.float16, requires_grad=True) for _ in range(3)]
    bias = torch.randn(100, 101, device="cuda", requires_grad=True)
    kernel = flexc.compile("score", dtype="f16", head_dim=64, device="cuda")
    program = "buffer bias: f32[Q_LEN, KV_LEN] grad\nscore + bias[q_idx, kv_idx]"
    results = []
    for cut in (lambda x, n: x[..., :n].contiguous(), lambda x, n: x[..., :n]) * 2:
        inputs, own = [cut(x, 64) for x in wide], cut(bias, 100)
        outs = [flex_attention(*inputs), flex_attention(*inputs, lambda s, b, h, q, k: s + own[q, k]),
                attention(*inputs, program, {"bias": own})]
        gradients = [torch.autograd.grad(out.sum(), [*wide, bias], allow_unused=True, retain_graph=True)
                     for out in outs]
        given = [x.detach() for x in inputs]
        out, lse = kernel.forward(*given)
        plain = kernel.backward(*given, out, lse, torch.ones_like(out[..., :1]).expand(out.shape))
        results.append([*outs, out, *plain[:3], *[x for each in gradients for x in each if x is not None]])
    for result in results[1:]:
        for a, b in zip(results[0], result):
            torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-2)


def test_methods_and_partials():
    module = Learned()
    same(module.mod, captured=[module.table], tolerance=1e-4)
    module.cap = 1.5
    same(module.mod, captured=[module.table], tolerance=1e-4)
    module.table = torch.nn.Parameter(torch.randn(71, 4))
    same(module.mod, captured=[module.table], tolerance=1e-4)
    slopes = parameter(4)

    def general(score, b, h, q, k, gain, bias):
        return score * gain + bias[h]
    same(functools.partial(general, gain=0.5, bias=slopes), captured=[slopes])
    same(functools.partial(general, gain=0.25, bias=slopes), captured=[slopes])

    class Callable:
        def __init__(self, gain):
            self.gain = gain

        def __call__(self, score, b, h, q, k):
            return score * self.gain
    same(Callable(2.0))
    same(Callable(3.0))


@pytest.mark.parametrize("seed", seeds(20))
def test_random_programs(seed):
    programs = Programs(seed)
    score, mask = programs.real(4), programs.mask(1)
    random = torch.Generator().manual_seed(seed)
    names = {"slopes": torch.randn(2, generator=random).requires_grad_(),
             "bias": torch.randn(40, generator=random).requires_grad_(),
             "table": torch.randn(2, 5, generator=random).requires_grad_(),
             "doc": torch.randint(0, 3, (40,), generator=random), "cap": 1.5, "window": 6}

    def number(x):
        return x if isinstance(x, torch.Tensor) else torch.tensor(x)
    functions = {"tanh": lambda x: torch.tanh(number(x)), "sigmoid": lambda x: torch.sigmoid(number(x)),
                 "abs": lambda x: torch.abs(number(x)), "sin": lambda x: torch.sin(number(x)),
                 "sqrt": lambda x: torch.sqrt(number(x)), "min": lambda x, y: torch.minimum(number(x), number(y)),
                 "max": lambda x, y: torch.maximum(number(x), number(y)), "where": torch.where,
                 "softplus": lambda x: torch.nn.functional.softplus(number(x))}
    space = {**functions, **names}
    score_mod = eval(f"lambda score, b, h, q_idx, kv_idx: {score}", space)
    mask_mod = eval(f"lambda b, h, q_idx, kv_idx: torch.as_tensor({mask})", {**space, "torch": torch})
    captured = [x for x in names.values() if isinstance(x, torch.Tensor) and x.requires_grad]
    inputs = tensors(b=1, h=2, h_kv=1, q=19, kv=33, seed=seed)
    block_mask = create_block_mask(mask_mod, None, None, 19, 33)
    out = flex_attention(*inputs, score_mod, block_mask, enable_gqa=True)
    expected, _ = wanted(*inputs, score_mod, mask_mod)
    close(out, expected, 5e-5)
    leaves = [*inputs, *captured]
    ours = torch.autograd.grad(out.square().sum(), leaves, allow_unused=True)
    other = torch.autograd.grad(expected.square().sum(), leaves, allow_unused=True)
    for leaf, a, b in zip(leaves, ours, other):
        close(torch.zeros_like(leaf) if a is None else a, torch.zeros_like(leaf) if b is None else b, 5e-4)


def test_eager_flex_attention():
    query, key, value = (x.detach() for x in tensors())
    slopes = torch.randn(4)

    def alibi(score, b, h, q_idx, kv_idx):
        return score + slopes[h] * (kv_idx - q_idx)
    block_mask = theirs.create_block_mask(and_masks(causal, window(7)), None, None, 35, 35, device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected, expected_lse = theirs.flex_attention(query, key, value, alibi, block_mask, return_lse=True)
    for mask in (block_mask, create_block_mask(and_masks(causal, window(7)), None, None, 35, 35)):
        out, lse = flex_attention(query, key, value, alibi, mask, return_lse=True)
        close(out, expected)
        close(lse, expected_lse)


def test_lists_of_blocks_are_kept():
    """PyTorch's BlockMask may hide more than its mask_mod."""
    query, key, value = (x.detach() for x in tensors(q=64, kv=64))
    counts, indices = torch.tensor([[[1, 2]]], dtype=torch.int32), torch.tensor([[[[1, 0], [0, 1]]]], dtype=torch.int32)
    block_mask = theirs.BlockMask.from_kv_blocks(counts, indices, BLOCK_SIZE=32, mask_mod=causal)
    shown = torch.tensor([[False, True], [True, True]]).repeat_interleave(32, 0).repeat_interleave(32, 1)
    expected = wanted(query, key, value, None, lambda b, h, q, k: shown[q, k] & (q >= k))[0]
    close(flex_attention(query, key, value, block_mask=block_mask), expected)


def test_blocks_of_pages_without_keys():
    counts = torch.tensor([[[2, 2]]], dtype=torch.int32)
    indices = torch.tensor([[[[-1, 0], [0, 1]]]], dtype=torch.int32)
    block_mask = theirs.BlockMask.from_kv_blocks(counts, indices.clamp(min=0), BLOCK_SIZE=32)
    block_mask.kv_indices = indices
    query, key, value = (x.detach() for x in tensors(q=64, kv=64))
    expected = wanted(query, key, value, None, lambda b, h, q, k: (q // 32 == 1) | (k // 32 == 0))[0]
    close(flex_attention(query, key, value, block_mask=block_mask), expected)


def test_no_mask_of_pytorch_fits_every_length():
    query, key, value = (x.detach() for x in tensors(q=64, kv=50))
    block_mask = theirs._create_empty_block_mask(query, key)
    close(flex_attention(query, key, value, block_mask=block_mask), wanted(query, key, value)[0])


def test_block_mask():
    block_mask = create_block_mask(causal, None, None, 300, 300)
    assert block_mask.to_dense()[0, 0].tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert abs(block_mask.sparsity() - 100 / 3) < 1e-4 and block_mask.shape == (1, 1, 300, 300)
    elements = create_mask(causal, None, None, 3, 3)[0, 0]
    assert elements.tolist() == [[True, False, False], [True, True, False], [True] * 3]
    shown = create_mask(lambda s, b, h, q, k: torch.where(q >= k, s, -math.inf), None, None, 3, 3)[0, 0]
    assert shown.tolist() == elements.tolist()
    with pytest.raises(ValueError, match="300 queries"):
        flex_attention(*tensors(), block_mask=block_mask)
    with pytest.raises(RuntimeError, match="callable"):
        and_masks(causal, 3)


def test_lists_of_blocks():
    """What asks a BlockMask for its blocks has PyTorch's."""
    starts = torch.tensor([0, 130])

    def mask_mod(b, h, q_idx, kv_idx):
        return (q_idx >= kv_idx) & (kv_idx >= starts[b])
    ours = create_block_mask(mask_mod, 2, None, 300, 300)
    wanted_ = theirs.create_block_mask(mask_mod, 2, None, 300, 300, device="cpu")
    for name in ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "q_num_blocks", "full_q_indices"):
        assert torch.equal(getattr(ours, name), getattr(wanted_, name))
    assert ours.to_string() == wanted_.to_string() and ours.sparsity() == wanted_.sparsity()
    with pytest.raises(AttributeError, match="nothing"):
        ours.nothing
    made = type(ours).from_kv_blocks(ours.kv_num_blocks, ours.kv_indices, ours.full_kv_num_blocks,
                                     ours.full_kv_indices, mask_mod=mask_mod)
    assert torch.equal(made.to_dense(), ours.to_dense())


def test_a_row_of_blocks():
    """One query at a time, with the blocks that its row has, as programs for PyTorch generate text."""
    block_mask = create_block_mask(causal, 1, 1, 256, 256)
    query, key, value = (x.detach() for x in tensors(b=1, q=1, kv=256))
    for position in (3, 131):
        row = block_mask[:, :, torch.tensor([position]) // block_mask.BLOCK_SIZE[0]]
        place = torch.tensor(position)

        def mask_mod(b, h, q_idx, kv_idx):
            return q_idx + place >= kv_idx
        row.mask_mod, row.seq_lengths = mask_mod, (1, 256)
        close(flex_attention(query, key, value, block_mask=row), wanted(query, key, value, None, mask_mod)[0])


def test_aux():
    query, key, value = (x.detach() for x in tensors())
    out, aux = flex_attention(query, key, value, return_aux=AuxRequest(lse=True))
    close(aux.lse, wanted(query, key, value)[1])
    assert aux.max_scores is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_max_scores(dtype):
    slopes = parameter(4)

    def mod(score, b, h, q, k):
        return score + slopes[h] * (k - q)

    def mask(b, h, q, k):
        return (q > k) & (q != 7)  # whole rows are hidden
    inputs = tensors(dtype=dtype)
    block_mask = create_block_mask(mask, None, None, 35, 35)
    out, aux = flex_attention(*inputs, mod, block_mask, return_aux=AuxRequest(lse=True, max_scores=True))
    close(aux.max_scores, scores(*inputs[:2], mod, mask).amax(-1))
    assert aux.max_scores.dtype == torch.float32 and not aux.max_scores.requires_grad
    assert (aux.max_scores[:, :, 0] == -math.inf).all() and (aux.max_scores <= aux.lse).all()
    # Beside them all is as without.
    alone, lse = flex_attention(*inputs, mod, block_mask, return_lse=True)
    assert torch.equal(out, alone) and torch.equal(aux.lse, lse)
    for a, b in zip(*(torch.autograd.grad(x.sum(), [*inputs, slopes]) for x in (out, alone))):
        assert torch.equal(a, b)
    request = getattr(theirs, "AuxRequest", AuxRequest)(max_scores=True)
    only = flex_attention(*inputs, mod, block_mask, return_aux=request)[1]
    assert only.lse is None and torch.equal(only.max_scores, aux.max_scores)


def kernels_made():
    return flexc.cache.statistics()["misses"] + flexc.cache.statistics()["disk_hits"]


def test_numbers_and_lengths_never_recompile():
    def run(cap, size, bias, length):
        inputs = [x.detach() for x in tensors(q=length, kv=length)]

        def capped(score, b, h, q, k):
            return cap * torch.tanh(score / cap) + bias[q]
        out = flex_attention(*inputs, capped, create_block_mask(window(size), None, None, length, length))
        close(out, wanted(*inputs, capped, window(size))[0])
    run(1.0, 5, torch.randn(50), 40)
    before = kernels_made()
    for cap, size, length in ((2.0, 7, 33), (0.5, 20, 64), (30.0, 64, 64)):
        run(cap, size, torch.randn(length + 9), length)
    assert kernels_made() == before


def test_what_changes_is_seen():
    query, key, value = (x.detach() for x in tensors())
    gain, table = 2.0, torch.randn(4)
    captured = [1.0]
    named = {"bias": torch.randn(4)}

    def mod(score, b, h, q, k):
        return score * gain + table[h] + captured[0] + named["bias"][h] * SCALE_OF_MODULE

    def check():
        close(flex_attention(query, key, value, mod), wanted(query, key, value, mod)[0])
    check()
    gain = 3.0
    check()
    table = torch.randn(4)
    check()
    table += 1
    check()
    captured[0] = 5.0
    check()
    named["bias"] = torch.randn(4)
    check()
    global SCALE_OF_MODULE
    SCALE_OF_MODULE = 0.75
    check()
    SCALE_OF_MODULE = 0.5
    doc = torch.zeros(35, dtype=torch.int64)
    block_mask = create_block_mask(lambda b, h, q, k: doc[q] == doc[k], None, None, 35, 35)
    for _ in range(2):
        close(flex_attention(query, key, value, block_mask=block_mask),
              wanted(query, key, value, None, block_mask.mask_mod)[0])
        doc[17:] = 1
    decides = 1

    def branches(score, b, h, q, k):
        return score * 2 if decides > 1 else score * 3
    close(flex_attention(query, key, value, branches), wanted(query, key, value, branches)[0])
    decides = 2
    close(flex_attention(query, key, value, branches), wanted(query, key, value, branches)[0])


def check_mod(inputs, mod):
    """Twice: a function that is made anew is known by its pattern first, then by its identity."""
    expected = wanted(*inputs, mod)[0]
    for _ in range(3):
        close(flex_attention(*inputs, mod), expected)


def test_functions_made_anew(monkeypatch):
    """Those with the code of an earlier one are not walked, and what they capture is theirs."""
    inputs = [x.detach() for x in tensors()]
    walked = []
    monkeypatch.setattr(flex, "Captures", lambda function: walked.append(function) or Captures(function))

    def make(gain, first, second, owner=None):
        def mod(score, b, h, q, k):
            bias = first[h] + 2 * second[h]
            return score * gain + (bias if owner is None else bias * owner.table[0, h])
        return mod
    tables = [torch.randn(4) for _ in range(4)]
    check_mod(inputs, make(2.0, *tables[:2]))
    walked.clear()
    for i in range(1, 4):
        mod = make(float(i), tables[i], tables[i - 1])
        close(flex_attention(*inputs, mod), wanted(*inputs, mod)[0])
        assert not walked
        check_mod(inputs, mod)
        assert walked == [mod]
        walked.clear()
    # Where what differs may be another program, it is.
    for given in [(3, *tables[:2]), (2.0, tables[0], tables[0]), (2.0, *tables[:2]),
                  (2.0, tables[0].double(), tables[1]), (2.0, torch.randn(7), tables[1]),
                  (2.0, torch.randn(4, 3)[:, 1], tables[1]), (2.0, *tables[:2], Learned()),
                  (2.0, *tables[2:], Learned())]:
        check_mod(inputs, make(*given))


def test_a_new_function_that_decides_by_a_number():
    inputs = [x.detach() for x in tensors()]

    def make(count):
        def mod(score, b, h, q, k):
            return score * 2 if count > 1 else score * 3
        return mod
    for count in (1, 1, 2, 1, 2, 3):
        mod = make(count)
        close(flex_attention(*inputs, mod), wanted(*inputs, mod)[0])


def test_new_functions_of_one_object():
    """As those of a module's forward: what the object has is read anew, and it may go."""
    inputs = [x.detach() for x in tensors()]

    def make(module):
        return lambda score, b, h, q, k: module.cap * torch.tanh(score / module.cap) + module.table[q, h]
    module = Learned()
    for change in (lambda: None, lambda: None, lambda: setattr(module, "cap", 1.5),
                   lambda: setattr(module, "table", torch.nn.Parameter(torch.randn(71, 4)))):
        change()
        mod = make(module)
        close(flex_attention(*inputs, mod), wanted(*inputs, mod)[0])
    gone = weakref.ref(module.table)
    module = mod = None
    gc.collect()
    assert gone() is None


def test_captured_tensors_may_go():
    inputs = [x.detach() for x in tensors()]
    for _ in range(3):
        table = torch.randn(4)
        close(flex_attention(*inputs, lambda s, b, h, q, k: s + table[h]),
              wanted(*inputs, lambda s, b, h, q, k: s + table[h])[0])
    gone = weakref.ref(table)
    table = None
    gc.collect()
    assert gone() is None


def test_methods_are_known_again(monkeypatch):
    inputs = [x.detach() for x in tensors()]

    class Owner:
        def __init__(self):
            self.table = torch.randn(4)

        def mod(self, score, b, h, q, k):
            return score + self.table[h]

        def mask(self, b, h, q, k):
            return q >= k
    owners = [Owner(), Owner()]
    for owner in owners * 2:
        check_mod(inputs, owner.mod)
    monkeypatch.setattr(flex, "Captures", None)  # nothing walks
    for owner in owners * 2:
        check_mod(inputs, owner.mod)
    monkeypatch.undo()
    owners[0].table = torch.randn(4)
    check_mod(inputs, owners[0].mod)
    block_mask = create_block_mask(owners[0].mask, None, None, 35, 35)
    for _ in range(2):
        close(flex_attention(*inputs, owners[0].mod, block_mask), wanted(*inputs, owners[0].mod, owners[0].mask)[0])
    gone = weakref.ref(owners[0]), weakref.ref(owners[0].table)
    block_mask = None
    del owner, owners
    gc.collect()
    assert gone[0]() is None and gone[1]() is None


def test_recorded_again():
    """Calls with and without gradients, of the same functions and shapes, in any order."""
    inputs, slopes = tensors(), parameter(4)

    def mod(score, b, h, q, k):
        return score + slopes[h] * (k - q)

    def check():
        leaves = [x for x in (*inputs, slopes) if x.requires_grad]
        expected = wanted(*inputs, mod)
        for return_lse in (False, True, False):
            result = flex_attention(*inputs, mod, return_lse=return_lse)
            out = result[0] if return_lse else result
            close(out, expected[0])
            assert out.requires_grad == bool(leaves)
            with torch.no_grad():
                assert not flex_attention(*inputs, mod).requires_grad
            if leaves:
                d_out = torch.randn_like(out)
                for a, b in zip(torch.autograd.grad(out, leaves, d_out),
                                torch.autograd.grad(expected[0], leaves, d_out.double(), retain_graph=True)):
                    close(a, b, 1e-4)
    check()
    slopes.requires_grad_(False)
    check()
    for x in inputs:
        x.requires_grad_(False)
    check()
    slopes.requires_grad_(True)
    check()
    inputs[1].requires_grad_(True)
    check()


def test_refusals_name_the_operator_and_the_line():
    inputs = tensors()

    def with_atan(score, b, h, q, k):
        shifted = score + 1
        return torch.atan(shifted)  # this line
    with pytest.raises(flexc.errors.CannotTrace) as caught:
        flex_attention(*inputs, with_atan)
    assert "aten.atan" in str(caught.value) and "# this line" in str(caught.value)
    assert os.path.basename(__file__) in str(caught.value)
    with pytest.raises(flexc.errors.CannotTrace, match="returns a tensor, not str"):
        flex_attention(*inputs, lambda s, b, h, q, k: "no")
    with pytest.raises(ValueError, match="enable_gqa"):
        flex_attention(*tensors(h=4, h_kv=2))
    with pytest.raises(flexc.errors.Unsupported, match="float64"):
        flex_attention(*tensors(dtype=torch.float64))
    with pytest.raises(ValueError, match="one type"):
        flex_attention(inputs[0].half(), *inputs[1:])
    with pytest.raises(NotImplementedError, match="4D"):
        flex_attention(inputs[0][0], *inputs[1:])
    learned = parameter(35)
    with pytest.raises(NameError):
        flex_attention(*inputs, lambda s, b, h, q, k: s + not_there)  # noqa: F821
    # A mask's captured tensor gets no gradient.
    out = flex_attention(*inputs, block_mask=create_block_mask(lambda b, h, q, k: learned[q] > 0, None, None, 35, 35))
    out.sum().backward()
    assert learned.grad is None


def test_refusals_of_calls():
    query, key, value = (x.detach() for x in tensors())
    for call in (flex_attention, attention):
        with pytest.raises(flexc.errors.InvalidOption, match="tensors of PyTorch"):
            call(query.numpy(), key, value)
        for transform in (torch.vmap, lambda f: torch.func.grad(lambda x: f(x).sum())):
            with pytest.raises(flexc.errors.Unsupported, match="torch.func"):
                transform(lambda x: call(x, key, value))(torch.stack([query, query]))
    with pytest.raises(flexc.errors.CannotTrace, match="cannot decide by the value(.|\n)*score if h > 0 else"):
        flex_attention(query, key, value, lambda score, b, h, q, k: score if h > 0 else -score)
    with pytest.raises(TypeError, match="score_mod is a function, not str"):
        flex_attention(query, key, value, "score * 2")
    for given in ({}, {"slope": key}):
        with pytest.raises(flexc.errors.InvalidOption, match="the program has the buffers slopes, not"):
            attention(query, key, value, "buffer slopes: f32[H]\nscore * slopes[h]", given)


def test_no_second_derivative():
    query, key, value = tensors()
    (first,) = torch.autograd.grad(flex_attention(query, key, value).square().sum(), query, create_graph=True)
    with pytest.raises(RuntimeError):
        first.sum().backward()


def test_threads():
    slopes = torch.randn(4)
    inputs = [x.detach() for x in tensors()]
    problems = []

    # PyTorch's vmap in the reference is not for many threads at once.
    expected = {}
    for gain in (1.0, 2.0, 3.0, 4.0):
        expected[gain] = wanted(*inputs, lambda s, b, h, q, k: s * gain + slopes[h])[0]

    def compare(gain):
        def mod(score, b, h, q, k):
            return score * gain + slopes[h]
        try:
            for _ in range(20):
                close(flex_attention(*inputs, mod), expected[gain])
        except BaseException as problem:
            problems.append(problem)
    threads = [threading.Thread(target=compare, args=(gain,)) for gain in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems


def test_memory_stays():
    inputs = tensors(q=16, kv=16)

    def resident():
        gc.collect()
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")

    def once(i):
        slopes = torch.full((4,), float(i), requires_grad=True)

        def mod(score, b, h, q, k):
            return score + slopes[h] * i
        flex_attention(*inputs, mod).sum().backward()
    for i in range(1200):
        once(i)
    before = resident()
    for i in range(3000):
        once(i)
    assert resident() - before < 8 << 20


def test_operator():
    inputs = tensors()
    slopes = parameter(4)
    program = "buffer slopes: f32[H] grad\nparam cap: f32\ncap * tanh(score / cap) + slopes[h] * (kv_idx - q_idx)"

    def mod(score, b, h, q, k):
        return 3.0 * torch.tanh(score / 3.0) + slopes[h] * (k - q)
    out = attention(*inputs, program, {"slopes": slopes}, {"cap": 3.0})
    expected, _ = wanted(*inputs, mod)
    close(out, expected)
    for a, b in zip(torch.autograd.grad(out.square().sum(), [*inputs, slopes]),
                    torch.autograd.grad(expected.square().sum(), [*inputs, slopes])):
        close(a, b, 1e-4)
    torch.library.opcheck(torch.ops.flexc.attention.default,
                          (*inputs, [slopes], program, "cap=3.0", None, True))


def test_operator_under_compile():
    inputs = tensors()
    slopes = parameter(4)
    program = "buffer slopes: f32[H] grad\nscore + slopes[h] * (kv_idx - q_idx)"

    def step(query, key, value, slopes):
        return attention(query * 2, key, value, program, {"slopes": slopes}).square()
    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    out, expected = compiled(*inputs, slopes), step(*inputs, slopes)
    close(out, expected)
    for a, b in zip(torch.autograd.grad(out.sum(), [*inputs, slopes]),
                    torch.autograd.grad(expected.sum(), [*inputs, slopes])):
        close(a, b)


def test_flex_attention_under_compile():
    inputs = tensors()
    slopes = parameter(4)

    @functools.partial(torch.compile, backend="eager")
    def step(query, key, value):
        return flex_attention(query * 2, key, value, lambda s, b, h, q, k: s + slopes[h]).square()
    query, key, value = inputs
    close(step(*inputs), wanted(query * 2, key, value, lambda s, b, h, q, k: s + slopes[h])[0].square())
