"""flexc.compile, kernels and plans."""
from __future__ import annotations

import difflib
import inspect
import logging
import re
from collections.abc import Mapping
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from . import _core, arrays, errors, layouts
from .pictures import Mask

_log = logging.getLogger("flexc")
_LEVELS = {0: logging.DEBUG, 1: logging.INFO, 2: logging.WARNING, 3: logging.ERROR}
_DEVICES = {"auto": 0, "cpu": 1, "cuda": 2}
_DEVICE_NAMES = {1: "cpu", 2: "cuda"}
_FORWARD_KERNELS = {"auto": 0, "generic": 1, "specialized": 2}
_BACKWARD_KERNELS = {"auto": 0, "fused": 1, "split": 2, "generic": 3, "specialized": 4}
_GRADIENT_TYPES = {"f32": 0, "buffer": 1}
_BUFFER = re.compile(r"\s*(\w+)\s*\[([^\]]*)\]\s*(grad)?\s*$")


class Gradients(NamedTuple):
    q: Any
    k: Any
    v: Any
    buffers: Dict[str, Any]


def choice(table, value, what):
    if value not in table:
        raise errors.InvalidOption(f"{what} is one of {', '.join(table)}, not {value!r}")
    return table[value]


def parse_device(device):
    """(kind, index) of None, 'cpu', 'cuda', 'cuda:1', a torch.device, ..."""
    if device is None:
        return 0, 0
    kind, _, index = str(device).partition(":")
    return choice(_DEVICES, kind, "device"), int(index or 0)


def _declare_buffer(name, declared):
    """Of 'f32[H, 16] grad', or (type, dims, grad)."""
    if isinstance(declared, str):
        match = _BUFFER.match(declared)
        if match is None:
            raise errors.InvalidOption(f"buffer {name}: write a declaration as 'f32[H, 16] grad', not {declared!r}")
        dims = tuple(dim.strip() for dim in match[2].split(",") if dim.strip())
        return name, arrays.dtype_name(match[1]), dims, match[3] is not None
    dtype, dims, *grad = declared
    return name, arrays.dtype_name(dtype), tuple(map(str, dims)), bool(grad and grad[0])


def _declare_param(name, value):
    if isinstance(value, bool):
        return name, "bool", float(value)
    return name, ("i64" if isinstance(value, int) else "f32"), float(value)


def compile_options(dtype="bf16", head_dim=64, head_dim_v=None, device=None, mask_mod=None, buffers=None, params=None,
                    backward=True, deterministic=False, gradient_type="f32", report_out_of_range=False,
                    forward_kernel="auto", backward_kernel="auto", schedule=None, source_name=None, memory_cache=True,
                    disk_cache=True, cache_directory=None, cache_max_bytes=None, pack=None, max_compile_seconds=None,
                    max_compile_memory=None, part_of_heads=False, batch_invariant=False, kv_dtype=None,
                    query_layout="dense", key_layout="dense", sink=None, max_scores=False):
    """The dict that the module takes. Keywords are those of `compile`."""
    kind, index = parse_device(device)
    return {
        "dtype": arrays.dtype_name(dtype), "head_dim": head_dim, "head_dim_v": head_dim_v or 0, "device": kind,
        "device_index": index, "mask_mod": mask_mod, "sink": sink,
        "buffers": [_declare_buffer(name, declared) for name, declared in (buffers or {}).items()],
        "params": [_declare_param(name, value) for name, value in (params or {}).items()],
        "forward_only": int(not backward), "deterministic": int(deterministic),
        "gradient_type": choice(_GRADIENT_TYPES, gradient_type, "gradient_type"),
        "report_out_of_range": int(report_out_of_range),
        "forward_kernel": choice(_FORWARD_KERNELS, forward_kernel, "forward_kernel"),
        "backward_kernel": choice(_BACKWARD_KERNELS, backward_kernel, "backward_kernel"), "schedule": schedule,
        "source_name": source_name, "no_memory_cache": int(not memory_cache), "no_disk_cache": int(not disk_cache),
        "cache_directory": cache_directory, "cache_max_bytes": cache_max_bytes, "pack": pack,
        "max_compile_seconds": max_compile_seconds, "max_compile_memory": max_compile_memory,
        "part_of_heads": int(part_of_heads), "batch_invariant": int(batch_invariant), "max_scores": int(max_scores),
        "kv_dtype": None if kv_dtype is None else arrays.dtype_name(kv_dtype),
        "query_layout": choice(layouts.LAYOUTS, query_layout, "query_layout"),
        "key_layout": choice(layouts.LAYOUTS, key_layout, "key_layout"),
    }


_OPTIONS = tuple(inspect.signature(compile_options).parameters)


def prepared_options(options):
    for name in options:
        if name not in _OPTIONS:
            near = difflib.get_close_matches(name, _OPTIONS, 1)
            raise TypeError(f"there is no option {name!r}" + (f" (did you mean {near[0]!r}?)" if near else ""))
    return compile_options(**options)


class Signature:
    """What a program declares: buffers (name, type, dims, grad), params (name, type, default), sizes, warnings."""

    def __init__(self, info):
        self.buffers = [tuple(buffer) for buffer in info["buffers"]]
        self.params = [tuple(param) for param in info["params"]]
        self.sizes, self.mask_sizes, self.warnings = info["sizes"], info["mask_sizes"], info["warnings"]
        self.score_depends_on = [name for name in info["score_depends_on"].split(", ") if name]
        self.mask_depends_on = [name for name in info["mask_depends_on"].split(", ") if name]
        self.sink_depends_on = [name for name in info["sink_depends_on"].split(", ") if name]

    def __repr__(self):
        buffers = ", ".join(f"{name}: {dtype}[{', '.join(dims)}]{' grad' * grad}"
                            for name, dtype, dims, grad in self.buffers)
        params = ", ".join(f"{name}: {kind}" + ("" if value is None else f" = {value:g}")
                           for name, kind, value in self.params)
        score, mask = (", ".join(names) or "nothing" for names in (self.score_depends_on, self.mask_depends_on))
        return (f"Signature(buffers: {buffers or 'none'}; params: {params or 'none'}; score reads {score}; "
                f"mask reads {mask})")


def check(text: str, **options: Any) -> Signature:
    """The signature of a program, or the error that compiling it would give. Compiles nothing."""
    return Signature(_core.check(text, prepared_options(options)))


def explain(text: str, stage: str = "plan", arch: Optional[str] = None, **options: Any) -> str:
    """A stage of the compiler as text: tokens, ast, ir, grad, deps, mask, plan, cuda or llvm."""
    return _core.explain(text, stage, prepared_options(options), arch)


def supports(text: str, arch: Optional[str] = None, **options: Any) -> Optional[errors.Error]:
    """None where `compile` would begin to compile this, else the error that it would raise."""
    try:
        _core.supports(text, prepared_options(options), arch)
    except errors.Error as error:
        return error
    return None


def mask(text: str, q_len: int, kv_len: int, *, batch: int = 1, heads: int = 1, kv_heads: Optional[int] = None,
         tile: Tuple[int, int] = (128, 128), buffers: Optional[Mapping[str, Any]] = None,
         params: Optional[Mapping[str, float]] = None, **options: Any) -> Mask:
    """Which tiles of a program's mask are full, partly visible or empty: a picture in a notebook."""
    values = {name: arrays.visible(array) for name, array in (buffers or {}).items()}
    (batches, maps, rows, columns), text_of_tiles = _core.mask_map(
        text, prepared_options(options), (batch, heads, kv_heads or heads, q_len, kv_len), tuple(values),
        tuple(values.values()), (tile[0], tile[1]), dict(params or {}))
    return Mask(batches, maps, rows, columns, tuple(tile), (q_len, kv_len), text_of_tiles)


def compile(text: str, **options: Any) -> Kernel:
    """Compiles a program for one element type, head dim and device.

    dtype: of q, k and v: 'f32', 'f16' or 'bf16', or a dtype of NumPy, torch or JAX
    kv_dtype: of k and v where it is another: 'e4m3', 'e5m2' or 'i8'; forward only; on a GPU beside 16 bits
    head_dim, head_dim_v: of q and k, and of v where it differs
    device: 'cpu', 'cuda', 'cuda:1', or None: a GPU where there is one
    query_layout: of q and out: 'dense', or 'ragged' for requests of their own lengths
    key_layout: of k and v: 'dense', 'ragged', or 'paged' for a cache of pages, which is forward only
    mask_mod: an expression, where the text has no mask of its own
    sink: likewise, the score of a key that has no value
    buffers: {'slopes': 'f32[H] grad'}, where the text does not declare them
    params: {'cap': 20.0}, likewise, with their defaults
    max_scores: `forward` returns the largest score of each row too
    backward, deterministic, gradient_type ('f32' or 'buffer'), report_out_of_range, forward_kernel, backward_kernel,
    schedule, source_name, memory_cache, disk_cache, cache_directory, cache_max_bytes, pack, max_compile_seconds,
    max_compile_memory, part_of_heads, batch_invariant: as docs/embedding.md has them
    """
    prepared = prepared_options(options)
    signature = Signature(_core.check(text, prepared))
    kernel, messages = _core.compile(text, prepared)
    log(messages)
    return Kernel(text, options, signature, kernel)


def log(messages):
    """What a compile said, as (level, text)."""
    for level, message in messages:
        _log.log(_LEVELS.get(level, logging.INFO), "%s", message)


class Kernel:
    """A compiled program. May be used by many threads at once."""

    def __init__(self, text, options, signature, core):
        self.text, self.signature = text, signature
        self._options, self._core = options, core
        self._info = info = core.info()
        self.dtype, self.head_dim, self.head_dim_v = info["dtype"], info["head_dim"], info["head_dim_v"]
        self.has_backward, self.has_max_scores = info["backward"], bool(options.get("max_scores"))
        self.device = _DEVICE_NAMES[info["device"]] + (f":{info['device_index']}" if info["device"] == 2 else "")
        self.query_layout, self.key_layout = (options.get(name, "dense") for name in ("query_layout", "key_layout"))
        self._buffers = tuple(name for name, *_ in signature.buffers)
        self._grads = tuple(name for name, _, _, grad in signature.buffers if grad)

    def __repr__(self):
        return f"<flexc.Kernel {self.dtype}, head dim {self.head_dim}, on {self.device}: {self.signature!r}>"

    @property
    def compile_ms(self) -> float:
        return self._info["compile_ms"]

    @property
    def from_cache(self) -> bool:
        """Whether no backend compiler ran."""
        return self._info["from_cache"]

    @property
    def functions(self) -> List[Dict[str, Any]]:
        """The functions of the compiled code: name, reason, schedule, registers, spills, shared memory."""
        return self._info["functions"]

    def out_of_range(self) -> bool:
        """With report_out_of_range: whether a launch since the last call read outside a buffer."""
        return self._core.out_of_range()

    def explain(self, stage: str = "plan", arch: Optional[str] = None) -> str:
        return explain(self.text, stage, arch, **self._options)

    def mask(self, q_len: int, kv_len: int, **given: Any) -> Mask:
        """Of a batch of these lengths, or of one request."""
        options = {name: value for name, value in self._options.items()
                   if name not in ("buffers", "params", "query_layout", "key_layout")}
        if isinstance(self._options.get("buffers"), dict) or isinstance(self._options.get("params"), dict):
            prepared = compile_options(**self._options)
            text = declarations(prepared) + self.text
        else:
            text = self.text
        return mask(text, q_len, kv_len, **{**options, **given})

    def plan(self, q, k, v, buffers=None, params=None, scale=None, stream=None, q_offset=0, kv_offset=0,
             global_q_len=None, global_kv_len=None, accumulate_gradients=False, cpu_threads=0, head_offset=0,
             global_heads=None, global_kv_heads=None, *, cu_seqlens_q=None, cu_seqlens_k=None, seqused_q=None,
             seqused_k=None, page_table=None, page_indptr=None, page_indices=None, last_page_len=None,
             query_starts=None, query_start="auto", page_size=None, q_len=None, kv_len=None, out=None,
             d_out=None) -> Plan:
        """A plan for calls with tensors of these shapes, strides and alignment, which choose kernels on a GPU.

        out, d_out: likewise, where calls have some that are not contiguous.

        head_offset, global_heads, global_kv_heads: which heads of a larger whole these are, with part_of_heads.

        Its block mask is that of the buffers; without them every call builds one. `Plan.update` builds it again.

        With ragged or paged layouts, integers say where the requests lie: in lists, in arrays of the host (i32 or i64,
        which are copied), or all of them in arrays of the kernel's device (i32), which work on the stream reads.

        cu_seqlens_q, cu_seqlens_k: [B + 1], the rows of ragged tensors from which on each request has them
        seqused_q, seqused_k: [B], how many of its rows, or of the slots of its pages, a request uses, if not all
        page_table: [B, MAX_PAGES], with seqused_k; or instead
        page_indptr, page_indices, last_page_len: [B + 1], [TOTAL_PAGES], [B]
        query_start: where q_idx of a request begins: at 'zero', or so that it has its 'end' with the keys; 'auto' is
            'end' with paged keys and 'zero' without
        query_starts: [B], instead of it
        q_len, kv_len: the most that a request may have, after updates too; if not given, the most that one has now
        page_size: how many slots the pages in k and v have to have
        """
        options = {"scale": scale, "params": params, "q_offset": q_offset, "kv_offset": kv_offset,
                   "global_q_len": global_q_len, "global_kv_len": global_kv_len,
                   "accumulate_gradients": int(accumulate_gradients), "cpu_threads": cpu_threads,
                   "head_offset": head_offset, "global_heads": global_heads, "global_kv_heads": global_kv_heads}
        lengths = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k, "seqused_q": seqused_q,
                   "seqused_k": seqused_k, "page_table": page_table, "page_indptr": page_indptr,
                   "page_indices": page_indices, "last_page_len": last_page_len, "query_starts": query_starts}
        known = layouts.sizes_of(q, k, v, self.query_layout, self.key_layout)
        options["page_size"] = layouts.agreed("page_size", page_size, known.get("PAGE_SIZE"))
        sizes = (known.get("B", -1), known["H"], known["H_KV"], layouts.most("q_len", q_len, known.get("Q_LEN")),
                 layouts.most("kv_len", kv_len, known.get("KV_LEN")))
        arrays_of_buffers = None if buffers is None else self._ordered(buffers)
        is_dense = self.query_layout == self.key_layout == "dense"
        if not is_dense or self._info["device"] == _DEVICES["cuda"]:
            options["like"] = tuple(array if array is None else arrays.visible(array)
                                    for array in (q, k, v, out, d_out))
        given = self._buffers, self._grads, arrays_of_buffers, stream, options
        if is_dense:
            unused = [name for name, array in lengths.items() if array is not None]
            if unused:
                raise errors.InvalidOption(f"{unused[0]}: the kernel was compiled for dense tensors, which have no "
                                           "lengths: compile it with a query_layout or key_layout")
            return Plan(self, self._core.plan(sizes, *given), scale)
        options.update(pages=known.get("PAGES"),
                       query_start=choice(layouts.QUERY_STARTS, query_start, "query_start"))
        return Plan(self, self._core.plan(sizes, *given, lengths), scale)

    def forward(self, q, k, v, buffers=None, *, out=None, lse=None, params=None, scale=None, stream=None, k_scale=None,
                v_scale=None, max_scores=None, **options: Any) -> Tuple[Any, ...]:
        """(out, lse) of one call, with max_scores (out, lse, max_scores); a plan, whose options these are, serves more
        of them.

        Results are made like q where they are not given.
        """
        plan = self.plan(q, k, v, {} if buffers is None else buffers, params, scale, stream, out=out, **options)
        return plan.forward(q, k, v, buffers, out=out, lse=lse, stream=stream, k_scale=k_scale, v_scale=v_scale,
                            max_scores=max_scores)

    def backward(self, q, k, v, out, lse, d_out, buffers=None, *, d_lse=None, params=None, scale=None, stream=None,
                 **options: Any) -> Gradients:
        """Gradients(q, k, v, buffers) of one call; options are those of `plan`."""
        plan = self.plan(q, k, v, {} if buffers is None else buffers, params, scale, stream, out=out, d_out=d_out,
                         **options)
        return plan.backward(q, k, v, out, lse, d_out, buffers, d_lse=d_lse, stream=stream)

    def _ordered(self, buffers):
        return ordered(self._buffers, buffers)


def ordered(names, buffers):
    """The arrays of a dict in the order of a program's buffers."""
    buffers = {} if buffers is None else buffers
    if not isinstance(buffers, Mapping):
        raise errors.InvalidOption(f"buffers are a dict of arrays by their names, not {type(buffers).__name__}")
    unknown = set(buffers) - set(names)
    if unknown:
        raise errors.InvalidOption(f"the program has no buffer {', '.join(sorted(unknown))}; "
                                   f"it has {', '.join(names) or 'none'}")
    return tuple(map(arrays.visible, map(buffers.get, names)))


def gradients_like(names, buffers, given, gradient_type):
    """The arrays that gradients of these buffers go to, by name: those that are given, else new ones."""
    results = dict(given or {})
    for name in names:
        if name not in results:
            like = (buffers or {})[name]
            dtype = "f32" if gradient_type == "f32" else arrays.dtype_name(like.dtype)
            results[name] = arrays.empty(like, tuple(like.shape), dtype)
    return results


def declarations(options):
    """The buffers and params of options as lines of a program."""
    lines = [f"buffer {name}: {dtype}[{', '.join(dims)}]{' grad' * grad}\n"
             for name, dtype, dims, grad in options["buffers"]]
    for name, dtype, value in options["params"]:
        text = str(bool(value)).lower() if dtype == "bool" else f"{int(value)}" if dtype == "i64" else repr(value)
        lines.append(f"param {name}: {dtype} = {text}\n")
    return "".join(lines)


class Plan:
    """What a kernel does for one set of sizes. May be used by many threads at once."""

    def __init__(self, kernel, core, scale):
        self.kernel, self.scale = kernel, scale
        self._core = core
        self._is_ragged = kernel.query_layout == "ragged", kernel.key_layout == "ragged"

    def __repr__(self):
        return (f"<flexc.Plan of {self.kernel!r}: {self.workspace_bytes} bytes of workspace, "
                f"{self.block_mask_bytes} of block mask>")

    @property
    def workspace_bytes(self) -> int:
        return self._core.workspace_bytes

    @property
    def block_mask_bytes(self) -> int:
        """Of the block mask; 0 where the mask needs none."""
        return self._core.block_mask_bytes

    def update(self, buffers=None, stream=None, *, cu_seqlens_q=None, cu_seqlens_k=None, seqused_q=None,
               seqused_k=None, page_table=None, page_indptr=None, page_indices=None, last_page_len=None,
               query_starts=None, pages=None) -> None:
        """Other lengths, or the block mask again, for buffers that hold something else.

        Lengths are those of `Kernel.plan`, all of them anew, of as many requests, none longer than the plan's q_len and
        kv_len. In arrays of the device they may be updated in a graph's capture. pages: of a cache that has other ones.
        """
        if buffers is not None:
            self._core.update(self.kernel._ordered(buffers), stream)
        lengths = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k, "seqused_q": seqused_q,
                   "seqused_k": seqused_k, "page_table": page_table, "page_indptr": page_indptr,
                   "page_indices": page_indices, "last_page_len": last_page_len, "query_starts": query_starts}
        if any(array is not None for array in lengths.values()):
            self._core.update_lengths(lengths, pages, stream)
        elif buffers is None:
            raise errors.InvalidOption("update() takes buffers, or lengths by name")

    def _like(self, array, shape, dtype, side):
        """An array for results in the rows of q (side 0) or k (side 1): rows of no request are 0."""
        if self._is_ragged[side] and array.shape[0] != self._core.rows[side]:
            return arrays.zeros(array, shape, dtype)
        return arrays.empty(array, shape, dtype)

    def forward(self, q, k, v, buffers=None, *, out=None, lse=None, workspace=None, stream=None, k_scale=None,
                v_scale=None, max_scores=None) -> Tuple[Any, ...]:
        """(out, lse), or (out, lse, max_scores) of a kernel that was compiled for them. Asynchronous on CUDA.

        k_scale, v_scale: f32 arrays that k and v are multiplied by, with kv_dtype: of one element, [H_KV], [B, H_KV],
        or for each page of paged keys [PAGES, H_KV].
        """
        rows = tuple(q.shape[:-1])
        if out is None:
            out = self._like(q, (*rows, v.shape[-1]), self.kernel.dtype, 0)
        if lse is None:
            lse = self._like(q, rows, "f32", 0)
        if max_scores is None and self.kernel.has_max_scores:
            max_scores = self._like(q, rows, "f32", 0)
        see = arrays.visible
        scales = tuple(None if array is None else see(array) for array in (k_scale, v_scale))
        self._core.forward((see(q), see(k), see(v), out, lse), self.kernel._ordered(buffers), stream, workspace,
                           (*scales, max_scores))
        return (out, lse, max_scores) if self.kernel.has_max_scores else (out, lse)

    def backward(self, q, k, v, out, lse, d_out, buffers=None, *, d_lse=None, dq=None, dk=None, dv=None,
                 gradients=None, workspace=None, stream=None) -> Gradients:
        """Gradients(q, k, v, buffers): the last is a dict of the `grad` buffers, by name."""
        kernel, see = self.kernel, arrays.visible
        dq, dk, dv = (self._like(like, tuple(like.shape), kernel.dtype, side) if given is None else given
                      for like, given, side in ((q, dq, 0), (k, dk, 1), (v, dv, 1)))
        results = gradients_like(kernel._grads, buffers, gradients, kernel._options.get("gradient_type", "f32"))
        self._core.backward(
            (see(q), see(k), see(v), see(out), see(lse), see(d_out), None if d_lse is None else see(d_lse), dq, dk, dv),
            kernel._ordered(buffers), tuple(results[name] for name in kernel._grads), stream, workspace)
        return Gradients(dq, dk, dv, results)
