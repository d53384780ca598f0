#!/usr/bin/env python3
"""Times decode, prefill and training of requests with `flexc bench`, and beside each the peers of layout_peers.py.

usage: layouts.py FLEXC [--device auto|cpu|cuda] [--only WORD] [--json FILE] [--seconds N] [--no-peers]

Prints a line for each row as soon as it is measured, and keeps it in --json's file, which performance_tables.py reads
as docs/performance/runs/layouts.json. On a CPU the requests are small, to see that it all works.
"""
import argparse
import dataclasses
import datetime
import json
import pathlib
import random
import subprocess
import sys
import time

from bench import CAUSAL, LEARNED, bench, device_kind
import layout_peers

WINDOW = 1024
MODS = {
    "none": "score_mod = score",
    "ALiBi": LEARNED.replace(" grad", ""),
    "softcap": "score_mod = 20 * tanh(score / 20)",
    "sink": "buffer sinks: f32[H]\nscore_mod = score\nsink = sinks[h]",
    "bias of a key": "buffer bias: f32[B, KV_LEN]\nscore_mod = score + bias[b, kv_idx]",
    "learned slopes": LEARNED,
}


@dataclasses.dataclass(frozen=True)
class Row:
    group: str
    requests: str  # as people say it
    lengths: tuple  # of requests: queries, keys
    page_size: int = 16  # 0: ragged keys
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    mod: str = "none"
    mask: str = "none"  # or causal, or window: 1,024 keys
    training: bool = False
    dense: bool = False  # requests of one length as a dense batch

    @property
    def window(self):
        return WINDOW if self.mask == "window" else 0

    @property
    def name(self):
        parts = [self.group, self.requests, f"{self.heads}:{self.kv_heads}"]
        parts += [f"pages of {self.page_size}"] if self.page_size else []
        return ", ".join(parts + [word for word in (self.mod, self.mask) if word != "none"])

    def program(self):
        mask = {"none": "", "causal": CAUSAL, "window": f"mask_mod = 0 <= q_idx - kv_idx < {WINDOW}"}[self.mask]
        return f"{MODS[self.mod].rstrip()}\n{mask}"

    def arguments(self):
        """Shape, and what else `flexc bench` is told."""
        if self.dense:
            queries, keys = self.lengths[0]
            return f"{len(self.lengths)},{self.heads},{self.kv_heads},{queries},{keys},{self.head_dim}", []
        requests = ",".join(f"1x{queries}@{keys}" for queries, keys in self.lengths)
        pages = ["--page-size", str(self.page_size)] if self.page_size else []
        return f"{self.heads},{self.kv_heads},{self.head_dim}", ["--requests", requests, *pages]

    def key_bytes(self):
        """Of the keys and values that are seen, each once, in two bytes."""
        seen = sum(min(keys, self.window or keys) for _, keys in self.lengths)
        return seen * self.kv_heads * self.head_dim * 2 * 2


def documents(count, mean):
    """Lengths from a quarter of the mean to seven quarters, in pairs that have the mean."""
    source = random.Random(1)
    halves = [source.randrange(mean // 4, mean + 1) for _ in range(count // 2)]
    lengths = [length for half in halves for length in (half, 2 * mean - half)]
    source.shuffle(lengths)
    return tuple((length, length) for length in lengths)


def rows():
    def decode(count, keys, label, **more):
        return Row(more.pop("group", "decode"), f"{count} x 1 @ {label}", ((1, keys),) * count, **more)
    long = (4, 32768, "32k")
    for page_size in (16, 64):
        for shape in (long, (32, 4096, "4k"), (128, 1024, "1k"), (1, 131072, "128k")):
            yield decode(*shape, page_size=page_size)
        yield decode(32, 8192, "8k", heads=64, kv_heads=1, page_size=page_size)
    for mod in ("ALiBi", "softcap", "sink", "bias of a key"):
        yield decode(*long, mod=mod)
    yield decode(8, 131072, "128k", mask="window")
    yield decode(256, 1024, "1k", group="update")
    yield Row("mixed", "2 x 1024 @ 8k, 62 x 1 @ 8k", ((1024, 8192),) * 2 + ((1, 8192),) * 62, mask="causal")
    yield Row("prefill", "8 x 2048 @ 2k", ((2048, 2048),) * 8, mask="causal")
    training = dict(page_size=0, heads=16, kv_heads=16, mask="causal", training=True)
    yield Row("training", "64 x 1024", ((1024, 1024),) * 64, dense=True, **training)
    for mod in ("none", "learned slopes"):
        yield Row("training", "documents of 1,000, 64k tokens", documents(64, 1000), mod=mod, **training)


def small(row):
    """Fast on a CPU."""
    lengths = tuple((max(1, queries // 64), max(1, keys // 64)) for queries, keys in row.lengths)
    return dataclasses.replace(row, lengths=lengths[:2] + lengths[-2:], head_dim=32)


def rounded(value):
    return None if value is None else float(f"{value:.4g}")


def measured(row, value, peers, copy, before):
    """A row of the file. `before` is those that were measured."""
    forward_ms = value["forward_ms"]
    found = {"name": row.name, "group": row.group, "requests": row.requests, "heads": f"{row.heads}:{row.kv_heads}",
             "page_size": row.page_size, "mod": row.mod, "mask": row.mask, "layout": "dense" if row.dense else "ragged",
             "forward_us": rounded(forward_ms * 1e3), "tflops": rounded(value["tflops"])}
    if row.training:
        found |= {key: rounded(value[key]) for key in ("forward_ms", "backward_ms", "backward_tflops")}
    else:
        rate = row.key_bytes() / forward_ms * 1e-9
        found |= {"tb_per_s": rounded(rate), "of_copy": rounded(rate / copy) if copy else None}
    found |= {f"{key}_us": rounded(value[f"{key}_ms"] * 1e3) for key in ("launch", "update") if value[f"{key}_ms"]}
    plain = next((other for other in before if other["mod"] == "none" and other["layout"] == found["layout"] and all(
        other[key] == found[key] for key in ("group", "requests", "heads", "page_size", "mask"))), None)
    if plain and row.mod != "none":
        found["over_none"] = rounded(found["forward_us"] / plain["forward_us"])
    dense = next((other for other in before if other["layout"] == "dense"), None)
    if dense and row.training and found["tflops"] and dense["tflops"]:
        found["of_dense"] = rounded(found["tflops"] / dense["tflops"])
        found["backward_of_dense"] = rounded(found["backward_tflops"] / dense["backward_tflops"])
    for prefix in ("", "backward_"):
        key = (prefix or "forward_") + "ms"
        times = {name: peer[key] for name, peer in peers.items() if peer.get(key)}
        if times:
            best = min(times, key=times.get)
            found |= {prefix + "peer": best, prefix + "peer_us": rounded(times[best] * 1e3),
                      prefix + "ratio": rounded(times[best] / value[key])}
    return found | {"peers": peers}


def line_of(row):
    parts = [f"{row['forward_us']:.1f} us"]
    parts += [f"backward {row['backward_ms']:.3f} ms"] if "backward_ms" in row else []
    parts += [f"{row['tb_per_s']:.2f} TB/s"] if row.get("tb_per_s") else []
    parts += [f"{title} {row[key]:.3g}" for key, title in (
        ("of_copy", "of a copy"), ("over_none", "over none"), ("of_dense", "of dense"),
        ("backward_of_dense", "backward"), ("launch_us", "launch us"), ("update_us", "update us")) if row.get(key)]
    parts += [f"{row[prefix + 'ratio']:.2f} of {row[prefix + 'peer']}" for prefix in ("", "backward_")
              if prefix + "ratio" in row]
    for name, peer in row["peers"].items():
        parts.append(f"{name} " + (peer["error"] if "error" in peer else " ".join(
            f"{key} {value * 1e3:.1f} us" for key, value in peer.items())))
    return f"{row['name']}: " + "; ".join(parts)


def machine(flexc, device):
    report = json.loads(subprocess.run([flexc, "doctor", "--json"], capture_output=True, text=True, check=True).stdout)
    named = [f"one {finding['detail']}" for finding in report["findings"] if finding["what"] == "GPU 0"]
    return named[0] if device == "cuda" and named else "this machine's CPU"


def commit():
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True,
                          cwd=pathlib.Path(__file__).parent)
    return done.stdout.strip() or "not recorded"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("flexc", help="the command")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--only", default="", help="rows whose name has this word")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="keep what is measured")
    parser.add_argument("--commit", help="that the file names (this checkout's)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no row begins later")
    parser.add_argument("--row-seconds", type=float, default=40, help="of flexc, and of each peer")
    parser.add_argument("--no-peers", action="store_true")
    options = parser.parse_args()
    began = time.monotonic()
    device = device_kind(options.flexc, options.device)
    peers = layout_peers.Peers(options.row_seconds) if device == "cuda" and not options.no_peers else None
    copy = rounded(peers.copy_tb_per_s()) if peers else None
    run = {"machine": machine(options.flexc, device), "date": datetime.date.today().isoformat(),
           "commit": options.commit or commit(), "peer": peers.versions() if peers else "none",
           "command": "`tools/layouts.py FLEXC --json FILE`", "copy_tb_per_s": copy, "rows": []}
    print(f"{run['machine']}, commit {run['commit']}; peers: {run['peer']}; a copy: {copy} TB/s", flush=True)
    failed = []
    for row in rows():
        if options.only not in row.name:
            continue
        if time.monotonic() - began > options.seconds:
            failed.append(f"{row.name}: no time")
            continue
        row = row if device == "cuda" else small(row)
        shape, further = row.arguments()
        value, error = bench(options.flexc, device, "bf16" if device == "cuda" else "f32", shape, row.program(),
                             further, backward=row.training, limit_s=options.row_seconds)
        if error:
            failed.append(f"{row.name}: {error}")
            print(failed[-1], flush=True)
            continue
        run["rows"].append(measured(row, value, peers.times(row) if peers else {}, copy, run["rows"]))
        print(line_of(run["rows"][-1]), flush=True)
        if options.json:
            options.json.write_text(json.dumps(run, indent=1) + "\n")
    print(f"{len(run['rows'])} rows in {time.monotonic() - began:.0f} s; not measured: {len(failed)}")
    for text in failed:
        print(f"  {text}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
