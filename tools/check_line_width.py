#!/usr/bin/env python3
"""Reports lines that are wider than their language's limit."""
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
WIDTH = {".cpp": 100, ".h": 100, ".cu": 100, ".cuh": 100, ".py": 120}


def main():
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    bad = 0
    for name in names:
        path = ROOT / name
        if path.suffix not in WIDTH or not path.is_file():
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if len(line) > WIDTH[path.suffix]:
                print(f"{name}:{number}: {len(line)} columns, at most {WIDTH[path.suffix]}")
                bad += 1
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
