#!/usr/bin/env python3
"""Writes the tables of docs from the measurements in docs/performance/*.json.

usage: performance_tables.py [--check]

A line `<!-- table NAME -->` in a page stands before the caption and the table of docs/performance/NAME.json, which this
command replaces. --check only says which pages are out of date, and exits with 1. Cells are the literals of the JSON
text, so that 1.10 stays 1.10.

A file has "title", "machine", "date", "commit", "command" and "peer", which make the caption (with an optional "note"),
"columns" (pairs of a key and a title) and "rows"; without rows there is no table. With "across": {"key": K, "title":
FORMAT, "cells": FORMAT}, each value of K becomes a column. A row with "from": NAME and "where": {...} fills the {KEY}
in its cells from the one row of NAME that has those values.

What a tool measured, docs/performance/runs/RUN.json, has "machine", "date", "commit", and "rows" with a "name" each.
Where a table has "run": {"name": RUN, ...} and that file is there, the keys of "run" replace the table's own, the run
says where and when it was, and "rows" have the "case" that they show; those that the run lacks are left out. "cells"
are formats of what the case has: "{flexc.forward_ms:.3f}", "{beside.forward_ms/flexc.forward_ms:.2f}" (or *, from left
to right). A value of the row that names a part of the case, or another case, stands for it: "beside": "cudnn".
"""
import argparse
import json
import pathlib
import re
import string
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = ROOT / "docs" / "performance"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs/lab").glob("*.md"))]
BLOCK = re.compile(r"^<!-- table (\S+) -->\n(?:\*\*(?:.+\n)+\n(?:\|.*\n)+)?", re.MULTILINE)


def read(path):
    return json.loads(path.read_text(), parse_float=str, parse_int=str)


def load(name):
    table = read(DATA / f"{name}.json")
    run = table.get("run")
    path = run and DATA / "runs" / f"{run['name']}.json"
    if not path or not path.exists():
        return table
    measured = read(path)
    table = {key: value for key, value in table.items() if key != "note"} | run
    table |= {key: measured[key] for key in ("machine", "date", "commit", "peer") if key in measured}
    cases = {row["name"]: row for row in measured["rows"]}
    table["rows"] = [filled(table["cells"], row, cases) if "case" in row else row
                     for row in table["rows"] if "from" in row or row["case"] in cases]
    return table


class Measured(string.Formatter):
    """Of a case: {a.b/c.d:.2f}; what it lacks is empty."""

    def __init__(self, row, cases):
        case = cases[row["case"]]
        named = {key: case.get(value) or cases.get(value) for key, value in row.items()}
        self.names = case | {key: value for key, value in named.items() if isinstance(value, dict)}

    def get_field(self, field_name, args, kwargs):
        first, *rest = re.split(r"([*/])", field_name)
        value = self.find(first)
        for operator, path in zip(rest[::2], rest[1::2]):
            if value is None or (other := self.find(path)) is None:
                return None, field_name
            value = float(value) * float(other) if operator == "*" else float(value) / float(other)
        return value, field_name

    def find(self, path):
        if re.fullmatch(r"[\d.]+", path):
            return path
        value = self.names
        for key in path.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        return value

    def format_field(self, value, format_spec):
        if value is None:
            return ""
        return format(float(value), format_spec) if format_spec else str(value)


def filled(cells, row, cases):
    formatter = Measured(row, cases)
    return {key: formatter.format(form).strip(" ,") for key, form in cells.items()} | row


def rows_of(table):
    for row in table["rows"]:
        if "from" in row:
            source = load(row["from"])
            found = [{"commit": source["commit"]} | other for other in source["rows"]
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
        text = re.sub(r" \(\s*\)", "", across["cells"].format_map(row))
        merged.setdefault(place, dict(zip(kept, place)))[row[across["key"]]] = text
    return columns + [(value, across["title"].format(value)) for value in values], list(merged.values())


def caption(table):
    parts = [f"{key.capitalize()}: {table[key]}" for key in ("machine", "date", "commit", "peer", "command")]
    return " ".join([f"**{table['title']}.**", *(f"{part}." for part in parts), table.get("note", "")]).rstrip()


def render(name):
    table = load(name)
    if not table["rows"]:
        return f"<!-- table {name} -->\n"
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
