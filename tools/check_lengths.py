#!/usr/bin/env python3
"""Reports files of more than 400 lines, which fail, and lines wider than their language's limit."""
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MOST_LINES = 400
WIDTH = {".cpp": 100, ".h": 100, ".cu": 100, ".cuh": 100, ".py": 120, ".md": None}


def main():
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    bad = 0
    for name in names:
        path = ROOT / name
        if path.suffix not in WIDTH or not path.is_file():
            continue
        lines = path.read_text().splitlines()
        if len(lines) > MOST_LINES and path.suffix != ".md":
            print(f"{name}: {len(lines)} lines; is it still one responsibility?")
            bad += 1
        width = WIDTH[path.suffix]
        for number, line in enumerate(lines, 1):
            if width and len(line) > width:
                print(f"{name}:{number}: {len(line)} columns, at most {width}")
                bad += 1
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
