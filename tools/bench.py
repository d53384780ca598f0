#!/usr/bin/env python3
"""Times mods of docs/performance.md with `flexc bench` and prints a table.

usage: bench.py FLEXC [--device auto|cpu|cuda] [--only WORD]
"""
import argparse
import json
import subprocess
import sys

CAUSAL = "mask_mod = q_idx >= kv_idx"
LEARNED = "buffer slopes: f32[H] grad\nscore_mod = score + slopes[h] * (kv_idx - q_idx)\n"
DOCUMENTS = "buffer doc: i32[KV_LEN]\nmask_mod = doc[q_idx] == doc[kv_idx] and q_idx >= kv_idx"

# name, program, further arguments
MODS = [
    ("plain", "score_mod = score", []),
    ("causal", CAUSAL, []),
    ("alibi", LEARNED.replace(" grad", ""), []),
    ("alibi learned, causal", LEARNED + CAUSAL, []),
    ("softcap, causal", "score_mod = 20 * tanh(score / 20)\n" + CAUSAL, []),
    ("bias of keys, learned", "buffer bias: f32[KV_LEN] grad\nscore_mod = score + bias[kv_idx]", []),
    ("window 256", "mask_mod = 0 <= q_idx - kv_idx <= 256", []),
    ("documents of 1000", DOCUMENTS, ["--fill", "doc=segments:1000"]),
]
# device -> type and shapes
SHAPES = {
    "cpu": [("f32", "1,16,16,2048,2048,64")],
    "cuda": [("bf16", "2,32,32,8192,8192,64"), ("bf16", "2,16,16,8192,8192,128")],
}


def bench(flexc, device, dtype, shape, program, further, backward=True, limit_s=None):
    command = [flexc, "bench", "-e", program, "--device", device, "--dtype", dtype, "--shape", shape, "--json",
               *["--backward"] * backward, *further]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return None, f"not done in {limit_s} s"
    if done.returncode != 0:
        return None, done.stderr.strip().splitlines()[-1]
    return json.loads(done.stdout.strip().splitlines()[-1]), None


def number(value, form):
    return "-" if value is None else format(value, form)


def device_kind(flexc, wanted):
    if wanted != "auto":
        return wanted
    report = json.loads(subprocess.run([flexc, "doctor", "--json"], capture_output=True, text=True, check=True).stdout)
    return "cuda" if any(f["found"] and f["what"].startswith("GPU") for f in report["findings"]) else "cpu"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("flexc")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    device = device_kind(options.flexc, options.device)
    failed = False
    for dtype, shape in SHAPES[device]:
        print(f"\n{device}, {dtype}, shape {shape} (B,H,H_KV,Q,KV,D)\n")
        print("| mod | visible | forward ms | TFLOP/s | backward ms | TFLOP/s | compile ms | from cache ms |")
        print("|---|---|---|---|---|---|---|---|")
        for name, program, further in MODS:
            if options.only not in name:
                continue
            value, wrong = bench(options.flexc, device, dtype, shape, program, further)
            if wrong:
                failed = True
                print(f"| {name} | {wrong} |")
                continue
            columns = [number(value["visible_fraction"], ".3f"), number(value["forward_ms"], ".3f"),
                       number(value["tflops"], ".3g"), number(value["backward_ms"], ".3f"),
                       number(value["backward_tflops"], ".3g"), number(value["compile_ms"], ".0f"),
                       number(value["cached_compile_ms"], ".1f")]
            print(f"| {name} | {' | '.join(columns)} |", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
