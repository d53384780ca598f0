"""Numbers of a flexc program as text, with their kinds and bounds, and PyTorch's operators on them."""
import math

import torch

from ..errors import CannotTrace

INFINITE = float("inf")


class Expr:
    """Text of a number: its kind ('bool', 'int', 'real'), the values it can take, whether a sum's counter is in it."""

    __slots__ = ("text", "kind", "low", "high", "local")

    def __init__(self, text, kind, low=-INFINITE, high=INFINITE, local=False):
        self.text, self.kind, self.low, self.high, self.local = text, kind, low, high, local


def literal(value):
    if isinstance(value, bool):
        return Expr("true" if value else "false", "bool", 0, 1)
    if isinstance(value, int):
        return Expr(f"({value})" if value < 0 else str(value), "int", value, value)
    if math.isnan(value):
        return Expr('float("nan")', "real")
    text = "inf" if math.isinf(value) else repr(abs(float(value)))
    return Expr(f"(-{text})" if math.copysign(1, value) < 0 else text, "real", value, value)


def kind_of(dtype):
    if dtype == torch.bool:
        return "bool"
    if dtype.is_complex:
        raise CannotTrace("flexc has no complex numbers")
    return "real" if dtype.is_floating_point else "int"


def real(x):
    return x if x.kind == "real" else Expr(f"float({x.text})", "real", x.low, x.high, x.local)


def integer(x):
    return x if x.kind == "int" else Expr(f"int({x.text})", "int", math.floor(x.low) if x.low > -INFINITE else x.low,
                                          math.ceil(x.high) if x.high < INFINITE else x.high, x.local)


def truth(x):
    return x if x.kind == "bool" else Expr(f"({x.text} != 0)", "bool", 0, 1, x.local)


TO = {"real": real, "int": integer, "bool": truth}
_RANK = {"bool": 0, "int": 1, "real": 2}


def promoted(*kinds):
    return max(kinds, key=_RANK.__getitem__)


def any_local(*xs):
    return any(x.local for x in xs)


def _binary(sign, bounds=None, of_bools=None):
    def build(x, y):
        kind = promoted(x.kind, y.kind)
        if kind == "bool":
            if of_bools:
                return Expr(f"({x.text} {of_bools} {y.text})", "bool", 0, 1, any_local(x, y))
            kind = "int"
            x, y = integer(x), integer(y)
        low, high = bounds(x, y) if bounds else (-INFINITE, INFINITE)
        return Expr(f"({x.text} {sign} {y.text})", kind, low, high, any_local(x, y))
    return build


def _product_bounds(x, y):
    corners = [a * b for a in (x.low, x.high) for b in (y.low, y.high)]
    return (-INFINITE, INFINITE) if any(map(math.isnan, corners)) else (min(corners), max(corners))


def _quotient_bounds(x, y):
    if y.low < 1 or y.low != y.high:
        return (0, x.high) if x.low >= 0 and y.low >= 1 else (-INFINITE, INFINITE)
    return tuple(v if math.isinf(v) else v // y.low for v in (x.low, x.high))


def _remainder_bounds(x, y):
    return (0, y.high - 1) if y.low >= 1 else (-INFINITE, INFINITE)


add = _binary("+", lambda x, y: (x.low + y.low, x.high + y.high), "or")
subtract = _binary("-", lambda x, y: (x.low - y.high, x.high - y.low))
multiply = _binary("*", _product_bounds, "and")
floor_divide = _binary("//", _quotient_bounds)
remainder = _binary("%", _remainder_bounds)


def divide(x, y):
    return Expr(f"({real(x).text} / {real(y).text})", "real", local=any_local(x, y))


def comparison(sign):
    def build(x, y):
        if x.kind == "bool" and y.kind == "bool":
            x, y = integer(x), integer(y)
        return Expr(f"({x.text} {sign} {y.text})", "bool", 0, 1, any_local(x, y))
    return build


def logical(word):
    def build(x, y):
        return Expr(f"({truth(x).text} {word} {truth(y).text})", "bool", 0, 1, any_local(x, y))
    return build


def _bits(sign):
    def build(x, y):
        both = x.kind == "bool" and y.kind == "bool"
        if not both:
            x, y = integer(x), integer(y)
        bounded = sign == "&" and not both and x.low >= 0 and y.low >= 0
        return Expr(f"({x.text} {sign} {y.text})", "bool" if both else "int", 0 if bounded or both else -INFINITE,
                    1 if both else min(x.high, y.high) if bounded else INFINITE, any_local(x, y))
    return build


def _not(x):
    return Expr(f"(not {truth(x).text})", "bool", 0, 1, x.local)


def _invert(x):
    return _not(x) if x.kind == "bool" else Expr(f"(~{x.text})", "int", -x.high - 1, -x.low - 1, x.local)


def function(name, kind="real", low=-INFINITE, high=INFINITE):
    def build(x):
        return Expr(f"{name}({real(x).text if kind == 'real' else x.text})", kind, low, high, x.local)
    return build


def _rounded(name):
    def build(x):
        return x if x.kind == "int" else Expr(f"{name}({real(x).text})", "real", x.low - 1, x.high + 1, x.local)
    return build


def _negative(x):
    return Expr(f"(-{x.text})", "int" if x.kind == "bool" else x.kind, -x.high, -x.low, x.local)


def _absolute(x):
    low = 0 if x.low <= 0 <= x.high else min(abs(x.low), abs(x.high))
    return Expr(f"abs({x.text})", x.kind, low, max(abs(x.low), abs(x.high)), x.local)


def _extreme(name, choose):
    def build(x, y):
        kind = promoted(x.kind, y.kind)
        if kind == "bool":
            return logical("and" if name == "min" else "or")(x, y)
        return Expr(f"{name}({x.text}, {y.text})", kind, choose(x.low, y.low), choose(x.high, y.high), any_local(x, y))
    return build


minimum, maximum = _extreme("min", min), _extreme("max", max)


def where(c, x, y):
    kind = promoted(x.kind, y.kind)
    x, y = TO[kind](x), TO[kind](y)
    return Expr(f"where({truth(c).text}, {x.text}, {y.text})", kind, min(x.low, y.low), max(x.high, y.high),
                any_local(c, x, y))


def _power(x, y):
    if y.text == "2" or y.text == "2.0":
        square = multiply(x, x)
        return Expr(square.text, promoted(x.kind, y.kind), 0 if x.kind != "bool" else 0, square.high, x.local)
    kind = promoted(x.kind, y.kind)
    return Expr(f"({TO[kind](x).text} ** {TO[kind](y).text})", kind, local=any_local(x, y))


def truncated_divide(x, y):
    if promoted(x.kind, y.kind) == "real":
        return Expr(f"trunc({divide(x, y).text})", "real", local=any_local(x, y))
    x, y = integer(x), integer(y)
    size = f"abs({x.text}) // abs({y.text})"
    return Expr(f"where(({x.text} < 0) ^ ({y.text} < 0), -({size}), {size})", "int", local=any_local(x, y))


def _fmod(x, y):
    return subtract(x, multiply(truncated_divide(x, y), y))


def _is_finite(x):
    return Expr(f"(not (isnan({real(x).text}) or isinf({real(x).text})))", "bool", 0, 1, x.local)


def clamp(x, low, high):
    if low is not None:
        x = maximum(x, low) if x.kind != "real" and low.kind != "real" else x
    if x.kind != "real" and (low is None or low.kind != "real") and (high is None or high.kind != "real"):
        return x if high is None else minimum(x, high)
    bounds = [f"{name}={real(bound).text}" for name, bound in (("min", low), ("max", high)) if bound is not None]
    text = (f"clamp({real(x).text}, {real(low).text}, {real(high).text})" if len(bounds) == 2
            else f"clamp({real(x).text}, {bounds[0]})")
    return Expr(text, "real", -INFINITE if low is None else low.low, INFINITE if high is None else high.high,
                any_local(*(e for e in (x, low, high) if e is not None)))


def formula(template):
    """A formula over x, and over y where there are two, for operators that the language has no word for."""
    def build(x, y=None):
        given = [each for each in (x, y) if each is not None]
        texts = {name: real(each).text for name, each in zip("xy", given)}
        return Expr(template.format(**texts), "real", local=any_local(*given))
    return build


UNARY = {
    "neg": _negative, "negative": _negative, "abs": _absolute, "absolute": _absolute, "logical_not": _not,
    "bitwise_not": _invert, "exp": function("exp"), "exp2": function("exp2"), "expm1": function("expm1"),
    "log": function("log"), "log2": function("log2"), "log1p": function("log1p"),
    "log10": formula("(log({x}) * 0.4342944819032518)"), "sqrt": function("sqrt"), "rsqrt": function("rsqrt"),
    "sin": function("sin"), "cos": function("cos"), "tan": function("tan"), "tanh": function("tanh"),
    "erf": function("erf"), "erfc": formula("(1.0 - erf({x}))"), "sigmoid": function("sigmoid"),
    "silu": function("silu"), "relu": lambda x: maximum(x, literal(0)) if x.kind == "int" else function("relu")(x),
    "reciprocal": formula("(1.0 / {x})"), "square": lambda x: _power(x, literal(2)), "floor": _rounded("floor"),
    "ceil": _rounded("ceil"), "round": _rounded("round"), "trunc": _rounded("trunc"), "fix": _rounded("trunc"),
    "frac": formula("({x} - trunc({x}))"), "sign": lambda x: Expr(f"sign({x.text})", x.kind, -1, 1, x.local),
    "sgn": lambda x: Expr(f"sign({x.text})", x.kind, -1, 1, x.local), "isnan": function("isnan", "bool", 0, 1),
    "isinf": function("isinf", "bool", 0, 1), "isfinite": _is_finite,
    "sinh": formula("((exp({x}) - exp(-{x})) * 0.5)"), "cosh": formula("((exp({x}) + exp(-{x})) * 0.5)"),
    "log_sigmoid": formula("(-softplus(-{x}))"), "deg2rad": formula("({x} * 0.017453292519943295)"),
    "mish": formula("({x} * tanh(softplus({x})))"), "hardsigmoid": formula("clamp({x} / 6.0 + 0.5, 0.0, 1.0)"),
    "hardswish": formula("({x} * clamp({x} / 6.0 + 0.5, 0.0, 1.0))"),
}
BINARY = {
    "mul": multiply, "multiply": multiply, "floor_divide": floor_divide, "remainder": remainder, "fmod": _fmod,
    "pow": _power, "minimum": minimum, "maximum": maximum, "fmin": minimum, "fmax": maximum,
    "clamp_min": maximum, "clamp_max": minimum, "lt": comparison("<"), "le": comparison("<="),
    "gt": comparison(">"), "ge": comparison(">="), "eq": comparison("=="), "ne": comparison("!="),
    "less": comparison("<"), "less_equal": comparison("<="), "greater": comparison(">"),
    "greater_equal": comparison(">="), "not_equal": comparison("!="), "logical_and": logical("and"),
    "logical_or": logical("or"), "logical_xor": lambda x, y: Expr(
        f"({truth(x).text} ^ {truth(y).text})", "bool", 0, 1, any_local(x, y)),
    "bitwise_and": _bits("&"), "bitwise_or": _bits("|"), "bitwise_xor": _bits("^"),
    "bitwise_left_shift": _binary("<<"), "bitwise_right_shift": _binary(">>"), "__lshift__": _binary("<<"),
    "__rshift__": _binary(">>"), "__and__": _bits("&"), "__or__": _bits("|"), "__xor__": _bits("^"),
    "logaddexp": formula("(max({x}, {y}) + log1p(exp(-abs({x} - {y}))))"),
    "hypot": formula("sqrt({x} * {x} + {y} * {y})"), "xlogy": formula("where({x} == 0, 0.0, {x} * log({y}))"),
    "heaviside": formula("where({x} == 0, {y}, where({x} > 0, 1.0, 0.0))"),
}
