"""What `flexc run` writes, and that it writes all of it or nothing."""
import array
import json
import math
import os
import subprocess
import unittest

from black_box import ALIBI, FLEXC, CommandTest, floats, inputs, needs_cpu, tensor_io


@needs_cpu
class Outputs(CommandTest):
    def test_forward_only(self):
        self.run_file(tensor_io.encode(inputs()))
        results = self.outputs()
        self.assertEqual({name: (dtype, shape) for name, (dtype, shape, _) in results.items()},
                         {"o": ("F32", (1, 2, 5, 6)), "lse": ("F32", (1, 2, 5))})

    def test_backward_adds_gradients(self):
        said = json.loads(self.run_file(tensor_io.encode(inputs()), "--backward", "--json"))
        results = self.outputs()
        self.assertEqual({name: shape for name, (_, shape, _) in results.items()},
                         {"o": (1, 2, 5, 6), "lse": (1, 2, 5), "dq": (1, 2, 5, 8), "dk": (1, 1, 7, 8),
                          "dv": (1, 1, 7, 6), "d.slopes": (2,)})
        self.assertEqual({o["name"] for o in said["outputs"]}, set(results))
        self.assertEqual(said["device"], "cpu")
        self.assertGreaterEqual(said["backward_ms"], 0)

    def test_type_of_o(self):
        wide = inputs(q_len=40, kv_len=40)
        narrow = {name: ("BF16", shape, array.array("H", data)[1::2].tobytes())
                  for name, (_, shape, data) in wide.items() if name != "slopes"}
        widened = {name: ("F32", shape, tensor_io.to_numbers("BF16", data).tobytes())
                   for name, (_, shape, data) in narrow.items()}
        slopes = {"slopes": wide["slopes"]}

        def run(tensors, *arguments):
            self.run_file(tensor_io.encode({**tensors, **slopes}), *arguments)
            return self.outputs()
        for arguments in [], ["--backward"]:
            rounded = run(narrow, *arguments)
            wide_o = run(narrow, *arguments, "--output-type", "f32")
            self.assertEqual((rounded["o"][0], wide_o["o"][0]), ("BF16", "F32"))
            for x, y in zip(rounded["o"][2], wide_o["o"][2]):
                self.assertLessEqual(abs(x - y), abs(y) * 2**-8)
        # What the backward reads is the same, rounded or not in the file.
        self.assertEqual(rounded["d.slopes"], wide_o["d.slopes"])
        for x, y in zip(rounded["d.slopes"][2], run(widened, "--backward")["d.slopes"][2]):
            self.assertAlmostEqual(x, y, delta=1e-4 * abs(y))

    def test_type_of_o_is_one_of_two(self):
        self.assertIn("--output-type 'bf16': expected input or f32",
                      self.run_file(tensor_io.encode(inputs()), "--output-type", "bf16", code=2))

    def test_some_of_the_heads(self):
        whole = inputs()
        self.run_file(tensor_io.encode(whole), "--backward")
        wanted = self.outputs()
        part = {name: ("F32", (1, 1, *shape[2:]), data[len(data) // 2:]) if name in ("q", "do") else (kind, shape, data)
                for name, (kind, shape, data) in whole.items()}
        options = ["--head-offset", "1", "--global-heads", "2", "--global-kv-heads", "1"]
        self.run_file(tensor_io.encode(part), "--backward", *options)
        results = self.outputs()
        for name in "o", "lse", "dq":
            self.assertEqual(results[name][1][1], 1)
            half = wanted[name][2][len(wanted[name][2]) // 2:]
            for x, y in zip(results[name][2], half):
                self.assertAlmostEqual(x, y, delta=1e-5)
        # Of the whole buffer, whose other heads are elsewhere.
        self.assertEqual(results["d.slopes"][1], (2,))
        self.assertEqual(results["d.slopes"][2][0], 0)
        self.assertAlmostEqual(results["d.slopes"][2][1], wanted["d.slopes"][2][1], delta=1e-4)
        self.assertIn("heads 5 to 6 of 2", self.run_file(tensor_io.encode(part), "--head-offset", "5",
                                                         "--global-heads", "2", code=1))

    def test_keys_of_eight_bits(self):
        # 1, -2 and 0.5 in e4m3 and in e5m2.
        codes = {"F8_E4M3": (0x38, 0xc0, 0x30), "F8_E5M2": (0x3c, 0xc0, 0x38), "I8": (2, 0xfc, 1)}
        one = array.array("f", [0.25]).tobytes()
        for kind, (a, b, c) in codes.items():
            tensors = {"q": ("F32", (1, 1, 3, 8), floats(24)), "k": (kind, (1, 1, 1, 8), bytes([a] * 8)),
                       "v": (kind, (1, 1, 1, 3), bytes([a, b, c])), "v_scale": ("F32", (1,), one)}
            self.run_file(tensor_io.encode(tensors), program="score_mod = score")
            unit = 0.5 if kind == "I8" else 0.25
            self.assertEqual(list(self.outputs()["o"][2]), [unit, -2 * unit, unit / 2] * 3)
        self.assertIn("forward only", self.run_file(
            tensor_io.encode({**tensors, "do": ("F32", (1, 1, 3, 3), floats(9))}), "--backward",
            program="score_mod = score", code=1))
        wrong = {**tensors, "k_scale": ("I32", (1,), one)}
        self.assertIn("tensor 'k_scale': is i32 [1]; expected f32",
                      self.run_file(tensor_io.encode(wrong), program="score_mod = score", code=1))
        wrong = {**tensors, "k": ("F32", (1, 1, 1, 8), floats(8))}
        self.assertIn("tensor 'v': is i8", self.run_file(tensor_io.encode(wrong), program="score_mod = score", code=1))

    def test_one_key_gives_its_value(self):
        tensors = inputs(kv_len=1, q_len=3)
        self.run_alone("score_mod = score", tensors)
        numbers = tensor_io.to_numbers("F32", tensors["v"][2])
        for row in range(6):
            self.assertEqual(list(self.outputs()["o"][2][6 * row:6 * row + 6]), list(numbers))

    def run_alone(self, program, tensors, *arguments):
        tensors = {name: tensor for name, tensor in tensors.items() if name != "slopes"}
        self.run_file(tensor_io.encode(tensors), *arguments, program=program)
        return self.outputs()

    def run_requests(self, *arguments, program="mask_mod = q_idx >= kv_idx", **numbers):
        """o of requests of 2 and 1 queries and of 3 and 5 keys, as rows of one head."""
        numbers = {"cu_seqlens_q": [0, 2, 3], "cu_seqlens_k": [0, 3, 8], **numbers}
        tensors = {"q": ("F32", (3, 1, 8), floats(24, 1)), "k": ("F32", (8, 1, 8), floats(64, 2)),
                   "v": ("F32", (8, 1, 6), floats(48, 3)),
                   **{name: ("I32", (len(values),), array.array("i", values).tobytes())
                      for name, values in numbers.items()}}
        self.run_file(tensor_io.encode(tensors), "--query-layout", "ragged", "--key-layout", "ragged",
                      *arguments, program=program)
        o = list(self.outputs()["o"][2])
        return [o[6 * row:6 * row + 6] for row in range(3)]

    def test_query_start(self):
        zero = self.run_requests("--query-start", "zero")
        end = self.run_requests("--query-start", "end")
        values = list(tensor_io.to_numbers("F32", floats(48, 3)))
        # The first query of a request sees its first key alone, the last one all.
        self.assertEqual(zero[0], values[:6])
        self.assertEqual(zero[2], values[18:24])
        unmasked = self.run_requests(program="score_mod = score")
        for row in 1, 2:
            for left, right in zip(end[row], unmasked[row]):
                self.assertAlmostEqual(left, right, places=5)
        self.assertNotEqual(zero[1], end[1])
        self.assertEqual(self.run_requests(), zero)
        self.assertEqual(self.run_requests(query_starts=[1, 4]), end)
        wrong = tensor_io.encode(inputs())
        self.assertIn("--query-start is of ragged and paged layouts",
                      self.run_file(wrong, "--query-start", "end", code=2))
        self.assertIn("--query-start 'last': expected auto, zero or end",
                      self.run_file(wrong, "--query-start", "last", code=2))

    def test_requests_that_do_not_go_together(self):
        def numbers(*values):
            return "I32", (len(values),), array.array("i", values).tobytes()

        def refused(tensors, *layouts):
            return self.run_file(tensor_io.encode(tensors), *layouts, program="score_mod = score", code=1)
        q = {"q": ("F32", (3, 1, 8), floats(24)), "cu_seqlens_q": numbers(0, 1, 2, 3)}
        # Keys of two batch entries beside three requests.
        dense = {**q, "k": ("F32", (2, 1, 4, 8), floats(64)), "v": ("F32", (2, 1, 4, 8), floats(64))}
        self.assertIn("tensor 'k': is f32 [2, 1, 4, 8], which is not of 3 requests",
                      refused(dense, "--query-layout", "ragged"))
        # A cache without pages says how large they are, in no bytes.
        cache = "F32", (0, 1 << 62, 1, 8), b""
        paged = {**q, "k": cache, "v": cache, "page_indptr": numbers(0, 3, 3, 3), "page_indices": numbers(0, 0, 0),
                 "last_page_len": numbers(1, 1, 1)}
        self.assertIn("it must be between", refused(paged, "--query-layout", "ragged", "--key-layout", "paged"))

    def test_scale_and_param_reach_the_kernel(self):
        scaled = self.run_alone("score_mod = score", inputs(), "--scale", "0.25")
        param = self.run_alone("param x: f32 = 7\nscore_mod = score * x", inputs(),
                               "--param", f"x={0.25 * math.sqrt(8)}")
        for left, right in zip(scaled["o"][2], param["o"][2]):
            self.assertAlmostEqual(left, right, places=5)

    def test_rows_that_see_nothing(self):
        results = self.run_alone("mask_mod = q_idx > 1", inputs(), "--backward")
        for head in range(2):
            for row in range(2):
                self.assertEqual(results["lse"][2][5 * head + row], -math.inf)
                at = (5 * head + row) * 6
                self.assertEqual(list(results["o"][2][at:at + 6]), [0.0] * 6)

    def test_a_gradient_of_lse_counts(self):
        plain = self.run_alone("score_mod = score", inputs(), "--backward")
        tensors = {**inputs(), "dlse": ("F32", (1, 2, 5), floats(10, 9))}
        with_lse = self.run_alone("score_mod = score", tensors, "--backward")
        self.assertEqual(plain["dv"], with_lse["dv"])
        self.assertNotEqual(plain["dq"], with_lse["dq"])

    def test_unaligned_and_halves(self):
        tensors = inputs()
        odd = {"flag": ("U8", (1,), b"\1"), **{n: t for n, t in tensors.items() if n != "slopes"}}
        self.run_file(tensor_io.encode(odd), program="buffer flag: u8[1]\nscore_mod = score * flag[0]")
        plain = self.run_alone("score_mod = score", tensors)
        self.run_file(tensor_io.encode(odd), program="buffer flag: u8[1]\nscore_mod = score * flag[0]")
        for left, right in zip(plain["o"][2], self.outputs()["o"][2]):
            self.assertAlmostEqual(left, right, places=6)

    def test_out_of_range_is_reported_on_request(self):
        tensors = {**inputs(), "slopes": ("F32", (1,), floats(1))}
        program = "buffer slopes: f32[N]\nscore_mod = score + slopes[h]"
        said = json.loads(self.run_file(tensor_io.encode(tensors), "--report-out-of-range", "--json", program=program))
        self.assertIs(said["out_of_range"], True)
        said = json.loads(self.run_file(tensor_io.encode(inputs()), "--report-out-of-range", "--json", program=program))
        self.assertIs(said["out_of_range"], False)

    def test_quiet(self):
        self.assertEqual(self.run_file(tensor_io.encode(inputs()), "--quiet"), "")
        self.assertEqual(self.run_file(tensor_io.encode(inputs())).count("\n"), 1)

    def test_the_same_bits_each_time(self):
        results = []
        for _ in range(2):
            self.run_file(tensor_io.encode(inputs(q_len=130, kv_len=150)), "--backward", "--deterministic")
            results.append((self.folder / "out.safetensors").read_bytes())
        self.assertEqual(*results)

    def test_a_place_that_cannot_be_written(self):
        mod, source = self.write("mod.flex", ALIBI), self.write("in.safetensors", tensor_io.encode(inputs()))
        for target in [self.folder, self.folder / "no" / "such" / "file", "/proc/no/such"]:
            self.expect(1, "run", mod, "--inputs", source, "--outputs", target, "--device", "cpu")

    def test_a_full_disk_leaves_nothing(self):
        # A limit on file sizes stands for the full disk: the write fails half way.
        mod = self.write("mod.flex", ALIBI)
        source = self.write("in.safetensors", tensor_io.encode(inputs(q_len=2000, dim=64, dim_v=64)))
        folder = self.folder / "results"
        folder.mkdir()
        (folder / "out.safetensors").write_text("old")
        command = f"ulimit -f 64; trap '' XFSZ; exec {FLEXC} run {mod} --inputs {source} " \
                  f"--outputs {folder}/out.safetensors --device cpu"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=self.environment)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("error:", done.stderr)
        self.assertEqual(os.listdir(folder), ["out.safetensors"])
        self.assertEqual((folder / "out.safetensors").read_text(), "old")

    def test_inputs_are_not_overwritten(self):
        content = tensor_io.encode(inputs())
        mod, path = self.write("mod.flex", ALIBI), self.write("x.safetensors", content)
        link, hard = self.folder / "link", self.folder / "hard"
        link.symlink_to(path)
        hard.hardlink_to(path)
        for other in [path, self.folder / "." / "x.safetensors", link, hard]:
            for source, target in (path, other), (other, path):
                said = self.expect(2, "run", mod, "--inputs", source, "--outputs", target, "--device", "cpu")
                self.assertIn("--inputs", said)
                self.assertEqual(path.read_bytes(), content)


if __name__ == "__main__":
    unittest.main()
