"""flex_attention in graphs, whole: under torch.compile, torch.export and make_fx, beside PyTorch in float64."""
import functools

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
try:
    from torch.nn.attention import flex_attention as theirs
except ImportError:
    pytest.skip("this PyTorch has no FlexAttention", allow_module_level=True)
from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402
from torch._subclasses import FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

import flexc  # noqa: E402
from flexc.torch import AuxRequest, attention, create_block_mask, flex_attention  # noqa: E402
from test_torch import Learned, causal, close, parameter, tensors, wanted, window  # noqa: E402

VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])
OPERATOR = "flexc.attention.default"


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


def whole(step, *inputs, backend="aot_eager", **options):
    return torch.compile(step, backend=backend, fullgraph=True, **options)(*inputs)


def same(score_mod=None, mask_mod=None, captured=(), step=None, tolerance=1e-4, backend="aot_eager", **shape):
    """What a compiled function computes around one call, forward and gradients, is PyTorch's."""
    inputs = tensors(**shape)
    lengths = inputs[0].shape[2], inputs[1].shape[2]

    def around(query, key, value):
        block_mask = None if mask_mod is None else create_block_mask(mask_mod, None, None, *lengths)
        return flex_attention(query * 2, key, value, score_mod, block_mask, enable_gqa=True).sin()
    out = whole(step or around, *inputs, backend=backend)
    expected = wanted(inputs[0] * 2, *inputs[1:], score_mod, mask_mod)[0].sin()
    close(out, expected, tolerance)
    leaves = [*inputs, *captured]
    for a, b in zip(torch.autograd.grad(out.square().sum(), leaves),
                    torch.autograd.grad(expected.square().sum(), leaves)):
        close(a, b, tolerance)


def general(score, b, h, q, k, gain, bias):
    return score * gain + bias[h]


def mods():
    slopes, table, pair, doc = parameter(4), parameter(71, 4), parameter(35, 6), torch.arange(35) // 9
    module, cap, scalar = Learned(), 3.0, parameter()
    return {
        "nothing": (None, None, []),
        "closure": (lambda s, b, h, q, k: s + slopes[h] * (k - q), None, [slopes]),
        "mask": (None, causal, []),
        "generated mask": (None, window(7), []),
        "captured in the mask": (None, lambda b, h, q, k: doc[q] == doc[k], []),
        "both": (lambda s, b, h, q, k: s + table[k - q + 35, h], causal, [table]),
        "method": (module.mod, causal, [module.table]),
        "partial": (functools.partial(general, gain=0.5, bias=slopes), None, [slopes]),
        "number": (lambda s, b, h, q, k: cap * torch.tanh(s / cap), None, []),
        "scalar": (lambda s, b, h, q, k: s * scalar, None, [scalar]),
        "two reads, rows": (lambda s, b, h, q, k: s + (pair[q] * pair[k]).sum(-1), None, [pair]),
        "slice": (lambda s, b, h, q, k: s + table[3:][k % 5][h], None, [table]),
        "detached": (lambda s, b, h, q, k: s + slopes[h] * slopes.detach()[h], None, [slopes]),
        "constant tensor": (lambda s, b, h, q, k: s + torch.tensor([1.0, 2.0, 3.0, 4.0])[h], None, []),
    }


@pytest.mark.parametrize("name", list(mods()))
def test_mods(name):
    torch.manual_seed(0)
    score_mod, mask_mod, captured = mods()[name]
    if name == "detached":
        # PyTorch's vmap has no detach of its own: the gradient is that of the other read.
        inputs, fixed = tensors(), captured[0].detach()
        out = whole(lambda q, k, v: flex_attention(q, k, v, score_mod), *inputs)
        expected = wanted(*inputs, lambda s, b, h, q, k: s + captured[0][h] * fixed[h])[0]
        close(torch.autograd.grad(out.square().sum(), captured)[0],
              torch.autograd.grad(expected.square().sum(), captured)[0], 1e-4)
        return
    same(score_mod, mask_mod, captured)


@pytest.mark.parametrize("name", ["closure", "both"])
def test_mods_with_the_eager_backend(name):
    torch.manual_seed(0)
    same(*mods()[name], backend="eager")


def test_inductor():
    torch.manual_seed(0)
    same(*mods()["both"], backend="inductor")


def test_tensors_computed_in_the_function():
    table = parameter(71, 4)

    def step(query, key, value):
        warped = torch.exp(table)

        def mod(score, b, h, q, k):
            return score + warped[k - q + 35, h]
        return flex_attention(query * 2, key, value, mod).sin()
    same(lambda s, b, h, q, k: s + torch.exp(table)[k - q + 35, h], captured=[table], step=step)


def test_shapes():
    slopes = parameter(4)

    def alibi(score, b, h, q, k):
        return score + slopes[h] * (k - q)
    same(alibi, causal, [slopes], h=4, h_kv=2)
    same(alibi, None, [slopes], q=1, kv=50)
    if VERSION >= (2, 7):
        same(alibi, causal, [slopes], d=16, dv=8)


def test_older_dynamo_breaks_the_graph_for_other_head_dims():
    inputs = tensors(d=16, dv=8)
    compiled = torch.compile(flex_attention, backend="aot_eager")
    close(compiled(*inputs), wanted(*inputs)[0])


def test_lists_of_blocks():
    counts, indices = torch.tensor([[[1, 2]]], dtype=torch.int32), torch.tensor([[[[1, 0], [0, 1]]]], dtype=torch.int32)
    block_mask = theirs.BlockMask.from_kv_blocks(counts, indices, BLOCK_SIZE=32, mask_mod=causal)
    inputs = tensors(q=64, kv=64)
    out = whole(lambda q, k, v: flex_attention(q, k, v, block_mask=block_mask), *inputs)
    close(out, flex_attention(*inputs, block_mask=block_mask))


def test_returns():
    inputs = tensors()
    out, lse = whole(functools.partial(flex_attention, return_lse=True), *inputs)
    expected, expected_lse = wanted(*inputs)
    close(out, expected)
    close(lse, expected_lse)
    close(whole(lambda q, k, v: flex_attention(q, k, v, return_aux=AuxRequest(lse=True))[1].lse, *inputs), expected_lse)
    for a, b in zip(torch.autograd.grad(lse.sum(), inputs[:2]), torch.autograd.grad(expected_lse.sum(), inputs[:2])):
        close(a, b, 1e-4)


def test_max_scores():
    slopes, inputs = parameter(4), tensors()

    def alibi(score, b, h, q, k):
        return score + slopes[h] * (k - q)

    def step(q, k, v):
        out, aux = flex_attention(q, k, v, alibi, return_aux=AuxRequest(max_scores=True))
        return out, aux.max_scores
    results, expected = whole(step, *inputs) if VERSION >= (2, 7) else torch.compile(step)(*inputs), step(*inputs)
    for a, b in zip(results, expected):
        close(a, b)
    assert not results[1].requires_grad
    for a, b in zip(*(torch.autograd.grad(out.sum(), [*inputs, slopes]) for out, _ in (results, expected))):
        close(a, b, 1e-4)
    traced = make_fx(step)(*inputs)
    assert "attention_with_max_scores" in traced.code
    close(traced(*inputs)[1], expected[1])


def test_without_gradients():
    table = parameter(71, 4)
    inputs = tensors()

    def mod(score, b, h, q, k):
        return score + table[k - q + 35, h]
    with torch.no_grad():
        out = whole(lambda q, k, v: flex_attention(q, k, v, mod), *inputs)
    assert not out.requires_grad
    close(out, wanted(*inputs, mod)[0])


def test_what_changes_is_seen():
    table, cap = torch.randn(4), 2.0
    inputs = [x.detach() for x in tensors()]

    def mod(score, b, h, q, k):
        return score * cap + table[h]
    compiled = torch.compile(lambda q, k, v: flex_attention(q, k, v, mod), backend="aot_eager", fullgraph=True)
    close(compiled(*inputs), wanted(*inputs, mod)[0])
    table += 1
    close(compiled(*inputs), wanted(*inputs, mod)[0])
    cap = 3.0
    close(compiled(*inputs), wanted(*inputs, mod)[0])
    table = torch.randn(4)
    close(compiled(*inputs), wanted(*inputs, mod)[0])


def test_lengths_stay_open():
    slopes, counter = parameter(4), CompileCounterWithBackend("aot_eager")

    def step(query, key, value):
        length = query.shape[2]
        block_mask = create_block_mask(window(5), None, None, length, length)
        return flex_attention(query, key, value, lambda s, b, h, q, k: s + slopes[h] * (k - q), block_mask)
    compiled = torch.compile(step, backend=counter, fullgraph=True, dynamic=True)
    for length in (35, 40, 64, 71):
        inputs = tensors(q=length, kv=length)
        close(compiled(*inputs), wanted(*inputs, lambda s, b, h, q, k: s + slopes[h] * (k - q), window(5))[0])
    assert counter.frame_count == 1


def test_integers_stay_open():
    counter = CompileCounterWithBackend("aot_eager")
    inputs = [x.detach() for x in tensors()]
    compiled = torch.compile(lambda q, k, v, shift: flex_attention(q, k, v, lambda s, b, h, i, j: s * shift + i),
                             backend=counter, fullgraph=True, dynamic=True)
    for shift in (3, 4, 7):
        close(compiled(*inputs, shift), wanted(*inputs, lambda s, b, h, i, j: s * shift + i)[0], 1e-4)
    assert counter.frame_count == 1


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.learned, self.slopes = Learned(), torch.nn.Parameter(torch.randn(4))

    def forward(self, query, key, value):
        slopes = self.slopes * 2
        block_mask = create_block_mask(causal, None, None, 35, 35)
        once = flex_attention(query, key, value, self.learned.mod, block_mask)
        return flex_attention(once, key, value, lambda s, b, h, q, k: s + slopes[h] * (k - q))


@pytest.mark.parametrize("strict", [False, True])
def test_export(strict):
    model, inputs = Model(), tuple(x.detach() for x in tensors())
    program = torch.export.export(model, inputs, strict=strict)
    called = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert called.count(OPERATOR) == 2
    close(program.module()(*inputs), model(*inputs))


def test_make_fx():
    slopes, inputs = torch.randn(4), [x.detach() for x in tensors()]

    def mod(score, b, h, q, k):
        return score + slopes[h] * (k - q) * 2.5
    graph = make_fx(lambda *given: flex_attention(*given, mod, create_block_mask(causal, None, None, 35, 35)))(*inputs)
    assert OPERATOR in [str(node.target) for node in graph.graph.nodes]
    close(graph(*inputs), wanted(*inputs, mod, causal)[0])


def test_fake_tensors():
    with FakeTensorMode() as mode:
        fake = [torch.empty(2, 4, 35, 16) for _ in range(3)]
        assert flex_attention(*fake, lambda s, b, h, q, k: s * 2).shape == (2, 4, 35, 16)
    out = flex_attention(*fake, return_lse=True)
    assert out[1].shape == (2, 4, 35) and out[1].fake_mode is mode


def test_refusals():
    inputs = tensors()
    with pytest.raises(Exception, match="aten.atan"):
        whole(lambda q, k, v: flex_attention(q, k, v, lambda s, b, h, i, j: torch.atan(s)), *inputs)
    with pytest.raises(Exception, match="float64|errors.Unsupported"):
        whole(flex_attention, *tensors(dtype=torch.float64))


def test_operator_takes_buffers_with_sizes_of_their_own():
    table, doc, inputs = parameter(71, 4), torch.arange(35) // 9, tensors()
    program = """
    buffer table: f32[N, H] grad
    buffer doc: i64[M]
    score_mod = score + table[kv_idx - q_idx + 35, h]
    mask_mod = doc[q_idx] == doc[kv_idx]
    """

    def compare():
        out = attention(*inputs, program, {"table": table, "doc": doc})
        expected = wanted(*inputs, lambda s, b, h, q, k: s + table[k - q + 35, h],
                          lambda b, h, q, k: doc[q] == doc[k])[0]
        close(out, expected)
        close(torch.autograd.grad(out.square().sum(), table)[0],
              torch.autograd.grad(expected.square().sum(), table)[0], 1e-4)
    compare()
    doc[5:] = 1  # in place: the mask is read anew
    compare()
    assert flexc.check(program).buffers[0][2] == ("N", "H")
