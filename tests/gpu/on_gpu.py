"""Runs a test executable where there is a GPU that flexc can use, bare or under a tool of
compute-sanitizer: on_gpu.py FLEXC GPU TOOL COMMAND...

GPU: part of what doctor says of the one that is needed, or "any". TOOL: memcheck, racecheck, synccheck or "none".
"""
import pathlib
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "golden"))
from check import find_gpus  # noqa: E402


def main(flexc, gpu, tool, *command):
    gpus, reason = find_gpus(flexc)
    sanitizer = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
    if not gpus or (gpu != "any" and not any(gpu in name for name in gpus)):
        print(f"[SKIP] {reason or f'the GPU is not {gpu}'}")
        return 77
    if tool == "none":
        return subprocess.run(command, check=False).returncode
    if not sanitizer:
        print("[SKIP] compute-sanitizer was not found")
        return 77
    return subprocess.run([sanitizer, "--tool", tool, "--error-exitcode", "1", *command], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
