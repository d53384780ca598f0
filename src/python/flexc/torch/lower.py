"""A graph of PyTorch's operators, for one element of the score matrix, as the body of a flexc mod.

Values are arrays that are never made: each knows its shape and, for any index, the text of the element there. So
captured tensors may be sliced, transposed, multiplied and summed before a mod indexes them.
"""
import itertools
import math
import operator as python_operator
import re

import torch

from ..errors import CannotTrace
from .expr import (BINARY, INFINITE, TO, UNARY, Expr, add, any_local, clamp, comparison, divide, floor_divide,
                   formula, function, kind_of, literal, logical, maximum, minimum, multiply, promoted, real, remainder,
                   subtract, truncated_divide, where)


class Value:
    """An array: `at` gives the Expr of an element for a tuple of Exprs, one for each dim."""

    __slots__ = ("shape", "kind", "at")

    def __init__(self, shape, kind, at):
        self.shape, self.kind, self.at = tuple(shape), kind, at


def scalar(expr):
    return Value((), expr.kind, lambda index: expr)


class Body:
    """The statements of one mod. Longer expressions get names, equal ones the same."""

    def __init__(self, prefix):
        self.prefix, self.statements, self._names = prefix, [], {}
        self.counters = itertools.count()

    def name(self, expr):
        if expr.local or len(expr.text) <= 12:
            return expr
        name = self._names.get(expr.text)
        if name is None:
            name = self._names[expr.text] = f"{self.prefix}{len(self._names)}"
            self.statements.append(f"{name} = {expr.text}")
        return Expr(name, expr.kind, expr.low, expr.high)


class Buffer:
    """A captured tensor of the program. Dims are named where an index runs over a size."""

    def __init__(self, name, tensor, grad):
        self.name, self.tensor, self.grad = name, tensor, grad
        self.dims = [None] * tensor.dim()


class Sizes:
    """What the program's names stand for in one call."""

    def __init__(self, batch, heads, kv_heads, q_len, kv_len):
        self.of = {"b": ("B", batch), "h": ("H", heads), "q_idx": ("Q_LEN", q_len), "kv_idx": ("KV_LEN", kv_len)}
        self.key = (batch, heads, kv_heads, q_len, kv_len)

    def ambient(self, name):
        size = self.of[name][1]
        # A size that a tracer keeps open has no bound.
        return Expr(name, "int", 0, size - 1 if type(size) is int else INFINITE)


SAME = {"alias", "clone", "contiguous", "lift_fresh", "lift_fresh_copy", "lift", "positive", "view_as_real_copy"}


class Lowering:
    """One mod's graph into a Body. `buffer_of(target, detached)` gives the Buffer of a captured tensor, or a number."""

    def __init__(self, graph_module, inputs, sizes, body, buffer_of):
        self.module, self.sizes, self.body, self.buffer_of = graph_module, sizes, body, buffer_of
        self.values = {}
        self.inputs = dict(zip((n for n in graph_module.graph.nodes if n.op == "placeholder"), inputs))

    def result(self):
        (output,) = [node for node in self.module.graph.nodes if node.op == "output"]
        returned = output.args[0]
        if isinstance(returned, (tuple, list)):
            (returned,) = returned
        value = self.operand(returned, False)
        if math.prod(value.shape) != 1:
            raise CannotTrace(f"a mod returns one number for each element, not an array of shape {value.shape}")
        return value.at((literal(0),) * len(value.shape))

    def operand(self, node, detached):
        if isinstance(node, (bool, int, float)):
            return scalar(literal(node))
        if not isinstance(node, torch.fx.Node):
            raise CannotTrace(f"flexc has no values such as {node!r}")
        key = node, detached
        if key not in self.values:
            self.values[key] = self.node(node, detached)
        return self.values[key]

    def node(self, node, detached):
        if node.op == "placeholder":
            value = self.inputs[node]
            if detached and value == "score":
                raise self.refusal(node, "flexc cannot leave out the gradient of what depends on the score")
            return scalar(Expr("score", "real") if value == "score" else value)
        if node.op == "get_attr":
            return self.captured(node.target, getattr(self.module, node.target), detached)
        try:
            return self.operator(node, detached)
        except CannotTrace as error:
            raise error if getattr(error, "placed", False) else self.refusal(node, str(error)) from None

    def refusal(self, node, why):
        error = CannotTrace(f"{why}\n{(node.stack_trace or '').rstrip()}".rstrip())
        error.placed = True
        return error

    def captured(self, target, tensor, detached):
        found = self.buffer_of(target, detached)
        if not isinstance(found, Buffer):
            return scalar(literal(found))
        kind = kind_of(tensor.dtype)

        def at(index):
            texts = []
            for dim, i in enumerate(index):
                size_name, size = self.sizes.of.get(i.text, (None, -1))
                if size == tensor.shape[dim] and found.dims[dim] in (None, size_name):
                    found.dims[dim] = size_name
                elif found.dims[dim] is None:
                    found.dims[dim] = ""
                texts.append(i.text if i.low >= 0 else self.wrapped(i, tensor.shape[dim]))
            bounds = (0, 1) if kind == "bool" else (-INFINITE, INFINITE)
            text = f"{found.name}[{', '.join(texts)}]" if texts else found.name
            return self.body.name(Expr(text, kind, *bounds, any_local(*index)))
        return Value(tensor.shape, kind, at)

    def wrapped(self, index, size):
        """Negative indices count from the end."""
        if index.high < 0:
            return f"{index.text} + {size}"
        index = self.body.name(index)
        return f"where({index.text} < 0, {index.text} + {size}, {index.text})"

    def elementwise(self, build, *operands):
        shape = torch.broadcast_shapes(*(value.shape for value in operands))

        def at(index):
            exprs = []
            for value in operands:
                own = index[len(index) - len(value.shape):]
                exprs.append(value.at(tuple(literal(0) if size == 1 else i for i, size in zip(own, value.shape))))
            return self.body.name(build(*exprs))
        if not shape:
            expr = at(())
            return scalar(expr)
        kind = build(*(Expr("x", value.kind) for value in operands)).kind
        return Value(shape, kind, at)

    def operator(self, node, detached):
        target = node.target
        if target is python_operator.getitem:
            return self.operand(node.args[0], detached)[node.args[1]]
        name = target._schema.name.split("::")[-1] if hasattr(target, "_schema") else getattr(target, "__name__", "")
        space = target._schema.name.split("::")[0] if hasattr(target, "_schema") else ""
        args, kwargs = node.args, dict(node.kwargs)

        def operand(i, at=None):
            return self.operand(args[i] if at is None else kwargs[at], detached)

        if space == "flexc" and name == "without_gradient":
            return self.operand(args[0], True)
        if space == "approx" and name == "tanh":
            return self.elementwise(UNARY["tanh"], operand(0))
        if space not in ("aten", "prims"):
            raise CannotTrace(f"flexc has no operator {target}")
        if name.endswith("_") and not name.endswith("__"):
            raise CannotTrace(f"a mod cannot write in place, as {target} does")
        if name in SAME:
            return operand(0)
        if name in UNARY and (name != "round" or not kwargs.get("decimals")):
            return self.elementwise(UNARY[name], operand(0))
        if name in BINARY:
            return self.elementwise(BINARY[name], operand(0), operand(1))
        method = getattr(self, "op_" + name, None)
        if method is None:
            raise CannotTrace(f"flexc has no operator {target}")
        return method(node, args, kwargs, operand)

    # --- operators with arguments of their own

    def scaled(self, value, factor):
        return value if factor == 1 else self.elementwise(multiply, value, scalar(literal(factor)))

    def op_add(self, node, args, kwargs, operand, build=add):
        return self.elementwise(build, operand(0), self.scaled(operand(1), kwargs.get("alpha", 1)))

    def op_sub(self, node, args, kwargs, operand):
        return self.op_add(node, args, kwargs, operand, subtract)

    def op_rsub(self, node, args, kwargs, operand):
        return self.elementwise(subtract, operand(1), self.scaled(operand(0), kwargs.get("alpha", 1)))

    def op_addcmul(self, node, args, kwargs, operand, build=multiply):
        added = self.scaled(self.elementwise(build, operand(1), operand(2)), kwargs.get("value", 1))
        return self.elementwise(add, operand(0), added)

    def op_addcdiv(self, node, args, kwargs, operand):
        return self.op_addcmul(node, args, kwargs, operand, divide)

    def op_lerp(self, node, args, kwargs, operand):
        return self.elementwise(lambda x, y, weight: add(x, multiply(weight, subtract(y, x))), operand(0), operand(1),
                                operand(2))

    def op_div(self, node, args, kwargs, operand):
        build = {None: divide, "floor": floor_divide, "trunc": truncated_divide}[kwargs.get("rounding_mode")]
        return self.elementwise(build, operand(0), operand(1))

    op_true_divide = op_div

    def op_where(self, node, args, kwargs, operand):
        return self.elementwise(where, operand(0), operand(1), operand(2))

    def op_masked_fill(self, node, args, kwargs, operand):
        return self.elementwise(lambda x, c, y: where(c, TO[x.kind](y), x), operand(0), operand(1), operand(2))

    def op_clamp(self, node, args, kwargs, operand):
        low = kwargs.get("min", args[1] if len(args) > 1 else None)
        high = kwargs.get("max", args[2] if len(args) > 2 else None)
        given = [self.operand(bound, False) for bound in (low, high) if bound is not None]

        def build(x, *bounds):
            bounds = list(bounds)
            return clamp(x, None if low is None else bounds.pop(0), None if high is None else bounds.pop(0))
        return self.elementwise(build, operand(0), *given)

    def op_leaky_relu(self, node, args, kwargs, operand):
        slope = literal(float(args[1] if len(args) > 1 else 0.01))
        return self.elementwise(lambda x: where(comparison(">")(x, literal(0)), x, multiply(x, slope)), operand(0))

    def op_gelu(self, node, args, kwargs, operand):
        if kwargs.get("approximate", "none") == "none":
            return self.elementwise(function("gelu"), operand(0))
        tanh = "tanh(0.7978845608028654 * ({x} + 0.044715 * {x} * {x} * {x}))"
        return self.elementwise(formula(f"(0.5 * {{x}} * (1.0 + {tanh}))"), operand(0))

    def op_elu(self, node, args, kwargs, operand):
        alpha, scale, input_scale = (repr(float(number)) for number in (*args[1:], *(1.0, 1.0, 1.0)[len(args) - 1:]))
        return self.elementwise(formula(
            f"(where({{x}} > 0, {{x}}, ({alpha}) * expm1({{x}} * ({input_scale}))) * ({scale}))"), operand(0))

    def op_softplus(self, node, args, kwargs, operand):
        beta, threshold = (repr(float(number)) for number in (*args[1:], *(1.0, 20.0)[len(args) - 1:]))
        return self.elementwise(formula(
            f"where({{x}} * ({beta}) > ({threshold}), {{x}}, softplus({{x}} * ({beta})) / ({beta}))"), operand(0))

    def op_celu(self, node, args, kwargs, operand):
        alpha = args[1] if len(args) > 1 else 1.0
        return self.op_elu(node, (args[0], alpha, 1.0, 1.0 / alpha), kwargs, operand)

    def op_hardshrink(self, node, args, kwargs, operand):
        bound = repr(float(args[1] if len(args) > 1 else 0.5))
        return self.elementwise(formula(f"where(abs({{x}}) > ({bound}), {{x}}, 0.0)"), operand(0))

    def op_softshrink(self, node, args, kwargs, operand):
        bound = repr(float(args[1] if len(args) > 1 else 0.5))
        return self.elementwise(formula(
            f"where(abs({{x}}) > ({bound}), {{x}} - sign({{x}}) * ({bound}), 0.0)"), operand(0))

    def op_threshold(self, node, args, kwargs, operand):
        return self.elementwise(lambda x, low, other: where(comparison("<=")(x, low), other, x), operand(0), operand(1),
                                operand(2))

    def op_hardtanh(self, node, args, kwargs, operand):
        low, high = (literal(float(bound)) for bound in (*args[1:], *(-1.0, 1.0)[len(args) - 1:]))
        return self.elementwise(lambda x: clamp(real(x), low, high), operand(0))

    def op_log_sigmoid_forward(self, node, args, kwargs, operand):
        return self.elementwise(UNARY["log_sigmoid"], operand(0)), None

    def op_nan_to_num(self, node, args, kwargs, operand):
        most = torch.finfo(torch.float32).max
        numbers = [*args[1:], *(kwargs.get(name) for name in ("nan", "posinf", "neginf")[len(args) - 1:])]
        nan, high, low = (literal(float(default if number is None else number))
                          for number, default in zip(numbers, (0.0, most, -most)))

        def build(x):
            infinite = where(comparison(">")(x, literal(0)), high, low)
            return where(UNARY["isnan"](x), nan, where(UNARY["isinf"](x), infinite, x))
        return self.elementwise(build, operand(0))

    def op__to_copy(self, node, args, kwargs, operand):
        dtype = kwargs.get("dtype")
        return operand(0) if dtype is None else self.elementwise(TO[kind_of(dtype)], operand(0))

    def op_convert_element_type(self, node, args, kwargs, operand):
        return self.elementwise(TO[kind_of(args[1])], operand(0))

    def op_to(self, node, args, kwargs, operand):
        dtype = next((a for a in (*args[1:], *kwargs.values()) if isinstance(a, torch.dtype)), None)
        return operand(0) if dtype is None else self.elementwise(TO[kind_of(dtype)], operand(0))

    # --- arrays

    def constant(self, shape, number, dtype):
        shape = () if shape is None else tuple(shape)
        if isinstance(number, torch.fx.Node):
            value = self.operand(number, False)
            return Value(shape, value.kind, lambda index: value.at(()))
        if dtype is not None:
            number = {"bool": bool, "int": int, "real": float}[kind_of(dtype)](number)
        expr = literal(number)
        return Value(shape, expr.kind, lambda index: expr)

    def op_full(self, node, args, kwargs, operand):
        return self.constant(args[0], args[1], kwargs.get("dtype"))

    def op_scalar_tensor(self, node, args, kwargs, operand):
        return self.constant((), args[0], kwargs.get("dtype"))

    def op_zeros(self, node, args, kwargs, operand, number=0):
        return self.constant(args[0], number, kwargs.get("dtype") or torch.float32)

    def op_ones(self, node, args, kwargs, operand):
        return self.op_zeros(node, args, kwargs, operand, 1)

    def like(self, value, number, dtype):
        number = number if dtype is None else {"bool": bool, "int": int, "real": float}[kind_of(dtype)](number)
        kind = value.kind if dtype is None else kind_of(dtype)
        expr = self.operand(number, False).at(()) if isinstance(number, torch.fx.Node) else TO[kind](literal(number))
        return Value(value.shape, expr.kind, lambda index: expr)

    def op_full_like(self, node, args, kwargs, operand):
        return self.like(operand(0), args[1], kwargs.get("dtype"))

    def op_zeros_like(self, node, args, kwargs, operand):
        return self.like(operand(0), 0, kwargs.get("dtype"))

    def op_ones_like(self, node, args, kwargs, operand):
        return self.like(operand(0), 1, kwargs.get("dtype"))

    def op_new_zeros(self, node, args, kwargs, operand, number=0):
        value = self.like(operand(0), number, kwargs.get("dtype"))
        return Value(args[1], value.kind, lambda index: value.at(()))

    def op_new_ones(self, node, args, kwargs, operand):
        return self.op_new_zeros(node, args, kwargs, operand, 1)

    def op_new_full(self, node, args, kwargs, operand):
        return self.op_new_zeros(node, args, kwargs, operand, args[2])

    def op_arange(self, node, args, kwargs, operand):
        start, end, step = (0, args[0], 1) if len(args) == 1 else (*args, 1)[:3]
        count = max(0, math.ceil((end - start) / step))
        return Value((count,), literal(start + 0 * step).kind,
                     lambda index: add(literal(start), multiply(index[0], literal(step))))

    def op_select(self, node, args, kwargs, operand):
        value, dim, place = operand(0), args[1], self.operand(args[2], False).at(())
        dim %= len(value.shape)
        if place.low == place.high and place.low < 0:
            place = literal(int(place.low) + value.shape[dim])
        shape = value.shape[:dim] + value.shape[dim + 1:]
        return self.viewed(value, shape, lambda index: (*index[:dim], place, *index[dim:]))

    def op_slice(self, node, args, kwargs, operand):
        value = operand(0)
        dim, start, end, step = (tuple(args[1:]) + (0, None, None, 1)[len(args) - 1:])[:4]
        dim %= len(value.shape)
        start, end, step = slice(start, end, step).indices(value.shape[dim])
        count = max(0, -(-(end - start) // step))
        shape = (*value.shape[:dim], count, *value.shape[dim + 1:])

        def back(index):
            moved = index[dim] if step == 1 else multiply(index[dim], literal(step))
            moved = moved if start == 0 else add(moved, literal(start))
            return (*index[:dim], moved, *index[dim + 1:])
        return self.viewed(value, shape, back)

    def viewed(self, value, shape, back):
        made = Value(shape, value.kind, lambda index: value.at(back(index)))
        return made if made.shape else scalar(made.at(()))

    def op_unsqueeze(self, node, args, kwargs, operand):
        value = operand(0)
        dim = args[1] % (len(value.shape) + 1)
        return self.viewed(value, (*value.shape[:dim], 1, *value.shape[dim:]),
                           lambda index: (*index[:dim], *index[dim + 1:]))

    def op_squeeze(self, node, args, kwargs, operand):
        value = operand(0)
        dims = args[1] if len(args) > 1 else range(len(value.shape))
        dims = [dims] if isinstance(dims, int) else dims
        gone = {dim % len(value.shape) for dim in dims if len(value.shape) and value.shape[dim] == 1}

        def back(index):
            rest = iter(index)
            return tuple(literal(0) if dim in gone else next(rest) for dim in range(len(value.shape)))
        return self.viewed(value, tuple(s for d, s in enumerate(value.shape) if d not in gone), back)

    def op_expand(self, node, args, kwargs, operand):
        value = operand(0)
        extra = len(args[1]) - len(value.shape)
        shape = tuple(value.shape[d - extra] if size == -1 else size for d, size in enumerate(args[1]))
        return self.viewed(value, shape, lambda index: tuple(
            literal(0) if size == 1 else i for i, size in zip(index[extra:], value.shape)))

    def op_permute(self, node, args, kwargs, operand):
        value = operand(0)
        order = [dim % len(value.shape) for dim in args[1]]
        return self.viewed(value, tuple(value.shape[dim] for dim in order),
                           lambda index: tuple(index[order.index(dim)] for dim in range(len(order))))

    def op_transpose(self, node, args, kwargs, operand):
        order = list(range(len(operand(0).shape)))
        first, second = args[1], args[2]
        if order:
            order[first], order[second] = order[second], order[first]
        return self.op_permute(node, (args[0], order), kwargs, operand)

    def op_t(self, node, args, kwargs, operand):
        return operand(0) if len(operand(0).shape) < 2 else self.op_transpose(node, (args[0], 0, 1), kwargs, operand)

    def op_view(self, node, args, kwargs, operand):
        return self.reshaped(operand(0), args[1])

    def reshaped(self, value, shape):
        shape = list(shape)
        total = math.prod(value.shape)
        if -1 in shape:
            shape[shape.index(-1)] = total // -math.prod(shape)

        def back(index):
            line, step = literal(0), 1
            for i, size in zip(reversed(index), reversed(shape)):
                if size != 1:
                    line = add(line, multiply(i, literal(step))) if line.text != "0" else (
                        i if step == 1 else multiply(i, literal(step)))
                step *= size
            result, step = [], 1
            for size in reversed(value.shape):
                part = line if step == 1 else floor_divide(line, literal(step))
                result.append(literal(0) if size == 1 else part if step * size == total else
                              remainder(part, literal(size)))
                step *= size
            return tuple(reversed(result))
        return self.viewed(value, tuple(shape), back)

    op__unsafe_view = op_reshape = op_view_copy = op_view

    def op_flatten(self, node, args, kwargs, operand):
        return self.reshaped(operand(0), (-1,))

    def op_index(self, node, args, kwargs, operand):
        value = operand(0)
        indices = [None if i is None else self.operand(i, False) for i in args[1]]
        indices += [None] * (len(value.shape) - len(indices))
        if any(i is not None and i.kind != "int" for i in indices):
            raise CannotTrace("an index of a captured tensor is an integer, not a mask")
        places = [dim for dim, i in enumerate(indices) if i is not None]
        joint = torch.broadcast_shapes(*(indices[dim].shape for dim in places))
        adjacent = places == list(range(places[0], places[0] + len(places)))
        front = places[0] if adjacent else 0
        rest = [size for dim, size in enumerate(value.shape) if indices[dim] is None]
        shape = (*rest[:front], *joint, *rest[front:])

        def back(index):
            chosen = index[front:front + len(joint)]
            others = iter((*index[:front], *index[front + len(joint):]))
            result = []
            for dim in range(len(value.shape)):
                if indices[dim] is None:
                    result.append(next(others))
                    continue
                own = chosen[len(chosen) - len(indices[dim].shape):]
                result.append(indices[dim].at(tuple(literal(0) if size == 1 else i
                                                    for i, size in zip(own, indices[dim].shape))))
            return tuple(result)
        return self.viewed(value, shape, back)

    op__unsafe_index = op_index

    def op_index_select(self, node, args, kwargs, operand):
        places = [None] * args[1] + [args[2]]
        return self.op_index(node, (args[0], places), kwargs, operand)

    def op_embedding(self, node, args, kwargs, operand):
        rows = self.op_index(node, (args[0], [args[1]]), kwargs, operand)
        padding = args[2] if len(args) > 2 else -1
        if padding < 0:
            return rows
        # The row of padding has no gradient.
        still = self.op_index(node, (args[0], [args[1]]), kwargs, lambda i: self.operand(args[i], True))
        places = operand(1)
        column = Value((*places.shape, 1), places.kind, lambda index: places.at(index[:-1]))
        return self.elementwise(lambda place, x, y: where(comparison("==")(place, literal(padding)), x, y), column,
                                still, rows)

    def op_gather(self, node, args, kwargs, operand):
        value, dim, place = operand(0), args[1], operand(2)
        return self.viewed(value, place.shape, lambda index: (*index[:dim], place.at(index), *index[dim + 1:]))

    def op_take(self, node, args, kwargs, operand):
        flat, place = self.op_flatten(node, args, kwargs, operand), operand(1)
        return self.viewed(flat, place.shape, lambda index: (place.at(index),))

    def op_unbind(self, node, args, kwargs, operand):
        value = operand(0)
        dim = (args[1] if len(args) > 1 else 0) % len(value.shape)
        shape = value.shape[:dim] + value.shape[dim + 1:]
        return [self.viewed(value, shape, lambda index, place=literal(i): (*index[:dim], place, *index[dim:]))
                for i in range(value.shape[dim])]

    def op_split(self, node, args, kwargs, operand):
        value = operand(0)
        dim = (args[2] if len(args) > 2 else 0) % len(value.shape)
        total = value.shape[dim]
        sizes = [min(args[1], total - at) for at in range(0, total, args[1])] if isinstance(args[1], int) else args[1]
        starts = itertools.accumulate(sizes, initial=0)

        def part(start, size):
            return self.viewed(value, (*value.shape[:dim], size, *value.shape[dim + 1:]), lambda index: (
                *index[:dim], add(index[dim], literal(start)), *index[dim + 1:]))
        return [part(start, size) for start, size in zip(starts, sizes)]

    op_split_with_sizes = op_split

    def op_flip(self, node, args, kwargs, operand):
        value = operand(0)
        dims = {dim % len(value.shape) for dim in args[1]}
        return self.viewed(value, value.shape, lambda index: tuple(
            subtract(literal(value.shape[dim] - 1), i) if dim in dims else i for dim, i in enumerate(index)))

    def op_stack(self, node, args, kwargs, operand):
        parts = [self.operand(part, False) for part in args[0]]
        dim = (args[1] if len(args) > 1 else 0) % (len(parts[0].shape) + 1)
        shape = (*parts[0].shape[:dim], len(parts), *parts[0].shape[dim:])

        def at(index):
            own = (*index[:dim], *index[dim + 1:])
            return self.chosen(index[dim], [(i, part.at(own)) for i, part in enumerate(parts)])
        return Value(shape, promoted(*(part.kind for part in parts)), at)

    def op_cat(self, node, args, kwargs, operand):
        parts = [self.operand(part, False) for part in args[0]]
        dim = (args[1] if len(args) > 1 else 0) % len(parts[0].shape)
        starts = list(itertools.accumulate((part.shape[dim] for part in parts), initial=0))
        shape = (*parts[0].shape[:dim], starts[-1], *parts[0].shape[dim + 1:])

        def at(index):
            moved = [(*index[:dim], subtract(index[dim], literal(start)), *index[dim + 1:]) for start in starts]
            return self.chosen(index[dim], [(start, part.at(own)) for start, part, own in zip(starts, parts, moved)])
        return Value(shape, promoted(*(part.kind for part in parts)), at)

    def chosen(self, place, parts):
        """Of parts (start, Expr) the last that starts at or before the place."""
        result = parts[0][1]
        for start, expr in parts[1:]:
            result = where(comparison(">=")(place, literal(start)), expr, result)
        return self.body.name(result)

    # --- sums over captured axes

    def reduced(self, value, dims, keep, build):
        dims = [dims] if isinstance(dims, int) else dims or range(len(value.shape))
        dims = sorted(dim % len(value.shape) for dim in dims) if value.shape else []
        shape = tuple(1 if d in dims else s for d, s in enumerate(value.shape) if keep or d not in dims)

        def at(index):
            rest = iter(i for i, d in zip(index, range(len(value.shape))) if d not in dims) if keep else iter(index)
            free = {d: next(rest) for d in range(len(value.shape)) if d not in dims}
            return self.body.name(build(lambda inner: value.at(tuple(
                inner[dims.index(d)] if d in dims else free[d] for d in range(len(value.shape)))),
                [value.shape[d] for d in dims]))
        made = Value(shape, build(lambda inner: Expr("x", value.kind), [1] * len(dims)).kind, at)
        return made if shape else scalar(at(()))

    def summed(self, at, sizes):
        if any(size == 0 for size in sizes):
            return literal(0)
        counters = [Expr(f"i{next(self.body.counters)}", "int", 0, size - 1, True) for size in sizes]
        term = at(tuple(literal(0) if size == 1 else c for c, size in zip(counters, sizes)))
        kind = "int" if term.kind == "bool" else term.kind
        text = term.text
        used = [(c, size) for c, size in zip(counters, sizes) if size != 1]
        for counter, size in reversed(used):
            text = f"sum({counter.text} in 0..{size}: {text})"
        own = {counter.text for counter, _ in used}
        words = set(re.findall(r"\bi\d+\b", text))
        bound = set(re.findall(r"sum\((i\d+) in", text))
        return Expr(text, kind, -INFINITE, INFINITE, bool(words - own - bound))

    def op_sum(self, node, args, kwargs, operand):
        value = operand(0)
        dims = args[1] if len(args) > 1 else None
        keep = args[2] if len(args) > 2 else kwargs.get("keepdim", False)
        return self.reduced(value, dims, keep, self.summed)

    def op_mean(self, node, args, kwargs, operand):
        def mean(at, sizes):
            return divide(self.summed(at, sizes), literal(float(math.prod(sizes))))
        return self.reduced(operand(0), args[1] if len(args) > 1 else None, args[2] if len(args) > 2 else False, mean)

    def op_linalg_vector_norm(self, node, args, kwargs, operand):
        order = float(args[1] if len(args) > 1 else 2)
        dims = args[2] if len(args) > 2 else None
        keep = args[3] if len(args) > 3 else False
        sizes = self.elementwise(UNARY["abs"], operand(0))
        if order == math.inf:
            return self.reduced(sizes, dims, keep, self.folded(maximum))
        if order not in (1.0, 2.0):
            raise CannotTrace(f"flexc has norms of order 1, 2 and infinity, not {order:g}")
        if order == 1.0:
            return self.reduced(sizes, dims, keep, self.summed)
        total = self.reduced(self.elementwise(UNARY["square"], operand(0)), dims, keep, self.summed)
        # As in PyTorch, its derivative at 0 is 0.
        return self.elementwise(formula("where({x} > 0, sqrt({x}), 0.0)"), total)

    def number_of(self, array, holds, values):
        """For each value, how many elements of an array a comparison of the two holds for."""
        flat = self.reshaped(array, (math.prod(array.shape),))

        def build(x):
            number = self.summed(lambda i: where(holds(flat.at(i), x), literal(1), literal(0)), flat.shape)
            return Expr(number.text, "int", 0, flat.shape[0], number.local)
        return self.elementwise(build, values)

    def op_isin(self, node, args, kwargs, operand):
        sign = "==" if kwargs.get("invert") else ">"
        found = self.number_of(operand(1), comparison("=="), operand(0))
        return self.elementwise(lambda number: comparison(sign)(number, literal(0)), found)

    def op_searchsorted(self, node, args, kwargs, operand):
        array = operand(0)
        if len(array.shape) != 1 or kwargs.get("sorter") is not None:
            raise CannotTrace("flexc searches arrays of one dim, without a sorter")
        is_right = kwargs.get("right", False) or kwargs.get("side") == "right"
        return self.number_of(array, comparison("<=" if is_right else "<"), operand(1))

    def op_bucketize(self, node, args, kwargs, operand):
        return self.op_searchsorted(node, args, kwargs, lambda i: operand(1 - i))

    def folded(self, build):
        def fold(at, sizes):
            if math.prod(sizes) > 64:
                raise CannotTrace(f"flexc unrolls this for up to 64 elements, not {math.prod(sizes)}")
            result = None
            for place in itertools.product(*map(range, sizes)):
                expr = at(tuple(map(literal, place)))
                result = expr if result is None else build(result, expr)
            return result
        return fold

    def op_amax(self, node, args, kwargs, operand, build=maximum):
        return self.reduced(operand(0), args[1] if len(args) > 1 else None, args[2] if len(args) > 2 else False,
                            self.folded(build))

    def op_amin(self, node, args, kwargs, operand):
        return self.op_amax(node, args, kwargs, operand, minimum)

    def op_max(self, node, args, kwargs, operand, build=maximum):
        if len(args) > 1 and args[1] is not None:
            raise CannotTrace(f"flexc has {node.target} without a dim only, and amax and amin with one")
        return self.op_amax(node, args, kwargs, operand, build)

    def op_min(self, node, args, kwargs, operand):
        return self.op_max(node, args, kwargs, operand, minimum)

    def op_prod(self, node, args, kwargs, operand):
        return self.op_amax(node, args, kwargs, operand, multiply)

    def op_any(self, node, args, kwargs, operand):
        return self.op_amax(node, args, kwargs, operand, logical("or"))

    def op_all(self, node, args, kwargs, operand):
        return self.op_amax(node, args, kwargs, operand, logical("and"))

    def product(self, x, y, x_index, y_index, shape, length):
        def at(index):
            return self.body.name(self.summed(
                lambda i: multiply(x.at(x_index(index, i[0])), y.at(y_index(index, i[0]))), [length]))
        made = Value(shape, promoted(x.kind, y.kind), at)
        return made if shape else scalar(at(()))

    def op_dot(self, node, args, kwargs, operand):
        return self.product(operand(0), operand(1), lambda n, i: (i,), lambda n, i: (i,), (), operand(0).shape[0])

    def op_mv(self, node, args, kwargs, operand):
        x = operand(0)
        return self.product(x, operand(1), lambda n, i: (n[0], i), lambda n, i: (i,), x.shape[:1], x.shape[1])

    def op_mm(self, node, args, kwargs, operand):
        x, y = operand(0), operand(1)
        return self.product(x, y, lambda n, i: (n[0], i), lambda n, i: (i, n[1]), (x.shape[0], y.shape[1]), x.shape[1])

    def op_bmm(self, node, args, kwargs, operand):
        x, y = operand(0), operand(1)
        return self.product(x, y, lambda n, i: (n[0], n[1], i), lambda n, i: (n[0], i, n[2]),
                            (*x.shape[:2], y.shape[2]), x.shape[2])

    def op_addmm(self, node, args, kwargs, operand, product=op_mm):
        made = product(self, node, args[1:], {}, lambda i: operand(i + 1))
        return self.elementwise(add, self.scaled(operand(0), kwargs.get("beta", 1)),
                                self.scaled(made, kwargs.get("alpha", 1)))

    def op_addmv(self, node, args, kwargs, operand):
        return self.op_addmm(node, args, kwargs, operand, Lowering.op_mv)

    def op_baddbmm(self, node, args, kwargs, operand):
        return self.op_addmm(node, args, kwargs, operand, Lowering.op_bmm)
