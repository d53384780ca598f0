"""Mods as graphs, by PyTorch's own tracer, and graphs as the text of a flexc program."""
import linecache
import sys
import threading
import traceback

import torch
import torch.fx.traceback
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from ..errors import CannotTrace
from . import expr, lower
from .captures import rebuilt

_HERE = (__file__, lower.__file__, expr.__file__)
_TORCH = torch.__file__.rsplit("/", 1)[0]
_BUFFER_TYPES = {
    torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.int64: "i64",
    torch.int32: "i32", torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8", torch.bool: "bool",
}
_tracing = threading.Lock()  # make_fx patches what other threads would see


@torch.library.custom_op("flexc::without_gradient", mutates_args=())
def _without_gradient(array: torch.Tensor) -> torch.Tensor:
    """Stands for detach in graphs, where PyTorch's own is only another name."""
    return array.clone()


class _Mode(TorchFunctionMode):
    """Reads at traced indices, and which line of the user's each operator stands in.

    `stand_ins` are what takes the place of tensors, by their identity.
    """

    def __init__(self, stand_ins):
        super().__init__()
        self.stand_ins = stand_ins

    def __torch_function__(self, function, types, arguments=(), named=None):
        torch.fx.traceback.set_stack_trace([_user_line()])
        if self.stand_ins:
            arguments, named = tree_map(lambda x: self.stand_ins.get(id(x), x), (arguments, named))
        if function is torch.Tensor.__getitem__:
            return _read(*arguments)
        if function in (torch.Tensor.detach, torch.detach):
            return _without_gradient(*arguments)
        return function(*arguments, **(named or {}))


def _is_users(file):
    return not file.startswith(_TORCH) and file not in _HERE


def _user_line():
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if _is_users(name):
            line = linecache.getline(name, frame.f_lineno).strip()
            return f'  File "{name}", line {frame.f_lineno}, in {frame.f_code.co_name}\n    {line}\n'
        frame = frame.f_back
    return ""


def _refuse_decision(error):
    """Says it where a function asked for the value of a traced tensor."""
    if type(error) is not RuntimeError or "value out of a tracing tensor" not in str(error):
        return
    place = ""
    for frame, number in traceback.walk_tb(error.__traceback__):
        name = frame.f_code.co_filename
        if _is_users(name):
            place = (f'\n  File "{name}", line {number}, in {frame.f_code.co_name}\n'
                     f"    {linecache.getline(name, number).strip()}")
    raise CannotTrace("a mod cannot decide by the value of its score, of an index or of an element, which is not known "
                      f"before it runs: torch.where chooses between values{place}") from error


def _read(array, index):
    """array[index] where indices may be traced numbers, which Python's own way would ask for their value."""
    items = list(index) if isinstance(index, tuple) else [index]
    if not any(isinstance(item, torch.Tensor) for item in items):
        return _plain(array, index)
    if any(item is Ellipsis for item in items):
        at = next(i for i, item in enumerate(items) if item is Ellipsis)
        used = sum(item is not None and item is not Ellipsis for item in items)
        items[at:at + 1] = [slice(None)] * (array.dim() - used)
    if any(isinstance(item, torch.Tensor) and item.dtype == torch.bool for item in items):
        raise CannotTrace("an index of a captured tensor is an integer, not a mask")
    if all(isinstance(item, (int, torch.Tensor)) and not isinstance(item, bool) for item in items):
        own = [item if isinstance(item, torch.Tensor) else torch.tensor(item) for item in items]
        return torch.ops.aten.index.Tensor(array, own)
    array = _plain(array, tuple(slice(None) if isinstance(item, torch.Tensor) else item for item in items))
    places = [item if isinstance(item, torch.Tensor) else None for item in items if not isinstance(item, int)]
    while places and places[-1] is None:
        places.pop()
    return torch.ops.aten.index.Tensor(array, places)


def _plain(array, index):
    with torch._C.DisableTorchFunction():
        return torch.Tensor.__getitem__(array, index)


class Traced:
    """The graph of one mod. `slots` says which of the captures' tensors a constant of the graph is."""

    def __init__(self, function, captures, with_score, device, stand_ins=None):
        self.with_score, stand_ins = with_score, stand_ins or {}
        self.symbolic = bool(captures.numbers)
        try:
            module = self._trace(function, captures, device, stand_ins)
        except Exception as error:
            if not self.symbolic:
                _refuse_decision(error)
                raise
            # The function decides by a number's value: then the number is a part of the program.
            self.symbolic = False
            try:
                module = self._trace(function, captures, device, stand_ins)
            except Exception as second:
                _refuse_decision(second)
                raise
        self.constants, self.slots = {}, {}
        places = {id(stand_ins.get(id(tensor), tensor)): slot for slot, tensor in enumerate(captures.tensors)}
        for node in module.graph.nodes:
            if node.op != "get_attr" or node.target in self.slots or node.target in self.constants:
                continue
            tensor = getattr(module, node.target)
            if not isinstance(tensor, torch.Tensor):
                raise CannotTrace(f"flexc cannot call the function {node.target} of a graph")
            if id(tensor) in places:
                self.slots[node.target] = places[id(tensor)]
            elif not all(user.name.startswith("lift_fresh") for user in node.users):
                # Not made by the mod, and nothing would tell when it is another.
                reader = next(user for user in node.users if not user.name.startswith("lift_fresh"))
                raise CannotTrace("a mod reads a tensor of shape "
                                  f"{tuple(tensor.shape)} by a way that flexc does not follow: give it to the mod as a "
                                  f"variable or an attribute\n{(reader.stack_trace or '').rstrip()}".rstrip())
            elif tensor.dim() == 0 and not tensor.requires_grad:
                self.constants[node.target] = tensor.item()
            else:
                self.constants[node.target] = tensor
            # What was captured belongs to its owner: of it only the shape and type are kept.
            module._parameters.pop(node.target, None)
            module._buffers.pop(node.target, None)
            setattr(module, node.target, torch.empty(tensor.shape, dtype=tensor.dtype, device="meta",
                                                     requires_grad=False))
        self.module = module

    def _trace(self, function, captures, device, stand_ins):
        numbers = captures.numbers if self.symbolic else ()

        def traced(*values):
            count = 5 if self.with_score else 4
            held = iter(values[count:])
            mod = rebuilt(function, held) if numbers else function
            with _Mode(stand_ins):
                result = mod(*values[:count])
            if numbers and next(held, None) is not None:
                raise CannotTrace("a captured number was not found again")
            if isinstance(result, (bool, int, float)):
                return torch.tensor(result)
            if not isinstance(result, torch.Tensor):
                kind = "score_mod" if self.with_score else "mask_mod"
                raise CannotTrace(f"a {kind} returns a tensor, not {type(result).__name__}")
            return result
        index = [torch.zeros((), dtype=torch.int32, device=device) for _ in range(4)]
        values = [torch.zeros((), device=device)] * self.with_score + index
        values += [torch.tensor(number, dtype=torch.int64 if type(number) is int else torch.float64)
                   for number in numbers]
        with _tracing, torch.no_grad(), torch.fx.traceback.preserve_node_meta():
            return make_fx(traced)(*values)


class Text:
    """A program for one set of sizes, and where its buffers and params come from."""

    def __init__(self, score, mask, score_numbers, mask_numbers, sizes, wants_grad):
        self.buffers, self.params, self._by_source = [], [], {}
        bodies = []
        for traced, numbers, prefix, word in ((score, score_numbers, "s", "score_mod"),
                                              (mask, mask_numbers, "m", "mask_mod")):
            if traced is not None:
                bodies.append(self._body(traced, numbers, prefix, word, sizes, wants_grad))
        lines = []
        for buffer in self.buffers:
            dims = [name or f"{buffer.name}_{dim}" for dim, name in enumerate(buffer.dims)]
            declared = f"{_BUFFER_TYPES[buffer.dtype]}[{', '.join(dims)}]"
            lines.append(f"buffer {buffer.name}: {declared}{' grad' * buffer.grad}")
        lines += [f"param {name}: {kind}" for name, kind, _ in self.params]
        self.text = "\n".join(lines + bodies) or "score"
        self.grads = tuple(buffer.name for buffer in self.buffers if buffer.grad)
        self.names = tuple(buffer.name for buffer in self.buffers)

    def _body(self, traced, numbers, prefix, word, sizes, wants_grad):
        body = lower.Body(prefix)
        inputs = ["score"] * traced.with_score + [sizes.ambient(name) for name in ("b", "h", "q_idx", "kv_idx")]
        if traced.symbolic:
            for place, number in enumerate(numbers):
                name, is_integer = f"{prefix}p{place}", type(number) is int
                self.params.append((name, "i64" if is_integer else "f32", (prefix, place)))
                bounds = (number, number) if is_integer else ()
                inputs.append(expr.Expr(name, "int" if is_integer else "real", *bounds))

        def buffer_of(target, detached):
            if target in traced.constants and not isinstance(traced.constants[target], torch.Tensor):
                return traced.constants[target]
            slot = traced.slots.get(target)
            source = (prefix, target) if slot is None else (prefix, slot)
            grad = slot is not None and not detached and traced.with_score and wants_grad(prefix, slot)
            key = (*source, grad)
            if key not in self._by_source:
                tensor = getattr(traced.module, target)
                if tensor.dtype not in _BUFFER_TYPES:
                    raise CannotTrace(f"flexc has no buffers of {tensor.dtype}")
                buffer = lower.Buffer(f"t{len(self.buffers)}", tensor, grad)
                buffer.source, buffer.dtype = source, tensor.dtype
                buffer.constant = traced.constants.get(target)
                self._by_source[key] = buffer
                self.buffers.append(buffer)
            return self._by_source[key]
        result = lower.Lowering(traced.module, inputs, sizes, body, buffer_of).result()
        result = expr.real(result) if traced.with_score else expr.truth(result)
        statements = [*body.statements, result.text]
        return f"{word} {{\n  " + "\n  ".join(statements) + "\n}"
