"""How a program reaches the command: file, stdin, library, expression; and what is said of a bad one."""
import json
import unittest

from black_box import ALIBI, HAS_CPU, CommandTest


class Programs(CommandTest):
    def signature(self, *arguments, stdin=""):
        return json.loads(self.expect(0, "check", *arguments, "--json", stdin=stdin))

    def test_file_stdin_and_expression_say_the_same(self):
        from_file = self.signature(self.write("a.flex", ALIBI))
        self.assertEqual(from_file, self.signature("-", stdin=ALIBI))
        self.assertEqual(from_file, self.signature("-e", ALIBI))
        self.assertEqual(from_file, self.signature(
            "-e", "score + slopes[h] * (kv_idx - q_idx)", "--mask", "q_idx >= kv_idx",
            "--buffer", "slopes: f32[H] grad"))
        self.assertEqual(from_file["buffers"],
                         [{"name": "slopes", "dtype": "f32", "dims": ["H"], "grad": True}])
        self.assertIn("q_idx", from_file["mask_depends_on"])

    def test_expression_may_start_with_a_minus(self):
        self.assertEqual(self.signature("-e", "-score")["mask_depends_on"], "")

    def test_a_file_hides_a_library_mod(self):
        self.write("alibi", "score_mod = score")
        self.assertEqual(self.signature("alibi")["buffers"], [])

    def test_params_of_an_expression(self):
        params = self.signature("-e", "cap * tanh(score / cap)", "--param", "cap=2.5")["params"]
        self.assertEqual([(p["name"], p["default"]) for p in params], [("cap", 2.5)])
        self.assertIn("did you mean 'cap'?", self.expect(
            1, "check", "-e", "param cap: f32 = 1; score_mod = score * cap", "--param", "caps=2"))

    def test_every_library_mod_is_right(self):
        for entry in json.loads(self.expect(0, "list", "--json")):
            with self.subTest(mod=entry["name"]):
                self.signature(entry["name"])
    def test_show_has_text_dependence_and_picture(self):
        shown = json.loads(self.expect(0, "show", "sink_window", "--json"))
        printed = self.expect(0, "show", "sink_window")
        self.assertTrue(printed.startswith(shown["text"]), printed)
        self.assertIn("visible where", printed)
        self.assertIn("score_mod uses score", printed)
        if HAS_CPU:
            self.assertIn("\n".join(shown["picture"]), printed)
            self.assertEqual(shown["picture"][20], "###...........#######...........")
            self.assertEqual(len(shown["picture"]), 32)
            fading = json.loads(self.expect(0, "show", "alibi", "--json"))["picture"]
            self.assertRegex(fading[0], "^-+[+]*[*]*#+$")

    def test_an_error_has_its_place_and_a_caret(self):
        path = self.write("bad.flex", "score_mod = score +\n  slope * kv_ids\n")
        message = self.expect(1, "check", path)
        self.assertRegex(message, r"bad\.flex:2:\d+: error: ")
        self.assertIn("^", message)
        self.assertFalse(message.startswith("flexc: error:"), message)

    def test_stdin_and_expression_are_named(self):
        self.assertIn("<stdin>:1:", self.expect(1, "check", "-", stdin="scor"))
        self.assertIn("<expression>:1:", self.expect(1, "check", "-e", "scor"))

    def test_bad_bytes_are_an_error(self):
        self.expect(1, "check", self.write("nul.flex", b"score\0 + 1"))
        self.expect(1, "check", self.write("utf8.flex", b"score + \xff\xfe"))
        self.expect(1, "check", self.write("long.flex", b"score_mod = score" + b" + 1" * 20000))
        self.expect(1, "check", self.write("deep.flex", b"(" * 5000 + b"score" + b")" * 5000))


if __name__ == "__main__":
    unittest.main()
