#!/usr/bin/env python3
"""Writes docs/library.md and its pictures from the library of mods.

usage: library_page.py FLEXC [--check]

--check only says what is out of date, and exits with 1. Pictures of scores are left out of it: a shade may turn where
another CPU rounds otherwise.
"""
import argparse
import concurrent.futures
import json
import pathlib
import subprocess
import sys

DOCS = pathlib.Path(__file__).resolve().parent.parent / "docs"
CELL = 5
INK = {"#": 1.0, "*": 0.7, "+": 0.4, "-": 0.15}

OPENING = """# The library of mods

{count} mods come with flexc. Each is a program of its own (`flexc run sliding_window`), and each has a function of the
same name, which other programs call:

```
buffer slopes: f32[H] grad
score_mod = softcap(alibi(score, slopes), 30.0)
mask_mod  = causal() and sliding_window(1024)
```

`flexc list WORD` searches their descriptions; a mod that is a class in xformers is found by the name of the class.
`flexc show NAME` prints one mod and what its values depend on. In the pictures keys go to the right and queries go
down, for the sizes in the mod's example. In pictures of masks, dark elements are visible; in pictures of scores, darker
is larger. `tools/library_page.py` writes this page.
"""


def svg(picture):
    """Runs of one shade are one rectangle; all rectangles of a shade are one path."""
    paths = {shade: "" for shade in INK}
    for row, line in enumerate(picture):
        column = 0
        while column < len(line):
            end = column
            while end < len(line) and line[end] == line[column]:
                end += 1
            if line[column] in paths:
                width = (end - column) * CELL
                paths[line[column]] += f"M{column * CELL} {row * CELL}h{width}v{CELL}h-{width}z"
            column = end
    width, height = len(picture[0]) * CELL, len(picture) * CELL
    drawn = "".join(f'<path fill="#1f4e9c" fill-opacity="{INK[shade]}" d="{path}"/>\n'
                    for shade, path in paths.items() if path)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}">\n'
            f'<rect width="{width}" height="{height}" fill="#eef1f5"/>\n{drawn}</svg>\n')


def section(mod):
    lines = mod["text"].splitlines()
    remarks = [line[2:] for line in lines[1:] if line.startswith("# ")]
    code = "\n".join(line for line in lines if not line.startswith("#")).strip()
    parts = [f"### {mod['name']}", mod["summary"]]
    if prose := " ".join(remark for remark in remarks if not remark.startswith("Example:")):
        parts.append(prose)
    if mod["picture"]:
        example = next((remark for remark in remarks if remark.startswith("Example:")), "")
        parts.append(f'<img src="library/{mod["name"]}.svg" alt="{mod["name"]}" title="{example}">')
    return "\n\n".join([*parts, f"```\n{code}\n```"])


def documents(mods):
    """path -> content, and the paths that --check compares."""
    files, compared = {}, {DOCS / "library.md"}
    page, text = "", [OPENING.format(count=len(mods)).strip()]
    for mod in mods:
        if mod["page"] != page:
            page = mod["page"]
            text.append(f"## {page}")
        text.append(section(mod))
        if mod["picture"]:
            path = DOCS / "library" / f"{mod['name']}.svg"
            files[path] = svg(mod["picture"])
            if mod["group"] == "mask":
                compared.add(path)
    files[DOCS / "library.md"] = "\n\n".join(text) + "\n"
    return files, compared


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("flexc")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()

    def ask(*words):
        done = subprocess.run([options.flexc, *words, "--json"], capture_output=True, text=True, check=True)
        return json.loads(done.stdout)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        mods = list(pool.map(lambda entry: ask("show", entry["name"]), ask("list")))
    files, compared = documents(mods)
    if options.check:
        stale = [path for path in sorted(compared) if not path.exists() or path.read_text() != files[path]]
        for path in stale:
            print(f"{path} is out of date: run tools/library_page.py {options.flexc}")
        return 1 if stale else 0
    (DOCS / "library").mkdir(exist_ok=True)
    for path, content in files.items():
        path.write_text(content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
