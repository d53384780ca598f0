"""Runs a test executable under a tool of compute-sanitizer: sanitize.py FLEXC TOOL COMMAND..."""
import pathlib
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "golden"))
from check import has_cuda  # noqa: E402


def main(flexc, tool, *command):
    found, reason = has_cuda(flexc)
    sanitizer = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
    if not found or not sanitizer:
        print(f"[SKIP] {'compute-sanitizer was not found' if found else reason}")
        return 77
    return subprocess.run([sanitizer, "--tool", tool, "--error-exitcode", "1", *command], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
