"""Programs as text on PyTorch's tensors: an operator of torch.library, which torch.compile and export keep whole."""
from typing import List, Optional, Sequence, Tuple

import torch

from .. import kernel as kernels
from .flex import _DTYPES, _MOST_KEPT, _check, _check_lengths, _Kept, _moved, _stream, _workspace

_kernels, _plans = _Kept(), _Kept()


def _kernel(program, query, value, backward):
    key = program, query.dtype, query.shape[3], value.shape[3], query.device, backward
    found = _kernels.get(key)
    return found or _kernels.put(key, kernels.compile(
        program, dtype=_DTYPES[query.dtype], head_dim=query.shape[3], head_dim_v=value.shape[3], device=query.device,
        backward=backward))


_SIZES = {"B", "H", "H_KV", "Q_LEN", "KV_LEN", "D", "DV"}


def _has_own_sizes(buffers):
    """Whether a dim has a size that only the buffer itself knows."""
    return any(not dim.isdigit() and dim not in _SIZES for _, _, dims, _ in buffers for dim in dims)


def _plan(kernel, query, key, params, scale, buffers):
    sizes = query.shape[0], query.shape[1], key.shape[1], query.shape[2], key.shape[2]
    place = id(kernel), sizes, params, scale, *[buffer.shape for buffer in buffers]
    found = _plans.get(place)
    if found is not None and found[0] is kernel:
        return found[1]
    values = dict(param.split("=") for param in params.split())
    options = {"scale": scale, "params": {name: float(value) for name, value in values.items()}}
    stream = _stream(query.device)
    if _has_own_sizes(kernel.signature.buffers):
        # The buffers say how large these are. A block mask would be that of what they hold now.
        made = kernel._core.plan(sizes, kernel._buffers, kernel._grads, buffers, stream, options)
        if made.block_mask_bytes:
            return made
    else:
        # Without buffers: each call reads the mask anew.
        made = kernel._core.plan(sizes, kernel._buffers, kernel._grads, None, stream, options)
    _plans.put(place, (kernel, made))
    return made


@torch.library.custom_op("flexc::attention", mutates_args=())
def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, buffers: Sequence[torch.Tensor],
               program: str, params: str, scale: Optional[float], backward: bool) -> Tuple[torch.Tensor, torch.Tensor]:
    kernel = _kernel(program, query, value, backward)
    moved = tuple(_moved(buffer, query.device) for buffer in buffers)
    plan = _plan(kernel, query, key, params, scale, moved)
    out = query.new_empty((*query.shape[:3], value.shape[3]))
    lse = torch.empty(query.shape[:3], dtype=torch.float32, device=query.device)
    plan.forward((query.detach(), key.detach(), value.detach(), out, lse), moved, _stream(query.device),
                 _workspace(plan.workspace_bytes, query.device))
    return out, lse


@_attention.register_fake
def _(query, key, value, buffers, program, params, scale, backward):
    return query.new_empty((*query.shape[:3], value.shape[3])), query.new_empty(query.shape[:3], dtype=torch.float32)


@torch.library.custom_op("flexc::attention_backward", mutates_args=())
def _attention_backward(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, out: torch.Tensor,
                        lse: torch.Tensor, d_out: torch.Tensor, d_lse: Optional[torch.Tensor],
                        buffers: Sequence[torch.Tensor], program: str, params: str,
                        scale: Optional[float]) -> List[torch.Tensor]:
    kernel = _kernel(program, query, value, True)
    moved = tuple(_moved(buffer, query.device) for buffer in buffers)
    plan = _plan(kernel, query, key, params, scale, moved)
    results = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in (query, key, value)]
    by_name = dict(zip(kernel._buffers, buffers))
    given = [None if x is None else x.detach() for x in (query, key, value, out, lse, d_out, d_lse)]
    gradients = [torch.empty(by_name[name].shape, dtype=torch.float32, device=query.device) for name in kernel._grads]
    plan.backward((*given, *results), moved, tuple(gradients), _stream(query.device),
                  _workspace(plan.workspace_bytes, query.device))
    return results + [gradient.to(by_name[name].dtype) for name, gradient in zip(kernel._grads, gradients)]


@_attention_backward.register_fake
def _(query, key, value, out, lse, d_out, d_lse, buffers, program, params, scale):
    grads = [grad for _, _, _, grad in _buffers_of(program)]
    return [torch.empty_like(x, memory_format=torch.contiguous_format) for x in (query, key, value)] + [
        torch.empty_like(buffer, memory_format=torch.contiguous_format) for buffer, grad in zip(buffers, grads) if grad]


def _setup(ctx, inputs, output):
    query, key, value, buffers, program, params, scale, _ = inputs
    ctx.save_for_backward(query, key, value, *output, *buffers)
    ctx.rest = program, params, scale


def _backward(ctx, d_out, d_lse):
    query, key, value, out, lse, *buffers = ctx.saved_tensors
    program, params, scale = ctx.rest
    gradients = torch.ops.flexc.attention_backward(
        query, key, value, out, lse, d_out, d_lse, buffers, program, params, scale)
    rest = iter(gradients[3:])
    of_buffers = [next(rest) if grad else None for _, _, _, grad in _buffers_of(program)]
    return (*gradients[:3], of_buffers, None, None, None, None)


_attention.register_autograd(_backward, setup_context=_setup)

_signatures = {}


def _buffers_of(program):
    """(name, type, dims, grad) of each buffer."""
    if program not in _signatures:
        if len(_signatures) >= _MOST_KEPT:
            _signatures.clear()
        _signatures[program] = kernels.check(program).buffers
    return _signatures[program]


@torch.compiler.assume_constant_result
def _names_of(program):
    return " ".join(name for name, *_ in _buffers_of(program))


def attention(query, key, value, program="score", buffers=None, params=None, scale=None, return_lse=False):
    """Attention by a flexc program, whose text declares its buffers and params.

    Gradients go to query, key, value and the program's `grad` buffers. Under torch.compile it is one operator.
    """
    _check(query, key, value, True)
    _check_lengths(query, key)
    given = buffers or {}
    ordered = [given[name] for name in _names_of(program).split()]
    # As a text: an operator's list of numbers may not be empty where it has gradients.
    values = " ".join(f"{name}={float(value)!r}" for name, value in (params or {}).items())
    backward = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value, *ordered))
    out, lse = torch.ops.flexc.attention(query, key, value, ordered, program, values, scale, backward)
    return (out, lse) if return_lse else out
