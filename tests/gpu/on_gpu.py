"""Runs the cases of a test executable where there is a GPU that flexc can use, as many processes at once as there are
cores, each bare or under a tool of compute-sanitizer: on_gpu.py FLEXC GPU TOOL TEST [FILTER...]

GPU: part of what doctor says of the one that is needed, or "any". TOOL: memcheck, racecheck, synccheck or "none".
FILTER: arguments of the executable that choose cases. Kernels are compiled once where FLEXC_TEST_COMPILE has filled
the cache before.
"""
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "golden"))
from check import find_gpus  # noqa: E402


def run_case(command, index):
    case = subprocess.run([*command, "-d", f"--first={index}", f"--last={index}"], check=False, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    name = re.search(r"^TEST CASE: *(.*)$", case.stdout, re.MULTILINE)
    seconds = re.search(r"^([0-9.]+) s: ", case.stdout, re.MULTILINE)
    # What never speaks to a GPU is nothing to a sanitizer.
    untouched = "Target application terminated before first instrumented API call" in case.stdout
    good = case.returncode == 0 or (untouched and "Status: SUCCESS!" in case.stdout)
    return good, name.group(1) if name else f"case {index}", seconds.group(1) if seconds else "?", case.stdout


def main(flexc, gpu, tool, *command):
    gpus, reason = find_gpus(flexc)
    sanitizer = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
    if not gpus or (gpu != "any" and not any(gpu in name for name in gpus)):
        print(f"[SKIP] {reason or f'the GPU is not {gpu}'}")
        return 77
    if tool != "none" and not sanitizer:
        print("[SKIP] compute-sanitizer was not found")
        return 77
    counted = subprocess.run([*command, "-c"], check=True, capture_output=True, text=True).stdout
    count = int(re.findall(r"filters: (\d+)", counted)[-1])
    if tool != "none":
        command = [sanitizer, "--tool", tool, "--error-exitcode", "1", "--print-limit", "10", *command]
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        cases = [pool.submit(run_case, command, index) for index in range(1, count + 1)]
        for case in concurrent.futures.as_completed(cases):
            good, name, seconds, output = case.result()
            print(f"{'good' if good else 'BAD '} {seconds:>10} s  {name}", flush=True)
            failed += not good
            if not good:
                print(output[:20000])
    print(f"{count - failed} of {count} cases good")
    return 1 if failed or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
