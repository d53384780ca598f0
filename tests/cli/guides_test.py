"""The programs and commands of the guides: a block ```flex NAME is a file, and a block ```sh runs beside it."""
import pathlib
import re
import shlex
import unittest

from black_box import CommandTest, needs_cpu

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"
BLOCK = re.compile(r"^```(flex|sh)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Guides(CommandTest):
    def run_guide(self, name):
        """How many commands the guide has; each must succeed."""
        commands = 0
        for kind, file, text in BLOCK.findall((DOCS / name).read_text()):
            if kind == "flex":
                self.write(file, text)
                continue
            for line in text.splitlines():
                words = shlex.split(line, comments=True)
                self.assertEqual(words[0], "flexc", line)
                self.expect(0, *words[1:])
                commands += 1
        return commands

    @needs_cpu
    def test_readme(self):
        self.assertGreaterEqual(self.run_guide("../README.md"), 4)

    @needs_cpu
    def test_cli(self):
        self.assertGreaterEqual(self.run_guide("cli.md"), 3)

    @needs_cpu
    def test_from_flexattention(self):
        self.assertGreaterEqual(self.run_guide("from-flexattention.md"), 2)

    @needs_cpu
    def test_from_xformers(self):
        self.assertGreaterEqual(self.run_guide("from-xformers.md"), 2)

    def test_every_class_of_xformers_is_found_by_its_name(self):
        rows = re.findall(r"^\| `(\w+Mask\w*)` \| `(\w+)`", (DOCS / "from-xformers.md").read_text(), re.MULTILINE)
        self.assertEqual(len(rows), 17)
        for attn_bias, mod in rows:
            self.assertRegex(self.expect(0, "list", f"{attn_bias}."), rf"(?m)^  {mod} ")


if __name__ == "__main__":
    unittest.main()
