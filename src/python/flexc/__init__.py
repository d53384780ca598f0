"""Attention with your own score and mask functions, compiled for CUDA GPUs and CPUs.

    kernel = flexc.compile("score + slopes[h] * (kv_idx - q_idx)", mask_mod="q_idx >= kv_idx",
                           buffers={"slopes": "f32[H] grad"}, dtype="f32", head_dim=64, device="cpu")
    out, lse = kernel.forward(q, k, v, {"slopes": slopes})

flexc.torch has flex_attention for PyTorch's own mods, and flexc.distributed attention across ranks. docs/python.md says
more.
"""
from . import _core, errors

_core.set_errors(errors.make)

from . import distributed  # noqa: E402
from .errors import Error  # noqa: E402
from .kernel import Gradients, Kernel, Plan, Signature, check, compile, explain, mask, supports  # noqa: E402
from .machine import cache, doctor, library  # noqa: E402
from .partial import merge_states  # noqa: E402
from .pictures import Mask  # noqa: E402

__version__ = _core.version
__all__ = ["Error", "Gradients", "Kernel", "Mask", "Plan", "Signature", "cache", "check", "compile", "distributed",
           "doctor", "errors", "explain", "library", "mask", "merge_states", "supports"]
