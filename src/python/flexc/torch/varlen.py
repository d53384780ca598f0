"""flex_attention of packed documents, by FlashAttention's cu_seqlens."""
import torch
from torch._subclasses import FakeTensor

from .. import errors
from ..layouts import QUERY_STARTS
from . import flex, graph

_LENGTHS_KEPT = 4  # of one program and sizes: a few batches whose backward is to come


def _prepare(query, key, value, lengths, most, start, score, mask, scale, needs_grad):
    """The _Call for these tensors and lengths, and the tensors of its buffers."""
    program = flex._program(score, mask)
    # One program for documents of any number and lengths.
    sizes = None, query.shape[1], key.shape[1], None, None
    numbers = (tuple(score[1].numbers) if score else (), tuple(mask[1].numbers) if mask else ())
    wants = flex._wishes(score, needs_grad)
    head_dim_v, device = value.shape[2], query.device
    rows = query.shape[0], key.shape[0]
    place = sizes, rows, most, start, numbers, wants, scale, query.dtype, query.shape[2], head_dim_v, device
    found = program.calls.get(place, ())
    for call, versions in found:
        if flex._are(versions, lengths):
            return call, flex._sources(call.text, score, mask)
    text = program.text(sizes, numbers, wants)
    core = flex._compile(text.text, flex._DTYPES[query.dtype], query.shape[2], head_dim_v, str(device), needs_grad,
                         "ragged")
    tensors = flex._sources(text, score, mask)
    moved = tuple(flex._moved(tensor, device) for tensor in tensors)
    options = {"scale": scale, "params": flex._params(text, numbers), "query_start": QUERY_STARTS[start],
               "forward": (query.detach(), key.detach(), value.detach(), None, None)}
    plan = core.plan((-1, *sizes[1:3], *most), text.names, text.grads, moved, flex._stream(device), options,
                     {"cu_seqlens_q": lengths[0], "cu_seqlens_k": lengths[1]})
    # Rows of no document are 0.
    call = flex._Call(text, core, plan, head_dim_v, torch.empty if plan.rows == rows else torch.zeros)
    versions = flex._versions(lengths)
    if versions is not None:
        program.calls.put(place, [(call, versions), *found[:_LENGTHS_KEPT - 1]])
    return call, tensors


def flex_attention_varlen(query, key, value, cu_seqlens_q, cu_seqlens_k, score_mod=None, mask_mod=None, scale=None,
                          enable_gqa=False, return_lse=False, *, query_start="zero", q_len=None, kv_len=None):
    """flex_attention within each document of packed tensors, with gradients: no key of another document is visible.

    query is [TOTAL_Q, H, D], key and value [TOTAL_K, H_KV, D]; document b has the rows from cu_seqlens_q[b] to
    cu_seqlens_q[b + 1], and likewise its keys. In mods b is the document, and q_idx and kv_idx count within it.

    cu_seqlens_q and cu_seqlens_k are tensors of int32, or of int64 on the CPU. On a GPU they are not read by the host,
    which then is told the most that a document may have, q_len and kv_len. With query_start='end' the queries of a
    document end with its keys. Plans are kept as long as the same tensors come again, as for the layers of a model.
    """
    flex._check(query, key, value, enable_gqa, "tokens, heads, head dim")
    if query_start not in QUERY_STARTS:
        raise errors.InvalidOption(f"query_start is one of {', '.join(QUERY_STARTS)}, not {query_start!r}")
    for name, given in (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)):
        if not isinstance(given, torch.Tensor):
            raise errors.InvalidOption(f"{name}: a tensor of integers is wanted, not {type(given)}")
    scale = None if scale is None else float(scale)
    documents = cu_seqlens_q, cu_seqlens_k, query_start, q_len, kv_len
    arguments = query, key, value, score_mod, mask_mod, scale, documents
    if flex._is_compiling():
        in_graph = not flex._is_dynamo() or flex._fits_dynamo(query, value)
        out, lse = graph.attend(*arguments) if in_graph else _outside(*arguments)
    elif flex._is_traced() or type(query) is FakeTensor:
        out, lse = graph.attend(*arguments)
    else:
        out, lse = _attend(*arguments, return_lse)
    return (out, lse) if return_lse else out


def _attend(query, key, value, score_mod, mask_mod, scale, documents, wants_lse=True):
    cu_seqlens_q, cu_seqlens_k, query_start, q_len, kv_len = documents
    device = query.device
    score, mask = flex._traced(score_mod, True, device), flex._traced(mask_mod, False, device)
    needs_grad = torch.is_grad_enabled() and (
        query.requires_grad or key.requires_grad or value.requires_grad or
        (score is not None and any(tensor.requires_grad for tensor in score[1].tensors)))
    most = -1 if q_len is None else q_len, -1 if kv_len is None else kv_len
    call, tensors = _prepare(query, key, value, (cu_seqlens_q, cu_seqlens_k), most, query_start, score, mask, scale,
                             needs_grad)
    if needs_grad:
        return flex._Attention.apply(call, query, key, value, *tensors)
    return flex._forward(call, query, key, value, tensors, wants_lse)


_outside = torch.compiler.disable(_attend)
