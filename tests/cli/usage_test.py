"""Exit codes, help, and what is said to a wrong call."""
import json
import re
import shutil
import subprocess
import unittest

from black_box import ALIBI, FLEXC, HAS_CPU, CommandTest, inputs, needs_cpu, tensor_io

COMMANDS = ["run", "check", "explain", "compile", "bench", "tune", "mask", "list", "show", "cache", "doctor"]


class Usage(CommandTest):
    def test_help_names_every_command(self):
        text = self.expect(0, "--help")
        for command in COMMANDS:
            self.assertIn(command, text)

    def test_help_of_each_command_has_an_example(self):
        for command in COMMANDS:
            text = self.expect(0, command, "--help")
            self.assertIn("example:", text)
            self.assertIn(f"flexc {command}", text)
            if command != "cache":
                self.assertIn("--json", text)

    def test_version(self):
        self.assertRegex(self.expect(0, "--version"), r"^flexc \d+\.\d+\.\d+\n$")

    def test_wrong_calls_exit_2(self):
        for call in [
            [], ["frobnicate"], ["--frobnicate"], ["run"], ["run", "alibi"], ["run", "alibi", "--inputs"],
            ["check"], ["check", "alibi", "-e", "score"], ["check", "alibi", "extra"],
            ["check", "-e", "score", "--buffer", "x"], ["check", "-e", "score", "--param", "x"],
            ["check", "-e", "score", "--param", "x=y"], ["explain", "alibi"],
            ["explain", "alibi", "--stage", "soup"], ["compile", "alibi", "--head-dim", "0"],
            ["compile", "alibi", "--head-dim", "257"], ["compile", "alibi", "--dtype", "f64"],
            ["compile", "alibi", "--head-dim", "x"], ["compile", "alibi", "--kv-dtype", "f16"], ["bench", "alibi"],
            ["bench", "alibi", "--shape", "1,2,3"], ["bench", "alibi", "--shape", "1,3,2,8,8,8"],
            ["bench", "alibi", "--shape", "1,2,2,8,8,0"], ["bench", "alibi", "--shape", "1,2,2,8,8,8,300"],
            ["bench", "alibi", "--shape", "1,1,8", "--requests", "8x1"],
            ["bench", "alibi", "--shape", "1,1,1,8,8,8", "--requests", "8x1@16"],
            ["bench", "alibi", "--shape", "1,1,1,8,8,8", "--page-size", "16"],
            ["bench", "alibi", "--shape", "1,1,1,8,8,8", "--device", "tpu"],
            ["bench", "alibi", "--shape", "1,1,1,8,8,8", "--fill", "slopes=soup"],
            ["bench", "alibi", "--shape", "1,1,1,8,8,8", "--fill", "nothing=const:1"],
            ["bench", "alibi", "--shape", "1,1,1,8,8,8", "--dim", "H=3"],
            ["tune", "alibi"], ["tune", "alibi", "--shape", "1,2,3"],
            ["mask", "causal", "--q", "0", "--kv", "8"], ["mask", "causal", "--q", "8", "--kv", "x"],
            ["mask", "causal", "--q", "8", "--kv", "8", "--tile", "4"],
            ["show"], ["cache"], ["cache", "soup"], ["doctor", "extra"],
            ["run", "alibi", "--inputs", "x", "--outputs", "y", "--backward-kernel", "soup"],
            ["run", "alibi", "--inputs", "x", "--outputs", "y", "--scale", "soup"],
        ]:
            with self.subTest(call=call):
                self.expect(2, *call)

    def test_errors_exit_1(self):
        for call in [["check", "no/such.flex"], ["check", "nosuchmod"], ["check", "."], ["show", "nosuchmod"],
                     ["check", "-e", "scor"], ["compile", "-e", "score", "--arch", "sm_1"],
                     ["check", "alibi", "--param", "cap=1"],
                     ["run", "-e", "score", "--inputs", "nosuch", "--outputs", "y"]]:
            with self.subTest(call=call):
                self.expect(1, *call)

    def test_architectures(self):
        for arch in ["sm_1", "sm_75", "sm_80a", "sm_90f", "sm_90ab", "90", "sm90", "hopper", "sm_",
                     "sm_9999999999999", ""]:
            with self.subTest(arch=arch):
                for call in ["compile", "alibi"], ["explain", "alibi", "--stage", "plan"]:
                    self.assertIn("sm_90a", self.expect(1, *call, "--arch", arch))

    def test_specialized_kernels_are_for_their_architecture(self):
        for arch, why in [("sm_80", "only Hopper has wgmma"), ("sm_90", "sm_90a"), ("sm_100", "only Hopper")]:
            explain = ["explain", "alibi", "--stage"]
            for call in ["compile", "alibi"], [*explain, "plan"], [*explain, "cuda"]:
                for kernel in ["--forward-kernel", "specialized"], ["--backward", "--backward-kernel", "specialized"]:
                    with self.subTest(arch=arch, call=call, kernel=kernel):
                        said = self.expect(1, *call, "--arch", arch, *kernel)
                        self.assertIn("the specialized ", said)
                        self.assertIn(why, said)
        plan = self.expect(0, "explain", "alibi", "--stage", "plan", "--arch", "sm_90")
        self.assertNotIn("sm90", plan)
        self.assertIn("sm_90a", plan)

    @needs_cpu
    def test_no_specialized_kernel_is_for_the_cpu(self):
        shape = ["--shape", "1,1,1,8,8,8", "--dtype", "f32", "--device", "cpu"]
        self.assertIn("CPU", self.expect(1, "bench", "alibi", *shape, "--forward-kernel", "specialized"))
        self.assertIn("CPU", self.expect(1, "bench", "alibi", *shape, "--backward", "--backward-kernel", "specialized"))

    def test_a_count_is_a_whole_number(self):
        self.assertIn("--q: '0' is no whole number from 1", self.expect(2, "mask", "causal", "--q", "0", "--kv", "8"))

    def test_numbers_are_numbers(self):
        shape = ["--shape", "1,1,1,8,8,8", "--dtype", "f32", "--device", "cpu"]
        for number in ["nan", "-nan", "inf", "-inf", "1e999", "0x10", "1.5x", "", " 1", "1,5"]:
            for call in [["bench", "alibi", *shape, "--scale", number],
                         ["run", "alibi", "--inputs", "x", "--outputs", "y", "--scale", number]]:
                with self.subTest(call=call):
                    self.expect(2, *call)
        for count in ["0", "-1", "010", "0x8", "1.5", "1e3", "nan", "inf", "", "9" * 20, "9" * 400]:
            for call in [["mask", "causal", "--kv", "8", "--q", count], ["mask", "causal", "--q", "8", "--kv", count],
                         ["mask", "causal", "--q", "8", "--kv", "8", "--b", count],
                         ["mask", "causal", "--q", "8", "--kv", "8", "--tile", f"8,{count}"],
                         ["compile", "alibi", "--head-dim", count], ["compile", "alibi", "--head-dim-v", count],
                         ["bench", "alibi", "--shape", f"1,1,1,{count},8,8"],
                         ["bench", "-e", "score + t[q_idx]", "--buffer", "t: f32[N]", *shape, "--dim", f"N={count}"]]:
                with self.subTest(call=call):
                    self.expect(2, *call)
        for fill in ["normal:nan", "normal:inf", "uniform:0:inf", "uniform:-inf:0", "uniform:1:0", "index:nan",
                     "index:0", "index:1e300", "segments:inf", "segments:0", "const:nan", "const:1e999",
                     "list:", "list:1:x"]:
            with self.subTest(fill=fill):
                self.expect(2, "bench", "alibi", *shape, "--fill", f"slopes={fill}")
        for value in ["nan", "1e999", "x", "0x10", "1_000", ""]:
            with self.subTest(param=value):
                self.expect(2, "check", "-e", "score * x", "--param", f"x={value}")
        self.expect(0, "check", "-e", "min(score, x)", "--param", "x=inf")

    @needs_cpu
    def test_numbers_that_f32_does_not_hold(self):
        shape = ["--shape", "1,1,1,8,8,8", "--dtype", "f32", "--device", "cpu"]
        self.assertIn("scale", self.expect(1, "bench", "-e", "score", *shape, "--scale", "1e300"))
        self.assertIn("'x'", self.expect(1, "bench", "-e", "score * x", *shape, "--param", "x=1e300"))

    def test_what_names_nothing_is_refused(self):
        shape = ["--shape", "1,1,1,8,8,8", "--dtype", "f32", "--device", "cpu"]
        self.assertIn("no buffer of the program has a dim N", self.expect(2, "bench", "alibi", *shape, "--dim", "N=3"))
        given = ["bench", "-e", "score + t[q_idx]", "--buffer", "t: f32[N]", *shape]
        self.assertIn("already", self.expect(2, *given, "--dim", "N=8", "--dim", "N=9"))
        self.assertIn("twice", self.expect(2, *given, "--dim", "N=8", "--fill", "t=const:1", "--fill", "t=const:2"))

    def test_a_variable_of_the_environment_has_a_meaning(self):
        wrong = {"FLEXC_THREADS": ["abc", "0", "-1", "1.5", "3x", "nan", "9" * 20], "FLEXC_LOG": ["trace", "3", "WARN"],
                 "FLEXC_LINEINFO": ["yes", "2"]}
        for name, values in wrong.items():
            for value in values:
                with self.subTest(name=name, value=value):
                    self.environment[name] = value
                    self.assertIn(f"{name}='{value}'", self.expect(2, "check", "alibi"))
                    self.assertIn(f"{name}='{value}'", self.expect(0, "doctor"))
                    self.expect(0, "--help")
            del self.environment[name]
        self.environment |= {"FLEXC_THREADS": "2", "FLEXC_LOG": "error", "FLEXC_LINEINFO": "0"}
        self.expect(0, "check", "alibi")

    def test_what_cannot_be_written_is_an_error(self):
        calls = [["list"], ["list", "--json"], ["show", "alibi"], ["show", "alibi", "--json"], ["check", "alibi"],
                 ["check", "alibi", "--json"], ["explain", "alibi", "--stage", "ir,deps"], ["doctor"],
                 ["doctor", "--json"], ["mask", "causal", "--q", "8", "--kv", "8"],
                 ["mask", "causal", "--q", "999", "--kv", "999", "--tile", "1,1", "--json"], ["cache", "stats"],
                 ["cache", "path", "--json"], ["cache", "clear"], ["--help"], ["--version"], ["check", "--help"]]
        if HAS_CPU:
            shape = ["--shape", "1,1,1,8,8,8", "--dtype", "f32", "--device", "cpu"]
            source = self.write("in.safetensors", tensor_io.encode(inputs()))
            calls += [["bench", "alibi", *shape], ["bench", "alibi", *shape, "--json"]]
            for arguments in [], ["--json"]:
                calls.append(["run", self.write("mod.flex", ALIBI), "--inputs", source, "--outputs",
                              self.folder / "out.safetensors", "--device", "cpu", *arguments])
        for call in calls:
            for place in "> /dev/full", ">&-":
                with self.subTest(call=call, place=place):
                    done = subprocess.run(["bash", "-c", f'exec "$@" {place}', "", FLEXC, *map(str, call)], text=True,
                                          stderr=subprocess.PIPE, env=self.environment, cwd=self.folder, timeout=300)
                    self.assertEqual(done.returncode, 1, done.stderr)
                    self.assertIn("stdout", done.stderr)

    def test_a_file_is_not_opened_as_stdout(self):
        # What is printed would go into the first file that is opened while stdout is closed.
        picture = self.folder / "mask.png"
        call = [FLEXC, "mask", "causal", "--q", "8", "--kv", "8", "--png", picture]
        done = subprocess.run(["bash", "-c", 'exec "$@" >&- <&-', "", *map(str, call)], env=self.environment,
                              stderr=subprocess.PIPE, timeout=300)
        self.assertEqual(done.returncode, 1)
        self.assertNotIn(b"tiles of", picture.read_bytes())

    def test_a_dash_is_no_file(self):
        for call in [["run", "alibi", "--inputs", "x", "--outputs", "-"],
                     ["run", "alibi", "--inputs", "-", "--outputs", "y"],
                     ["mask", "causal", "--q", "8", "--kv", "8", "--png", "-"],
                     ["mask", "causal", "--q", "8", "--kv", "8", "--inputs", "-"], ["compile", "alibi", "-o", "-"]]:
            with self.subTest(call=call):
                self.assertIn("'-'", self.expect(2, *call))

    def test_errors_are_json_where_json_is_asked_for(self):
        for code, kind, call in [(1, "syntax", ["check", "-e", "score +"]), (1, "invalid option", ["list", "nothing"]),
                                 (1, "invalid option", ["check", "casual"]), (2, "usage", ["check"]),
                                 (1, "io", ["check", "no/such.flex"]), (2, "usage", ["check", "alibi", "--soup"])]:
            with self.subTest(call=call):
                error = json.loads(self.expect(code, *call, "--json"))["error"]
                self.assertEqual((error["code"], error["exit_code"]), (kind, code))
                self.assertTrue(error["message"].strip())
        placed = json.loads(self.expect(1, "check", "-e", "score +", "--json"))["error"]["message"]
        self.assertTrue(placed.startswith("<expression>:1:8: error:"))

    def test_tuning_is_for_gpus(self):
        self.assertIn("only kernels for a GPU have schedules",
                      self.expect(1, "tune", "alibi", "--shape", "1,1,1,8,8,8", "--dtype", "f32", "--device", "cpu"))

    def test_a_near_miss_is_named(self):
        self.assertIn("did you mean 'alibi'?", self.expect(1, "show", "alibbi"))
        self.assertIn("did you mean 'causal'?", self.expect(1, "check", "casual"))

    def test_a_wrong_word_is_named(self):
        for said, call in [("there is no command 'chek' (did you mean 'check'?)", ["chek", "alibi"]),
                           ("there is no command 'frobnicate'", ["frobnicate"]),
                           ("a command is needed: run, check,", []), ("there is no option --frob", ["--frob"]),
                           ("there is no command 'stat' (did you mean 'stats'?)", ["cache", "stat"]),
                           ("a command is needed: stats, clear, path", ["cache"]),
                           ("there is no option --jsn (did you mean '--json'?)", ["check", "alibi", "--jsn"]),
                           ("there is no option --head_dim (did you mean '--head-dim'?)",
                            ["compile", "alibi", "--head_dim=8"]),
                           ("'extra' was not expected", ["check", "alibi", "extra"]),
                           ("--shape is required", ["bench", "alibi"])]:
            with self.subTest(call=call):
                self.assertIn(said, self.expect(2, *call))

    def test_types_have_many_names(self):
        for name in ["f16", "fp16", "float16", "half", "torch.float16", "FP16"]:
            self.assertIn("f16,", self.expect(0, "explain", "alibi", "--stage", "plan", "--dtype", name))
            said = self.expect(0, "check", "-e", "score + a[h]", "--buffer", f"a: {name}[H]")
            self.assertIn("buffer a: f16[H]", said)
        for name in ["fp64", "double", "int8", "x", "torch", "torch."]:
            self.expect(2, "explain", "alibi", "--stage", "plan", "--dtype", name)

    def test_a_mask_error_stands_in_the_mask(self):
        both = ["check", "-e", "score + t[h]", "--buffer", "t: f32[H] grad", "--mask"]
        self.assertIn("mask_mod:1:10: error: mask_mod reads 't'", self.expect(1, *both, "h > 0 or t[h] > 0"))
        said = self.expect(1, "check", "-e", "score", "--mask", "q_idx + 5")
        self.assertIn("mask_mod:1:1: error: mask_mod must be bool", said)
        self.assertEqual(said.count("error:"), 1)

    def test_help_is_a_command(self):
        self.assertEqual(self.expect(0, "help"), self.expect(0, "--help"))
        for command in COMMANDS:
            text = self.expect(0, "help", command)
            self.assertEqual(text.split("Options:")[1], self.expect(0, command, "--help").split("Options:")[1])
            self.assertIn(f"flexc {command}", text)
        self.assertIn("How many kernels", self.expect(0, "help", "cache", "stats"))
        self.assertIn("did you mean 'check'?", self.expect(2, "help", "chek"))
        self.assertIn("there is no command 'soup'", self.expect(2, "help", "cache", "soup"))

    def test_help_shows_defaults(self):
        text = self.expect(0, "help", "compile")
        for default in ["sm_90a", "=bf16", "=auto", "64"]:
            self.assertIn(default, text)
        self.assertIn("128,128", self.expect(0, "help", "mask"))

    def complete(self, *words):
        """What bash offers after these words."""
        script = self.write("completion.bash", self.expect(0, "completion", "bash"))
        line = " ".join(f"'{word}'" for word in words)
        done = subprocess.run(["bash", "-c", f"source {script}; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; "
                               '_flexc; printf "%s\\n" "${COMPREPLY[@]}"'], capture_output=True, text=True)
        self.assertEqual(done.stderr, "")
        return set(done.stdout.split())

    def test_words_are_completed_in_bash(self):
        self.assertLessEqual({*COMMANDS, "help", "completion", "--help"}, self.complete("flexc", ""))
        self.assertEqual(self.complete("flexc", "ch"), {"check"})
        self.assertEqual(self.complete("flexc", "cache", "s"), {"stats"})
        self.assertEqual(self.complete("flexc", "compile", "alibi", "--dtype", ""), {"f32", "f16", "bf16"})
        self.assertEqual(self.complete("flexc", "bench", "alibi", "--back"), {"--backward", "--backward-kernel"})
        self.assertLessEqual({"alibi", "alibi_fixed"}, self.complete("flexc", "show", "ali"))
        self.assertEqual(self.complete("flexc", "run", "alibi", "--inputs", ""), set())
        self.assertEqual(self.complete("flexc", "help", "do"), {"doctor"})
        self.assertEqual(self.complete("flexc", "completion", "z"), {"zsh"})
        self.assertIn("ast", self.complete("flexc", "explain", "alibi", "--stage", "a"))

    def test_completions_know_every_option(self):
        for shell in "bash", "zsh", "fish":
            script = self.expect(0, "completion", shell)
            for command in COMMANDS:
                for option in re.findall(r"^ +(?:-\w,)?--([\w-]+)", self.expect(0, "help", command), re.MULTILINE):
                    self.assertRegex(script, rf"(--|-l ){option}\b")
            if shutil.which(shell):
                path = self.write(f"completion.{shell}", script)
                done = subprocess.run([shell, "-n", path], capture_output=True, text=True)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.expect(2, "completion")
        self.expect(2, "completion", "tcsh")

    def test_other_names_find_mods(self):
        for name, mod in [("natten", "neighborhood_2d"), ("tanh_softcap", "softcap"), ("SAM", "decomposed_2d"),
                          ("transfusion", "causal_with_images"), ("causal_mask", "causal")]:
            self.assertRegex(self.expect(0, "list", name), rf"(?m)^  {mod} ")
            self.assertEqual(self.expect(0, "show", name), self.expect(0, "show", mod))
            self.assertEqual(self.expect(0, "check", name), self.expect(0, "check", mod))
        self.assertIn("did you mean 'natten'?", self.expect(1, "show", "naten"))
        everything = json.loads(self.expect(0, "list", "--json"))
        names = [entry["name"] for entry in everything]
        others = [other for entry in everything for other in entry["also_called"]]
        self.assertEqual(len(names + others), len({*names, *others}))
        self.assertEqual(others, [other.lower() for other in others])

    def test_list_is_searchable(self):
        everything = json.loads(self.expect(0, "list", "--json"))
        names = [entry["name"] for entry in everything]
        self.assertIn("alibi", names)
        self.assertEqual(len(names), len(set(names)))
        for entry in everything:
            self.assertTrue(entry["summary"] and entry["group"], entry)
        found = [entry["name"] for entry in json.loads(self.expect(0, "list", "ALIBI", "--json"))]
        self.assertIn("alibi", found)
        self.assertLess(len(found), len(names))
        self.expect(1, "list", "zzzz")


if __name__ == "__main__":
    unittest.main()
