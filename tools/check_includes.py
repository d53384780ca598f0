#!/usr/bin/env python3
"""Fails when a file includes a header that its folder may not know. Prints every such include.

The table is the architecture: arrows run one way, from src/api down to the standard library.
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PLAIN_PUBLIC = {"flexc/types.h", "flexc/result.h", "flexc/options.h"}

# folder -> the folders that it may include from, beside itself and the standard library
ALLOWED = {
    "dsl": set(),
    "support": {"plain"},
    "ir": {"dsl", "support", "plain"},
    "front": {"dsl", "ir", "support", "plain"},
    "analysis": {"dsl", "ir", "support", "plain", "templates"},
    "passes": {"dsl", "ir", "analysis", "support", "plain"},
    "plan": {"dsl", "ir", "analysis", "passes", "support", "plain", "templates"},
    "cuda": {"dsl", "ir", "analysis", "passes", "plan", "support", "plain", "templates"},
    "cpu": {"dsl", "ir", "analysis", "passes", "support", "plain", "templates"},
    "cache": {"support", "plain"},
    "runtime": {"dsl", "ir", "analysis", "passes", "plan", "support", "cache", "cuda", "cpu", "public", "plain",
                "templates"},
    "api": {"dsl", "ir", "front", "analysis", "passes", "plan", "support", "cache", "cuda", "cpu", "runtime", "public",
            "plain", "templates"},
    "distributed": {"dsl", "ir", "analysis", "passes", "support", "cache", "cuda", "runtime", "api", "public", "plain",
                    "templates"},
    "public": {"plain"},
    "templates": set(),
    "python": {"public", "plain"},
    "tools": {"support", "public", "plain"},
}

# Third-party headers, by the start of the include, and where each may stand.
THIRD_PARTY = {
    "fmt/": {"support"},
    "spdlog/": {"support"},
    "llvm/": {"cpu"},
    "llvm-c/": {"cpu"},
    "libxsmm": {"cpu"},
    "tbb/": {"cpu"},
    "oneapi/": {"cpu"},
    "mpi.h": {"distributed"},
    "xxhash.h": {"cache"},
    "Python.h": {"python"},
    "CLI/": {"tools"},
    "nlohmann/": {"tools"},
}

# Lists of names, which any folder may know.
LISTS = {"common/lengths.def"}

INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)', re.M)


def folder_of(path):
    parts = path.parts
    if parts[0] == "src":
        return parts[1]
    return "public" if parts[0] == "include" else parts[0]


def folder_included(path, header):
    """Which folder a quoted include reaches; None for what only the build has."""
    first = header.split("/")[0]
    if first == "flexc" and path.parts[0] == "tools" and (ROOT / "tools" / header).exists():
        return "tools"
    if first == "flexc":
        return "plain" if header in PLAIN_PUBLIC else "public"
    if (ROOT / path.parent / header).exists():
        return folder_of(path)
    for folder in (".", "src", "templates"):
        if (ROOT / folder / header).exists():
            return "templates" if folder == "templates" else folder_of(pathlib.Path(folder) / header)
    if (ROOT / "tools" / header).exists():
        return "tools"
    return None


def problem(path, quoted, angled):
    own = folder_of(path)
    if angled:
        for start, folders in THIRD_PARTY.items():
            if angled.startswith(start) and own not in folders:
                return f"<{angled}> may stand only in {', '.join(sorted(folders))}"
        return None
    if quoted in LISTS:
        return None
    target = folder_included(path, quoted)
    if target is None or target == own or target in ALLOWED[own]:
        return None
    return f'"{quoted}" is {target}, which {own} may not know'


def files():
    listed = subprocess.run(["git", "ls-files", "*.h", "*.cpp", "*.cu", "*.cuh"], cwd=ROOT, capture_output=True,
                            text=True, check=True).stdout.split("\n")
    for name in filter(None, listed):
        path = pathlib.Path(name)
        if (ROOT / path).exists() and folder_of(path) in ALLOWED:
            yield path


def main():
    bad = count = 0
    for path in files():
        count += 1
        text = (ROOT / path).read_text()
        for match in INCLUDE.finditer(text):
            wrong = problem(path, *match.groups())
            if wrong:
                line = text.count("\n", 0, match.start()) + 1
                print(f"{path}:{line}: {wrong}")
                bad += 1
    if not count:
        print("no files were found")
    print(f"include directions: {count} files, {bad} wrong", file=sys.stderr)
    return 1 if bad or not count else 0


if __name__ == "__main__":
    sys.exit(main())
