"""Attention by a flexc program on JAX's arrays, on CPUs and NVIDIA GPUs, with gradients, and under jit and vmap."""
import functools
import math
from typing import Any, Mapping, NamedTuple, Optional, Tuple, Union

import jax
import jax.numpy as jnp
import numpy as np

from . import _core, errors, layouts
from .kernel import check

__all__ = ["attention"]

_FORWARD, _BACKWARD = "flexc_forward", "flexc_backward"
for _name, _platform, _handler in _core.jax_handlers():
    jax.ffi.register_ffi_target(_name, _handler, platform=_platform)


class _Call(NamedTuple):
    """What a computation states of a call beside its arrays, as texts and a number."""
    program: str
    mask_mod: str
    sink: str
    params: str
    scale: Optional[float]  # None: 1/sqrt(D)
    layout: str
    lengths: str
    query_layout: str
    key_layout: str
    grads: Tuple[bool, ...]  # of the buffers
    recorded: bool = False  # a forward whose backward is to come

    def run(self, name, results, *arrays):
        call = jax.ffi.ffi_call(name, results, vmap_method="expand_dims")
        scale = np.float64(math.nan if self.scale is None else self.scale)
        return call(*arrays, program=self.program, mask_mod=self.mask_mod, sink=self.sink, params=self.params,
                    scale=scale, layout=self.layout, lengths=self.lengths, recorded=self.recorded)


@functools.lru_cache(maxsize=1024)
def _signature(program, mask_mod, sink, query_layout, key_layout):
    return check(program, mask_mod=mask_mod, sink=sink, query_layout=query_layout, key_layout=key_layout)


def attention(q: Any, k: Any, v: Any, program: str = "score", buffers: Optional[Mapping[str, Any]] = None,
              params: Optional[Mapping[str, float]] = None, scale: Optional[float] = None, return_lse: bool = False, *,
              mask_mod: Optional[str] = None, sink: Optional[str] = None, cu_seqlens_q=None, cu_seqlens_k=None,
              seqused_q=None, seqused_k=None, page_table=None, page_indptr=None, page_indices=None,
              last_page_len=None, query_starts=None, query_start: str = "auto",
              q_len: Optional[int] = None,
              kv_len: Optional[int] = None) -> Union[jax.Array, Tuple[jax.Array, jax.Array]]:
    """[B, H, Q_LEN, DV], and with return_lse the log-sum-exp of the visible scores.

    The program's text declares its buffers and params. Gradients go to q, k, v and its `grad` buffers. Params and scale
    are numbers of the computation, like shapes; what changes often is better a buffer of type f32[].

    mask_mod, sink: expressions, where the text has no mask or no score of a key without a value

    Integers say where requests of their own lengths lie, as `flexc.Kernel.plan` has them; they are arrays like others,
    which a jitted computation reads each time. With cu_seqlens_q, q and the results are ragged, [TOTAL_Q, H, D]; with
    cu_seqlens_k, k and v are, [TOTAL_K, H_KV, D]. With page_table, or page_indptr, page_indices and last_page_len, k
    and v are caches, [PAGES, PAGE_SIZE, H_KV, D], which have no gradients. Rows of no request are 0.

    q_len, kv_len: the most that one request may have; if not given, the most that one has, or on a GPU, whose lengths
        the host does not read, as many as the shapes have room for
    """
    q, k, v = map(jnp.asarray, (q, k, v))
    lengths = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k, "seqused_q": seqused_q,
               "seqused_k": seqused_k, "page_table": page_table, "page_indptr": page_indptr,
               "page_indices": page_indices, "last_page_len": last_page_len, "query_starts": query_starts}
    lengths = {name: jnp.asarray(given) for name, given in lengths.items() if given is not None}
    query_layout = "ragged" if "cu_seqlens_q" in lengths else "dense"
    key_layout = "ragged" if "cu_seqlens_k" in lengths else "dense"
    if "page_table" in lengths or "page_indptr" in lengths:
        if key_layout == "ragged":
            raise errors.InvalidOption("cu_seqlens_k: pages have no rows; seqused_k says how many keys a request has")
        key_layout = "paged"
    _check(q, k, v, lengths, query_layout, key_layout)
    signature = _signature(program, mask_mod, sink, query_layout, key_layout)
    given = buffers or {}
    names = [name for name, *_ in signature.buffers]
    if set(names) != set(given):
        raise errors.InvalidOption(f"the program has the buffers {', '.join(names) or '(none)'}, "
                                   f"not {', '.join(given) or '(none)'}")
    if query_start not in layouts.QUERY_STARTS:
        raise errors.InvalidOption(f"query_start is one of {', '.join(layouts.QUERY_STARTS)}, not {query_start!r}")
    numbers = {"query_layout": layouts.LAYOUTS[query_layout], "key_layout": layouts.LAYOUTS[key_layout],
               "query_start": layouts.QUERY_STARTS[query_start], "q_len": -1 if q_len is None else int(q_len),
               "kv_len": -1 if kv_len is None else int(kv_len)}
    values = {name: _known(name, value) for name, value in (params or {}).items()}
    call = _Call(program, mask_mod or "", sink or "", _words(values), None if scale is None else _known("scale", scale),
                 _words(numbers), " ".join(lengths), query_layout, key_layout,
                 tuple(grad for *_, grad in signature.buffers))
    out, lse = _compiled(q, k, v, tuple(x.astype(jnp.int32) for x in lengths.values()),
                          tuple(jnp.asarray(given[name]) for name in names), call)
    return (out, lse) if return_lse else out


def _known(name, value):
    try:
        return float(value)
    except jax.errors.ConcretizationTypeError as error:
        raise errors.InvalidOption(f"{name}: is not known when the computation is made, of which it is a part; declare "
                                   "a buffer of type f32[] instead, which may also be grad") from error


def _words(numbers):
    return " ".join(f"{name}={number!r}" for name, number in numbers.items())


def _check(q, k, v, lengths, query_layout, key_layout):
    layouts.sizes_of(q, k, v, query_layout, key_layout)
    if not q.dtype == k.dtype == v.dtype:
        raise errors.InvalidOption(f"q, k and v have one type, not {q.dtype}, {k.dtype} and {v.dtype}")
    if q.dtype not in (jnp.float32, jnp.float16, jnp.bfloat16):
        raise errors.Unsupported(f"flexc computes attention of float32, float16 and bfloat16, not of {q.dtype}")
    if q.shape[-1] != k.shape[-1] or k.shape[:-1] != v.shape[:-1]:
        raise errors.InvalidOption(f"q, k and v do not fit: their shapes are {q.shape}, {k.shape} and {v.shape}")
    for name, array in lengths.items():
        if not jnp.issubdtype(array.dtype, jnp.integer):
            raise errors.InvalidOption(f"{name}: expected integers, not {array.dtype}")
        if array.ndim != (2 if name == "page_table" else 1):
            dims = "[B, MAX_PAGES]" if name == "page_table" else "one dim"
            raise errors.InvalidOption(f"{name}: expected {dims}, not the shape {array.shape}")
    if query_layout == key_layout == "dense" and lengths:
        raise errors.InvalidOption(f"{next(iter(lengths))}: q, k and v are dense without cu_seqlens_q, cu_seqlens_k or "
                                   "pages, and have no lengths")
    for array in (q, k, v):
        if isinstance(array, jax.Array) and not isinstance(array, jax.core.Tracer):
            for device in array.devices():
                if device.platform not in ("cpu", "gpu", "cuda"):
                    raise errors.Unsupported("flexc.jax computes on CPUs and NVIDIA GPUs, where jax.device_put moves "
                                             f"arrays to, not on {device}")


def _last(function):
    """Refuses derivatives of a call, which the rules of attention() are there instead of."""
    wrapped = jax.custom_jvp(function, nondiff_argnums=(0,))

    @wrapped.defjvp
    def refuse(*_):
        raise errors.Unsupported("flexc.jax has first derivatives, by jax.grad and jax.vjp; no second ones, and no jvp")
    return wrapped


def _cleared(call, lengths, name, *packed):
    """Rows of no request are 0 in packed results, of which a call writes the others."""
    if name not in call.lengths.split():
        return packed
    end = lengths[call.lengths.split().index(name)][-1]
    return tuple(jnp.where((jnp.arange(len(x)) < end).reshape(-1, *[1] * (x.ndim - 1)), x, 0) for x in packed)


@_last
def _forward_call(call, q, k, v, lengths, buffers):
    rows = q.shape[:-1]
    results = jax.ShapeDtypeStruct((*rows, v.shape[-1]), q.dtype), jax.ShapeDtypeStruct(rows, jnp.float32)
    return _cleared(call, lengths, "cu_seqlens_q", *call.run(_FORWARD, results, q, k, v, *lengths, *buffers))


@_last
def _backward_call(call, q, k, v, out, lse, d_out, d_lse, lengths, buffers):
    results = tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (q, k, v)) + tuple(
        jax.ShapeDtypeStruct(buffer.shape, jnp.float32) for buffer, grad in zip(buffers, call.grads) if grad)
    dq, dk, dv, *gradients = call.run(_BACKWARD, results, q, k, v, out, lse, d_out, d_lse, *lengths, *buffers)
    return (*_cleared(call, lengths, "cu_seqlens_q", dq), *_cleared(call, lengths, "cu_seqlens_k", dk, dv), *gradients)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def _attention(q, k, v, lengths, buffers, call):
    return _forward_call(call, q, k, v, lengths, buffers)


def _forward(q, k, v, lengths, buffers, call):
    if call.key_layout == "paged":
        raise errors.Unsupported("caches of pages have no gradients; with cu_seqlens_k keys are ragged, and have them")
    out, lse = _forward_call(call._replace(recorded=True), q, k, v, lengths, buffers)
    return (out, lse), (q, k, v, out, lse, lengths, buffers)


def _backward(call, kept, cotangents):
    q, k, v, out, lse, lengths, buffers = kept
    dq, dk, dv, *gradients = _backward_call(call, q, k, v, out, lse, *cotangents, lengths, buffers)
    rest = iter(gradients)
    of_buffers = tuple(next(rest).astype(buffer.dtype) if grad else _no_gradient(buffer)
                       for buffer, grad in zip(buffers, call.grads))
    return dq, dk, dv, tuple(map(_no_gradient, lengths)), of_buffers


def _no_gradient(array):
    if jnp.issubdtype(array.dtype, jnp.floating):
        return jnp.zeros_like(array)
    return np.zeros(array.shape, jax.dtypes.float0)


_attention.defvjp(_forward, _backward)
_compiled = jax.jit(_attention, static_argnums=5)  # so that calls outside of jit compile once
