"""flex_attention in graphs: under torch.compile, torch.export and make_fx a call becomes the operator flexc::attention,
or flexc::attention_varlen of packed documents.

Dynamo traces the mods itself, as it does those of PyTorch's flex_attention, and gives their graphs with the tensors
that they capture to `in_graph`. That turns them into a program when a backend runs or traces it, so a backend sees only
the operator. Other tracers run Python, where the mods are functions as ever and only their tensors are not real.
"""
import types

import torch
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import _disable_current_modes

from .captures import Captures
from .lower import Sizes
from .trace import Text, Traced


def identity(score, b, h, q_idx, kv_idx):
    return score


def everything(b, h, q_idx, kv_idx):
    return b >= 0


class _InGraph(HigherOrderOperator):
    """Called as PyTorch's flex_attention operator is, since dynamo prepares the arguments by its name."""

    def __init__(self):
        super().__init__("flexc_flex_attention")
        self.__name__, self.__module__ = "flex_attention", __name__

    def __call__(self, query, key, value, score_mod, mask, scale, _, score_captures=(), mask_captures=()):
        has_score, has_mask, max_scores, *documents, mask_mod = mask
        score = _of_graph(score_mod, score_captures, True, query.device) if has_score else None
        seen = _of_graph(mask_mod, mask_captures, False, query.device) if has_mask else None
        return _attention(query, key, value, score, seen, scale, documents, max_scores)


in_graph = _InGraph()


class _Mod:
    """A traced mod, and the tensors and numbers that it reads."""

    def __init__(self, traced, tensors, numbers=()):
        self.traced, self.tensors, self.numbers = traced, tensors, tuple(numbers)


def _stand_in(tensor):
    """A real tensor of that kind, without memory of its own."""
    with torch.no_grad():
        return torch.zeros((), dtype=tensor.dtype, device=tensor.device).expand(tuple(map(int, tensor.shape)))


def _of_graph(graph, captures, with_score, device):
    """Dynamo's graph of a mod, whose captures are inputs. Numbers that may change are read as tensors."""
    tensors = []
    for capture in captures:
        if not isinstance(capture, torch.Tensor):
            is_integer = isinstance(capture, (int, torch.SymInt))
            capture = torch.full((), capture, dtype=torch.int64 if is_integer else torch.float32, device=device)
        tensors.append(capture)
    key = tuple((tensor.dtype, tuple(map(int, tensor.shape))) for tensor in tensors)
    known = graph.__dict__.setdefault("_flexc_traced", {})
    if key not in known:
        with _disable_current_modes():
            stand_ins = [_stand_in(tensor) for tensor in tensors]
            known[key] = Traced(lambda *values: graph(*values, *stand_ins),
                                types.SimpleNamespace(tensors=stand_ins, numbers=()), with_score, device)
    return _Mod(known[key], tensors)


def _of_function(function, with_score, device):
    """A function of which something else than dynamo traces a call."""
    captures = Captures(function)
    with _disable_current_modes():
        stand_ins = {id(tensor): _stand_in(tensor) for tensor in captures.tensors}
        traced = Traced(function, captures, with_score, device, stand_ins)
    return _Mod(traced, captures.tensors, captures.numbers)


def attend(query, key, value, score_mod, mask_mod, scale, documents=(), max_scores=False):
    """(out, lse, largest scores or None) of a call that is traced, by the operator. documents are its last arguments,
    of packed tensors."""
    if torch.compiler.is_dynamo_compiling():
        mask = (score_mod is not None, mask_mod is not None, max_scores, *documents,
                everything if mask_mod is None else mask_mod)
        results = in_graph(query, key, value, identity if score_mod is None else score_mod, mask, scale, {})
        return results if max_scores else (*results, None)
    score = score_mod and _of_function(score_mod, True, query.device)
    mask = mask_mod and _of_function(mask_mod, False, query.device)
    results = _attention(query, key, value, score, mask, scale, documents, max_scores)
    return results if max_scores else (*results, None)


def _attention(query, key, value, score, mask, scale, documents, max_scores):
    if documents:
        operator, sizes = torch.ops.flexc.attention_varlen, Sizes(None, query.shape[1], key.shape[1], None, None)
    else:
        operator = torch.ops.flexc.attention_with_max_scores if max_scores else torch.ops.flexc.attention
        sizes = Sizes(query.shape[0], query.shape[1], key.shape[1], query.shape[2], key.shape[2])
    with_grad = torch.is_grad_enabled()
    text = Text(score and score.traced, mask and mask.traced, score.numbers if score else (),
                mask.numbers if mask else (), sizes,
                lambda prefix, slot: with_grad and prefix == "s" and score.tensors[slot].requires_grad)
    buffers = []
    for buffer in text.buffers:
        prefix, where = buffer.source
        if buffer.constant is None:
            buffers.append((score if prefix == "s" else mask).tensors[where])
        else:  # made anew, so that a tracer knows it
            buffers.append(torch.tensor(buffer.constant.tolist(), dtype=buffer.dtype, device=query.device))
    numbers = {name: (score if prefix == "s" else mask).numbers[place] for name, _, (prefix, place) in text.params}
    params = " ".join(f"{name}={float(number)!r}" for name, number in numbers.items())
    needs_grad = with_grad and any(tensor.requires_grad for tensor in (query, key, value, *buffers))
    return operator(query, key, value, buffers, text.text, params, scale, needs_grad, *documents)
