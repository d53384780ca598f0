#!/usr/bin/env python3
"""flexc's flex_attention on the CPU beside torch.compile(flex_attention) and scaled_dot_product_attention, in one run.

Prints a table in milliseconds: the best of some calls, forward and backward, and the first call in a fresh process.
PyTorch has no compiled backward on the CPU. With --short it prints what calls cost that compute next to nothing, in
microseconds. Run it where nothing else runs.
"""
import argparse
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
import warnings

import torch
from torch.nn.attention import flex_attention as pytorch

import flexc
from flexc.torch import attention, create_block_mask, flex_attention, flex_attention_varlen

SLOPES = torch.tensor([2.0 ** (-8 * (h + 1) / 8) for h in range(8)])


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def window(b, h, q_idx, kv_idx):
    return (q_idx >= kv_idx) & (q_idx - kv_idx < 256)


def alibi(score, b, h, q_idx, kv_idx):
    return score + SLOPES[h] * (kv_idx - q_idx)


def softcap(score, b, h, q_idx, kv_idx):
    return 20 * torch.tanh(score / 20)


CASES = {"no mod": (None, None), "causal": (None, causal), "window of 256": (None, window),
         "ALiBi, causal": (alibi, causal), "softcap, causal": (softcap, causal)}


def calls(name, length, dtype):
    """What computes a case: (flexc, torch.compile(flex_attention), SDPA or None), and its inputs."""
    score_mod, mask_mod = CASES[name]
    inputs = [torch.randn(1, 8, length, 64, dtype=dtype) for _ in range(3)]
    ours = theirs = None
    if mask_mod is not None:
        ours = create_block_mask(mask_mod, None, None, length, length)
        theirs = pytorch.create_block_mask(mask_mod, None, None, length, length, device="cpu")
    compiled = torch.compile(pytorch.flex_attention)
    sdpa = None
    if score_mod is None and mask_mod in (None, causal):
        def sdpa(*given):
            return torch.nn.functional.scaled_dot_product_attention(*given, is_causal=mask_mod is causal)
    return (lambda *given: flex_attention(*given, score_mod, ours), lambda *given: compiled(*given, score_mod, theirs),
            sdpa), inputs


def best(call, seconds):
    call()
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 3:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1e3 * min(times)


def first_call(which, name, length, dtype):
    """Milliseconds of the first call in a fresh process, with no cache."""
    with tempfile.TemporaryDirectory() as cache:
        caches = {"FLEXC_CACHE_DIR": cache + "/flexc", "TORCHINDUCTOR_CACHE_DIR": cache + "/inductor"}
        out = subprocess.run([sys.executable, __file__, "--first-call", str(which), name, "--length", str(length),
                              "--dtype", dtype], env={**os.environ, **caches}, capture_output=True, text=True)
    return float(out.stdout) if out.returncode == 0 else math.nan


class Slopes:
    def __init__(self, slopes):
        self.slopes = slopes

    def mod(self, score, b, h, q_idx, kv_idx):
        return score + self.slopes[h] * (kv_idx - q_idx)


def closure(slopes):
    return lambda score, b, h, q_idx, kv_idx: score + slopes[h] * (kv_idx - q_idx)


def short_calls():
    """Calls by name, on tensors of 1,2,16,16, whose time is that of everything but the attention."""
    sdpa = torch.nn.functional.scaled_dot_product_attention
    given, leaves = ([torch.randn(1, 2, 16, 16, requires_grad=grad) for _ in range(3)] for grad in (False, True))
    block_mask = create_block_mask(causal, None, None, 16, 16)
    slopes, learned = (torch.randn(2, requires_grad=grad) for grad in (False, True))
    mod, learned_mod, owner = closure(slopes), closure(learned), Slopes(slopes)
    packed, ends = [x[0].transpose(0, 1).contiguous() for x in given], torch.tensor([0, 10, 16], dtype=torch.int32)
    kernel = flexc.compile("score", dtype="f32", head_dim=16, device="cpu", backward=False)
    plan = kernel.plan(*given)
    out, lse = plan.forward(*given)
    core, tensors = plan._core.forward, (*given, out, lse)
    return {
        "SDPA": lambda: sdpa(*given),
        "SDPA, causal": lambda: sdpa(*given, is_causal=True),
        "no mod": lambda: flex_attention(*given),
        "causal": lambda: flex_attention(*given, block_mask=block_mask),
        "ALiBi": lambda: flex_attention(*given, mod),
        "ALiBi, causal": lambda: flex_attention(*given, mod, block_mask),
        "the module's call alone": lambda: core(tensors, (), None, None),
        "a new closure": lambda: flex_attention(*given, closure(slopes)),
        "a method": lambda: flex_attention(*given, owner.mod),
        "recorded: SDPA": lambda: sdpa(*leaves),
        "recorded: SDPA, causal": lambda: sdpa(*leaves, is_causal=True),
        "recorded: no mod": lambda: flex_attention(*leaves),
        "recorded: causal": lambda: flex_attention(*leaves, block_mask=block_mask),
        "recorded: learned ALiBi, causal": lambda: flex_attention(*leaves, learned_mod, block_mask),
        "packed": lambda: flex_attention_varlen(*packed, ends, ends),
        "attention() of a program": lambda: attention(*given, "score * 2"),
        "Plan.forward": lambda: plan.forward(*given),
        "Plan.forward with results": lambda: plan.forward(*given, out=out, lse=lse),
        "Kernel.forward": lambda: kernel.forward(*given),
        "Kernel.plan": lambda: kernel.plan(*given),
    }


def print_short_calls(seconds):
    torch.set_num_threads(1)
    calls_by_name = short_calls()
    times = {name: math.inf for name in calls_by_name}
    end = time.perf_counter() + seconds * len(times)
    # In turns, so that what else runs disturbs none of them alone.
    while time.perf_counter() < end:
        for name, call in calls_by_name.items():
            start = time.perf_counter()
            for _ in range(30):
                call()
            times[name] = min(times[name], (time.perf_counter() - start) / 30)
    print("| call | us |\n|---|---|")
    for name, best_time in times.items():
        print(f"| {name} | {1e6 * best_time:.1f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=2048, help="of queries and keys (2048)")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"], help="(float32)")
    parser.add_argument("--seconds", type=float, default=2, help="of each measurement (2)")
    parser.add_argument("--case", action="append", choices=CASES, help="runs this one; may be repeated (all)")
    parser.add_argument("--short", action="store_true", help="prints what calls of tiny tensors cost")
    parser.add_argument("--first-call", nargs=2, metavar=("WHICH", "CASE"), help="prints that one number; for itself")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    dtype = getattr(torch, options.dtype)
    if options.first_call:
        which, name = options.first_call
        functions, inputs = calls(name, options.length, dtype)
        start = time.perf_counter()
        functions[int(which)](*inputs)
        print(1e3 * (time.perf_counter() - start))
        return
    if options.short:
        print_short_calls(options.seconds)
        return
    print(f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads, load "
          f"{os.getloadavg()[0]:.1f}; PyTorch {torch.__version__}, flexc {flexc.__version__}; "
          f"1,8,{options.length},64 in {options.dtype}\n")
    print("| ms | flexc | torch.compile(flex_attention) | SDPA | flexc, backward | SDPA, backward | first: flexc | "
          "first: torch.compile |\n|---|---|---|---|---|---|---|---|")
    for name in options.case or CASES:
        functions, inputs = calls(name, options.length, dtype)
        with torch.no_grad():
            forward = [math.nan if f is None else best(lambda: f(*inputs), options.seconds) for f in functions]
        leaves = [x.requires_grad_() for x in inputs]
        backward = []
        for f in (functions[0], functions[2]):
            if f is None:
                backward.append(math.nan)
                continue
            out = f(*leaves)
            d_out = torch.randn_like(out)
            backward.append(best(lambda: torch.autograd.grad(out, leaves, d_out, retain_graph=True), options.seconds))
        first = [first_call(which, name, options.length, options.dtype) for which in (0, 1)]
        print(f"| {name} | " + " | ".join("" if math.isnan(x) else f"{x:.4g}" for x in (*forward, *backward, *first)) +
              " |", flush=True)


if __name__ == "__main__":
    main()
