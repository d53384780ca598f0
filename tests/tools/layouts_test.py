"""tools/layouts.py on a CPU, and what it makes of times."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools"
sys.path.insert(0, str(TOOLS))
import layouts  # noqa: E402

HAS_CPU = os.environ.get("FLEXC_TEST_CPU", "1") not in ("0", "OFF", "")
VALUE = {"forward_ms": 0.2, "backward_ms": 0.5, "tflops": 400, "backward_tflops": 300, "launch_ms": 0.004,
         "update_ms": None}


def row(**more):
    return next(one for one in layouts.rows() if all(getattr(one, key) == value for key, value in more.items()))


class Layouts(unittest.TestCase):
    def test_names_are_unique(self):
        names = [one.name for one in layouts.rows()]
        self.assertEqual(len(names), len(set(names)))

    def test_documents_have_their_mean(self):
        lengths = [queries for queries, keys in layouts.documents(64, 1000)]
        self.assertEqual(sum(lengths), 64000)
        self.assertGreaterEqual(min(lengths), 250)
        self.assertGreater(len(set(lengths)), 32)

    def test_bandwidth_and_the_best_peer(self):
        one = row(group="decode", requests="4 x 1 @ 32k", page_size=16, mod="none")
        found = layouts.measured(one, VALUE, {"slow": {"forward_ms": 0.4}, "fast": {"forward_ms": 0.22, "plan_ms": 0.1},
                                              "none": {"error": "refused"}}, 3.0, [])
        self.assertAlmostEqual(found["tb_per_s"], 4 * 32768 * 8 * 128 * 4 / 0.2e-3 * 1e-12, places=2)
        self.assertAlmostEqual(found["of_copy"], found["tb_per_s"] / 3, places=3)
        self.assertEqual((found["peer"], found["peer_us"], found["ratio"]), ("fast", 220, 1.1))
        self.assertEqual(found["launch_us"], 4)
        self.assertNotIn("update_us", found)
        mod = layouts.measured(row(mod="ALiBi"), VALUE | {"forward_ms": 0.21}, {}, None, [found])
        self.assertEqual((mod["over_none"], mod["of_copy"]), (1.05, None))
        self.assertNotIn("ratio", mod)

    def test_ragged_beside_dense(self):
        dense = layouts.measured(row(group="training", dense=True), VALUE | {"tflops": 500}, {}, None, [])
        peers = {"p": {"forward_ms": 0.1, "backward_ms": 1}}
        ragged = layouts.measured(row(mod="learned slopes"), VALUE, peers, None, [dense])
        self.assertEqual((ragged["of_dense"], ragged["backward_of_dense"]), (0.8, 1))
        self.assertEqual((ragged["ratio"], ragged["backward_ratio"], ragged["backward_peer_us"]), (0.5, 2, 1000))

    @unittest.skipUnless(HAS_CPU, "built without the CPU backend")
    def test_measures(self):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder, "out.json")
            command = [sys.executable, TOOLS / "layouts.py", os.environ["FLEXC"], "--device", "cpu", "--json", out,
                       "--commit", "1234567", "--only"]
            environment = os.environ | {"FLEXC_CACHE_DIR": folder}
            done = subprocess.run([*command, "pages of 16, s"], capture_output=True, text=True, env=environment)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            run = json.loads(out.read_text())
            self.assertEqual([one["mod"] for one in run["rows"]], ["softcap", "sink"])
            self.assertEqual(run["commit"], "1234567")
            for one in run["rows"]:
                self.assertGreater(one["forward_us"], 0)
                self.assertGreater(one["update_us"], 0)
            late = subprocess.run([*command, "sink", "--seconds", "0"], capture_output=True, text=True, env=environment)
            self.assertEqual(late.returncode, 1)
            self.assertIn("sink: no time", late.stdout)


if __name__ == "__main__":
    unittest.main()
