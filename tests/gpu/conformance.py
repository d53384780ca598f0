#!/usr/bin/env python3
"""Holds flexc against PyTorch, case by case, by PyTorch's own rule for FlexAttention.

usage: conformance.py FLEXC [--device cuda] [--dtype bf16] [--jobs N] [NAME ...]

Every line of tests/conformance/cases.jsonl is a case. Its mod is evaluated by PyTorch as it stands there, in float64
(gold) and in the type of q, k and v (reference); flexc runs the same text, or the mod of its library that the line
names. For 16-bit types the mean error of each output may be 1.1 times the reference's, and for f32 10 times; that of
learned captures, as root of the mean square, 1.35^2 and 13.5^2 times. Needs PyTorch. Exit code 0: all cases hold. 1:
one does not. 77: nothing to run on.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "golden"))
import tensor_io  # noqa: E402

try:
    import torch
    import torch.nn.functional as functional
except ImportError:
    print("[SKIP] PyTorch is not installed")
    sys.exit(77)

SIZES = {"B": 2, "H": 4, "H_KV": 2, "Q_LEN": 19, "KV_LEN": 23, "D": 64}
TYPES = {"f64": (torch.float64, "F64"), "f32": (torch.float32, "F32"), "f16": (torch.float16, "F16"),
         "bf16": (torch.bfloat16, "BF16"), "i64": (torch.int64, "I64"), "i32": (torch.int32, "I32"),
         "bool": (torch.bool, "BOOL")}
FACTOR = {"bf16": 1.1, "f16": 1.1, "f32": 10.0}
LEARNED_FACTOR = {"bf16": 1.35 ** 2, "f16": 1.35 ** 2, "f32": 13.5 ** 2}  # PyTorch's for learned captures
LOG_SUM_LIMIT = 2e-2  # PyTorch's own
# What a gradient may be whose true value is 0, for each square root of how many elements it sums.
VANISHING = {"bf16": 5e-3, "f16": 6e-4, "f32": 3e-6}



def tensor(value):
    return value if isinstance(value, torch.Tensor) else torch.as_tensor(value)


def both(function):
    def of_numbers(x, y):
        x, y = tensor(x), tensor(y)
        kind = torch.promote_types(x.dtype, y.dtype)
        return function(x.to(kind), y.to(kind))
    return of_numbers


def clamp(x, lo=None, hi=None, **bounds):
    return torch.clamp(tensor(x), bounds.get("min", lo), bounds.get("max", hi))


def to_float(x):
    return float(x) if isinstance(x, str) else tensor(x).to(torch.get_default_dtype())


def where(condition, x, y):
    if isinstance(condition, bool):
        return x if condition else y
    return torch.where(condition, x, y)


def of_number(function):
    return lambda x: function(tensor(x))


FUNCTIONS = {name: of_number(getattr(torch, name))
             for name in "abs sqrt exp exp2 log sin cos tan tanh sigmoid".split()}
FUNCTIONS |= {"torch": torch, "inf": float("inf"), "clamp": clamp, "float": to_float, "where": where,
              "int": lambda x: tensor(x).trunc().long(), "min": both(torch.minimum), "max": both(torch.maximum),
              "gelu": functional.gelu, "silu": functional.silu, "softplus": functional.softplus}


class Buffer:
    """Read by index like a captured tensor: in one pair of brackets or several; 0 outside."""

    def __init__(self, values, indices=()):
        self.values, self.indices = values, indices

    def __getitem__(self, more):
        indices = self.indices + (more if isinstance(more, tuple) else (more,))
        if len(indices) < self.values.dim():
            return Buffer(self.values, indices)
        indices = [tensor(i).to(self.values.device).long() for i in indices]
        inside = torch.tensor(True, device=self.values.device)
        for index, extent in zip(indices, self.values.shape):
            inside = inside & (index >= 0) & (index < extent)
        safe = tuple(i.clamp(0, extent - 1) for i, extent in zip(indices, self.values.shape))
        read = self.values[safe]
        return torch.where(inside, read, torch.zeros_like(read))


def contents(fill, count, row):
    """What "segments:6", "mod:5", "const:1" or "list:1:2" puts at each flat position."""
    kind, *numbers = fill.split(":")
    numbers = [float(number) for number in numbers]
    if kind == "segments":
        return [i % row // int(numbers[0]) for i in range(count)]
    if kind == "mod":
        return [i % int(numbers[0]) for i in range(count)]
    return [numbers[i % len(numbers)] for i in range(count)]


class Case:
    def __init__(self, line, dtype):
        self.line, self.dtype, self.name = line, dtype, line["name"]
        self.sizes = SIZES | line.get("sizes", {})
        self.sizes.setdefault("DV", self.sizes["D"])
        s, random = self.sizes, torch.Generator().manual_seed(1)

        def draw(*shape):
            return torch.randn(*shape, generator=random, dtype=torch.float32).to(TYPES[dtype][0])
        self.tensors = {"q": draw(s["B"], s["H"], s["Q_LEN"], s["D"]),
                        "k": draw(s["B"], s["H_KV"], s["KV_LEN"], s["D"]),
                        "v": draw(s["B"], s["H_KV"], s["KV_LEN"], s["DV"]),
                        "do": draw(s["B"], s["H"], s["Q_LEN"], s["DV"])}
        if line.get("d_lse"):
            self.tensors["dlse"] = torch.randn(s["B"], s["H"], s["Q_LEN"], generator=random)
        self.buffers, self.learned = {}, []
        for name, words in line.get("buffers", {}).items():
            kind, dims = words[:words.index("]")].split("[")
            shape = [s[dim] if dim in s else int(dim) for dim in dims.replace(" ", "").split(",") if dim]
            count, last = torch.Size(shape).numel(), words.split()[-1]
            values = torch.tensor(contents(last, count, s["KV_LEN"])) if ":" in last else (
                torch.randn(count, generator=random) * 0.5)
            self.buffers[name] = values.to(TYPES[kind][0]).reshape(shape)
            if words.endswith(" grad"):
                self.learned.append(name)

    def program(self):
        text = ""
        for name, words in self.line.get("buffers", {}).items():
            grad = " grad" if name in self.learned else ""
            text += f"buffer {name}: {words[:words.index(']') + 1]}{grad}\n"
        for name, value in self.line.get("params", {}).items():
            kind = "bool" if isinstance(value, bool) else "i32" if isinstance(value, int) else "f32"
            text += f"param {name}: {kind}\n"
        text += "".join(f"{part}_mod = {self.line[part]}\n" for part in ("score", "mask") if part in self.line)
        return text + (f"sink = {self.line['sink']}\n" if "sink" in self.line else "")

    def inputs(self):
        def entry(values):
            kind = next(tag for dtype, tag in TYPES.values() if dtype == values.dtype)
            return kind, tuple(values.shape), bytes(values.contiguous().reshape(-1).view(torch.uint8).tolist())
        return tensor_io.encode({name: entry(t) for name, t in (self.tensors | self.buffers).items()})

    def eager(self, precision, device):
        """o, lse and gradients as FlexAttention has them when nothing is compiled, from tensors of this type: products
        in the type, softmax in f32, and the sum over a row from the output as it is stored."""
        working = torch.float64 if precision == torch.float64 else torch.float32
        torch.set_default_dtype(working)
        s = self.sizes
        group, scale = s["H"] // s["H_KV"], s["D"] ** -0.5
        q, k, v, d_out = (self.tensors[name].to(device, precision) for name in ("q", "k", "v", "do"))
        wide_k, wide_v = (x.repeat_interleave(group, 1) for x in (k, v))
        score = ((q @ wide_k.transpose(-2, -1)).to(working) * scale).requires_grad_()
        modified, sink, learned = self.evaluate(score, device, working)
        empty = (modified == -float("inf")).all(-1, keepdim=True)
        lse = torch.logsumexp(torch.where(empty, 0, modified), -1).detach()
        # What the sink leaves of the weights, whose own sum lse is: a row of its own has none.
        left = torch.where(empty[..., 0], 0, torch.sigmoid(lse - sink)).detach()[..., None]
        whole = torch.where(empty, 0, torch.exp(modified - lse[..., None])).detach()
        weights = whole * left
        o = weights.to(precision) @ wide_v

        d_lse = self.tensors["dlse"].to(device, working) if "dlse" in self.tensors else torch.zeros_like(lse)
        row_sums = (o * d_out).sum(-1, keepdim=True)
        d_modified = weights * (d_out @ wide_v.transpose(-2, -1) - row_sums) + whole * d_lse[..., None]
        d_sink = torch.where(empty, 0, (left - 1) * row_sums)[..., 0]
        leaves = {"score": score, **learned}
        roots = {"modified": (modified, d_modified)} | ({"sink": (sink, d_sink)} if sink.requires_grad else {})
        slopes = torch.autograd.grad([root for root, _ in roots.values()], list(leaves.values()),
                                     [d_root for _, d_root in roots.values()], allow_unused=True)
        slopes = {name: torch.zeros_like(leaf) if slope is None else slope
                  for (name, leaf), slope in zip(leaves.items(), slopes)}
        d_product = (slopes.pop("score") * scale).to(precision)

        def narrow(x):  # sums over the query heads of a key head
            return x.unflatten(1, (s["H_KV"], group)).sum(2)
        results = {"o": o, "lse": torch.where(empty[..., 0], -float("inf"), lse), "dq": d_product @ wide_k,
                   "dk": narrow(d_product.transpose(-2, -1) @ q),
                   "dv": narrow(weights.to(precision).transpose(-2, -1) @ d_out)}
        results |= {"d." + name: slope for name, slope in slopes.items()}
        return {name: values.detach().double().cpu() for name, values in results.items()}

    def evaluate(self, score, device, working):
        """The modified scores, -inf where hidden, the sinks, and the learned tensors that they were made from."""
        names = dict(FUNCTIONS) | self.sizes | self.line.get("params", {}) | {"score": score}
        for at, name in enumerate(("b", "h", "q_idx", "kv_idx")):
            names[name] = torch.arange(score.shape[at], device=device).reshape([-1 if i == at else 1 for i in range(4)])
        names["h_kv"] = names["h"] // (self.sizes["H"] // self.sizes["H_KV"])
        learned = {}
        for name, values in self.buffers.items():
            wide = working == torch.float64 and values.is_floating_point()
            values = values.to(device, working if wide else values.dtype, copy=True)
            if name in self.learned:
                learned[name] = values.requires_grad_()
            names[name] = Buffer(values) if values.dim() else values

        def value_of(part, otherwise):
            return eval(self.line[part], {"__builtins__": {}}, names) if part in self.line else otherwise
        modified = tensor(value_of("score", score)).to(working).expand(score.shape)
        visible = value_of("mask", torch.tensor(True, device=device))
        sink = tensor(value_of("sink", -float("inf"))).to(device, working)
        if sink.dim() == 4:
            sink = sink[..., 0]
        return torch.where(visible, modified, -float("inf")), sink.expand(score.shape[:3]), learned


def run_flexc(options, case, scratch):
    """Outputs of flexc by name, or its error."""
    stem = "".join(c if c.isalnum() else "_" for c in case.name)
    inputs, outputs, program = (scratch / f"{stem}.{end}" for end in ("in", "out", "flex"))
    inputs.write_bytes(case.inputs())
    program.write_text(case.program())
    command = [options.flexc, "run", case.line.get("library", program), "--inputs", inputs, "--outputs", outputs,
               "--backward", "--device", options.device]
    for name, value in case.line.get("params", {}).items():
        command += ["--param", f"{name}={json.dumps(value)}"]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                          env={**os.environ, "FLEXC_CACHE_DIR": str(scratch / "cache")})
    if done.returncode != 0:
        return done.stderr.strip() or f"exit code {done.returncode}"
    return {name: torch.tensor(numbers, dtype=torch.float64).reshape(shape)
            for name, (_, shape, numbers) in tensor_io.read(outputs).items()}


def problems_of(case, results, gold, reference):
    for name, truth in gold.items():
        if name not in results:
            yield f"{name} is not there"
            continue
        finite = truth.isfinite()
        if not torch.equal(results[name].isfinite(), finite):
            yield f"{name} is not finite where it should be, or the reverse"
            continue
        error = (results[name] - truth)[finite].abs()
        if name == "lse":
            if error.numel() and error.max() > LOG_SUM_LIMIT:
                yield f"lse is off by {error.max():.2e}"
            continue
        if not error.numel():
            continue
        learned = name.startswith("d.")
        error = (error.square().mean().sqrt() if learned else error.mean()).item()
        of_reference = (reference[name] - truth)[finite]
        of_reference = (of_reference.square().mean().sqrt() if learned else of_reference.abs().mean()).item()
        factor = (LEARNED_FACTOR if learned else FACTOR)[case.dtype]
        # Two deviations of the quotient: a table of four numbers says little about an error.
        chance = 1 + 2 / truth.numel() ** 0.5 if learned else 1
        allowed = factor * chance * of_reference + 1e-7
        if learned and truth.square().mean() < 1e-12:
            s = case.sizes
            allowed = VANISHING[case.dtype] * (s["B"] * s["H"] * s["Q_LEN"] * s["KV_LEN"] / truth.numel()) ** 0.5
        if not error <= allowed:
            yield f"{name} has error {error:.2e}, PyTorch's has {of_reference:.2e}, allowed are {allowed:.2e}"


def judge(case, results, device):
    """What is wrong with the results of a case."""
    if "error" in case.line:
        if isinstance(results, str):
            return [] if case.line["error"] in results else [f"the error should say '{case.line['error']}': {results}"]
        return ["should be refused"]
    if isinstance(results, str):
        return [results]
    try:
        gold, reference = (case.eager(dtype, device) for dtype in (torch.float64, TYPES[case.dtype][0]))
    except (RuntimeError, TypeError, ValueError, NameError) as error:
        return [f"PyTorch does not evaluate the mod: {error}"]
    return list(problems_of(case, results, gold, reference))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("flexc")
    parser.add_argument("names", nargs="*", help="words that the names of cases have to contain")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--dtype", default="bf16", choices=list(FACTOR))
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_intermixed_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("[SKIP] PyTorch sees no GPU")
        return 77
    lines = [json.loads(line) for line in (HERE.parent / "conformance/cases.jsonl").read_text().splitlines()]
    cases = [Case(line, options.dtype) for line in lines
             if not options.names or any(word in line["name"] for word in options.names)]
    good = 0
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        runs = {pool.submit(run_flexc, options, case, pathlib.Path(folder)): case for case in cases}
        for run in concurrent.futures.as_completed(runs):
            case, results = runs[run], run.result()
            problems = judge(case, results, options.device)
            good += not problems
            note = f"  (PyTorch refuses {case.line['pytorch']})" if "pytorch" in case.line else ""
            print("\n    ".join([f"{'bad ' if problems else 'good'} {case.name}{note}", *problems]), flush=True)
    print(f"{good} of {len(cases)} cases hold")
    return 0 if good == len(cases) else 1


if __name__ == "__main__":
    sys.exit(main())
