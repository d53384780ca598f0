"""flex_attention with PyTorch's signature, on flexc's kernels."""
import threading
import types
import weakref
from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple, Union

import torch
from torch._subclasses import FakeTensor

from .. import errors, kernel as kernels
from . import graph
from .block_mask import BlockMask, mask_of
from .captures import Captures, unchanged
from .closures import Pattern, place_of
from .kept import Kept
from .trace import Text, Traced
from .lower import Sizes

_DTYPES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}


class AuxRequest(NamedTuple):
    lse: bool = False
    max_scores: bool = False


class AuxOutput(NamedTuple):
    lse: Optional[torch.Tensor] = None
    max_scores: Optional[torch.Tensor] = None


_functions = Kept()  # by identity: _Mod
_patterns = Kept()  # of functions that are made anew: (Pattern, _Mod)
_seen = Kept()  # weak references to functions that were found by their pattern once
_traces = Kept()  # by what a function computes
_programs = Kept()  # by the traces of score_mod and mask_mod
_kernels = Kept()  # by text and types
_lock = threading.RLock()


class _Mod:
    """A function with what it captures and its trace. Of methods, which are made at each access, `of` has the parts."""

    def __init__(self, of, captures, traced):
        self.of, self.captures, self.traced = of, captures, traced

    def is_of(self, parts):
        return len(self.of) == len(parts) and all(known() is part for known, part in zip(self.of, parts))


def _traced(function, with_score, device):
    """The _Mod of a function. One with nothing changed is found by its identity."""
    if function is None:
        return None
    parts = (function.__func__, function.__self__) if type(function) is types.MethodType else (function,)
    place = (*map(id, parts), with_score, device)
    known = _functions.get(place)
    if known is not None and known.is_of(parts) and unchanged(known.captures.guards, function):
        return known
    place_of_pattern = place_of(function)
    if place_of_pattern is not None:
        place_of_pattern += with_score, device
        known = _by_pattern(function, place_of_pattern)
        if known is not None:
            return known
    if not callable(function):
        raise TypeError(f"a {'score_mod' if with_score else 'mask_mod'} is a function, not {type(function).__name__}; "
                        "flexc.torch.attention takes a program's text")
    captures = Captures(function)
    traced = _trace(function, captures, with_score, device)

    def forget(_):
        _functions.pop(place, None)
        _memo.purge()
    try:
        made = _Mod(tuple(weakref.ref(part, forget) for part in parts), captures, traced)
    except TypeError:
        return _Mod((), captures, traced)
    if place_of_pattern is not None:
        try:
            pattern = Pattern(function, captures, lambda _: _patterns.pop(place_of_pattern, None))
            _patterns.put(place_of_pattern, (pattern, traced))
        except TypeError:
            pass
    return _functions.put(place, made)


def _by_pattern(function, place):
    """The _Mod of a function like an earlier one. At its second sight it is worth more."""
    found = _patterns.get(place)
    if found is None:
        return None
    pattern, traced = found
    captured = pattern.captured(function)
    if captured is None or not (traced.symbolic or captured.numbers == pattern.numbers):
        return None
    known = _seen.get(id(function))
    if known is not None and known() is function:
        _seen.pop(id(function), None)
        return None
    _seen.put(id(function), weakref.ref(function))
    return _Mod((), captured, traced)


def _trace(function, captures, with_score, device):
    key = with_score, captures.key, device
    traced = _traces.get(key)
    if traced is not None and not traced.symbolic and captures.numbers:
        # A function that decides by its numbers is another program for other numbers.
        key = (*key, tuple(captures.numbers))
        traced = _traces.get(key)
    if traced is None:
        traced = Traced(function, captures, with_score, device)
        traced.kept = captures.kept
        _traces.put(key, traced)
        if not traced.symbolic and captures.numbers:
            _traces.put((*key[:3], tuple(captures.numbers)), traced)
    return traced


class _Program:
    """A pair of mods, for the kinds of tensors that they capture."""

    def __init__(self, score, mask):
        self.score, self.mask = score, mask
        self.texts, self.calls = Kept(), Kept()

    def text(self, sizes, numbers, wants):
        key = sizes, tuple(n if type(n) is int else None for n in numbers[0] + numbers[1]), wants
        found = self.texts.get(key)
        if found is None:
            with _lock:
                found = self.texts.put(key, Text(
                    self.score, self.mask, numbers[0], numbers[1], Sizes(*sizes),
                    lambda prefix, slot: prefix == "s" and wants is not None and wants[slot]))
        return found


class _Call:
    """A plan with what a launch needs: shared by all calls of the same sizes, numbers and scale."""

    def __init__(self, text, kernel, plan, query, head_dim_v, make=torch.empty_like, has_max_scores=False):
        self.text, self.kernel, self.make, self.has_max_scores = text, kernel, make, has_max_scores
        self.has_one_head_dim = head_dim_v == query.shape[-1]
        rows = query.shape[:-1]
        self._like_out = _shaped((*rows, head_dim_v), query.dtype, query.device)
        self.like_lse = _shaped(rows, torch.float32, query.device)
        self.use(plan)

    def use(self, plan):
        self.plan, self.launch, self.workspace_bytes = plan, plan.forward, plan.workspace_bytes

    def plan_with(self, lengths, inputs, buffers):
        """The plan of a call; lengths are those of packed documents that it has to be told again."""
        return self.plan

    def results(self, query, wants_lse=True):
        out = self.make(query if self.has_one_head_dim and query.stride(-1) == 1 else self._like_out)
        return out, self.make(self.like_lse) if wants_lse else None


def _shaped(shape, dtype, device):
    """A tensor of one element's memory, which empty_like and zeros_like make a contiguous one of."""
    return torch.empty((), dtype=dtype, device=device).expand(shape)


def _compile(text, dtype, head_dim, head_dim_v, device, backward, layout="dense", max_scores=False):
    key = text, dtype, head_dim, head_dim_v, device, backward, layout, max_scores
    found = _kernels.get(key)
    if found is None:
        options = kernels.compile_options(dtype=dtype, head_dim=head_dim, head_dim_v=head_dim_v, device=device,
                                          backward=backward, source_name="<score_mod and mask_mod>",
                                          query_layout=layout, key_layout=layout, max_scores=max_scores)
        core, messages = kernels._core.compile(text, options)
        found = _kernels.put(key, core)
    return found


def _sources(text, score, mask):
    """The tensors of a text's buffers, in order."""
    found = []
    for buffer in text.buffers:
        prefix, where = buffer.source
        if buffer.constant is not None:
            found.append(buffer.constant)
        else:
            found.append((score if prefix == "s" else mask).captures.tensors[where])
    return tuple(found)


def _program(score, mask):
    """The _Program of two mods that were traced, or of one."""
    score_traced, mask_traced = score and score.traced, mask and mask.traced
    pair = id(score_traced), id(mask_traced)
    program = _programs.get(pair)
    if program is None or program.score is not score_traced or program.mask is not mask_traced:
        program = _programs.put(pair, _Program(score_traced, mask_traced))
    return program


def _numbers(score, mask):
    return tuple(score.captures.numbers) if score else (), tuple(mask.captures.numbers) if mask else ()


def _params(text, numbers):
    return {name: (numbers[0] if prefix == "s" else numbers[1])[place] for name, _, (prefix, place) in text.params}


def _wishes(score, needs_grad):
    """Which captured tensors want gradients; None where nothing does."""
    if not needs_grad:
        return None
    return tuple(tensor.requires_grad for tensor in score.captures.tensors) if score else ()


def _needs_grad(query, key, value, score):
    return torch.is_grad_enabled() and (
        query.requires_grad or key.requires_grad or value.requires_grad or
        (score is not None and any(tensor.requires_grad for tensor in score.captures.tensors)))


def _forms(tensors):
    """What of tensors on a GPU chooses kernels, beside their shapes."""
    return tuple((tensor.stride(), tensor.data_ptr() % 16) for tensor in tensors)


def _forms_of_call(query, key, value, score, mask):
    return _forms((query, key, value, *[tensor for mod in (score, mask) if mod for tensor in mod.captures.tensors]))


def _prepare(query, key, value, score, mask, scale, needs_grad, max_scores):
    """The _Call for these tensors, and the tensors of its buffers."""
    program = _program(score, mask)
    q_shape, k_shape = query.shape, key.shape
    sizes = q_shape[0], q_shape[1], k_shape[1], q_shape[2], k_shape[2]
    numbers, wants = _numbers(score, mask), _wishes(score, needs_grad)
    head_dim_v, device = value.shape[3], query.device
    key_of_call = (sizes, numbers, wants, scale, query.dtype, q_shape[3], head_dim_v, device, max_scores)
    if device.type == "cuda":
        key_of_call += _forms_of_call(query, key, value, score, mask)
    found = program.calls.get(key_of_call)
    if found is not None:
        for call, versions in found:
            tensors = _sources(call.text, score, mask)
            if versions is None or _are(versions, tensors):
                return call, tensors, versions
    text = program.text(sizes, numbers, wants)
    core = _compile(text.text, _DTYPES[query.dtype], q_shape[3], head_dim_v, str(device), needs_grad,
                    max_scores=max_scores)
    tensors = _sources(text, score, mask)
    moved = tuple(_moved(tensor, device) for tensor in tensors)
    options = {"scale": scale, "params": _params(text, numbers)}
    if device.type == "cuda":
        options["like"] = (query.detach(), key.detach(), value.detach(), None, None)
    plan = core.plan(sizes, text.names, text.grads, moved, _stream(device), options)
    call = _Call(text, core, plan, query, head_dim_v, has_max_scores=max_scores)
    versions = None
    if plan.block_mask_bytes:
        versions = _versions(tensors)
        if versions is None:
            # Nothing tells when these tensors change, so each call builds the map of its mask.
            call.use(core.plan(sizes, text.names, text.grads, moved, _stream(device),
                               {**options, "block_mask_per_call": 1}))
    program.calls.put(key_of_call, [(call, versions), *(found or ())[:3]])
    return call, tensors, versions


def _versions(tensors):
    """What changes when a mask's tensors are others or hold something else; None where that cannot be told."""
    try:
        return tuple((weakref.ref(tensor), tensor._version) for tensor in tensors)
    except RuntimeError:
        return None


def _are(versions, tensors):
    return all(known() is tensor and version == tensor._version for (known, version), tensor in zip(versions, tensors))


def _moved(tensor, device):
    if tensor.device != device:
        if tensor.dim() != 0:
            raise errors.InvalidOption(f"a captured tensor is on {tensor.device}, the query on {device}")
        tensor = tensor.to(device)
    return tensor.detach() if tensor.requires_grad else tensor


def _stream(device):
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else None


def _workspace(size, device):
    if not size or device.type == "cpu":
        return None
    return torch.empty(size, dtype=torch.uint8, device=device)


_HAS_TABLE = hasattr(torch.Tensor, "__dlpack_c_exchange_api__")


def _forward(call, query, key, value, tensors, wants_lse=True, lengths=()):
    device = query.device
    out, lse = call.results(query, wants_lse)
    if not _HAS_TABLE:
        query, key, value = query.detach(), key.detach(), value.detach()
    if tensors and (not _HAS_TABLE or device.type != "cpu"):
        tensors = tuple(_moved(tensor, device) for tensor in tensors)
    launch = call.plan_with(lengths, (query, key, value), tensors).forward if lengths else call.launch
    given = (query, key, value, out, lse), tensors, _stream(device), _workspace(call.workspace_bytes, device)
    if not call.has_max_scores:
        launch(*given)
        return out, lse, None
    max_scores = call.make(call.like_lse)
    launch(*given, (None, None, max_scores))
    return out, lse, max_scores


class _Attention(torch.autograd.Function):
    """The results of a call with their gradient: (out, lse), or out alone, which costs less."""

    @staticmethod
    def forward(ctx, call, results, wants_lse, query, key, value, *tensors):
        out, lse = results  # behind the tensors of buffers there may be lengths
        ctx.save_for_backward(query, key, value, out, lse, *tensors)
        ctx.call = call
        if not wants_lse:
            return out
        ctx.set_materialize_grads(False)
        return results

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, d_out, d_lse=None):
        query, key, value, out, lse, *tensors = ctx.saved_tensors
        call, device = ctx.call, query.device
        buffers = call.text.buffers
        lengths, tensors = tensors[len(buffers):], tensors[:len(buffers)]
        detached = tuple(_moved(tensor, device) for tensor in tensors)
        query, key, value = query.detach(), key.detach(), value.detach()
        dq, dk, dv = (call.make(x, memory_format=torch.contiguous_format) for x in (query, key, value))
        gradients = tuple(torch.empty(tensor.shape, dtype=torch.float32, device=device)
                          for tensor, buffer in zip(tensors, buffers) if buffer.grad)
        d_out = torch.zeros_like(out) if d_out is None else _as_planned(d_out.detach())
        plan = call.plan_with(lengths, (query, key, value), detached)
        plan.backward((query, key, value, out.detach(), lse.detach(), d_out,
                       None if d_lse is None else d_lse.detach(), dq, dk, dv), detached, gradients, _stream(device),
                      _workspace(call.workspace_bytes, device))
        rest = iter(gradients)
        of_tensors = [next(rest).to(tensor.dtype).to(tensor.device) if buffer.grad else None
                      for tensor, buffer in zip(tensors, buffers)]
        return (None, None, None, dq, dk, dv, *of_tensors, *[None] * len(lengths))


def _attend(call, query, key, value, tensors, wants_lse, needs_grad, lengths=()):
    """(out, lse, largest scores): what is not wanted may be None."""
    out, lse, max_scores = _forward(call, query, key, value, tensors, wants_lse or needs_grad, lengths)
    if not needs_grad:
        return out, lse, max_scores
    recorded = _Attention.apply(call, (out, lse), wants_lse, query, key, value, *tensors, *lengths)
    return (*recorded, max_scores) if wants_lse else (recorded, None, max_scores)


def _as_planned(d_out):
    """The gradient, on a GPU a copy where plans, which are made before there is one, do not expect its strides."""
    if d_out.device.type == "cpu":
        return d_out
    *strides, last = d_out.stride()
    bytes_of = d_out.element_size()
    if last == 1 and all(stride > 0 and stride * bytes_of % 16 == 0 for stride in strides) and \
            d_out.data_ptr() % 16 == 0:
        return d_out
    return d_out.clone(memory_format=torch.contiguous_format)


_memo = kernels._core.Memo(torch.empty_like, torch.Tensor, types.MethodType, _Attention.apply)


_DENSE, _PACKED = "batch, heads, length, head dim", "tokens, heads, head dim"


def _check(query, key, value, enable_gqa, dims=_DENSE):
    rank = dims.count(",") + 1
    if not all(isinstance(tensor, torch.Tensor) for tensor in (query, key, value)):
        raise errors.InvalidOption("query, key and value are tensors of PyTorch")
    if not query.dim() == key.dim() == value.dim() == rank:
        raise NotImplementedError(f"query, key, and value must be {rank}D: [{dims}]")
    if query.dtype not in _DTYPES:
        raise errors.Unsupported(f"flexc computes attention of float32, float16 and bfloat16, not of {query.dtype}")
    if not query.dtype == key.dtype == value.dtype:
        raise ValueError(f"query, key and value have one type, not {query.dtype}, {key.dtype} and {value.dtype}")
    if not query.device == key.device == value.device:
        raise ValueError(f"query, key and value are on one device, not {query.device}, {key.device} and {value.device}")
    if key.shape[:-1] != value.shape[:-1]:
        raise ValueError(f"key and value go together: {tuple(key.shape)} and {tuple(value.shape)} do not")
    if query.shape[-1] != key.shape[-1]:
        raise ValueError(f"query and key have one head dim, not {query.shape[-1]} and {key.shape[-1]}")
    if query.shape[1] != key.shape[1]:
        if not enable_gqa:
            raise ValueError(f"query has {query.shape[1]} heads and key {key.shape[1]}: with enable_gqa=True groups of "
                             "query heads use one key head")
        if query.shape[1] % key.shape[1]:
            raise ValueError(f"{key.shape[1]} heads of keys do not divide {query.shape[1]} heads of queries")


def _check_lengths(query, key):
    for name, tensor in (("Query", query), ("Key", key)):
        if tensor.shape[2] == 0:
            raise ValueError(f"{name} length must be greater than 0")


def _refuse_transforms(*tensors):
    if torch._C._are_functorch_transforms_active() and any(map(_is_wrapped, tensors)):
        raise errors.Unsupported("flexc's attention has no rules for vmap, grad and the other transforms of "
                                 "torch.func: call it outside of them; autograd itself works")


def _check_call(query, key, value, enable_gqa, dims=_DENSE):
    """Of a call that runs: once for tensors of the same kinds."""
    _refuse_transforms(query, key, value)
    kinds = (query.shape, key.shape, value.shape, query.dtype, key.dtype, value.dtype, query.device, key.device,
             value.device, enable_gqa, dims)
    if kinds not in _checked:
        _check(query, key, value, enable_gqa, dims)
        if dims is _DENSE:
            _check_lengths(query, key)
        _checked.put(kinds, True)


def _remember(score_mod, block_mask, scale, enable_gqa, inputs, score, mask, call, tensors, versions, needs_grad):
    """Lets _core.Memo find the call, where it can tell that it is the same one."""
    if score is not None and not score.of:
        return  # nothing tells when it is gone
    if mask is not None and not (mask.of and isinstance(block_mask, BlockMask)):
        return
    plain = all(type(tensor) is torch.Tensor and tensor.device.type == "cpu" for tensor in inputs)
    if not (plain and _HAS_TABLE and call.has_one_head_dim and inputs[0].stride(3) == 1 and
            (scale is None or type(scale) is float) and all(tensor.device.type == "cpu" for tensor in tensors)):
        return
    mask_guards = ()
    if mask is not None:
        # The mask_mod is the block mask's, whose place in guards is None.
        function = block_mask.mask_mod
        mask_guards = [(kind, function if where is None else where, name, value)
                       for kind, where, name, value in mask.captures.guards]
        mask_guards.append((0, None, "mask_mod", function))
        place = id(block_mask)
        if place not in _watched:
            def forget(_):
                _watched.pop(place, None)
                _memo.purge()
            _watched[place] = weakref.ref(block_mask, forget)
    try:
        _memo.add(score_mod, block_mask, scale, enable_gqa, inputs, score.captures.guards if score else (), mask_guards,
                  call.plan, tensors, versions and tuple(version for _, version in versions),
                  call if needs_grad else None)
    except TypeError:
        pass  # no weak references


_watched: Dict[int, Any] = {}  # block masks that _memo knows
_checked = Kept()
_is_compiling, _is_dynamo = torch.compiler.is_compiling, torch.compiler.is_dynamo_compiling
_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor
_is_traced = torch._C._len_torch_dispatch_stack  # of modes: not 0 where what runs is not only computed


def flex_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                   score_mod: Optional[Callable[..., Any]] = None, block_mask: Any = None,
                   scale: Optional[float] = None, enable_gqa: bool = False, return_lse: bool = False,
                   kernel_options: Any = None, *, return_aux: Optional[AuxRequest] = None
                   ) -> Union[torch.Tensor, Tuple[torch.Tensor, torch.Tensor], Tuple[torch.Tensor, AuxOutput]]:
    """Attention with a modified score, as torch.nn.attention.flex_attention.flex_attention computes it.

    score_mod(score, b, h, q_idx, kv_idx) gives the modified score of one element. Tensors that it captures and that
    require gradients get them. block_mask is create_block_mask's, here or PyTorch's. kernel_options is accepted and has
    no effect: flexc chooses its kernels.
    """
    if _is_compiling():
        if _is_dynamo() and not _fits_dynamo(query, value, return_aux is not None and return_aux.max_scores):
            return _outside(query, key, value, score_mod, block_mask, scale, enable_gqa, return_lse, return_aux)
        return _in_graph(query, key, value, score_mod, block_mask, scale, enable_gqa, return_lse, return_aux)
    return _flex_attention(query, key, value, score_mod, block_mask, scale, enable_gqa, return_lse, return_aux)


def _wants_max_scores(return_lse, return_aux):
    if return_lse and return_aux is not None:
        raise ValueError("return_lse and return_aux cannot be used together")
    return return_aux is not None and return_aux.max_scores


def _expanded(query, key, value):
    """key and value of one batch entry serve all of the query's."""
    batch = query.shape[0]
    if key.shape[0] != batch:
        if key.shape[0] != 1:
            raise ValueError(f"query has batch {batch}, key and value {key.shape[0]}")
        key, value = key.expand(batch, -1, -1, -1), value.expand(batch, -1, -1, -1)
    return key, value


def _returned(out, lse, max_scores, return_lse, return_aux):
    if return_lse:
        return out, lse
    if return_aux is not None:
        return out, AuxOutput(lse if return_aux.lse else None, max_scores)
    return out


def _flex_attention(query, key, value, score_mod, block_mask, scale, enable_gqa, return_lse, return_aux):
    wants_lse = return_lse or return_aux is not None
    if not wants_lse:
        out = _memo.run(query, key, value, score_mod, block_mask, scale, enable_gqa, torch.is_grad_enabled())
        if out is not None:
            return out
    if _is_traced() or type(query) is FakeTensor:
        return _in_graph(query, key, value, score_mod, block_mask, scale, enable_gqa, return_lse, return_aux)
    max_scores = _wants_max_scores(return_lse, return_aux)
    _check_call(query, key, value, enable_gqa)
    mask_mod = None if block_mask is None else mask_of(block_mask, query, key)
    key, value = _expanded(query, key, value)
    device = query.device
    score, mask = _traced(score_mod, True, device), _traced(mask_mod, False, device)
    needs_grad = _needs_grad(query, key, value, score)
    scale = None if scale is None else float(scale)
    call, tensors, versions = _prepare(query, key, value, score, mask, scale, needs_grad, max_scores)
    results = _attend(call, query, key, value, tensors, wants_lse, needs_grad)
    if not wants_lse:
        _remember(score_mod, block_mask, scale, enable_gqa, (query, key, value), score, mask, call, tensors, versions,
                  needs_grad)
    return _returned(*results, return_lse, return_aux)


def _in_graph(query, key, value, score_mod, block_mask, scale, enable_gqa, return_lse, return_aux):
    """A call that something traces: the operator flexc::attention."""
    max_scores = _wants_max_scores(return_lse, return_aux)
    _check(query, key, value, enable_gqa)
    _check_lengths(query, key)
    mask_mod = None if block_mask is None else mask_of(block_mask, query, key)
    key, value = _expanded(query, key, value)
    scale = None if scale is None else float(scale)
    results = graph.attend(query, key, value, score_mod, mask_mod, scale, max_scores=max_scores)
    return _returned(*results, return_lse, return_aux)


_OLD_DYNAMO = tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 7)


def _fits_dynamo(query, value, max_scores=False):
    """Older ones take it that there are two outputs, of which the first has the query's head dim."""
    return not _OLD_DYNAMO or (value.shape[-1] == query.shape[-1] and not max_scores)


# What dynamo then sees: a call that it does not look into.
@torch.compiler.disable
def _outside(query, key, value, score_mod, block_mask, scale, enable_gqa, return_lse, return_aux):
    return _flex_attention(query, key, value, score_mod, block_mask, scale, enable_gqa, return_lse, return_aux)
