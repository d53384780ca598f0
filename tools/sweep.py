#!/usr/bin/env python3
"""Looks for cliffs between shapes: times `flexc bench` over head dims, lengths, groups of heads, types and strides,
each point beside the next larger one that tiles fit.

A point may take 1.25 times as long as the one beside it; exit code 1: one takes longer. --json keeps the times, and
--picture draws all ratios.
"""
import argparse
import dataclasses
import json
import pathlib
import sys

from bench import bench, device_kind

LIMIT = 1.25
TILE = 384  # rows: a multiple of every kernel's tiles
PASSES = ("forward_ms", "backward_ms")


@dataclasses.dataclass(frozen=True)
class Point:
    """What `flexc bench` is told."""
    batch: int = 2
    heads: int = 16
    kv_heads: int = 16
    q_len: int = 3072
    kv_len: int = 3072
    head_dim: int = 64
    head_dim_v: int = 64
    dtype: str = "bf16"
    strides: str = "bhsd"

    def shape(self):
        return ",".join(map(str, (self.batch, self.heads, self.kv_heads, self.q_len, self.kv_len, self.head_dim,
                                  self.head_dim_v)))

    def of(self, **changes):
        return dataclasses.replace(self, **changes)


def up(value, step):
    return (value + step - 1) // step * step


def with_dims(point, head_dim, head_dim_v):
    return point.of(head_dim=head_dim, head_dim_v=head_dim_v)


def with_length(point, length, batch):
    return point.of(q_len=length, kv_len=length, batch=batch)


def families(base, quick):
    """Name, and pairs of a point's label, the point and the one that it is held to."""
    dims = range(16, 257, 48 if quick else 8)
    yield "head dim", [(f"D {d}", with_dims(base, d, d), with_dims(base, up(d, 32), up(d, 32))) for d in dims]
    pairs = [(64, 128), (128, 64)] if quick else [(64, 128), (128, 64), (192, 128), (96, 64), (40, 72), (256, 128)]
    yield "DV is not D", [(f"D {d} DV {v}", with_dims(base, d, v), with_dims(base, *[up(max(d, v), 32)] * 2))
                          for d, v in pairs]
    lengths = [1, 100, 129, 385] if quick else [
        1, 2, 16, 17, 63, 65, 100, 127, 129, 191, 193, 255, 257, 383, 385, 500, 767, 769, 1000, 1025, 1535, 1537, 2049,
        3073, 4097, 6145, 8193, 12289, 16383]
    points = []
    for length in lengths:
        batch = max(1, base.batch * base.q_len // up(length, TILE))
        points.append((f"{length} tokens", with_length(base, length, batch),
                       with_length(base, up(length, TILE), batch)))
    yield "length", points
    yield "one length alone", [
        (f"{q} x {kv}", base.of(q_len=q, kv_len=kv), base.of(q_len=up(q, TILE), kv_len=up(kv, TILE)))
        for q, kv in ([(100, 3072)] if quick else [(1, 3072), (7, 3072), (100, 3072), (1000, 3072), (3072, 1),
                                                   (3072, 100), (3072, 1000), (3001, 2999)])]
    yield "group", [(f"{base.heads} heads share {kv}", base.of(kv_heads=kv), base)
                    for kv in ([4] if quick else [8, 4, 2, 1])]
    yield "type", [("f16", base.of(dtype="f16"), base)]
    yield "strides", [(strides, base.of(strides=strides), base) for strides in ("bshd", "padded")]


class Times:
    """Of points, each found once."""

    def __init__(self, flexc, device, program):
        self.flexc, self.device, self.program = flexc, device, program
        self.times = {}

    def of(self, point):
        if point not in self.times:
            value, error = bench(self.flexc, self.device, point.dtype, point.shape(), self.program,
                                 ["--strides", point.strides, "--rested"])
            if error:
                raise SystemExit(f"{point}: {error}")
            self.times[point] = {name: value[name] for name in PASSES}
        return self.times[point]


def measure(options):
    device, rows = device_kind(options.flexc, options.device), []
    times = Times(options.flexc, device, options.program)
    base = Point(heads=4, kv_heads=4, q_len=TILE, kv_len=TILE) if device == "cpu" else Point()
    for family, points in families(base, options.quick):
        for label, point, beside in points:
            ours, other = times.of(point), times.of(beside)
            row = {"family": family, "label": label, "point": dataclasses.asdict(point),
                   "beside": dataclasses.asdict(beside)}
            for name in PASSES:
                row[name], row["beside_" + name] = ours[name], other[name]
            rows.append(row)
            print(line_of(row), flush=True)
    return rows


def ratio(row, name):
    return row[name] / row["beside_" + name]


def line_of(row):
    ratios = "  ".join(f"{name.split('_')[0]} {row[name]:.4g} ms, {ratio(row, name):.2f}" for name in PASSES)
    slow = max(ratio(row, name) for name in PASSES) > LIMIT
    return f"{row['family']:17} {row['label']:20} {ratios}{'  SLOW' if slow else ''}"


def picture(rows):
    """An SVG: a column for each point, a dot for each pass, at its ratio."""
    step, height, top, bottom = 12, 220, 20, 120
    most = max(2.0, max(ratio(row, name) for row in rows for name in PASSES))
    width = 60 + step * len(rows) + 20

    def y(value):
        return top + height * (1 - value / most)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{top + height + bottom}" '
             'font-family="sans-serif" font-size="10">', '<rect width="100%" height="100%" fill="white"/>']
    for value, colour in ((1.0, "#999"), (LIMIT, "#c00")):
        parts.append(f'<line x1="50" x2="{width - 10}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="{colour}"/>'
                     f'<text x="10" y="{y(value) + 3:.1f}">{value:g}</text>')
    for i, row in enumerate(rows):
        x = 60 + step * i
        for name, colour in zip(PASSES, ("#06c", "#e70")):
            parts.append(f'<circle cx="{x}" cy="{y(ratio(row, name)):.1f}" r="3" fill="{colour}"/>')
        parts.append(f'<text transform="translate({x + 3},{top + height + 8}) rotate(90)">{row["label"]}</text>')
    parts.append(f'<text x="60" y="12">time / time of the next larger point that tiles fit: forward (blue), backward '
                 f'(orange); red: {LIMIT}</text></svg>')
    return "\n".join(parts) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("flexc", help="the command")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--program", default="score", help="the mod (score)")
    parser.add_argument("--quick", action="store_true", help="a few points of each kind")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="keep all times")
    parser.add_argument("--picture", type=pathlib.Path, metavar="FILE", help="an SVG of all ratios")
    options = parser.parse_args()
    rows = measure(options)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    if options.picture:
        options.picture.write_text(picture(rows))
    slow = [row for row in rows if max(ratio(row, name) for name in PASSES) > LIMIT]
    print(f"{len(slow)} of {len(rows)} points take more than {LIMIT} times what the next larger one does")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
