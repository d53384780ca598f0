"""Attention across ranks for autograd: a plan of flexc.distributed, forward and backward."""
from typing import Mapping, Optional, Tuple, Union

import torch

from ..distributed import DistributedPlan
from .flex import _as_planned


class _Attention(torch.autograd.Function):
    """(out, lse) of this rank's rows."""

    @staticmethod
    def forward(ctx, plan, names, query, key, value, *tensors):
        buffers = dict(zip(names, (tensor.detach() for tensor in tensors)))
        out, lse = plan.forward(query.detach(), key.detach(), value.detach(), buffers)
        ctx.save_for_backward(query, key, value, out, lse, *tensors)
        ctx.plan, ctx.names = plan, names
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, d_out, d_lse):
        query, key, value, out, lse, *tensors = (tensor.detach() for tensor in ctx.saved_tensors)
        buffers = dict(zip(ctx.names, tensors))
        d_out = torch.zeros_like(out) if d_out is None else _as_planned(d_out.detach())
        gradients = ctx.plan.backward(query, key, value, out, lse, d_out, buffers,
                                      d_lse=None if d_lse is None else d_lse.detach())
        of_buffers = [gradients.buffers[name].to(tensor.dtype) if name in gradients.buffers else None
                      for name, tensor in buffers.items()]
        return (None, None, *gradients[:3], *of_buffers)


def attention_on_ranks(plan: DistributedPlan, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                       buffers: Optional[Mapping[str, torch.Tensor]] = None, *, return_lse: bool = False
                       ) -> Union[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]:
    """out, or (out, lse), of this rank's rows, by a plan of flexc.distributed, with gradients.

    All ranks call this together, and go backward together: through as many calls, in the same order, so that on each
    of them something requires a gradient or on none. Gradients of whole buffers are what the plan's reduction says.
    """
    buffers = dict(buffers or {})
    out, lse = _Attention.apply(plan, tuple(buffers), query, key, value, *buffers.values())
    return (out, lse) if return_lse else out
