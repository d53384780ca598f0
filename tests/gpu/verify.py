#!/usr/bin/env python3
"""Checks every kernel on a GPU, in order of value, and prints a table: tools/dev verify-gpu.

Exit code 0: all that applies to the GPU ran and holds. 1: something is bad. 3: nothing is bad, but something did not
run, such as what a missing tool or --seconds left out. 77: there is no GPU that flexc can use. 130: interrupted.
"""
import argparse
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
GOLDEN = HERE.parent / "golden"
sys.path.insert(0, str(GOLDEN))
from check import find_gpus  # noqa: E402

HOPPER = "capability 9.0"
TOOL_REFUSES = "Device not supported"  # what compute-sanitizer says of some virtual machines
SEEDS_IN_A_PROCESS = 10
# What would make tests do something else, or nothing.
OWN_VARIABLES = ("FLEXC_TEST_COMPILE", "FLEXC_TEST_SEED", "FLEXC_FUZZ_PROGRAMS", "FLEXC_FUZZ_SECONDS")
NO_LIMIT = float("inf")

KERNELS = {
    "automatic": [],
    "generic": ["--forward-kernel=generic", "--backward-kernel=generic"],
    "split": ["--backward-kernel=split"],
    "fused": ["--backward-kernel=fused"],
    "deterministic": ["--deterministic"],
    "deterministic, fused": ["--deterministic", "--backward-kernel=fused"],
}
SANITIZED_KERNELS = ("automatic", "generic", "split", "deterministic")

# Sections of test_api: name, kernels, whether they need Hopper, whether --quick has them, filters.
API_SECTIONS = [
    ("end-to-end", "all kinds", False, True,
     ["-tse=hopper", "-sf=*/end_to_end_test.cpp,*/row_gradients_test.cpp,*/large_scores_test.cpp,"
      "*/out_of_range_test.cpp,*/max_scores_test.cpp", "-tce=*on the CPU"]),
    ("hopper", "specialized", True, True,
     ["-ts=hopper", "-sf=*/hopper_test.cpp,*/hopper_softmax_test.cpp,*/hopper_index_2d_test.cpp,"
      "*/row_gradients_test.cpp,*/large_scores_test.cpp,*/max_scores_test.cpp"]),
    ("block-masks", "all kinds", False, False, ["-tse=hopper", "-sf=*/masks_test.cpp", "-tce=*on the CPU"]),
    ("block-masks-hopper", "specialized", True, False, ["-ts=hopper", "-sf=*/masks_test.cpp"]),
    ("sinks", "all kinds", False, False,
     ["-tse=hopper", "-sf=*/sink_test.cpp", "-tce=a sink of the options*"]),
    ("sinks-hopper", "specialized", True, False, ["-ts=hopper", "-sf=*/sink_test.cpp"]),
    ("deterministic", "deterministic", False, False,
     ["-tse=hopper", "-sf=*/deterministic_test.cpp", "-tce=*the plan says*"]),
    ("deterministic-hopper", "deterministic", True, False, ["-ts=hopper", "-sf=*/deterministic_test.cpp"]),
    ("tables", "specialized", True, False, ["-ts=hopper", "-sf=*/table_test.cpp"]),
    ("tables-generic", "generic", False, False, ["-tse=hopper", "-sf=*/table_test.cpp"]),
    ("kinds", "specialized", True, False, ["-ts=hopper", "-sf=*/hopper_key_kinds_test.cpp"]),
    ("pairs", "specialized", True, False, ["-ts=hopper", "-sf=*/pair_reads_test.cpp"]),
    ("pairs-generic", "generic", False, False,
     ["-tse=hopper", "-sf=*/pair_reads_test.cpp", "-tce=*on the CPU"]),
    ("keys", "specialized", True, False,
     ["-ts=hopper", "-sf=*/hopper_key_addend_test.cpp,*/hopper_factor_test.cpp,*/hopper_beside_elements_test.cpp,"
      "*/hopper_points_test.cpp"]),
    ("distances", "specialized", True, False,
     ["-ts=hopper", "-sf=*/hopper_distance_test.cpp,*/hopper_key_order_test.cpp"]),
    ("shifts", "specialized", True, False, ["-ts=hopper", "-sf=*/hopper_shifted_test.cpp"]),
    ("sums", "specialized", True, False,
     ["-ts=hopper", "-sf=*/hopper_terms_test.cpp,*/hopper_gradient_passes_test.cpp,*/hopper_sums_test.cpp"]),
    ("biases", "specialized", True, False,
     ["-ts=hopper,dense_bias", "-sf=*/hopper_bias_test.cpp,*/dense_bias_test.cpp,*/hopper_inside_test.cpp"]),
    ("graphs", "specialized", True, False, ["-ts=hopper", "-sf=*/capture_test.cpp"]),
    ("graphs-requests", "generic", False, False, ["-tse=hopper", "-sf=*/capture_test.cpp"]),
    ("short", "automatic", False, False, ["-tse=hopper", "-sf=*/short_sequences_test.cpp"]),
    ("few", "automatic", False, False, ["-tse=hopper", "-sf=*/few_queries_test.cpp"]),
    ("requests", "generic", False, True,
     ["-sf=*/layouts_test.cpp,*/large_cache_test.cpp",
      "-tc=random requests on a GPU*,batch_invariant*on a GPU,a cache of*on a GPU"]),
]


@dataclasses.dataclass
class Outcome:
    """What became of one case."""
    kind: str  # good, bad, skipped or absent: the last is of what this GPU or build cannot have
    name: str
    note: str = ""
    repeat: str = ""
    output: str = ""
    seconds: float = 0


@dataclasses.dataclass
class Section:
    name: str
    kernels: str
    tasks: list = dataclasses.field(default_factory=list)  # functions of a Runner that give outcomes
    count: int = 0
    reason: str = ""  # why it has no tasks
    kind: str = "skipped"  # and whether that is skipped or absent
    outcomes: list = dataclasses.field(default_factory=list)
    start: float = NO_LIMIT
    end: float = 0

    def number(self, kind):
        return sum(outcome.kind == kind for outcome in self.outcomes)


class Runner:
    """Runs commands until a deadline; each in a process group of its own, so that nothing outlives it."""

    def __init__(self, options):
        self.environment = {name: value for name, value in os.environ.items() if name not in OWN_VARIABLES}
        self.environment["FLEXC_TEST_DEVICE"] = "cuda"
        if options.compile:
            self.environment["FLEXC_TEST_COMPILE"] = options.compile
        self.case_seconds = options.case_seconds
        self.deadline = time.monotonic() + options.seconds if options.seconds else NO_LIMIT
        self.lock = threading.Lock()
        self.running = set()

    def stop(self):
        """Ends what runs; nothing starts any more."""
        with self.lock:
            self.deadline = 0
            for process in self.running:
                self.kill(process)

    @staticmethod
    def kill(process):
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def run(self, command, variables=()):
        """Its exit code and output; a word for the code where it has none: late, hangs or missing."""
        with self.lock:
            left = self.deadline - time.monotonic()
            if left <= 0:
                return "late", ""
            try:
                process = subprocess.Popen(command, text=True, errors="replace", stdin=subprocess.DEVNULL,
                                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
                                           env={**self.environment, **dict(variables)})
            except OSError as error:
                return "missing", str(error)
            self.running.add(process)
        code = None
        try:
            output, _ = process.communicate(timeout=min(left, self.case_seconds))
        except subprocess.TimeoutExpired:
            code = "late" if left <= self.case_seconds else "hangs"
            self.kill(process)
            output, _ = process.communicate()
        with self.lock:
            self.running.remove(process)
            if self.deadline == 0:
                code = "late"
        return process.returncode if code is None else code, output

    def outcome(self, name, command, judge, variables=()):
        """Of one case: judge says what an exit code and an output mean, as a kind and a note."""
        start = time.monotonic()
        code, output = self.run(command, variables)
        repeat = " ".join([*(f"{key}={value}" for key, value in variables), shlex.join(command)])
        if code == "late":
            return Outcome("skipped", name, "no time was left")
        if code == "hangs":
            return Outcome("bad", name, f"did not end within {self.case_seconds:g} s", repeat, output)
        if code == "missing":
            return Outcome("bad", name, output, repeat)
        kind, note = judge(code, output)
        return Outcome(kind, name, note, repeat, output, time.monotonic() - start)


def judge_golden(name):
    def judge(code, output):
        if code == 77:
            return "skipped", output.strip()
        if TOOL_REFUSES in output:
            return "skipped", "compute-sanitizer does not work on this machine"
        if code == 0 and f"good {name}" in output.splitlines():
            return "good", ""
        return "bad", f"exit code {code}"
    return judge


def summary_of(output):
    """How many test cases and assertions doctest ran, and how many assertions failed."""
    cases = re.search(r"test cases: *(\d+)", output)
    assertions = re.search(r"assertions: *(\d+) *\| *\d+ passed *\| *(\d+) failed", output)
    if not cases or not assertions:
        return 0, 0, 0
    return int(cases[1]), int(assertions[1]), int(assertions[2])


def judge_test(code, output):
    _, assertions, failed = summary_of(output)
    if code != 0 or failed:
        return "bad", f"exit code {code}"
    if assertions == 0:
        return "skipped", "the test checked nothing"
    return "good", ""


def judge_compiled(code, _):
    return ("good", "") if code == 0 else ("skipped", "what it needs is not compiled beforehand")


def judge_programs(count):
    def judge(code, output):
        cases, assertions, failed = summary_of(output)
        if code == 0 and cases == 1 and assertions == count and not failed:
            return "good", ""
        return "bad", f"exit code {code}, {assertions} of {count} programs checked"
    return judge


def golden_section(options, name, kernels, cases, folder, under=()):
    section = Section(name, kernels)
    for case in cases:
        command = [sys.executable, str(GOLDEN / "check.py"), options.flexc, case, "--device", "cuda"]
        command += [f"--extra={word}" for word in KERNELS[kernels]]
        if folder != "cases":
            command += ["--cases", str(GOLDEN / folder)]
        if under:
            command += ["--under", shlex.join(under)]
        section.tasks.append(lambda runner, case=case, command=command:
                             [runner.outcome(f"{kernels}: {case}", command, judge_golden(case))])
    section.count = len(cases)
    return section


def golden_sections(options):
    """Dense cases, and those of other layouts."""
    dense = [("cases", case["name"]) for case in json.loads((GOLDEN / "cases/index.json").read_text())]
    others = []
    for case in json.loads((GOLDEN / "layouts/index.json").read_text()):
        (others if case.get("args") else dense).append(("layouts", case["name"]))
    return dense, others


def merged(name, kernels, sections):
    """One row of several sections."""
    return Section(name, kernels, [task for section in sections for task in section.tasks],
                   sum(section.count for section in sections))


def of_folders(options, name, kernels, cases, under=()):
    folders = dict.fromkeys(folder for folder, _ in cases)
    return merged(name, kernels, [
        golden_section(options, name, kernels, [case for of, case in cases if of == folder], folder, under)
        for folder in folders])


def api_section(options, program, name, kernels, filters):
    """Cases that took longest come first, and before them those of which nothing is known."""
    section = Section(name, kernels)
    chosen = [program, "--no-skip", *filters]
    try:
        listed = subprocess.run([*chosen, "-ltc"], capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        section.reason = f"{os.path.basename(program)} does not list its cases: {error}"
        return section
    names = [line for line in listed.splitlines() if line and not line.startswith(("[doctest]", "===="))]
    if not names:
        section.reason = f"{os.path.basename(program)} has no such cases"
        return section
    variables = [("FLEXC_TEST_DEVICE", "cuda")]
    if options.members:
        variables.append(("FLEXC_TEST_SEED", str(options.members)))
    judge = judge_compiled if options.compile else judge_test
    known = options.known_seconds
    for index, case in sorted(enumerate(names, 1), key=lambda pair: -known.get(f"{name}: {pair[1]}", NO_LIMIT)):
        command = [*chosen, f"--first={index}", f"--last={index}"]
        section.tasks.append(lambda runner, case=case, command=command:
                             [runner.outcome(case, command, judge, variables)])
    section.count = len(names)
    return section


def check_programs(runner, test_api, first, count):
    """Seeds by tens; each of those that do not hold again by itself, since one may take others with it."""
    def outcome(seed, many):
        variables = (("FLEXC_TEST_DEVICE", "cuda"), ("FLEXC_TEST_SEED", str(seed)),
                     ("FLEXC_FUZZ_PROGRAMS", str(many)))
        return runner.outcome(f"seed {seed}", [test_api, "--no-skip", "-tc=random programs by every kernel"],
                              judge_programs(many), variables)
    together = outcome(first, count)
    if together.kind != "bad":
        return [dataclasses.replace(together, name=f"seed {seed}") for seed in range(first, first + count)]
    alone = [outcome(seed, 1) for seed in range(first, first + count)]
    # What shows only beside others is bad all the same.
    if not any(one.kind == "bad" for one in alone):
        alone[-1] = dataclasses.replace(together, name=f"seeds {first} to {first + count - 1} in one process")
    return alone


def programs_section(options):
    section = Section("random", "all kinds", count=options.programs)
    for first in range(options.seed, options.seed + options.programs, SEEDS_IN_A_PROCESS):
        count = min(SEEDS_IN_A_PROCESS, options.seed + options.programs - first)
        section.tasks.append(lambda runner, first=first, count=count:
                             check_programs(runner, options.test_api, first, count))
    return section


def sanitizer_section(options, tool, dense):
    kernels = SANITIZED_KERNELS[:1] if options.quick else SANITIZED_KERNELS
    label = kernels[0] if len(kernels) == 1 else "4 kinds"
    if not options.sanitizer:
        return Section(tool, label, count=len(dense) * len(kernels),
                       reason="compute-sanitizer was not found; --sanitizer gives its path")
    under = [options.sanitizer, "--tool", tool, "--error-exitcode", "1", "--print-limit", "10"]
    return merged(tool, label, [of_folders(options, tool, kind, dense, under) for kind in kernels])


def section_names():
    """Their names, in order of value."""
    return [*(f"golden-{name.replace(', ', '-')}" for name in KERNELS), *(row[0] for row in API_SECTIONS), "layouts",
            "ranks", "random", "memcheck", "racecheck", "synccheck"]


def gpu_of(arch):
    """What doctor would say of it."""
    digits = re.search(r"\d+", arch)[0]
    return f"a GPU of capability {digits[:-1]}.{digits[-1]}"


def make_sections(options, gpus):
    dense, others = golden_sections(options)
    is_hopper = any(HOPPER in gpu for gpu in gpus)
    made = {}
    for kernels in KERNELS:
        name = f"golden-{kernels.replace(', ', '-')}"
        made[name] = lambda name=name, kernels=kernels: of_folders(options, name, kernels, dense)
    for name, kernels, needs_hopper, _, filters in API_SECTIONS:
        if needs_hopper and not is_hopper:
            made[name] = lambda name=name, kernels=kernels: Section(
                name, kernels, reason=f"is for a GPU of {HOPPER}", kind="absent")
        else:
            made[name] = lambda name=name, kernels=kernels, filters=filters: api_section(
                options, options.test_api, name, kernels, filters)
    made["layouts"] = lambda: of_folders(options, "layouts", "automatic", others)
    # Ranks on one GPU, by the tests beside test_api.
    distributed = os.path.join(os.path.dirname(options.test_api), "test_distributed")
    made["ranks"] = lambda: api_section(options, distributed, "ranks", "all kinds", ["-tc=gpu:*"])
    made["random"] = lambda: programs_section(options)
    for tool in ("memcheck", "racecheck", "synccheck"):
        made[tool] = lambda tool=tool: sanitizer_section(options, tool, dense)
    left_out = {row[0] for row in API_SECTIONS if not row[3]} | {"ranks", "racecheck", "synccheck"}
    left_out = left_out if options.quick else set()
    chosen = options.only or [name for name in section_names() if name not in left_out]
    return [made[name]() for name in section_names() if name in chosen and name not in options.skip]


def finish(section):
    """What never ran is there too."""
    ran = len(section.outcomes)
    if section.reason:
        section.outcomes = [Outcome(section.kind, section.name, section.reason)] * max(section.count, 1)
    elif ran < section.count:
        section.outcomes += [Outcome("skipped", section.name, "no time was left")] * (section.count - ran)


def run_sections(runner, sections, jobs, log):
    """All tasks in order through one pool, so that no core waits for the end of a section."""
    def work(section, task):
        start = time.monotonic()
        outcomes = task(runner)
        return start, time.monotonic(), outcomes
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(work, section, task): section for section in sections for task in section.tasks}
        left = {id(section): len(section.tasks) for section in sections}
        try:
            for future in concurrent.futures.as_completed(futures):
                section = futures[future]
                start, end, outcomes = future.result()
                if any(outcome.kind != "skipped" for outcome in outcomes):
                    section.start, section.end = min(section.start, start), max(section.end, end)
                section.outcomes += outcomes
                for outcome in outcomes:
                    log(section, outcome)
                left[id(section)] -= 1
                if left[id(section)] == 0:
                    print(f"{section.name}: {section.number('good')} good, {section.number('bad')} bad, "
                          f"{section.number('skipped')} skipped", file=sys.stderr, flush=True)
        except BaseException:
            runner.stop()
            for future in futures:
                future.cancel()
            raise


def table(sections):
    """Rows of words, the head first."""
    rows = [("section", "kernels", "cases", "good", "bad", "skipped", "seconds", "")]
    for section in sections:
        notes = dict.fromkeys(outcome.note for outcome in section.outcomes if outcome.kind in ("skipped", "absent"))
        seconds = f"{section.end - section.start:.0f}" if section.end else "-"
        absent = section.number("absent")
        rows.append((section.name, section.kernels, str(len(section.outcomes) - absent), str(section.number("good")),
                     str(section.number("bad")), str(section.number("skipped")), seconds, "; ".join(notes)))
    return rows


def formatted(rows):
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(word.ljust(width) if column in (0, 1, 7) else word.rjust(width)
                        for column, (word, width) in enumerate(zip(row, widths))).rstrip()


def verdict(sections):
    """A sentence, and the exit code."""
    good, bad, skipped = (sum(section.number(kind) for section in sections) for kind in ("good", "bad", "skipped"))
    # A section in which nothing ran is not one that holds.
    empty = [section.name for section in sections
             if not section.number("good") and not section.number("bad") and not section.number("absent")]
    cases = good + bad + skipped
    if bad:
        return f"BAD: {bad} of {cases} cases do not hold" + (f", {skipped} did not run" if skipped else ""), 1
    if skipped or empty or not good:
        nothing = f"; nothing ran in {', '.join(empty)}" if empty else ""
        return f"INCOMPLETE: {skipped} of {cases} cases did not run{nothing}; what ran holds", 3
    return f"GOOD: all {cases} cases hold", 0


def report(sections):
    for line in formatted(table(sections)):
        print(line)
    for section in sections:
        for outcome in section.outcomes:
            if outcome.kind == "bad":
                print(f"\nbad: {section.name}, {outcome.name}: {outcome.note}\n    {outcome.repeat}")
    sentence, code = verdict(sections)
    print(f"\n{sentence}", flush=True)
    return code


def log_to(folder):
    """Writes each outcome with its output into a file of its section; the first lines of what is bad to stderr too."""
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
        for name in section_names():
            (folder / f"{name}.txt").unlink(missing_ok=True)

    def log(section, outcome):
        if folder:
            with open(folder / f"{section.name}.txt", "a", encoding="utf-8") as file:
                file.write(f"{outcome.kind} {outcome.name} {outcome.note}\n    {outcome.repeat}\n{outcome.output}\n")
        if outcome.kind == "bad":
            lines = outcome.output.strip().splitlines()
            print("\n    ".join([f"bad {section.name}, {outcome.name}: {outcome.note}", *lines[:20]]), file=sys.stderr,
                  flush=True)
    return log


def read_seconds(path):
    """Of cases, by section and name, in earlier runs."""
    return json.loads(path.read_text()) if path and path.exists() else {}


def write_seconds(path, known, sections):
    took = {f"{section.name}: {outcome.name}": round(outcome.seconds, 1)
            for section in sections for outcome in section.outcomes if outcome.kind in ("good", "bad")}
    path.write_text(json.dumps({**known, **took}, indent=1, sort_keys=True) + "\n")


def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("has to be at least 1")
    return value


def architecture(text):
    if not re.fullmatch(r"sm_\d{2,3}[af]?", text):
        raise argparse.ArgumentTypeError("is no architecture, such as sm_90a")
    return text


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     epilog=f"sections, in order of value: {', '.join(section_names())}")
    parser.add_argument("flexc", help="the command")
    parser.add_argument("test_api", help="the tests of the public API")
    parser.add_argument("--quick", action="store_true", help="the golden cases, end-to-end and Hopper's cases, 100 "
                        "random programs and memcheck of the automatic kernels")
    parser.add_argument("--only", action="extend", nargs="+", choices=section_names(), metavar="SECTION", default=[],
                        help="these sections alone")
    parser.add_argument("--skip", action="extend", nargs="+", choices=section_names(), metavar="SECTION", default=[],
                        help="all but these sections")
    parser.add_argument("--seconds", type=float, default=0, help="begin nothing and end all after so many; what did "
                        "not run counts as skipped (no limit)")
    parser.add_argument("--case-seconds", type=float, default=600, help="a process that takes longer hangs (600)")
    parser.add_argument("--jobs", type=positive, default=os.cpu_count(), help="processes at once (all cores)")
    parser.add_argument("--programs", type=positive, help="random programs (2000, 100 with --quick)")
    parser.add_argument("--seed", type=positive, default=1, help="of the first random program (1)")
    parser.add_argument("--members", type=positive, metavar="SEED",
                        help="draw the random members of classes from this seed (a new one for each case)")
    parser.add_argument("--compile", type=architecture, metavar="ARCH",
                        help="without a GPU: compile what the API's tests need on one, with the same --members, into "
                        "FLEXC_CACHE_DIR, and run nothing")
    parser.add_argument("--times", type=pathlib.Path, metavar="FILE",
                        help="seconds of cases: those of earlier runs say which case of a section begins first, those "
                        "of this one are written there")
    parser.add_argument("--sanitizer", default=shutil.which("compute-sanitizer") or
                        shutil.which("/usr/local/cuda/bin/compute-sanitizer"), help="path of compute-sanitizer")
    parser.add_argument("--logs", type=pathlib.Path, help="folder for the output of all cases")
    options = parser.parse_args()
    if options.compile:
        options.skip += [name for name in section_names() if name not in {row[0] for row in API_SECTIONS}]
    if options.only and set(options.only) <= set(options.skip):
        parser.error("--skip leaves nothing of --only")
    if options.compile and not options.members:
        parser.error("--compile needs --members: others would be drawn on the GPU")
    options.known_seconds = read_seconds(options.times)
    options.programs = options.programs or (100 if options.quick else 2000)
    for name in ("flexc", "test_api"):
        found = shutil.which(getattr(options, name))
        if not found:
            parser.error(f"{getattr(options, name)} is not a program")
        setattr(options, name, os.path.abspath(found))
    if options.sanitizer and not shutil.which(options.sanitizer):
        parser.error(f"{options.sanitizer} is not a program")
    return options


def main():
    options = parse_arguments()
    gpus, reason = find_gpus(options.flexc) if not options.compile else ([gpu_of(options.compile)], "")
    if not gpus:
        print(f"[SKIP] {reason}")
        return 77
    print("\n".join(gpus), file=sys.stderr, flush=True)
    runner = Runner(options)
    sections = make_sections(options, gpus)
    interrupted = False
    try:
        run_sections(runner, sections, options.jobs, log_to(options.logs))
    except KeyboardInterrupt:
        interrupted = True
    for section in sections:
        finish(section)
    if options.times:
        write_seconds(options.times, options.known_seconds, sections)
    code = report(sections)
    return 130 if interrupted else code


if __name__ == "__main__":
    sys.exit(main())
