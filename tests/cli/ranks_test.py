"""`flexc run --ranks mpi` under mpirun: the file of one rank, from any number of them; `flexc bench` of ranks; what
`--ranks nccl` says without GPUs."""
import array
import itertools
import json
import math
import os
import subprocess
import unittest

from black_box import FLEXC, CommandTest, floats, inputs, needs_cpu, tensor_io

MPIRUN = os.environ.get("MPIRUN", "mpirun")

PROGRAM = """buffer slopes: f32[H] grad
score_mod = score + slopes[h] * (kv_idx - q_idx) * 0.1
mask_mod = q_idx + 20 >= kv_idx
"""


@needs_cpu
class Ranks(CommandTest):
    def setUp(self):
        super().setUp()
        self.environment.update(FLEXC_THREADS="1", OMPI_MCA_mpi_yield_when_idle="1")
        self.tensors = inputs(batch=2, heads=4, kv_heads=2, q_len=37, kv_len=53)

    def mpirun(self, ranks, *arguments):
        command = [MPIRUN, "--oversubscribe", "--allow-run-as-root", "-n", str(ranks), FLEXC, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, env=self.environment, cwd=self.folder,
                              timeout=120)

    def arguments(self, *more):
        mod = self.write("mod.flex", PROGRAM)
        source = self.write("in.safetensors", tensor_io.encode(self.tensors))
        return ["run", mod, "--inputs", source, "--outputs", self.folder / "out.safetensors", *more]

    def values(self):
        return {name: array.array("f", tensor[2]) for name, tensor in self.outputs().items()}

    NODES = ["ulysses", "--ranks-per-node", "2"]

    def check(self, cases, *arguments):
        """Ranks by an exchange each against one rank, forward and backward."""
        self.expect(0, *self.arguments("--backward", "--device", "cpu", *arguments))
        wanted = self.values()
        shapes = {name: tensor[:2] for name, tensor in self.outputs().items()}
        for ranks, *exchange in cases:
            with self.subTest(ranks=ranks, exchange=exchange):
                (self.folder / "out.safetensors").unlink()
                done = self.mpirun(ranks, *self.arguments("--backward", "--ranks", "mpi", "--exchange", *exchange,
                                                          "--json", *arguments))
                self.assertEqual(done.returncode, 0, done.stderr)
                report = json.loads(done.stdout.strip().splitlines()[-1])
                self.assertEqual(report["ranks"], ranks)
                self.assertIn(report["exchange"], ["ring", "all_gather", "ulysses"])
                self.assertTrue(report["plan"].startswith("exchange: "), report["plan"])
                self.assertEqual(len(done.stdout.strip().splitlines()), 1, "one rank reports")
                self.assertEqual({name: tensor[:2] for name, tensor in self.outputs().items()}, shapes)
                for name, values in self.values().items():
                    finite = [x for x in wanted[name] if math.isfinite(x)]  # lse of a row that sees nothing is not
                    scale = math.sqrt(sum(x * x for x in finite) / len(finite))
                    for got, want in zip(values, wanted[name]):
                        self.assertTrue(got == want or abs(got - want) < 1e-5 * max(scale, 1), (name, got, want))

    def test_same_as_one_rank(self):
        self.check([(1, "auto"), (2, "ring"), (3, "zigzag"), (2, "gather"), (4, "auto"), (3, "ulysses"),
                    (4, *self.NODES)])

    RAGGED = ["--query-layout", "ragged", "--key-layout", "ragged"]

    def use_requests(self, queries, keys, **numbers):
        """Tensors of requests with so many queries and keys each."""
        self.tensors = {name: ("F32", shape, floats(math.prod(shape), seed)) for seed, (name, shape) in enumerate({
            "q": (sum(queries), 4, 8), "k": (sum(keys), 2, 8), "v": (sum(keys), 2, 6),
            "do": (sum(queries), 4, 6), "dlse": (sum(queries), 4), "slopes": (4,)}.items())}
        for name, values in {"cu_seqlens_q": itertools.accumulate(queries, initial=0),
                             "cu_seqlens_k": itertools.accumulate(keys, initial=0), **numbers}.items():
            values = array.array("i", values)
            self.tensors[name] = ("I32", (len(values),), values.tobytes())

    def test_requests_of_the_same_rows(self):
        lengths = [20, 0, 41, 1]
        self.use_requests(lengths, lengths)
        self.check([(3, "auto"), (2, "ring"), (2, "gather")], *self.RAGGED)

    def test_who_has_which_rows(self):
        self.use_requests([130, 3, 2, 1], [130, 3, 2, 1])
        for exchange, shards in [("auto", "balanced"), ("zigzag", "zigzag"), ("ring", "contiguous")]:
            done = self.mpirun(2, *self.arguments("--ranks", "mpi", "--exchange", exchange, "--json", *self.RAGGED))
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(json.loads(done.stdout)["shards"], shards)

    def test_requests_whose_queries_end_with_the_keys(self):
        self.use_requests([9, 1, 0, 14], [20, 31, 3, 0], seqused_q=[7, 1, 0, 14], seqused_k=[20, 25, 3, 0])
        self.check([(3, "zigzag"), (4, *self.NODES)], *self.RAGGED, "--query-start", "end")

    def test_lengths_beyond_the_rows(self):
        self.use_requests([20, 5], [20, 5])
        self.tensors["cu_seqlens_k"] = ("I32", (3,), array.array("i", [0, 20, 28]).tobytes())
        done = self.mpirun(2, *self.arguments("--ranks", "mpi", *self.RAGGED))
        self.assertIn("cu_seqlens_k ends at 28; the shards of keys have 25 rows", done.stderr)

    def test_forward_alone(self):
        done = self.mpirun(2, *self.arguments("--ranks", "mpi"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("2 ranks by", done.stdout)

    def test_a_missing_tensor(self):
        del self.tensors["slopes"]
        done = self.mpirun(2, *self.arguments("--ranks", "mpi"))
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("'slopes': missing", done.stderr)
        self.assertFalse((self.folder / "out.safetensors").exists())

    def test_usage(self):
        self.assertIn("--ranks mpi", self.expect(2, *self.arguments("--exchange", "ring")))
        self.assertIn("--ranks mpi", self.expect(2, *self.arguments("--ranks-per-node", "2")))
        self.expect(2, *self.arguments("--ranks", "two"))
        done = self.mpirun(2, *self.arguments("--ranks", "mpi", "--ranks-per-node", "2"))
        self.assertIn("ranks_per_node is for Exchange::ulysses, not automatic", done.stderr)
        for layouts, refused in [(["ragged", "dense"], "ragged queries and dense keys"),
                                 (["ragged", "paged"], "ragged queries and paged keys")]:
            self.assertIn(f"not for {refused}",
                          self.expect(2, *self.arguments("--ranks", "mpi", "--query-layout", layouts[0],
                                                         "--key-layout", layouts[1])))
        done = self.mpirun(1, *self.arguments("--ranks", "mpi", "--device", "cuda"))
        self.assertNotEqual(done.returncode, 0)

    def test_nccl_says_what_is_missing(self):
        nccl = self.arguments("--ranks", "nccl")
        for name in ["RANK", "WORLD_SIZE", "LOCAL_RANK"]:
            self.environment.pop(name, None)
        self.environment["FLEXC_NCCL"] = str(self.folder / "no-nccl.so")
        self.assertIn("give --nccl-id too", self.expect(2, *nccl))
        nccl += ["--nccl-id", self.folder / "id"]
        self.assertIn("RANK is not set: torchrun sets", self.expect(1, *nccl))
        self.environment.update(RANK="zero", WORLD_SIZE="1", LOCAL_RANK="0")
        self.assertIn("RANK=zero is no number", self.expect(1, *nccl))
        self.environment["RANK"] = "0"
        error = self.expect(1, *nccl)
        self.assertIn("NCCL (libnccl.so.2) was not found", error)
        self.assertIn("no-nccl.so", error)
        self.assertFalse((self.folder / "id").exists())
        self.assertFalse((self.folder / "out.safetensors").exists())
        self.assertIn("ranks by nccl compute on a GPU each",
                      self.expect(2, "bench", "causal", "--shape", "1,1,1,8,8,8", "--ranks", "nccl", "--device", "cpu"))

    def bench(self, *more, shape="1,4,2,96,160,16,8"):
        return ["bench", self.write("mod.flex", PROGRAM), "--shape", shape, "--dtype", "f32", "--ranks", "mpi", *more]

    def test_bench(self):
        for ranks, exchange, *nodes in [(1, "auto"), (3, "zigzag"), (2, "gather"), (3, "ulysses"),
                                        (4, "ulysses", "--ranks-per-node", "2")]:
            with self.subTest(ranks=ranks, exchange=exchange):
                done = self.mpirun(ranks, *self.bench("--backward", "--exchange", exchange, *nodes, "--json"))
                self.assertEqual(done.returncode, 0, done.stderr)
                lines = done.stdout.strip().splitlines()
                self.assertEqual(len(lines), 1, "one rank reports")
                report = json.loads(lines[0])
                self.assertEqual((report["ranks"], report["threads"]), (ranks, 1))
                for key in ["forward_", "backward_"]:
                    alone = report[f"one_rank_{key}ms"] / ranks / report[f"{key}ms"]
                    self.assertAlmostEqual(report[f"{key}fraction_of_one_rank"], alone)
                    into, moved = report[f"{key}bytes_into_a_rank"], report[f"{key}bytes_moved"]
                    self.assertTrue(moved / ranks <= into <= moved)
                    self.assertEqual(moved == 0, ranks == 1)
                self.assertLess(report["forward_bytes_moved"], report["backward_bytes_moved"] or 1)
                # Heads of 3 ranks are 1, 1 and 2; where keys travel, but for a plain ring, rows are dealt evenly.
                most = 1.5 if exchange == "ulysses" and not nodes else 1
                self.assertAlmostEqual(report["most_work"], most, delta=0.1)
                self.assertEqual(report["fills"], {"slopes": "normal:0.1"})
                self.assertTrue(0 < report["visible_fraction"] < 1 and report["backward_tflops"] > 0)
                self.assertIn("because" if exchange == "auto" else "as asked for", report["plan"])
        done = self.mpirun(2, *self.bench())
        self.assertRegex(done.stdout, r"2 ranks by all_gather: forward .* of one rank's speed .* bytes moved")
        self.assertRegex(done.stdout, r"(?m)^exchange: all_gather, because gathered keys")

    def test_bench_of_requests(self):
        requests = ["--requests", "2x40@60,1x30@30", "--backward", "--json"]
        done = self.mpirun(2, *self.bench(*requests, shape="4,2,16,8"))
        self.assertEqual(done.returncode, 0, done.stderr)
        report = json.loads(done.stdout)
        self.assertGreater(report["forward_bytes_moved"], 0)
        # Queries end where the keys do, and see 20 keys more.
        visible = 2 * sum(min(60, 21 + 20 + i) for i in range(40)) + sum(min(30, 21 + i) for i in range(30))
        self.assertAlmostEqual(report["visible_fraction"], visible / (110 * 60), delta=1e-6)
        done = self.mpirun(1, *self.bench(*requests, "--page-size", "16", shape="4,2,16,8"))
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("not for ragged queries and paged keys", done.stderr)

    def test_bench_usage(self):
        for more, text in [(["--rested"], "--rested"), (["--schedule", "x"], "--schedule"),
                           (["--device", "cuda"], "--device cuda")]:
            done = self.mpirun(1, *self.bench(*more))
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(text, done.stderr)
        self.assertIn("--ranks mpi", self.expect(2, "bench", "causal", "--shape", "1,1,1,8,8,8", "--exchange", "ring"))


if __name__ == "__main__":
    unittest.main()
