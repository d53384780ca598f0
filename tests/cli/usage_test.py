"""Exit codes, help, and what is said to a wrong call."""
import json
import unittest

from black_box import CommandTest

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
            ["compile", "alibi", "--head-dim", "x"], ["bench", "alibi"],
            ["bench", "alibi", "--shape", "1,2,3"], ["bench", "alibi", "--shape", "1,3,2,8,8,8"],
            ["bench", "alibi", "--shape", "1,2,2,8,8,0"], ["bench", "alibi", "--shape", "1,2,2,8,8,8,300"],
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

    def test_a_count_is_a_whole_number(self):
        self.assertIn("--q: '0' is no whole number from 1", self.expect(2, "mask", "causal", "--q", "0", "--kv", "8"))

    def test_tuning_is_for_gpus(self):
        self.assertIn("only kernels for a GPU have schedules",
                      self.expect(1, "tune", "alibi", "--shape", "1,1,1,8,8,8", "--dtype", "f32", "--device", "cpu"))

    def test_a_near_miss_is_named(self):
        self.assertIn("did you mean 'alibi'?", self.expect(1, "show", "alibbi"))
        self.assertIn("did you mean 'causal'?", self.expect(1, "check", "casual"))

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
