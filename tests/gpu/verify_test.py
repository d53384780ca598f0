"""verify.py's table and verdict, with programs that stand in for flexc, test_api and compute-sanitizer."""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import verify  # noqa: E402

FLEXC = f"""#!{sys.executable}
import json, os, pathlib, struct, sys, time
sys.path.insert(0, {str(verify.GOLDEN)!r})
import tensor_io
arguments = sys.argv[1:]
gpu = os.environ.get("STUB_GPU", "")
if arguments[0] == "doctor":
    found = {{"what": "GPU 0", "detail": gpu or "there is none", "found": bool(gpu), "remedy": ""}}
    print(json.dumps({{"findings": [found]}}))
    sys.exit(0)
program = pathlib.Path(arguments[1])
if arguments[arguments.index("--device") + 1] != "cuda":
    sys.exit("not on the GPU")
if program.stem == os.environ.get("STUB_HANGS"):
    time.sleep(600)
factor = 2 if program.stem == os.environ.get("STUB_BAD") else 1
cases = json.loads((program.parent / "index.json").read_text())
kind = next(case["dtype"] for case in cases if case["name"] == program.stem).upper()
outputs = {{}}
for name, (_, shape, numbers) in tensor_io.read(program.with_suffix(".out.safetensors")).items():
    of = "F32" if name == "lse" or name.startswith("d.") else kind
    values = [factor * number for number in numbers]
    if of == "BF16":
        data = b"".join(struct.pack("<f", value * (1 + 2 ** -9))[2:] for value in values)
    else:
        data = struct.pack(f"<{{len(values)}}{{'e' if of == 'F16' else 'f'}}", *values)
    outputs[name] = (of, shape, data)
pathlib.Path(arguments[arguments.index("--outputs") + 1]).write_bytes(tensor_io.encode(outputs))
"""

TEST_API = f"""#!{sys.executable}
import os, sys, time
arguments = sys.argv[1:]
if "-ltc" in arguments:
    print("[doctest] listing all test case names\\n====\\nfirst, with a comma\\nsecond\\n====")
    print("[doctest] unskipped test cases passing the current filters: 2")
    sys.exit(0)
def done(cases, passed, failed):
    print(f"[doctest] test cases: {{cases:>2}} | {{cases:>2}} passed | 0 failed | 9 skipped")
    print(f"[doctest] assertions: {{passed + failed}} | {{passed}} passed | {{failed}} failed |")
    sys.exit(1 if failed else 0)
if os.environ.get("STUB_COMPILES"):
    done(1, int(os.environ["FLEXC_TEST_COMPILE"] == "sm_90a" and os.environ["FLEXC_TEST_SEED"] == "3"), 0)
if os.environ.get("FLEXC_TEST_SEED", "3") != "3" and not any(word.startswith("-tc=random") for word in arguments):
    done(1, 0, 1)
if os.environ["FLEXC_TEST_DEVICE"] != "cuda" or "FLEXC_TEST_COMPILE" in os.environ:
    done(1, 0, 1)
if any(argument.startswith("-tc=random") for argument in arguments):
    first, count = int(os.environ["FLEXC_TEST_SEED"]), int(os.environ["FLEXC_FUZZ_PROGRAMS"])
    seeds = range(first, first + count)
    if int(os.environ.get("STUB_CRASHES", 0)) in seeds:
        os.abort()
    if int(os.environ.get("STUB_CRASHES_BESIDE_OTHERS", 0)) in seeds and count > 1:
        os.abort()
    if int(os.environ.get("STUB_SHORT", 0)) in seeds:
        done(1, count - 1, 0)
    failed = int(os.environ.get("STUB_BAD_SEED", 0)) in seeds
    done(1, count - failed, int(failed))
if "--first=2" in arguments:
    does = os.environ.get("STUB_SECOND", "")
    if does == "hangs":
        os.system("sleep 600")
    if does == "fails":
        print("ERROR: CHECK( o == 1 ) is NOT correct!")
        done(1, 3, 1)
    if does == "checks nothing":
        done(1, 0, 0)
    if does == "is not there":
        done(0, 0, 0)
done(1, 5, 0)
"""

SANITIZER = f"""#!{sys.executable}
import os, subprocess, sys
at = next(i for i, word in enumerate(sys.argv) if word.endswith("flexc"))
tool = sys.argv[sys.argv.index("--tool") + 1]
if os.environ.get("STUB_REFUSES"):
    sys.exit("========= Error: Target application returned an error: Device not supported")
code = subprocess.run(sys.argv[at:]).returncode
if os.environ.get("STUB_HAZARD") == tool and "causal" in " ".join(sys.argv):
    print("========= Error: Race reported")
    code = 1
sys.exit(code)
"""

HOPPER = "NVIDIA H100, capability 9.0"


class Verify(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        for name, text in (("flexc", FLEXC), ("test_api", TEST_API), ("test_distributed", TEST_API),
                           ("compute-sanitizer", SANITIZER)):
            (self.folder / name).write_text(text)
            (self.folder / name).chmod(0o755)

    def verify(self, code, *arguments, gpu=HOPPER, **stub):
        """Rows of the table by section, and all that was printed."""
        environment = {**os.environ, "STUB_GPU": gpu, "FLEXC_TEST_COMPILE": "sm_90a",
                       **{f"STUB_{name.upper()}": str(value) for name, value in stub.items()}}
        done = subprocess.run([sys.executable, str(HERE / "verify.py"), str(self.folder / "flexc"),
                               str(self.folder / "test_api"), *map(str, arguments)], capture_output=True, text=True,
                              env=environment, timeout=120)
        self.assertEqual(done.returncode, code, f"{arguments}\n{done.stdout}\n{done.stderr}")
        rows = {}
        for line in done.stdout.splitlines():
            words = re.split(r" {2,}", line)
            if len(words) >= 7 and words[2].isdigit():
                rows[words[0]] = (*map(int, words[2:6]), words[7] if len(words) > 7 else "")
        return rows, done.stdout

    def repeat(self, text):
        """Runs the first command under the table."""
        command = re.search(r"^bad: .*\n    (.*)", text, re.MULTILINE)
        self.assertIsNotNone(command, text)
        return subprocess.run(["bash", "-c", command[1]], capture_output=True, text=True, timeout=60,
                              env={**os.environ, "STUB_GPU": HOPPER})

    def test_what_holds(self):
        logs = self.folder / "logs"
        rows, text = self.verify(0, "--only", "golden-automatic", "sinks", "graphs", "random", "--programs", 25,
                                 "--logs", logs)
        self.assertEqual(list(rows), ["golden-automatic", "sinks", "graphs", "random"])
        self.assertEqual(rows["golden-automatic"], (15, 15, 0, 0, ""))
        self.assertEqual(rows["sinks"], (2, 2, 0, 0, ""))
        self.assertEqual(rows["random"], (25, 25, 0, 0, ""))
        self.assertTrue(text.endswith("GOOD: all 44 cases hold\n"), text)
        self.assertEqual((logs / "random.txt").read_text().count("good seed"), 25)

    def test_a_golden_case_that_is_wrong_and_one_that_hangs(self):
        rows, text = self.verify(1, "--only", "golden-split", "--case-seconds", 20, bad="softcap", hangs="noop")
        self.assertEqual(rows["golden-split"], (15, 13, 2, 0, ""))
        self.assertIn("BAD: 2 of 15 cases do not hold", text)
        self.assertRegex(text, r"bad: golden-split, split: noop: did not end within 20 s")
        self.assertRegex(text, r"check.py .*flexc softcap --device cuda --extra=--backward-kernel=split\n")
        self.assertEqual(self.repeat(text).returncode, 0, "holds without the stub's fault")

    def test_a_test_that_fails(self):
        rows, text = self.verify(1, "--only", "sinks", second="fails")
        self.assertEqual(rows["sinks"], (2, 1, 1, 0, ""))
        self.assertIn("bad: sinks, second: exit code 1\n    FLEXC_TEST_DEVICE=cuda", text)
        self.assertEqual(self.repeat(text).returncode, 0)

    def test_a_test_that_hangs_is_ended_with_its_children(self):
        rows, text = self.verify(1, "--only", "sinks", "--case-seconds", 6, second="hangs")
        self.assertEqual(rows["sinks"], (2, 1, 1, 0, ""))
        self.assertIn("did not end within 6 s", text)

    def test_what_checks_nothing_does_not_hold(self):
        for second in ("checks nothing", "is not there"):
            rows, text = self.verify(3, "--only", "sinks", second=second)
            self.assertEqual(rows["sinks"], (2, 1, 0, 1, "the test checked nothing"))
            self.assertIn("INCOMPLETE: 1 of 2 cases did not run; what ran holds", text)

    def test_a_limit_leaves_out_what_it_leaves_out(self):
        rows, text = self.verify(3, "--only", "sinks", "graphs", "--jobs", 1, "--seconds", 8, second="hangs")
        self.assertEqual(rows["sinks"], (2, 1, 0, 1, "no time was left"))
        self.assertEqual(rows["graphs"], (2, 0, 0, 2, "no time was left"))
        self.assertIn("INCOMPLETE: 3 of 4 cases did not run; nothing ran in graphs", text)

    def test_seeds_that_fail_are_named_alone(self):
        rows, text = self.verify(1, "--only", "random", "--programs", 20, bad_seed=7)
        self.assertEqual(rows["random"], (20, 19, 1, 0, ""))
        self.assertIn("FLEXC_TEST_SEED=7 FLEXC_FUZZ_PROGRAMS=1", text)
        rows, text = self.verify(1, "--only", "random", "--programs", 20, crashes=13)
        self.assertEqual(rows["random"], (20, 19, 1, 0, ""))
        self.assertIn("bad: random, seed 13: exit code -6", text)
        rows, text = self.verify(1, "--only", "random", "--programs", 20, "--seed", 5, crashes_beside_others=16)
        self.assertEqual(rows["random"], (20, 19, 1, 0, ""))
        self.assertIn("seeds 15 to 24 in one process", text)
        rows, _ = self.verify(1, "--only", "random", "--programs", 10, short=4)
        self.assertEqual(rows["random"], (10, 9, 1, 0, ""))

    def test_members_are_compiled_beforehand(self):
        rows, text = self.verify(0, "--only", "sinks", "graphs", "--compile", "sm_90a", "--members", 3, gpu="",
                                 compiles=1)
        self.assertEqual(rows["graphs"], (2, 2, 0, 0, ""))
        self.verify(2, "--compile", "sm_90a")
        self.verify(2, "--compile", "hopper", "--members", 3)
        self.verify(2, "--compile", "sm_90a", "--members", 3, "--only", "random")
        rows, _ = self.verify(0, "--only", "sinks", "--members", 3)
        self.assertEqual(rows["sinks"], (2, 2, 0, 0, ""))
        rows, text = self.verify(1, "--only", "sinks", "--members", 4)
        self.assertIn("FLEXC_TEST_SEED=4", text)

    def test_cases_that_took_longest_come_first(self):
        times, logs = self.folder / "times.json", self.folder / "logs"
        arguments = ("--only", "sinks", "--jobs", 1, "--times", times, "--logs", logs)
        for first, second, order in ((100, 500, ["second", "first"]), (500, 100, ["first", "second"])):
            known = {"sinks: first, with a comma": first, "sinks: second": second, "of another": 4}
            times.write_text(json.dumps(known))
            self.verify(0, *arguments)
            self.assertEqual(re.findall(r"^good (\w+)", (logs / "sinks.txt").read_text(), re.MULTILINE), order)
            written = json.loads(times.read_text())
            self.assertEqual(set(written), set(known))
            self.assertLess(written["sinks: second"], 100)

    def test_without_a_gpu_nothing_holds(self):
        rows, text = self.verify(77, gpu="")
        self.assertEqual(rows, {})
        self.assertEqual(text, "[SKIP] there is none\n")

    def test_what_a_gpu_cannot_have_is_no_case(self):
        rows, text = self.verify(0, "--only", "sinks", "graphs", "layouts", gpu="NVIDIA A100, capability 8.0")
        self.assertEqual(rows["graphs"], (0, 0, 0, 0, "is for a GPU of capability 9.0"))
        self.assertEqual(rows["layouts"], (5, 5, 0, 0, ""))
        self.assertIn("GOOD: all 7 cases hold", text)
        # Alone they are nothing that holds.
        self.verify(3, "--only", "graphs", gpu="NVIDIA A100, capability 8.0")

    def test_sanitizers(self):
        tool = ("--sanitizer", self.folder / "compute-sanitizer", "--quick", "--only")
        rows, _ = self.verify(0, *tool, "memcheck", hazard="racecheck")
        self.assertEqual(rows["memcheck"], (15, 15, 0, 0, ""))
        rows, text = self.verify(1, *tool, "racecheck", hazard="racecheck")
        self.assertEqual(rows["racecheck"], (15, 14, 1, 0, ""))
        self.assertIn("--tool racecheck", text)
        rows, _ = self.verify(3, *tool, "synccheck", refuses=1)
        self.assertEqual(rows["synccheck"], (15, 0, 0, 15, "compute-sanitizer does not work on this machine"))

    def test_a_sanitizer_that_is_missing_is_seen(self):
        options = type("Options", (), {"sanitizer": None, "quick": False})
        section = verify.sanitizer_section(options, "memcheck", [("cases", "causal")])
        verify.finish(section)
        row = verify.table([section])[1]
        self.assertEqual(row[2:6], ("4", "0", "0", "4"))
        self.assertIn("compute-sanitizer was not found", row[7])
        self.assertEqual(verify.verdict([section])[1], 3)

    def test_every_section_can_be_made(self):
        options = type("Options", (), {
            "sanitizer": "compute-sanitizer", "quick": False, "only": [], "skip": [], "flexc": "flexc",
            "test_api": str(self.folder / "test_api"), "programs": 15, "seed": 1, "members": None, "compile": None,
            "known_seconds": {}})
        sections = verify.make_sections(options, [HOPPER])
        self.assertEqual([section.name for section in sections], verify.section_names())
        options.skip = ["random", "sinks"]
        chosen = [section.name for section in verify.make_sections(options, [HOPPER])]
        self.assertEqual(chosen, [name for name in verify.section_names() if name not in options.skip])
        for section in sections:
            self.assertGreater(len(section.tasks), 0, section.name)
            self.assertGreaterEqual(section.count, len(section.tasks), section.name)

    def test_every_file_that_runs_on_a_gpu_is_in_a_section(self):
        filters = " ".join(word for row in verify.API_SECTIONS for word in row[4])
        # The first asks for the CPU alone, the second has a section of its own.
        others = {"arguments_test.cpp", "random_programs_test.cpp"}
        for path in (HERE.parent / "api").glob("*_test.cpp"):
            text = path.read_text()
            runs = re.search(r"test_devices\(\)|check_everywhere|check_on_\w+\(|Device::cuda\(0\)", text)
            if runs and path.name not in others:
                self.assertIn(f"*/{path.name}", filters)

    @unittest.skipUnless("FLEXC_TEST_API" in os.environ, "needs FLEXC_TEST_API")
    def test_the_sections_of_test_api_are_there_and_differ(self):
        options = type("Options", (), {"test_api": os.environ["FLEXC_TEST_API"], "members": None, "compile": None,
                                       "known_seconds": {}})
        listed = subprocess.run([options.test_api, "--no-skip", "-ltc"], capture_output=True, text=True, check=True)
        seen = []
        for name, kernels, needs_hopper, _, filters in verify.API_SECTIONS:
            section = verify.api_section(options, options.test_api, name, kernels, filters)
            self.assertEqual(section.reason, "", name)
            names = subprocess.run([options.test_api, "--no-skip", *filters, "-ltc"], capture_output=True, text=True,
                                   check=True).stdout.splitlines()[2:-2]
            self.assertEqual(len(names), section.count)
            seen += names
        # All that needs a GPU is in one of them.
        suites = subprocess.run([options.test_api, "--no-skip", "-ts=hopper,dense_bias", "-ltc"], capture_output=True,
                                text=True, check=True).stdout.splitlines()[2:-2]
        self.assertEqual(sorted(set(suites) - set(seen)), [])
        self.assertIn("random programs by every kernel", listed.stdout)


if __name__ == "__main__":
    unittest.main()
