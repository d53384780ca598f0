"""Attention by a flexc program on JAX's arrays, on the CPU, with gradients, and under jit and vmap."""
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from . import _core, errors
from .kernel import check

_FORWARD, _BACKWARD = "flexc_forward", "flexc_backward"
for _name, _handler in zip((_FORWARD, _BACKWARD), _core.jax_handlers()):
    jax.ffi.register_ffi_target(_name, _handler, platform="cpu")


@functools.lru_cache(maxsize=1024)
def _signature(program):
    return check(program)


def attention(q, k, v, program="score", buffers=None, params=None, scale=None, return_lse=False):
    """[B, H, Q_LEN, DV], and with return_lse the log-sum-exp of the visible scores.

    The program's text declares its buffers and params. Gradients go to q, k, v and its `grad` buffers.
    """
    if not q.ndim == k.ndim == v.ndim == 4:
        raise errors.InvalidOption("q, k and v have 4 dims: [batch, heads, length, head dim]")
    if not q.dtype == k.dtype == v.dtype:
        raise errors.InvalidOption(f"q, k and v have one type, not {q.dtype}, {k.dtype} and {v.dtype}")
    given = buffers or {}
    names = [name for name, *_ in _signature(program).buffers]
    if set(names) != set(given):
        raise errors.InvalidOption(f"the program has the buffers {', '.join(names) or '(none)'}, "
                                   f"not {', '.join(given) or '(none)'}")
    values = " ".join(f"{name}={float(value)!r}" for name, value in (params or {}).items())
    out, lse = _attention(q, k, v, tuple(jnp.asarray(given[name]) for name in names), program, values,
                          math.nan if scale is None else float(scale))
    return (out, lse) if return_lse else out


def _forward_call(q, k, v, buffers, program, params, scale):
    results = (jax.ShapeDtypeStruct((*q.shape[:3], v.shape[3]), q.dtype),
               jax.ShapeDtypeStruct(q.shape[:3], jnp.float32))
    call = jax.ffi.ffi_call(_FORWARD, results, vmap_method="sequential")
    return call(q, k, v, *buffers, program=program, params=params, scale=np.float64(scale))


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5, 6))
def _attention(q, k, v, buffers, program, params, scale):
    return tuple(_forward_call(q, k, v, buffers, program, params, scale))


def _forward(q, k, v, buffers, program, params, scale):
    out, lse = _forward_call(q, k, v, buffers, program, params, scale)
    return (out, lse), (q, k, v, out, lse, buffers)


def _backward(program, params, scale, kept, cotangents):
    q, k, v, out, lse, buffers = kept
    d_out, d_lse = cotangents
    grads = [grad for *_, grad in _signature(program).buffers]
    results = tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (q, k, v)) + tuple(
        jax.ShapeDtypeStruct(buffer.shape, jnp.float32) for buffer, grad in zip(buffers, grads) if grad)
    call = jax.ffi.ffi_call(_BACKWARD, results, vmap_method="sequential")
    dq, dk, dv, *gradients = call(q, k, v, out, lse, d_out, d_lse, *buffers, program=program, params=params,
                                  scale=np.float64(scale))
    rest = iter(gradients)
    return dq, dk, dv, tuple(next(rest).astype(buffer.dtype) if grad else _no_gradient(buffer)
                             for buffer, grad in zip(buffers, grads))


def _no_gradient(buffer):
    if jnp.issubdtype(buffer.dtype, jnp.floating):
        return jnp.zeros_like(buffer)
    return np.zeros(buffer.shape, jax.dtypes.float0)


_attention.defvjp(_forward, _backward)
