#!/usr/bin/env python3
"""PyTorch's own tests of FlexAttention, with only their compiled side on flexc, on the CPU.

The files are PyTorch's test/inductor/test_flex_attention.py and test_flex_decoding.py, which belong to the version that
is installed and are not part of this project. They are read as they are and changed in memory:

  - What they give to torch.compile runs uncompiled, and in it flex_attention is flexc.torch.flex_attention. Everywhere
    else flex_attention stays PyTorch's: flexc is never compared with itself. Float64 stays PyTorch's too.
  - CUDA becomes the CPU, and what PyTorch skips on the CPU (gradients, lse, float16) runs.
  - Assertions about how often dynamo compiled are left out.
  - Sequences of 2048 become --length; a test that then fails runs again as it is written, and that result counts.
"""
import argparse
import ast
import collections
import contextlib
import functools
import io
import json
import pathlib
import platform
import re
import signal
import sys
import time
import types
import unittest
import warnings

import torch
from torch.nn.attention import flex_attention as pytorch

import flexc
from flexc.torch import flex_attention as of_flexc

FILES = "test_flex_attention.py", "test_flex_decoding.py"
of_pytorch = pytorch.flex_attention

INSPECTS = "inspects what inductor or dynamo made (code, graphs, metrics)"
ONE_SIDE = "has no compiled call of flex_attention: PyTorch's BlockMask, its page tables, its eager side"
DOUBLE = "is in float64, which flexc refuses"
EXPECTED = "is expected to fail, and does"
TEXT = "expects PyTorch's words of an error that flexc raises in its own"
COMPUTES = "expects an error of inductor, where flexc computes"
DEVICES = "needs two devices"
# A gate's gradient in float16, 2.7936 by attention written out in float64: PyTorch's gold is 3.0293, flexc's 2.7930.
GOLD = "takes as exact PyTorch's sum of a captured gradient in 16 bits, which flexc's is nearer to float64 than"

# By the names of tests: those that are not run, and those whose failure is not about the numbers of attention.
NOT_RUN = {r"test_.*gradcheck.*": DOUBLE, r"test_mixed_device_error_message": DEVICES}
EXPLAINED = {
    r"test_block_mask_vs_sequence_lengths_compile_True": TEXT,
    r"test_captured_wrong_device_error_message": COMPUTES,
    r"test_cant_lower_error_message": COMPUTES,
    r"test_invalid_block_size": COMPUTES,
    r"test_symmetric_bias_.*": COMPUTES,
    r"test_head_specific_gate_.*float16.*": GOLD,
}


class State:
    """Whether what runs now is a test's compiled side, and what it called."""

    compiled, calls, doubles = False, 0, 0


def flex_attention(query, *arguments, **options):
    """What the tests call by this name."""
    if not State.compiled:
        return of_pytorch(query, *arguments, **options)
    if query.dtype == torch.float64:
        State.doubles += 1
        return of_pytorch(query, *arguments, **options)
    State.calls += 1
    return of_flexc(query, *arguments, **options)


def compiled(function=None, **options):
    """Stands for torch.compile."""
    if function is None:
        return functools.partial(compiled, **options)

    def call(*arguments, **named):
        before, State.compiled = State.compiled, True
        try:
            return function(*arguments, **named)
        finally:
            State.compiled = before
    return functools.update_wrapper(call, function) if hasattr(function, "__name__") else call


def compile_module(module, *_, **__):
    """Stands for torch.nn.Module.compile."""
    module._compiled_call_impl = compiled(module._call_impl)


def inspects(*_, **__):
    raise unittest.SkipTest(INSPECTS)


class Rewrite(ast.NodeTransformer):
    """A test file for the CPU."""

    def __init__(self, length):
        self.length = length

    def visit_Constant(self, node):
        return ast.copy_location(ast.Constant("cpu"), node) if node.value in ("cuda", "cuda:0") else node

    def visit_Compare(self, node):
        if isinstance(node.comparators[0], ast.Constant) and node.comparators[0].value == "cpu":
            return ast.copy_location(ast.Constant(False), node)  # what runs here is what runs on a GPU
        return self.generic_visit(node)

    def visit_Attribute(self, node):
        self.generic_visit(node)
        if isinstance(node.value, ast.Name) and node.value.id == "torch" and node.attr == "compile":
            return ast.copy_location(ast.Name("flexc_compiled", node.ctx), node)
        node.attr = {"is_cuda": "is_cpu"}.get(node.attr, node.attr)
        return node

    def visit_Call(self, node):
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "cuda" and not node.args:
            node.func.attr = "cpu"
        return node

    def visit_Expr(self, node):
        text = ast.unparse(node)
        if text.startswith("self.assert") and "torch._dynamo.utils.counters" in text:
            return ast.copy_location(ast.Pass(), node)
        self.generic_visit(node)
        call = node.value
        if (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "compile" and
                isinstance(call.func.value, ast.Name)):
            call.args.insert(0, call.func.value)
            call.func = ast.copy_location(ast.Name("flexc_compile_module", ast.Load()), node)
        return node

    def visit_Module(self, node):
        for statement in node.body:
            if not isinstance(statement, ast.Assign):
                continue
            text = ast.unparse(statement.value)
            name = ast.unparse(statement.targets[0])
            if "skipUnless(" in text and "cuda" in text:
                statement.value = ast.parse("lambda decorated: decorated", mode="eval").body
            elif name == "TEST_ON_CUDA":
                statement.value = ast.Constant(True)
            elif name == "S" and self.length:
                statement.value = ast.Constant(self.length)
        return self.generic_visit(node)


def load(path, length):
    """The tests of a file, by their names."""
    tree = ast.fix_missing_locations(Rewrite(length).visit(ast.parse(path.read_text(), str(path))))
    name = f"{path.stem}_{length or 'as_written'}"
    module = types.ModuleType(name)
    module.__file__ = str(path)
    module.flexc_compiled, module.flexc_compile_module = compiled, compile_module
    sys.modules[name] = module
    exec(compile(tree, str(path), "exec"), module.__dict__)
    module.flex_attention = flex_attention
    for inspector in ("run_and_get_code", "FileCheck", "CompileCounterWithBackend", "normalize_gm"):
        if hasattr(module, inspector):
            setattr(module, inspector, inspects)
    tests = {}

    def walk(suite):
        for test in suite:
            if isinstance(test, unittest.TestSuite):
                walk(test)
            else:
                tests[test.id().removeprefix(name + ".")] = test
    walk(unittest.defaultTestLoader.loadTestsFromModule(module))
    return tests


def redirect():
    """What the files import, before they do."""
    import torch._dynamo.testing
    from torch.nn.attention.experimental import _paged_attention
    from torch.testing._internal import common_cuda, common_device_type
    common_cuda.PLATFORM_SUPPORTS_BF16 = True
    common_device_type.flex_attention_supported_platform = lambda decorated: decorated
    torch._dynamo.testing.EagerAndRecordGraphs = inspects
    for function in (pytorch.create_block_mask, pytorch.create_mask, _paged_attention.PagedAttention.__init__):
        function.__defaults__ = tuple("cpu" if value == "cuda" else value for value in function.__defaults__ or ())
    pytorch.flex_attention = flex_attention
    # Newer PyTorch refuses gradients on the CPU, which its eager computes.
    pytorch._validate_device = lambda *_: None


class Outcome(unittest.TestResult):
    """Of one test: the word for it and its reason."""

    def __init__(self):
        super().__init__()
        self.word, self.reason = "passed", ""

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.word, self.reason = "not applicable", reason

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.word, self.reason = "failed", self.failures[-1][1]

    def addError(self, test, error):
        super().addError(test, error)
        self.word, self.reason = "failed", self.errors[-1][1]

    def addExpectedFailure(self, test, error):
        super().addExpectedFailure(test, error)
        self.word, self.reason = "not applicable", EXPECTED


def late(*_):
    raise TimeoutError("the test took too long")


def matching(patterns, name):
    return next((why for pattern, why in patterns.items() if re.fullmatch(pattern, name.rsplit(".", 1)[-1])), "")


def run(name, test, timeout):
    outcome = Outcome()
    if matching(NOT_RUN, name):
        outcome.word, outcome.reason = "not applicable", matching(NOT_RUN, name)
        return outcome
    State.compiled, State.calls, State.doubles = False, 0, 0
    torch._dynamo.reset()
    torch.manual_seed(0)
    signal.signal(signal.SIGALRM, late)
    signal.alarm(timeout)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            test.run(outcome)
    finally:
        signal.alarm(0)
    if outcome.word == "passed" and not State.calls:
        outcome.word, outcome.reason = "not applicable", DOUBLE if State.doubles else ONE_SIDE
    elif outcome.word == "failed" and matching(EXPLAINED, name):
        outcome.word, outcome.reason = "not applicable", matching(EXPLAINED, name)
    return outcome


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, help="PyTorch's test/inductor, of the version that is installed")
    parser.add_argument("--only", default="", help="a regular expression that names of tests contain")
    parser.add_argument("--every", type=int, default=1, help="run one in this many tests: a sample")
    parser.add_argument("--first", type=int, default=0, help="the place of the sample's first test (0)")
    parser.add_argument("--length", type=int, default=256, help="for sequences of 2048; 0: files as written (256)")
    parser.add_argument("--timeout", type=int, default=600, help="seconds for one test (600)")
    parser.add_argument("--json", type=pathlib.Path, help="writes each test's outcome there")
    options = parser.parse_args()
    paths = [options.folder / name for name in FILES if (options.folder / name).exists()]
    if not paths:
        parser.error(f"{options.folder} has neither of {', '.join(FILES)}")
    warnings.simplefilter("ignore")
    redirect()
    counts, reasons, records = collections.Counter(), collections.Counter(), []
    for path in paths:
        tests = load(path, options.length)
        as_written = None
        names = [name for name in tests if re.search(options.only, name)][options.first::options.every]
        for i, name in enumerate(names):
            started = time.monotonic()
            outcome = run(name, tests[name], options.timeout)
            again = outcome.word == "failed" and options.length
            if again:
                as_written = as_written or load(path, 0)
                outcome = run(name, as_written[name], options.timeout)
            seconds = time.monotonic() - started
            print(f"[{i + 1}/{len(names)}] {path.stem} {name}: {outcome.word}{' as written' * bool(again)}, "
                  f"{seconds:.1f} s", file=sys.stderr, flush=True)
            if outcome.word == "failed":
                print(outcome.reason, file=sys.stderr, flush=True)
            counts[path.name, outcome.word] += 1
            if outcome.word == "not applicable":
                reasons[outcome.reason] += 1
            records.append({"file": path.name, "test": name, "outcome": outcome.word, "reason": outcome.reason,
                            "as_written": bool(again), "seconds": round(seconds, 2), "calls": State.calls})
            if options.json:
                options.json.write_text(json.dumps(records, indent=1))
    print(f"PyTorch {torch.__version__}, flexc {flexc.__version__}, Python {platform.python_version()}, "
          f"sequences of {options.length or 2048}\n")
    print("| file | passed | failed | not applicable |\n|---|---|---|---|")
    for path in paths:
        print(f"| `{path.name}` | " + " | ".join(
            str(counts[path.name, word]) for word in ("passed", "failed", "not applicable")) + " |")
    print("\n| not applicable: the test | tests |\n|---|---|")
    for reason, count in reasons.most_common():
        print(f"| {reason} | {count} |")
    return 1 if any(record["outcome"] == "failed" for record in records) else 0


if __name__ == "__main__":
    sys.exit(main())
