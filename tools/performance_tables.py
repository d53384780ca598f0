#!/usr/bin/env python3
"""Writes the tables of docs from the measurements in docs/performance/*.json.

usage: performance_tables.py [--check]

A line `<!-- table NAME -->` in a page stands before the caption and the table of docs/performance/NAME.json, which this
command replaces. --check only says which pages are out of date, and exits with 1. Cells are the literals of the JSON
text, so that 1.10 stays 1.10.

A file has "title", "machine", "date", "commit", "command" and "peer", which make the caption (with an optional "note"),
"columns" (pairs of a key and a title) and "rows". With "across": {"key": K, "title": FORMAT, "cells": FORMAT}, each
value of K becomes a column. A row with "from": NAME and "where": {...} fills the {KEY} in its cells from the one row of
NAME that has those values.
"""
import argparse
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = ROOT / "docs" / "performance"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs/lab").glob("*.md"))]
BLOCK = re.compile(r"^<!-- table (\S+) -->\n(?:\*\*(?:.+\n)+\n(?:\|.*\n)+)?", re.MULTILINE)


def load(name):
    return json.loads((DATA / f"{name}.json").read_text(), parse_float=str, parse_int=str)


def rows_of(table):
    for row in table["rows"]:
        if "from" in row:
            found = [other for other in load(row["from"])["rows"]
                     if all(other.get(key) == value for key, value in row["where"].items())]
            if len(found) != 1:
                raise ValueError(f"{len(found)} rows of {row['from']} have {row['where']}; one must")
            row = {key: value.format_map(found[0]) if isinstance(value, str) else value for key, value in row.items()}
        yield row


def cell(value):
    """A list has several values, an object the ends of a range."""
    if isinstance(value, list):
        return ", ".join(map(cell, value))
    if isinstance(value, dict):
        return f"{value['least']} to {value['most']}"
    return "–" if value is None else str(value)


def spread(table):
    """Rows that differ in the key of "across" alone become one, with a column for each of its values."""
    columns, rows = list(table["columns"]), list(rows_of(table))
    across = table.get("across")
    if not across:
        return columns, rows
    kept = [key for key, _ in columns]
    values = sorted({row[across["key"]] for row in rows}, key=float)
    merged = {}
    for row in rows:
        place = tuple(row[key] for key in kept)
        merged.setdefault(place, dict(zip(kept, place)))[row[across["key"]]] = across["cells"].format_map(row)
    return columns + [(value, across["title"].format(value)) for value in values], list(merged.values())


def caption(table):
    parts = [f"{key.capitalize()}: {table[key]}" for key in ("machine", "date", "commit", "peer", "command")]
    return " ".join([f"**{table['title']}.**", *(f"{part}." for part in parts), table.get("note", "")]).rstrip()


def render(name):
    table = load(name)
    columns, rows = spread(table)
    lines = [f"<!-- table {name} -->", caption(table), "", f"| {' | '.join(title for _, title in columns)} |",
             "|" + "---|" * len(columns)]
    lines += [f"| {' | '.join(cell(row.get(key, '')) for key, _ in columns)} |" for row in rows]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page is out of date")
    check = parser.parse_args().check
    used, stale = set(), 0
    for path in PAGES:
        text = path.read_text()
        used.update(BLOCK.findall(text))
        fresh = BLOCK.sub(lambda block: render(block[1]), text)
        if fresh == text:
            continue
        if check:
            print(f"{path.relative_to(ROOT)} is out of date: run tools/performance_tables.py")
            stale += 1
        else:
            path.write_text(fresh)
    for name in sorted({path.stem for path in DATA.glob("*.json")} - used):
        print(f"docs/performance/{name}.json is in no page")
        stale += 1
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
