"""flex_attention_varlen beside flex_attention of each document, and PyTorch's mods in float64."""
import math

import numpy as np
import pytest

import flexc

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from flexc.torch import create_block_mask, flex_attention, flex_attention_varlen  # noqa: E402

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


def test_in_a_compiled_function():
    """It is a break in the graph."""
    q, k, v = (torch.randn(12, 2, 16, requires_grad=True) for _ in range(3))
    ends = torch.tensor([0, 4, 12], dtype=torch.int32)

    def step(q, k, v):
        return flex_attention_varlen(q * 2, k, v, ends, ends, mask_mod=causal).sin()
    torch.testing.assert_close(torch.compile(step, backend="eager")(q, k, v), step(q, k, v))
    with pytest.raises(flexc.errors.CannotTrace, match="outside"):
        torch.fx.experimental.proxy_tensor.make_fx(step)(q, k, v)
