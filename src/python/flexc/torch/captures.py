"""What a mod reaches besides its arguments: numbers, tensors, and everything that decides what it computes.

A function is the same program as an earlier one where its code is the same and all that its code can reach is equal;
tensors and captured numbers may differ, since they are passed at run time. `Captures` walks closures, default
arguments, globals and attributes by the names that the code uses, and never reads source.
"""
import functools
import types

import torch

PLAIN = (str, bytes, bool, complex, type(None), type(Ellipsis), torch.dtype, torch.device, torch.layout)
_MOST_ELEMENTS = 256
_attribute, _item, _length = range(3)  # kinds of guards, as _core.Memo has them
_MODULES = ("torch", "math", "numpy", "builtins", "functools", "operator", "typing", "einops", "flexc")


class Hole:
    """Where a number stood in a key."""

    def __init__(self, kind):
        self.kind = kind

    def __eq__(self, other):
        return isinstance(other, Hole) and self.kind == other.kind

    def __hash__(self):
        return hash(("hole", self.kind))


_HOLES = {int: Hole("int"), float: Hole("float")}


class Captures:
    """Of one function: `key` is equal for equal programs, `tensors` and `numbers` are in the order of the walk.

    `kept` holds objects that stand in the key by their identity; `guards` are reads (kind, where, name, value) that
    give the same object as long as nothing changed. `cells` says of each variable that a function closes over whether
    it is one of the tensors or numbers, which nothing else in the function is: ("tensor", 2), else ("kept", None).
    """

    def __init__(self, function):
        self.tensors, self.numbers, self.kept, self.guards, self.cells = [], [], [], [], []
        self._seen, self._repeated = {}, set()
        self._function_itself = function
        self.key = self._walk(function, (), True)
        self.cells = [("kept", None) if kind == "tensor" and id(self.tensors[slot]) in self._repeated else (kind, slot)
                      for kind, slot in self.cells]
        del self._function_itself

    def _guard(self, kind, where, name, value):
        # The function itself is not kept alive by what is known of it.
        self.guards.append((kind, None if where is self._function_itself else where, name, value))

    def _walk(self, value, names, is_captured):
        """The key of a value; `is_captured`: a number here is one that a mod captures, not a constant of its module."""
        kind = type(value)
        if kind in (int, float):
            if is_captured:
                self.numbers.append(value)
                return _HOLES[kind]
            return kind.__name__, value
        if kind in PLAIN:
            return kind.__name__, value
        if id(value) in self._seen:
            self._repeated.add(id(value))
            return "again", self._seen[id(value)]
        self._seen[id(value)] = len(self._seen)
        if isinstance(value, torch.Tensor):
            self.tensors.append(value)
            return "tensor", value.dtype, tuple(value.shape), value.requires_grad, str(value.device)
        if kind in (tuple, list):
            if len(value) <= _MOST_ELEMENTS:
                if kind is list:
                    for i, item in enumerate(value):
                        self._guard(_item, value, i, item)
                    self._guard(_length, value, None, len(value))
                return kind.__name__, tuple(self._walk(item, names, is_captured) for item in value)
        elif kind is dict:
            if len(value) <= _MOST_ELEMENTS:
                self._guard(_length, value, None, len(value))
                for name, item in value.items():
                    self._guard(_item, value, name, item)
                return "dict", tuple((repr(name), self._walk(item, names, is_captured)) for name, item in value.items())
        elif isinstance(value, types.FunctionType):
            return self._function(value, None, is_captured)
        elif isinstance(value, types.MethodType):
            return "method", self._function(value.__func__, value.__self__, is_captured)
        elif kind is functools.partial:
            return ("partial", self._walk(value.func, names, is_captured), self._walk(value.args, names, is_captured),
                    self._walk(dict(value.keywords), names, is_captured))
        elif isinstance(value, types.ModuleType) or isinstance(value, type) or not hasattr(value, "__dict__"):
            self.kept.append(value)
            return "same", id(value)
        return self._object(value, names)

    def _function(self, function, owner, is_captured):
        code = function.__code__
        self.kept.append(code)
        self._guard(_attribute, function, "__code__", code)
        names = _names_of(code)
        parts = [id(code)]
        if function.__module__ and function.__module__.partition(".")[0] in _MODULES and not function.__closure__:
            return ("function", *parts)
        if owner is not None:
            parts.append(self._walk(owner, names, is_captured))
        for name, cell in zip(code.co_freevars, function.__closure__ or ()):
            try:
                content = cell.cell_contents
            except ValueError:
                parts.append((name, "empty"))
                continue
            self._guard(_attribute, cell, "cell_contents", content)
            before = len(self.tensors), len(self.numbers)
            parts.append((name, self._walk(content, names, is_captured and not _is_constant(function, content))))
            if function is self._function_itself:
                self.cells.append(self._kind_of_cell(content, *before))
        self._guard(_attribute, function, "__defaults__", function.__defaults__)
        self._guard(_attribute, function, "__kwdefaults__", function.__kwdefaults__)
        parts.append(self._walk(function.__defaults__, names, is_captured))
        parts.append(self._walk(function.__kwdefaults__, names, is_captured))
        space = function.__globals__
        for name in names:
            if name in space and not name.startswith("__"):
                content = space[name]
                if isinstance(content, types.ModuleType):
                    if content.__name__.partition(".")[0] in _MODULES:
                        continue
                    self._guard(_item, space, name, content)
                    parts.append((name, self._module(content, names)))
                    continue
                self._guard(_item, space, name, content)
                parts.append((name, self._walk(content, names, False)))
        return ("function", *parts)

    def _kind_of_cell(self, content, tensors, numbers):
        """tensors, numbers: how many there were before it."""
        if isinstance(content, torch.Tensor) and len(self.tensors) > tensors:
            return "tensor", tensors
        if type(content) in _HOLES and len(self.numbers) > numbers:
            return "number", numbers
        return "kept", None

    def _module(self, module, names):
        """What the code reads of a module of the user's."""
        self.kept.append(module)
        parts = [id(module)]
        for name in names:
            if name in module.__dict__:
                self._guard(_item, module.__dict__, name, module.__dict__[name])
                parts.append((name, self._walk(module.__dict__[name], names, False)))
        return tuple(parts)

    def _object(self, value, names):
        """The attributes that the code can reach by the names in it, and its class's functions of those names."""
        kind = type(value)
        self.kept.append(kind)
        parts = ["object", id(kind)]
        if _is_read_whole(kind):
            names = [name for space in _spaces(value) for name in space if not name.startswith("_")]
        elif callable(value):
            names = [*names, "__call__", "forward"]
        else:
            names = list(names)
        done, queue = set(), names
        while queue:
            name = queue.pop(0)
            if name in done:
                continue
            done.add(name)
            for space in _spaces(value):
                if name in space:
                    self._guard(_item, space, name, space[name])
                    parts.append((name, self._walk(space[name], tuple(names), False)))
                    break
            else:
                for base in kind.__mro__[:-1]:
                    if base.__module__.partition(".")[0] in _MODULES or name not in base.__dict__:
                        continue
                    member = base.__dict__[name]
                    member = getattr(member, "fget", None) or getattr(member, "__func__", None) or member
                    if isinstance(member, types.FunctionType):
                        queue.extend(_names_of(member.__code__))
                        parts.append((name, self._function(member, None, False)))
                    else:
                        parts.append((name, self._walk(member, (), False)))
                    break
        return tuple(parts)


@functools.lru_cache(maxsize=4096)
def _is_read_whole(kind):
    """Modules that run PyTorch's code, whose names are not looked at: they may read all that they hold."""
    if issubclass(kind, (torch.nn.ParameterList, torch.nn.ParameterDict)):
        return True
    of_forward = next((base for base in kind.__mro__ if "forward" in base.__dict__), None)
    return (issubclass(kind, torch.nn.Module) and of_forward is not torch.nn.Module and
            of_forward.__module__.partition(".")[0] == "torch")


def _is_constant(function, content):
    """Numbers that flexc's own functions capture decide how fast a program is."""
    return type(content) in (int, float) and hasattr(function, "_flexc_constants")


_READS = (getattr, lambda where, name: where[name], lambda where, _: len(where))


def unchanged(guards, function):
    """Whether every read still gives what it gave."""
    for kind, where, name, value in guards:
        try:
            if _READS[kind](function if where is None else where, name) is not value:
                return False
        except (LookupError, AttributeError, ValueError):
            return False
    return True


def _spaces(value):
    """The dicts that attributes of an object are in; a torch module has more than one."""
    yield value.__dict__
    for name in ("_parameters", "_buffers", "_modules"):
        if isinstance(value.__dict__.get(name), dict):
            yield value.__dict__[name]


@functools.lru_cache(maxsize=4096)
def _names_of(code):
    """Names of globals and attributes in a function's code, and in the functions that it defines."""
    names = dict.fromkeys(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names.update(dict.fromkeys(_names_of(constant)))
    return tuple(names)


def rebuilt(value, numbers):
    """The function with its captured numbers taken from an iterator, in the order of Captures' walk."""
    return _Rebuild(numbers).of(value)


class _Rebuild:
    def __init__(self, numbers):
        self._numbers, self._seen = numbers, {}

    def of(self, value):
        kind = type(value)
        if kind in (int, float):
            return next(self._numbers)
        if kind in PLAIN:
            return value
        if id(value) in self._seen:
            return self._seen[id(value)]
        self._seen[id(value)] = value
        made = value
        if kind in (tuple, list) and len(value) <= _MOST_ELEMENTS:
            made = kind(self.of(item) for item in value)
        elif kind is dict and len(value) <= _MOST_ELEMENTS:
            made = {name: self.of(item) for name, item in value.items()}
        elif isinstance(value, types.FunctionType):
            made = self.function(value)
        elif isinstance(value, types.MethodType):
            owner = self.of(value.__self__)
            made = types.MethodType(self.function(value.__func__), owner)
        elif kind is functools.partial:
            made = functools.partial(self.of(value.func), *self.of(value.args), **self.of(dict(value.keywords)))
        self._seen[id(value)] = made
        return made

    def function(self, function):
        if function.__module__ and function.__module__.partition(".")[0] in _MODULES and not function.__closure__:
            return function
        cells = []
        for cell in function.__closure__ or ():
            try:
                content = cell.cell_contents
            except ValueError:
                cells.append(cell)
                continue
            new = content if _is_constant(function, content) else self.of(content)
            cells.append(cell if new is content else types.CellType(new))
        defaults, keywords = self.of(function.__defaults__), self.of(function.__kwdefaults__)
        made = types.FunctionType(function.__code__, function.__globals__, function.__name__, defaults, tuple(cells))
        made.__kwdefaults__ = keywords
        made.__dict__.update(function.__dict__)
        return made
