#!/usr/bin/env python3
"""Runs golden cases through `flexc run` and holds the results against the stored ones.

usage: check.py FLEXC [--device cpu|cuda] [--cases DIR] [--extra ARG]... [--under COMMAND] [NAME ...]

--under: words before flexc's own, such as "compute-sanitizer --tool memcheck --error-exitcode 1".

Exit code 0: all cases hold. 1: one does not. 77: the device is cuda and there is none.
"""
import argparse
import json
import math
import pathlib
import shlex
import subprocess
import sys
import tempfile

import tensor_io

# What a result may differ from the float64 one, by the type of q, k and v. `output` and `gradient`
# are relative in the 2-norm, `log_sum` is the largest difference, and `vanishing` bounds the root
# mean square of a gradient whose true value is zero.
LIMITS = {
    "f32": {"output": 1e-5, "log_sum": 1e-4, "gradient": 5e-5, "vanishing": 2e-5},
    "f16": {"output": 1.5e-3, "log_sum": 2e-3, "gradient": 3e-3, "vanishing": 5e-3},
    "bf16": {"output": 6e-3, "log_sum": 2e-3, "gradient": 1.2e-2, "vanishing": 3e-2},
}
SAFETENSORS_TYPE = {"f32": "F32", "f16": "F16", "bf16": "BF16"}


def expected_type(name, kernel_type):
    return "F32" if name == "lse" or name.startswith("d.") else SAFETENSORS_TYPE[kernel_type]


def difference(name, result, truth, limits, limit=None):
    """What is wrong with the numbers of one output, or None."""
    finite = []
    for position, (x, y) in enumerate(zip(result, truth)):
        if math.isfinite(x) and math.isfinite(y):
            finite.append((x - y, y))
        elif x != y:  # NaN differs from everything
            return f"element {position} is {x}, should be {y}"
    if name == "lse":
        largest = max((abs(d) for d, _ in finite), default=0.0)
        return None if largest <= limits["log_sum"] else f"off by {largest:.2e}, limit {limits['log_sum']:.0e}"
    error = math.sqrt(math.fsum(d * d for d, _ in finite))
    size = math.sqrt(math.fsum(y * y for _, y in finite))
    root_count = math.sqrt(max(len(finite), 1))
    if size == 0:
        return None if error == 0 else f"should be all zero, its norm is {error:.2e}"
    if size / root_count < 1e-6:
        rms = error / root_count
        return None if rms <= limits["vanishing"] else f"rms {rms:.2e} where the truth is 0"
    limit = limit or limits["output" if name == "o" else "gradient"]
    return None if error <= limit * size else f"relative error {error / size:.2e}, limit {limit:.1e}"


def problems_of(case, folder, results, own_limits):
    truth = tensor_io.read(folder / f"{case['name']}.out.safetensors")
    for name in sorted(truth.keys() | results.keys()):
        if name not in results:
            yield f"{name}: is not there"
            continue
        if name not in truth:
            yield f"{name}: was not asked for"
            continue
        dtype, shape, numbers = results[name]
        if shape != truth[name][1]:
            yield f"{name}: has shape {shape}, should be {truth[name][1]}"
        elif dtype != expected_type(name, case["dtype"]):
            yield f"{name}: has type {dtype}, should be {expected_type(name, case['dtype'])}"
        else:
            wrong = difference(name, numbers, truth[name][2], LIMITS[case["dtype"]],
                               own_limits.get(name))
            if wrong:
                yield f"{name}: {wrong}"


def run_case(options, case):
    folder = options.cases
    with tempfile.TemporaryDirectory() as scratch:
        outputs = pathlib.Path(scratch) / "outputs.safetensors"
        command = [*options.under, options.flexc, "run", folder / f"{case['name']}.flex",
                   "--inputs", folder / f"{case['name']}.in.safetensors",
                   "--outputs", outputs, "--device", options.device, *options.extra]
        command += case.get("args", [])
        if not case.get("forward_only"):
            command.append("--backward")
        for name, value in case["params"].items():
            command += ["--param", f"{name}={value}"]
        if case["scale"] is not None:
            command += ["--scale", str(case["scale"])]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
        if done.returncode != 0:
            # Tools that flexc runs under report on stdout.
            said = [done.stdout.strip()] if options.under else []
            return [f"exit code {done.returncode}: {done.stderr.strip()}", *said]
        # Kernels on a GPU take row sums of d_out * o from o as it was stored. Where terms cancel, a limit of the case's
        # own is twice what that rounding alone does in float64.
        own_limits = case.get("limits_of_stored_o", {}) if options.device.startswith("cuda") else {}
        return list(problems_of(case, folder, tensor_io.read(outputs), own_limits))


def find_gpus(flexc):
    """What doctor says of each GPU that flexc can use; the reason when there is none."""
    done = subprocess.run([flexc, "doctor", "--json"], capture_output=True, text=True)
    if done.returncode != 0:
        return [], done.stderr.strip()
    findings = [f for f in json.loads(done.stdout)["findings"] if "gpu" in f["what"].lower()]
    missing = [f["detail"] for f in findings if not f["found"]]
    gpus = [f["detail"] for f in findings if f["found"]]
    return gpus, "" if gpus else "; ".join(missing) or "no GPU was found"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("flexc")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cases", type=pathlib.Path, default=pathlib.Path(__file__).parent / "cases")
    parser.add_argument("--extra", action="append", default=[])
    parser.add_argument("--under", type=shlex.split, default=[])
    options = parser.parse_args()
    if options.device.startswith("cuda"):
        gpus, reason = find_gpus(options.flexc)
        if not gpus:
            print(f"[SKIP] {reason}")
            return 77
    cases = json.loads((options.cases / "index.json").read_text())
    unknown = set(options.names) - {case["name"] for case in cases}
    if unknown:
        raise SystemExit(f"no such case: {', '.join(sorted(unknown))}")
    bad = 0
    for case in cases:
        if options.names and case["name"] not in options.names:
            continue
        problems = run_case(options, case)
        bad += bool(problems)
        print("\n    ".join([f"{'bad ' if problems else 'good'} {case['name']}", *problems]), flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
