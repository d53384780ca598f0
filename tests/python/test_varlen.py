"""flex_attention_varlen beside flex_attention of each document, and PyTorch's mods in float64."""
import math

import numpy as np
import pytest

import flexc

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402
from torch._subclasses import FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from flexc.torch import create_block_mask, flex_attention, flex_attention_varlen  # noqa: E402
from flexc.torch import varlen  # noqa: E402
from flexc.torch.on_device import Plans  # noqa: E402

VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])

Q_LENS, KV_LENS = [7, 1, 0, 40, 16], [7, 3, 5, 33, 16]


def cu(lengths):
    return torch.tensor(np.concatenate([[0], np.cumsum(lengths)]), dtype=torch.int32)


def packed(seed=0, kv_heads=2, dtype=torch.float64, dv=16):
    torch.manual_seed(seed)
    return [torch.randn(rows, heads, dim, dtype=dtype) for rows, heads, dim in
            ((sum(Q_LENS), 4, 16), (sum(KV_LENS), kv_heads, 16), (sum(KV_LENS), kv_heads, dv))]


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def by_definition(q, k, v, score_mod, mask_mod, starts=None):
    """Documents one after the other, with the mods as functions of whole tensors of indices."""
    outs, lses = [], []
    group = q.shape[1] // k.shape[1]
    for b, (q_end, k_end) in enumerate(zip(np.cumsum(Q_LENS), np.cumsum(KV_LENS))):
        q_b, k_b, v_b = q[q_end - Q_LENS[b]:q_end], k[k_end - KV_LENS[b]:k_end], v[k_end - KV_LENS[b]:k_end]
        k_b, v_b = (x.repeat_interleave(group, 1) for x in (k_b, v_b))
        h, rows, keys = (torch.arange(n) for n in (q.shape[1], Q_LENS[b], KV_LENS[b]))
        h, rows, keys = h[:, None, None], rows[:, None] + (starts[b] if starts else 0), keys[None]
        score = torch.einsum("qhd,khd->hqk", q_b, k_b) / math.sqrt(q.shape[2])
        score = score_mod(score, b, h, rows, keys)
        score = score.masked_fill(~mask_mod(b, h, rows, keys).expand(score.shape), -math.inf)
        hidden = (score == -math.inf).all(-1, keepdim=True)
        weights = torch.softmax(score.masked_fill(hidden, 0), -1).masked_fill(hidden, 0)
        outs.append(torch.einsum("hqk,khd->qhd", weights, v_b))
        lses.append(torch.logsumexp(score, -1).T)
    return torch.cat(outs), torch.cat(lses)


@pytest.mark.parametrize("kv_heads, dv", [(4, 16), (2, 16), (1, 24)])
def test_gradients(kv_heads, dv):
    tensors = packed(kv_heads, kv_heads, dv=dv)
    learned = [torch.randn(4, dtype=torch.float64), torch.randn(5, dtype=torch.float64),
               torch.randn(40, dtype=torch.float64)]
    d_out, d_lse = torch.randn(sum(Q_LENS), 4, dv), torch.randn(sum(Q_LENS), 4)

    def run(dtype, attention):
        leaves = [x.to(dtype).detach().requires_grad_() for x in (*tensors, *learned)]
        q, k, v, slopes, gain, bias = leaves

        def score_mod(score, b, h, q_idx, kv_idx):
            return score * gain[b] + slopes[h] * (kv_idx - q_idx) + bias[kv_idx]
        out, lse = attention(q, k, v, score_mod)
        visible = lse != -math.inf
        loss = (out * d_out.to(dtype)).sum() + (lse[visible] * d_lse.to(dtype)[visible]).sum()
        return out, lse, torch.autograd.grad(loss, leaves)
    ours = run(torch.float32, lambda q, k, v, mod: flex_attention_varlen(
        q, k, v, cu(Q_LENS), cu(KV_LENS), mod, causal, enable_gqa=True, return_lse=True))
    wanted = run(torch.float64, lambda q, k, v, mod: by_definition(q, k, v, mod, causal))
    for a, b in zip((*ours[:2], *ours[2]), (*wanted[:2], *wanted[2])):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-4)


def test_as_documents_apart():
    q, k, v = packed(kv_heads=4, dtype=torch.float32)
    out = flex_attention_varlen(q, k, v, cu(Q_LENS), cu(KV_LENS), mask_mod=causal)
    rows, keys = np.cumsum(Q_LENS), np.cumsum(KV_LENS)
    for b in (0, 1, 3, 4):
        apart = [x[end - n:end].transpose(0, 1)[None] for x, end, n in
                 ((q, rows[b], Q_LENS[b]), (k, keys[b], KV_LENS[b]), (v, keys[b], KV_LENS[b]))]
        mask = create_block_mask(causal, None, None, Q_LENS[b], KV_LENS[b])
        torch.testing.assert_close(out[rows[b] - Q_LENS[b]:rows[b]],
                                   flex_attention(*apart, block_mask=mask)[0].transpose(0, 1))


def test_queries_end_with_keys():
    tensors = packed(kv_heads=4)
    starts = [kv - q for q, kv in zip(Q_LENS, KV_LENS)]
    wanted, _ = by_definition(*tensors, lambda score, b, h, q_idx, kv_idx: score, causal, starts)
    out = flex_attention_varlen(*(x.float() for x in tensors), cu(Q_LENS), cu(KV_LENS), mask_mod=causal,
                                query_start="end")
    torch.testing.assert_close(out.double(), wanted, rtol=1e-4, atol=1e-4)


def test_other_documents_before_the_backward():
    """Each backward has the documents of its forward, though the plans are of one program and the same sizes."""
    q, k, v = (torch.randn(12, 2, 16, requires_grad=True) for _ in range(3))
    pairs = [torch.tensor(lengths, dtype=torch.int32) for lengths in ([0, 4, 12], [0, 9, 12], [0, 4, 12])]
    outs = [flex_attention_varlen(q, k, v, ends, ends, mask_mod=causal) for ends in pairs]
    gradients = [torch.autograd.grad(out.square().sum(), (q, k, v)) for out in outs]
    assert all(torch.equal(a, b) for a, b in zip(gradients[0], gradients[2]))
    assert not torch.allclose(gradients[0][0], gradients[1][0])
    ends = pairs[0]
    first = flex_attention_varlen(q, k, v, ends, ends, mask_mod=causal)
    ends[1] = 9  # the same tensor, changed where it is
    assert torch.equal(first, outs[0])
    assert torch.equal(flex_attention_varlen(q, k, v, ends, ends, mask_mod=causal), outs[1])


class Gpu:
    """Stands for the state of a GPU's stream: these tests need none."""

    def __init__(self, monkeypatch):
        self.cuda_stream, self.is_capturing = 1, False
        monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: self)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self.is_capturing)


class FakePlan:
    def __init__(self):
        self.updates = []

    def update_lengths(self, lengths, pages, stream):
        self.updates.append((lengths, stream))


def test_plans_of_streams_and_graphs(monkeypatch):
    gpu, plans, made = Gpu(monkeypatch), Plans(), []

    def get(place, lengths):
        return plans.get(place, lengths, None, lambda: made.append(FakePlan()) or made[-1])
    first = get("a", 1)
    assert get("a", 2) is first and first.updates == [(2, 1)]
    assert get("b", 3) is not first and len(made) == 2
    gpu.cuda_stream = 2
    second = get("a", 4)
    assert second is not first and not second.updates
    gpu.cuda_stream, gpu.is_capturing = 3, True
    graph = get("a", 5)
    assert graph in (first, second) and graph.updates[-1] == (5, 3) and len(made) == 3
    assert get("a", 6) is graph and graph.updates[-1] == (6, 3)
    with pytest.raises(flexc.errors.InvalidOption, match="once before the capture"):
        get("c", 7)
    # Calls that are not captured leave the graph's plan alone.
    gpu.is_capturing = False
    for stream in (1, 2, 3):
        gpu.cuda_stream = stream
        assert get("a", 8) is not graph
    assert graph.updates[-1] == (6, 3)


def test_lengths_that_calls_read_anew(monkeypatch):
    """As lengths of a GPU are: one plan serves all, and each backward tells it the lengths of its forward."""
    Gpu(monkeypatch)
    monkeypatch.setattr(varlen, "_are_on_device", lambda lengths: True)
    made = []
    make = varlen._Maker.make
    monkeypatch.setattr(varlen._Maker, "make", lambda *given: made.append(given) or make(*given))
    q, k, v = (torch.randn(12, 2, 16, requires_grad=True) for _ in range(3))
    bias = torch.randn(12, requires_grad=True)

    def step(ends):
        return flex_attention_varlen(q, k, v, ends, ends, lambda s, b, h, i, j: s + bias[j], causal, q_len=12,
                                     kv_len=12)
    pairs = [torch.tensor(lengths, dtype=torch.int32) for lengths in ([0, 4, 12], [0, 9, 12], [0, 4, 8])]
    outs = [step(ends) for ends in pairs]
    assert len(made) == 1
    gradients = [torch.autograd.grad(out.square().sum(), (q, k, v, bias)) for out in outs]
    monkeypatch.undo()
    for ends, out, gradient in zip(pairs, outs, gradients):
        expected = step(ends)
        torch.testing.assert_close(out, expected)
        for a, b in zip(gradient, torch.autograd.grad(expected.square().sum(), (q, k, v, bias))):
            torch.testing.assert_close(a, b)
    monkeypatch.setattr(varlen, "_are_on_device", lambda lengths: True)
    Gpu(monkeypatch)
    out = step(pairs[0])
    pairs[0][1] = 5
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_graph_reads_lengths_at_each_replay():
    tensors = [torch.randn(24, 2, 64, device="cuda", dtype=torch.float16, requires_grad=True) for _ in range(3)]
    d_out = torch.randn_like(tensors[0])
    ends = torch.tensor([0, 4, 24], dtype=torch.int32, device="cuda")

    def step(q, k, v):
        out = flex_attention_varlen(q, k, v, ends, ends, mask_mod=causal, q_len=24, kv_len=24)
        return out, torch.autograd.grad(out, (q, k, v), d_out)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step(*tensors)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step(*tensors)
    for lengths in ([0, 9, 24], [0, 24, 24], [0, 1, 20]):
        ends.copy_(torch.tensor(lengths, dtype=torch.int32))
        graph.replay()
        out, gradients = step(*tensors)
        for a, b in zip((results[0], *results[1]), (out, *gradients)):
            torch.testing.assert_close(a, b)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_strides_on_a_gpu():
    """One program with tensors that TMA can walk and others, in any order."""
    ends = torch.tensor([0, 9, 24], dtype=torch.int32, device="cuda")
    wide = [torch.randn(24, 2, 67, device="cuda", dtype=torch.float16, requires_grad=True) for _ in range(3)]
    results = []
    for cut in (lambda x: x[..., :64].contiguous(), lambda x: x[..., :64]) * 2:
        out = flex_attention_varlen(*map(cut, wide), ends, ends, mask_mod=causal, q_len=24, kv_len=24)
        results.append((out, *torch.autograd.grad(out.sum(), wide)))
    for result in results[1:]:
        for a, b in zip(results[0], result):
            torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-2)


def test_rows_of_no_document():
    q, k, v = (torch.randn(12, 2, 16, requires_grad=True) for _ in range(3))
    ends = torch.tensor([0, 4, 9])
    out, lse = flex_attention_varlen(q, k, v, ends, ends, return_lse=True)
    assert (out[9:] == 0).all() and (lse[9:] == 0).all()
    for gradient in torch.autograd.grad(out.sum() + lse[:9].sum(), (q, k, v)):
        assert (gradient[9:] == 0).all() and gradient[:9].abs().sum() > 0


def test_errors():
    q, k, v = (torch.randn(12, 2, 16) for _ in range(3))
    ends = torch.tensor([0, 4, 12], dtype=torch.int32)
    with pytest.raises(NotImplementedError, match="must be 3D"):
        flex_attention_varlen(q[None], k, v, ends, ends)
    with pytest.raises(flexc.errors.InvalidOption, match="cu_seqlens_k: a tensor of integers is wanted"):
        flex_attention_varlen(q, k, v, ends, [0, 4, 12])
    with pytest.raises(flexc.errors.InvalidOption, match="cu_seqlens_k: expected integers"):
        flex_attention_varlen(q, k, v, ends, ends.float())
    with pytest.raises(flexc.errors.InvalidOption, match=r"cu_seqlens_q\[2\] is 3"):
        flex_attention_varlen(q, k, v, torch.tensor([0, 4, 3]), ends)
    with pytest.raises(flexc.errors.InvalidOption, match="cu_seqlens_k: expected 3 numbers, got 2"):
        flex_attention_varlen(q, k, v, ends, ends[:2])
    with pytest.raises(flexc.errors.InvalidOption, match="q_len allows 4"):
        flex_attention_varlen(q, k, v, ends, ends, q_len=4)
    with pytest.raises(flexc.errors.InvalidOption, match="q: "):
        flex_attention_varlen(q[:11], k, v, ends, ends)
    with pytest.raises(flexc.errors.InvalidOption, match="query_start is one of"):
        flex_attention_varlen(q, k, v, ends, ends, query_start="begin")
    with pytest.raises(ValueError, match="enable_gqa"):
        flex_attention_varlen(q, k[:, :1], v[:, :1], ends, ends)


@pytest.fixture
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


def same_gradients(step, compiled, leaves, *lengths):
    """What both compute of these lengths, forward and gradients, is the same."""
    d_out = torch.randn(12, 2, 16)
    results = []
    for function in (step, compiled):
        out, lse = function(*leaves, *lengths)
        results.append((out, lse, *torch.autograd.grad((out * d_out).sum() + lse.sum(), leaves)))
    for a, b in zip(*results):
        torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-4)


def lengths_of(*ends):
    return torch.tensor(ends, dtype=torch.int32)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_one_operator_of_any_lengths(fresh, backend):
    """Lengths are tensors of the graph: others are read, and compile nothing."""
    leaves = [torch.randn(shape, requires_grad=True) for shape in [(12, 2, 16)] * 3 + [(2,), (25,)]]
    counter = CompileCounterWithBackend(backend)

    def step(q, k, v, slopes, bias, ends):
        def mod(score, b, h, q_idx, kv_idx):
            return score + slopes[h] * (kv_idx - q_idx) + bias[q_idx - kv_idx + 12]
        out, lse = flex_attention_varlen(q * 2, k, v, ends, ends, mod, causal, return_lse=True)
        return out.sin(), lse
    compiled = torch.compile(step, backend=counter, fullgraph=True)
    for ends in (lengths_of(0, 4, 12), lengths_of(0, 9, 12), lengths_of(0, 12, 12), lengths_of(0, 4, 12)):
        same_gradients(step, compiled, leaves, ends)
    ends[1] = 7  # the same tensor, changed where it is
    same_gradients(step, compiled, leaves, ends)
    assert counter.frame_count == 1


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_each_backward_of_a_graph_has_its_own_lengths(fresh, backend):
    q, k, v = (torch.randn(12, 2, 16, requires_grad=True) for _ in range(3))

    def step(ends):
        return flex_attention_varlen(q, k, v, ends, ends, mask_mod=causal)
    compiled = torch.compile(step, backend=backend, fullgraph=True)
    pairs = [lengths_of(0, 4, 12), lengths_of(0, 9, 12)]
    of_graph, eager = ([function(ends) for ends in pairs] for function in (compiled, step))
    for a, b in zip(of_graph, eager):
        for x, y in zip(*(torch.autograd.grad(out.square().sum(), (q, k, v)) for out in (a, b))):
            torch.testing.assert_close(x, y)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_lengths_computed_in_the_graph(fresh, backend):
    """A backend may use their memory again for others."""
    q, k, v = (torch.randn(12, 2, 16) for _ in range(3))

    def step(q, k, v, lengths):
        ends = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
        once = flex_attention_varlen(q, k, v, ends, ends, mask_mod=causal)
        ends = ends + torch.tensor([0, 1, 0], dtype=torch.int32)
        return flex_attention_varlen(once, k, v, ends, ends, mask_mod=causal)
    compiled = torch.compile(step, backend=backend, fullgraph=True)
    for lengths in ([4, 8], [9, 3]):
        torch.testing.assert_close(compiled(q, k, v, torch.tensor(lengths)), step(q, k, v, torch.tensor(lengths)))


def test_sizes_stay_open(fresh):
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(flex_attention_varlen, backend=counter, fullgraph=True, dynamic=True)
    for ends in (lengths_of(0, 4, 12), lengths_of(0, 9, 12, 30), lengths_of(0, 5, 5, 6, 17)):
        q, k, v = (torch.randn(int(ends[-1]), 2, 16) for _ in range(3))
        for given in ({}, {"mask_mod": causal, "query_start": "end", "q_len": int(ends[-1])}):
            torch.testing.assert_close(compiled(q, k, v, ends, ends, **given),
                                       flex_attention_varlen(q, k, v, ends, ends, **given))
    assert counter.frame_count == 2


def test_rows_of_no_document_in_a_graph(fresh):
    q, k, v = (torch.randn(12, 2, 16, requires_grad=True) for _ in range(3))
    compiled = torch.compile(flex_attention_varlen, backend="aot_eager", fullgraph=True)
    for end in (12, 9):
        ends = lengths_of(0, 4, end)
        out, lse = compiled(q, k, v, ends, ends, return_lse=True)
        assert (out[end:] == 0).all() and (lse[end:] == 0).all()
        for gradient in torch.autograd.grad(out.sum() + lse[:9].sum(), (q, k, v)):
            assert (gradient[end:] == 0).all() and gradient[:end].abs().sum() > 0


@pytest.mark.parametrize("kv_heads, dv", [(2, 16), (1, 24)])
def test_other_shapes_in_a_graph(fresh, kv_heads, dv):
    q, k, v = packed(kv_heads=kv_heads, dtype=torch.float32, dv=dv)

    def step(q, k, v, *ends):
        return flex_attention_varlen(q, k, v, *ends, mask_mod=causal, enable_gqa=True, return_lse=True)
    compiled = torch.compile(step, backend="aot_eager", fullgraph=VERSION >= (2, 7) or dv == 16)
    for a, b in zip(compiled(q, k, v, cu(Q_LENS), cu(KV_LENS)), step(q, k, v, cu(Q_LENS), cu(KV_LENS))):
        torch.testing.assert_close(a, b)


def test_errors_of_a_graph(fresh):
    q, k, v = (torch.randn(12, 2, 16) for _ in range(3))
    compiled = torch.compile(flex_attention_varlen, backend="aot_eager", fullgraph=True)
    with pytest.raises(flexc.errors.InvalidOption, match=r"cu_seqlens_q\[2\] is 3"):
        compiled(q, k, v, lengths_of(0, 4, 3), lengths_of(0, 4, 12))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.slopes = torch.nn.Parameter(torch.randn(2))

    def forward(self, q, k, v, ends):
        return flex_attention_varlen(q, k, v, ends, ends, lambda s, b, h, i, j: s + self.slopes[h] * (j - i), causal)


@pytest.mark.parametrize("trace", ["strict", "not strict", "make_fx"])
def test_traced(fresh, trace):
    model, ends = Model(), lengths_of(0, 4, 12)
    inputs = [torch.randn(12, 2, 16) for _ in range(3)]
    if trace == "make_fx":
        module = graph = make_fx(model)(*inputs, ends)
    else:
        program = torch.export.export(model, (*inputs, ends), strict=trace == "strict")
        module, graph = program.module(), program
    called = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
    assert called.count("flexc.attention_varlen.default") == 1
    for ends in (ends, lengths_of(0, 9, 12)):
        torch.testing.assert_close(module(*inputs, ends), model(*inputs, ends))


def test_fake_tensors():
    with FakeTensorMode():
        q, k, v = torch.empty(12, 4, 16), torch.empty(9, 2, 16), torch.empty(9, 2, 24)
        ends = torch.empty(3, dtype=torch.int32)
        out, lse = flex_attention_varlen(q, k, v, ends, ends, enable_gqa=True, return_lse=True)
    assert out.shape == (12, 4, 24) and lse.shape == (12, 4) and lse.dtype == torch.float32
