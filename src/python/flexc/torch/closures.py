"""Functions that are made anew for each call, with the code of an earlier one: only what they capture is looked at."""
import types
import weakref

import torch

from .captures import PLAIN, unchanged


def place_of(function):
    """What functions of one pattern have in common, as a key; None of what is no plain function or is not ready."""
    if type(function) is not types.FunctionType:
        return None
    place = [id(function.__code__)]
    try:
        for cell in function.__closure__ or ():
            content = cell.cell_contents
            kind = type(content)
            is_kept = not (kind is int or kind is float or isinstance(content, torch.Tensor))
            place.append(id(content) if is_kept else kind)
    except ValueError:
        return None
    return tuple(place)


class Captured:
    """The tensors and numbers of one function, as Captures has them."""

    def __init__(self, tensors, numbers):
        self.tensors, self.numbers = tensors, numbers


class Pattern:
    """Of functions with equal code and globals, that differ in tensors and numbers which they capture directly.

    Holds neither of these. `forget` is called when something else that such a function captures is gone; TypeError: it
    has no weak references.
    """

    def __init__(self, function, captures, forget):
        self._code, self._globals = function.__code__, function.__globals__
        self._defaults, self._keywords = function.__defaults__, function.__kwdefaults__
        self._tensors, self.numbers = list(captures.tensors), list(captures.numbers)
        self._cells, self._kept, self._plain = [], [], []
        cells = function.__closure__ or ()
        for i, (cell, (kind, slot)) in enumerate(zip(cells, captures.cells)):
            if kind == "tensor":
                self._cells.append((i, slot, _kind_of(self._tensors[slot])))
                self._tensors[slot] = None
            elif kind == "number":
                self._cells.append((i, slot, None))
            elif type(cell.cell_contents) in PLAIN:
                self._plain.append(cell.cell_contents)  # place_of has its identity
            else:
                self._kept.append((i, weakref.ref(cell.cell_contents, forget)))
        own = {id(cell) for cell in cells}
        self._guards = [guard for guard in captures.guards if guard[1] is not None and id(guard[1]) not in own]

    def captured(self, function):
        """What a function of this place captures, or None where it may be another program."""
        if (function.__globals__ is not self._globals or function.__defaults__ is not self._defaults or
                function.__kwdefaults__ is not self._keywords or not unchanged(self._guards, function)):
            return None
        cells = function.__closure__
        if not all(cells[i].cell_contents is known() for i, known in self._kept):
            return None
        tensors, numbers = self._tensors.copy(), self.numbers.copy()
        for i, slot, kind in self._cells:
            content = cells[i].cell_contents
            if kind is None:
                numbers[slot] = content
            elif _kind_of(content) != kind:
                return None
            else:
                tensors[slot] = content
        if len(set(map(id, tensors))) != len(tensors):
            return None
        return Captured(tensors, numbers)


def _kind_of(tensor):
    return tensor.dtype, tensor.shape, tensor.requires_grad, tensor.device
