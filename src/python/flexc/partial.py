"""Results over some of the keys each."""
from __future__ import annotations

from typing import Any, Iterable, Tuple

from . import _core, arrays, errors


def merge_states(parts: Iterable[Tuple[Any, Any]], *, out: Any = None, lse: Any = None) -> Tuple[Any, Any]:
    """(out, lse) over all keys, of (out, lse) of the same queries over disjoint keys, in host memory.

    A part whose lse is -inf adds nothing. The results are made like the first part's where they are not given.
    """
    parts = tuple((arrays.visible(o), arrays.visible(sums)) for o, sums in parts)
    if not parts and (out is None or lse is None):
        raise errors.InvalidOption("merge_states of no parts writes to the out and lse that it is given")
    if out is None:
        first = parts[0][0]
        out = arrays.empty(first, tuple(first.shape), arrays.dtype_name(first.dtype))
    if lse is None:
        first = parts[0][1]
        lse = arrays.empty(first, tuple(first.shape), "f32")
    _core.merge_states(parts, out, lse)
    return out, lse
