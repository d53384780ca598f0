"""flex_attention of packed documents, by FlashAttention's cu_seqlens."""
from typing import Any, Callable, Optional, Tuple, Union

import torch
from torch._subclasses import FakeTensor

from .. import errors
from ..layouts import QUERY_STARTS
from . import flex, graph
from .on_device import Plans

_LENGTHS_KEPT = 4  # of one program and sizes: a few batches whose backward is to come
_plans = Plans()


def _named(lengths):
    return {"cu_seqlens_q": lengths[0], "cu_seqlens_k": lengths[1]}


def _are_on_device(lengths):
    return lengths[0].device.type == "cuda"


class _Maker:
    """Makes plans for documents of one program and values."""

    def __init__(self, core, text, sizes, options):
        self._core, self._text, self._sizes, self._options = core, text, sizes, options

    def make(self, lengths, inputs, buffers):
        like = *(x.detach() for x in inputs), None, None
        return self._core.plan(self._sizes, self._text.names, self._text.grads, buffers,
                               flex._stream(inputs[0].device), {**self._options, "like": like}, _named(lengths))


class _CallOnDevice(flex._Call):
    """Of documents whose lengths are on a GPU: the forward and the backward of a call each tell a plan of them."""

    def __init__(self, place, maker, text, kernel, lengths, inputs, buffers):
        self._place, self._maker = place, maker
        super().__init__(text, kernel, self.plan_with(lengths, inputs, buffers), inputs[0], inputs[2].shape[-1],
                         torch.zeros_like)

    def plan_with(self, lengths, inputs, buffers):
        return _plans.get(self._place, _named(lengths), inputs[0].device,
                          lambda: self._maker.make(lengths, inputs, buffers))


def _prepare(query, key, value, lengths, most, start, score, mask, scale, needs_grad):
    """The _Call for these tensors and lengths, and the tensors of its buffers."""
    program = flex._program(score, mask)
    # One program for documents of any number and lengths.
    sizes = None, query.shape[1], key.shape[1], None, None
    numbers, wants = flex._numbers(score, mask), flex._wishes(score, needs_grad)
    head_dim_v, device = value.shape[2], query.device
    rows = query.shape[0], key.shape[0]
    place = sizes, rows, most, start, numbers, wants, scale, query.dtype, query.shape[2], head_dim_v, device
    on_device = _are_on_device(lengths)
    if on_device:
        place += on_device, lengths[0].shape
    if device.type == "cuda":
        place += flex._forms_of_call(query, key, value, score, mask)
    found = program.calls.get(place, ())
    for call, versions in found:
        if versions is None or flex._are(versions, lengths):
            return call, flex._sources(call.text, score, mask)
    text = program.text(sizes, numbers, wants)
    core = flex._compile(text.text, flex._DTYPES[query.dtype], query.shape[2], head_dim_v, str(device), needs_grad,
                         "ragged")
    tensors = flex._sources(text, score, mask)
    moved = tuple(flex._moved(tensor, device) for tensor in tensors)
    maker = _Maker(core, text, (-1, *sizes[1:3], *most), {
        "scale": scale, "params": flex._params(text, numbers), "query_start": QUERY_STARTS[start]})
    if on_device:
        call = _CallOnDevice((program, place), maker, text, core, lengths, (query, key, value), moved)
        program.calls.put(place, [(call, None)])
        return call, tensors
    plan = maker.make(lengths, (query, key, value), moved)
    # Rows of no document are 0.
    call = flex._Call(text, core, plan, query, head_dim_v, torch.empty_like if plan.rows == rows else torch.zeros_like)
    versions = flex._versions(lengths)
    if versions is not None:
        program.calls.put(place, [(call, versions), *found[:_LENGTHS_KEPT - 1]])
    return call, tensors


def flex_attention_varlen(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cu_seqlens_q: torch.Tensor,
                          cu_seqlens_k: torch.Tensor, score_mod: Optional[Callable[..., Any]] = None,
                          mask_mod: Optional[Callable[..., Any]] = None, scale: Optional[float] = None,
                          enable_gqa: bool = False, return_lse: bool = False, *, query_start: str = "zero",
                          q_len: Optional[int] = None, kv_len: Optional[int] = None
                          ) -> Union[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]:
    """flex_attention within each document of packed tensors, with gradients: no key of another document is visible.

    query is [TOTAL_Q, H, D], key and value [TOTAL_K, H_KV, D]; document b has the rows from cu_seqlens_q[b] to
    cu_seqlens_q[b + 1], and likewise its keys. In mods b is the document, and q_idx and kv_idx count within it.

    cu_seqlens_q and cu_seqlens_k are tensors of int32, or of int64 on the CPU. On a GPU they are not read by the host,
    which then is told the most that a document may have, q_len and kv_len: each call reads them on its stream, and each
    replay of a CUDA graph; a call like it has to come once before the capture. With query_start='end' the queries of a
    document end with its keys. Plans are kept; on the CPU as long as the same tensors come again, as for the layers of
    a model.
    """
    is_compiling = flex._is_compiling()
    is_traced = is_compiling or flex._is_traced() or type(query) is FakeTensor
    (flex._check if is_traced else flex._check_call)(query, key, value, enable_gqa, flex._PACKED)
    if query_start not in QUERY_STARTS:
        raise errors.InvalidOption(f"query_start is one of {', '.join(QUERY_STARTS)}, not {query_start!r}")
    for name, given in (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)):
        if not isinstance(given, torch.Tensor):
            raise errors.InvalidOption(f"{name}: a tensor of integers is wanted, not {type(given)}")
    scale = None if scale is None else float(scale)
    documents = cu_seqlens_q, cu_seqlens_k, query_start, q_len, kv_len
    arguments = query, key, value, score_mod, mask_mod, scale, documents
    if is_compiling and flex._is_dynamo() and not flex._fits_dynamo(query, value):
        out, lse, _ = _outside(*arguments)
    elif is_traced:
        out, lse, _ = graph.attend(*arguments)
    else:
        out, lse, _ = _attend(*arguments, return_lse)
    return (out, lse) if return_lse else out


def _attend(query, key, value, score_mod, mask_mod, scale, documents, wants_lse=True):
    cu_seqlens_q, cu_seqlens_k, query_start, q_len, kv_len = documents
    device = query.device
    score, mask = flex._traced(score_mod, True, device), flex._traced(mask_mod, False, device)
    needs_grad = flex._needs_grad(query, key, value, score)
    most = -1 if q_len is None else q_len, -1 if kv_len is None else kv_len
    lengths = cu_seqlens_q, cu_seqlens_k
    call, tensors = _prepare(query, key, value, lengths, most, query_start, score, mask, scale, needs_grad)
    return flex._attend(call, query, key, value, tensors, wants_lse, needs_grad,
                        lengths if isinstance(call, _CallOnDevice) else ())


_outside = torch.compiler.disable(_attend)
