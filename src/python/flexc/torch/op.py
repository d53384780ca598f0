"""Programs as text on PyTorch's tensors: an operator of torch.library, which torch.compile and export keep whole."""
from typing import Any, Mapping, NamedTuple, Optional, Tuple, Union

import torch

from .. import errors, kernel as kernels
from ..layouts import QUERY_STARTS
from . import flex
from .flex import _DTYPES, _as_planned, _forms, _moved, _stream, _workspace
from .kept import Kept
from .on_device import Plans

_kernels, _plans, _calls, _signatures = Kept(), Kept(), Kept(), Kept()
_packed_plans = Plans()


class _Documents(NamedTuple):
    """Where packed documents lie: the last arguments of the operators that have them."""
    cu_seqlens_q: torch.Tensor
    cu_seqlens_k: torch.Tensor
    query_start: str
    q_len: Optional[int]
    kv_len: Optional[int]


def _kernel(program, query, value, backward, layout, max_scores=False):
    key = program, query.dtype, query.shape[-1], value.shape[-1], query.device, backward, layout, max_scores
    found = _kernels.get(key)
    return found or _kernels.put(key, kernels.compile(
        program, dtype=_DTYPES[query.dtype], head_dim=query.shape[-1], head_dim_v=value.shape[-1], device=query.device,
        backward=backward, query_layout=layout, key_layout=layout, max_scores=max_scores))


def _new_plan(kernel, sizes, params, scale, inputs, buffers, options, *lengths):
    """A plan for such tensors, whatever buffers hold: a graph may write to their memory without a trace."""
    values = dict(param.split("=") for param in params.split())
    options = {"scale": scale, "params": {name: float(value) for name, value in values.items()},
               "like": (*(x.detach() for x in inputs), None, None), "block_mask_per_call": 1, **options}
    return kernel._core.plan(sizes, kernel._buffers, kernel._grads, buffers, _stream(inputs[0].device), options,
                             *lengths)


def _values_of_call(device, params, scale, inputs, buffers):
    """What of a call decides its plan."""
    shapes = [buffer.shape for buffer in buffers]
    return params, scale, *shapes, *(_forms((*inputs, *buffers)) if device.type == "cuda" else ())


def _plan(kernel, query, key, value, params, scale, buffers):
    sizes = query.shape[0], query.shape[1], key.shape[1], query.shape[2], key.shape[2]
    inputs = query, key, value
    place = kernel, sizes, *_values_of_call(query.device, params, scale, inputs, buffers)
    return _plans.get(place) or _plans.put(place, _new_plan(kernel, sizes, params, scale, inputs, buffers, {}))


def _packed_plan(kernel, query, key, value, params, scale, buffers, documents):
    """A plan of these documents. Each call reads the lengths: a graph may write to their memory without a trace."""
    lengths = {"cu_seqlens_q": documents.cu_seqlens_q, "cu_seqlens_k": documents.cu_seqlens_k}
    most = [-1 if given is None else given for given in (documents.q_len, documents.kv_len)]
    inputs = query, key, value

    def new():
        return _new_plan(kernel, (-1, query.shape[1], key.shape[1], *most), params, scale, inputs, buffers,
                         {"query_start": QUERY_STARTS[documents.query_start]}, lengths)
    if documents.cu_seqlens_q.device.type == "cpu":
        return new()
    place = (kernel, *documents[2:], documents.cu_seqlens_q.shape, *[x.shape for x in inputs],
             *_values_of_call(query.device, params, scale, inputs, buffers))
    return _packed_plans.get(place, lengths, query.device, new)


def _prepare(query, key, value, buffers, program, params, scale, backward, documents, max_scores=False):
    """(kernel, plan, buffers on the device, what makes the results) of a call."""
    kernel = _kernel(program, query, value, backward, "ragged" if documents else "dense", max_scores)
    moved = tuple(_moved(buffer, query.device) for buffer in buffers)
    if not documents:
        return kernel, _plan(kernel, query, key, value, params, scale, moved), moved, torch.empty
    plan = _packed_plan(kernel, query, key, value, params, scale, moved, _Documents(*documents))
    # Rows of no document are 0.
    return kernel, plan, moved, torch.empty if plan.rows == (query.shape[0], key.shape[0]) else torch.zeros


def _forward(query, key, value, buffers, program, params, scale, backward, *documents, max_scores=False):
    _, plan, moved, allocate = _prepare(query, key, value, buffers, program, params, scale, backward, documents,
                                        max_scores)
    out = allocate((*query.shape[:-1], value.shape[-1]), dtype=query.dtype, device=query.device)
    lse, largest = (allocate(query.shape[:-1], dtype=torch.float32, device=query.device) if wanted else None
                    for wanted in (True, max_scores))
    plan.forward((query.detach(), key.detach(), value.detach(), out, lse), moved, _stream(query.device),
                 _workspace(plan.workspace_bytes, query.device), (None, None, largest))
    return (out, lse, largest) if max_scores else (out, lse)


def _forward_with_max_scores(*arguments):
    return _forward(*arguments, max_scores=True)


def _fake_forward(query, key, value, *_):
    return query.new_empty((*query.shape[:-1], value.shape[-1])), query.new_empty(query.shape[:-1], dtype=torch.float32)


def _fake_forward_with_max_scores(query, key, value, *_):
    out, lse = _fake_forward(query, key, value)
    return out, lse, torch.empty_like(lse)


def _backward(query, key, value, out, lse, d_out, d_lse, buffers, program, params, scale, *documents):
    kernel, plan, moved, allocate = _prepare(query, key, value, buffers, program, params, scale, True, documents)
    results = [allocate(x.shape, dtype=x.dtype, device=x.device) for x in (query, key, value)]
    by_name = dict(zip(kernel._buffers, buffers))
    given = [None if x is None else x.detach() for x in (query, key, value, out, lse, _as_planned(d_out), d_lse)]
    gradients = [torch.empty(by_name[name].shape, dtype=torch.float32, device=query.device) for name in kernel._grads]
    plan.backward((*given, *results), moved, tuple(gradients), _stream(query.device),
                  _workspace(plan.workspace_bytes, query.device))
    return results + [gradient.to(by_name[name].dtype) for name, gradient in zip(kernel._grads, gradients)]


def _fake_backward(query, key, value, out, lse, d_out, d_lse, buffers, program, *_):
    grads = [grad for _, _, _, grad in _buffers_of(program)]
    return [torch.empty_like(x, memory_format=torch.contiguous_format) for x in (query, key, value)] + [
        torch.empty_like(buffer, memory_format=torch.contiguous_format) for buffer, grad in zip(buffers, grads) if grad]


def _setup(ctx, inputs, output):
    query, key, value, buffers, program, params, scale, _, *documents = inputs
    ctx.mark_non_differentiable(*output[2:])
    ctx.save_for_backward(query, key, value, *output[:2], *documents[:2], *buffers)
    ctx.rest = (program, params, scale), documents[2:]


def _gradients(ctx, d_out, d_lse, *_):
    query, key, value, out, lse, *saved = ctx.saved_tensors
    of_program, of_documents = ctx.rest
    lengths, buffers = (saved[:2], saved[2:]) if of_documents else ((), saved)
    operator = torch.ops.flexc.attention_varlen_backward if of_documents else torch.ops.flexc.attention_backward
    gradients = operator(query, key, value, out, lse, d_out, d_lse, buffers, *of_program, *lengths, *of_documents)
    rest = iter(gradients[3:])
    of_buffers = [next(rest) if grad else None for _, _, _, grad in _buffers_of(of_program[0])]
    return (*gradients[:3], of_buffers, *[None] * (4 + len(lengths) + len(of_documents)))


_INPUTS = "Tensor query, Tensor key, Tensor value"
_PROGRAM = "Tensor[] buffers, str program, str params, float? scale"


def _register_forward(name, forward, fake, results="", documents=""):
    """The operator of that name, with its gradient; results are its last ones, documents its last arguments."""
    operator = torch.library.custom_op(
        f"flexc::{name}", forward, mutates_args=(),
        schema=f"({_INPUTS}, {_PROGRAM}, bool backward{documents}) -> (Tensor, Tensor{results})")
    operator.register_fake(fake)
    operator.register_autograd(_gradients, setup_context=_setup)


def _register_backward(name, documents=""):
    operator = torch.library.custom_op(
        f"flexc::{name}", _backward, mutates_args=(),
        schema=f"({_INPUTS}, Tensor out, Tensor lse, Tensor d_out, Tensor? d_lse, {_PROGRAM}{documents}) -> Tensor[]")
    operator.register_fake(_fake_backward)


_DOCUMENTS = ", Tensor cu_seqlens_q, Tensor cu_seqlens_k, str query_start, SymInt? q_len, SymInt? kv_len"
_register_forward("attention", _forward, _fake_forward)
_register_forward("attention_with_max_scores", _forward_with_max_scores, _fake_forward_with_max_scores, ", Tensor")
_register_forward("attention_varlen", _forward, _fake_forward, documents=_DOCUMENTS)
_register_backward("attention_backward")
_register_backward("attention_varlen_backward", _DOCUMENTS)


def _buffers_of(program):
    """(name, type, dims, grad) of each buffer."""
    found = _signatures.get(program)
    return _signatures.put(program, kernels.check(program).buffers) if found is None else found


@torch.compiler.assume_constant_result
def _names_of(program):
    return " ".join(name for name, *_ in _buffers_of(program))


class _Buffer(NamedTuple):
    grad: bool


class _Text:
    """What flex._attend asks of a program."""

    def __init__(self, program):
        self.buffers = [_Buffer(grad) for _, _, _, grad in _buffers_of(program)]


def _call(program, query, key, value, params, scale, buffers, backward):
    inputs, device = (query, key, value), query.device
    place = (program, query.dtype, device, backward, *[x.shape for x in inputs],
             *_values_of_call(device, params, scale, inputs, buffers))
    found = _calls.get(place)
    if found is None:
        kernel = _kernel(program, query, value, backward, "dense")
        plan = _plan(kernel, query, key, value, params, scale, tuple(_moved(buffer, device) for buffer in buffers))
        found = _calls.put(place, flex._Call(_Text(program), kernel, plan, query, value.shape[-1]))
    return found


_PLAIN = torch.Tensor, torch.nn.Parameter


def _is_eager(tensors):
    """Whether nothing traces the call."""
    return not (torch.compiler.is_compiling() or flex._is_traced() or
                any(type(tensor) not in _PLAIN for tensor in tensors))


def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, program: str = "score",
              buffers: Optional[Mapping[str, torch.Tensor]] = None, params: Optional[Mapping[str, float]] = None,
              scale: Optional[float] = None, return_lse: bool = False
              ) -> Union[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]:
    """Attention by a flexc program, whose text declares its buffers and params.

    Gradients go to query, key, value and the program's `grad` buffers. Where the call is traced, as under
    torch.compile, it is one operator.
    """
    if torch.compiler.is_compiling():
        flex._check(query, key, value, True)
        flex._check_lengths(query, key)
    else:
        flex._check_call(query, key, value, True)
    given = buffers or {}
    names = _names_of(program).split()
    if given.keys() != set(names):
        raise errors.InvalidOption(f"the program has the buffers {', '.join(names) or '(none)'}, not "
                                   f"{', '.join(given) or '(none)'}")
    ordered = [given[name] for name in names]
    # As a text: an operator's list of numbers may not be empty where it has gradients.
    values = " ".join(f"{name}={float(value)!r}" for name, value in (params or {}).items())
    backward = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value, *ordered))
    if _is_eager((query, key, value, *ordered)):
        call = _call(program, query, key, value, values, scale, ordered, backward)
        out, lse, _ = flex._attend(call, query, key, value, tuple(ordered), return_lse, backward)
    else:
        out, lse = torch.ops.flexc.attention(query, key, value, ordered, program, values, scale, backward)
    return (out, lse) if return_lse else out
