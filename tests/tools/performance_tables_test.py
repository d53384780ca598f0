"""Tables of docs from rows of their own, and from what a tool measured."""
import json
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
import performance_tables as tables  # noqa: E402

TABLE = {
    "title": "T", "machine": "old machine", "date": "2026-01-01", "commit": "0000000", "command": "`c`", "peer": "p",
    "note": "Old.", "columns": [["mod", "mod"], ["ms", "ms"]], "rows": [{"mod": "none", "ms": 1.5}],
    "run": {"name": "side", "columns": [["mod", "mod"], ["ms", "ms"], ["over", "over none"], ["ratio", "peer / flexc"]],
            "cells": {"ms": "{flexc.ms:.2f}", "over": "{flexc.ms/none.flexc.ms:.2f}",
                      "ratio": "{beside.ms/flexc.ms:.1f}"},
            "rows": [{"case": "plain", "mod": "none", "beside": "x"},
                     {"case": "alibi", "mod": "ALiBi", "beside": "y", "none": "plain"},
                     {"case": "lost", "mod": "lost"}]},
}
RUN = {"machine": "new machine", "date": "2026-02-02", "commit": "1111111",
       "rows": [{"name": "plain", "flexc": {"ms": 2}, "x": {"ms": 5}},
                {"name": "alibi", "flexc": {"ms": 3}, "y": {"error": "out of memory"}}]}


class Tables(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.addCleanup(setattr, tables, "DATA", tables.DATA)
        tables.DATA = pathlib.Path(scratch.name)
        (tables.DATA / "runs").mkdir()

    def write(self, name, value):
        (tables.DATA / f"{name}.json").write_text(value if isinstance(value, str) else json.dumps(value))

    def test_without_a_run_rows_are_the_literals_of_the_file(self):
        self.write("t", json.dumps(TABLE).replace("1.5", "1.50"))
        self.assertEqual(tables.render("t"), "<!-- table t -->\n**T.** Machine: old machine. Date: 2026-01-01. Commit: "
                         "0000000. Peer: p. Command: `c`. Old.\n\n| mod | ms |\n|---|---|\n| none | 1.50 |\n")

    def test_a_run_says_where_and_when_and_fills_cells(self):
        self.write("t", TABLE)
        self.write("runs/side", RUN)
        self.assertEqual(tables.render("t").splitlines()[1:], [
            "**T.** Machine: new machine. Date: 2026-02-02. Commit: 1111111. Peer: p. Command: `c`.", "",
            "| mod | ms | over none | peer / flexc |", "|---|---|---|---|", "| none | 2.00 |  | 2.5 |",
            "| ALiBi | 3.00 | 1.50 |  |"])

    def test_without_rows_there_is_no_table(self):
        self.write("t", TABLE | {"rows": []})
        self.assertEqual(tables.render("t"), "<!-- table t -->\n")
        self.assertEqual(tables.BLOCK.sub(lambda block: tables.render(block[1]), "<!-- table t -->\n\nText.\n"),
                         "<!-- table t -->\n\nText.\n")

    def test_rows_of_another_table_come_from_its_run_too(self):
        self.write("t", TABLE)
        self.write("all", TABLE | {"run": {"name": "other"}, "columns": [["ms", "ms"], ["commit", "commit"]], "rows": [
            {"from": "t", "where": {"mod": "none"}, "ms": "{ms} ms", "commit": "{commit}"}]})
        self.assertIn("| 1.5 ms | 0000000 |", tables.render("all"))
        self.write("runs/side", RUN)
        self.assertIn("| 2.00 ms | 1111111 |", tables.render("all"))

    def test_values_become_columns(self):
        rows = [{"case": "plain", "length": "8", "d": "64", "beside": "x"}, {"case": "alibi", "length": "9", "d": "64"}]
        across = {"key": "length", "title": "S {}", "cells": "{ms} ({ratio})"}
        self.write("t", TABLE | {"run": TABLE["run"] | {"columns": [["d", "D"]], "rows": rows, "across": across}})
        self.write("runs/side", RUN)
        self.assertEqual(tables.render("t").splitlines()[-3:], ["| D | S 8 | S 9 |", "|---|---|---|",
                                                                "| 64 | 2.00 (2.5) | 3.00 |"])


if __name__ == "__main__":
    unittest.main()
