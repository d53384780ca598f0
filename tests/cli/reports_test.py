"""The commands that report: explain, compile, bench, cache, doctor."""
import json
import os
import subprocess
import unittest

from black_box import ALIBI, FLEXC, CommandTest, inputs, needs_cpu, tensor_io

STAGES = ["tokens", "ast", "ir", "grad", "deps", "mask", "plan", "cuda", "llvm"]


class Reports(CommandTest):
    def has(self, what):
        findings = json.loads(self.expect(0, "doctor", "--json"))["findings"]
        return any(f["found"] for f in findings if what in f["what"])

    def test_doctor_names_what_is_missing_and_how_to_get_it(self):
        report = json.loads(self.expect(0, "doctor", "--json"))
        names = " ".join(f["what"] for f in report["findings"])
        for what in ["driver", "NVRTC", "CPU"]:
            self.assertIn(what, names)
        for finding in report["findings"]:
            self.assertTrue(finding["detail"], finding)
        self.assertIn("NVRTC", self.expect(0, "doctor"))

    def test_every_stage_is_text_and_stable(self):
        mod = self.write("mod.flex", ALIBI)
        for stage in STAGES:
            with self.subTest(stage=stage):
                text = self.expect(0, "explain", mod, "--stage", stage)
                self.assertGreater(len(text), 10)
                self.assertEqual(text, self.expect(0, "explain", mod, "--stage", stage))
        both = json.loads(self.expect(0, "explain", mod, "--stage", "ir,grad", "--json"))
        self.assertEqual(set(both), {"ir", "grad"})

    def test_plan_says_why_a_kernel_is_generic(self):
        cases = {"memory adds up several gradients of each element": ["graphormer", "--head-dim", "128"],
                 "the generic kernel was asked for": ["alibi", "--backward-kernel", "generic"]}
        for why, arguments in cases.items():
            plan = self.expect(0, "explain", *arguments, "--stage", "plan", "--backward")
            self.assertRegex(plan, f"not Hopper's kernel: .*{why}")

    def test_compile(self):
        if not self.has("NVRTC"):
            self.skipTest("no NVRTC here")
        mod = self.write("mod.flex", ALIBI)
        call = ["compile", mod, "--arch", "sm_90a", "--dtype", "bf16", "--head-dim", "64", "--backward"]
        cold = json.loads(self.expect(0, *call, "-o", self.folder / "pack"))
        self.assertFalse(cold["cached"])
        self.assertGreater(cold["compile_ms"], 0)
        for kernel in cold["kernels"]:
            self.assertGreater(kernel["registers"], 0)
            for key in ["spill_bytes", "helper_spill_bytes", "shared_bytes", "compile_ms"]:
                self.assertGreaterEqual(kernel[key], 0, kernel)
        self.assertEqual({file.name for file in (self.folder / "pack").iterdir()},
                         {kernel["file"] for kernel in cold["kernels"]})
        warm = self.expect(0, *call, "--json")
        self.assertEqual(warm.count("\n"), 1)
        self.assertTrue(json.loads(warm)["cached"])
        # A pack has the kernels for tensors that Hopper's cannot walk, too.
        names = [kernel["name"] for kernel in cold["kernels"]]
        used = [kernel["name"] for kernel in json.loads(warm)["kernels"]]
        self.assertEqual(used, names[:len(used)])
        self.assertEqual([name for name in names[len(used):] if "sm90" in name], [])

        # The pack alone is enough where there is neither a cache nor a compiler.
        self.environment |= {"FLEXC_PACK": str(self.folder / "pack"), "FLEXC_NVRTC": "/nonexistent"}
        self.assertTrue(json.loads(self.expect(0, *call, "--no-cache"))["cached"])
        other = self.expect(1, "compile", "-e", "score * 2", "--no-cache")
        self.assertIn("/nonexistent", other)
        self.environment["FLEXC_CACHE_DIR"] = str(self.folder / "empty")
        self.expect(0, "check", *call[1:])
        self.assertIn("/nonexistent", self.expect(1, "check", *call[1:], "--head-dim-v", "32"))

    def test_check_for_an_architecture(self):
        self.assertIn("sm_75", self.expect(1, "check", "alibi", "--arch", "sm_75"))
        self.assertIn("this is the CPU", self.expect(1, "check", "alibi", "--device", "cpu", "--backward",
                                                     "--backward-kernel", "specialized"))
        self.assertIn("cuda", self.expect(1, "check", "alibi", "--device", "cuda:1000").lower())
        if self.has("CPU backend"):
            self.assertEqual(self.expect(0, "check", "alibi", "--device", "cpu"), self.expect(0, "check", "alibi"))
        if self.has("NVRTC"):
            self.expect(0, "check", "alibi", "--arch", "sm_90a", "--backward")
            said = self.expect(1, "check", "alibi", "--arch", "sm_80", "--forward-kernel", "specialized")
            self.assertIn("wgmma", said)

    def test_a_pack_that_is_missing_is_reported(self):
        self.environment["FLEXC_PACK"] = str(self.folder / "no-such-pack")
        report = json.loads(self.expect(0, "doctor", "--json"))
        pack, = [finding for finding in report["findings"] if finding["what"] == "pack"]
        self.assertFalse(pack["found"])
        self.assertIn("no-such-pack", pack["detail"])
        self.assertIn("FLEXC_PACK", pack["remedy"])

    def test_compile_for_hopper_without_wgmma(self):
        if not self.has("NVRTC"):
            self.skipTest("no NVRTC here")
        done = self.flexc("compile", "alibi", "--arch", "sm_90", "--head-dim", "32", "--backward", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("sm_90a", done.stderr)
        self.assertFalse([kernel for kernel in json.loads(done.stdout)["kernels"] if "sm90" in kernel["name"]])
        self.assertIn("no architecture sm_999", self.expect(1, "compile", "alibi", "--arch", "sm_999"))

    @needs_cpu
    def test_bench(self):
        mod = self.write("mod.flex", ALIBI)
        text = self.expect(0, "bench", mod, "--shape", "1,2,1,64,64,16", "--dtype", "f32", "--device", "cpu",
                           "--backward", "--json")
        value = json.loads(text.strip().splitlines()[-1])
        for key in ["forward_ms", "backward_ms", "plan_ms", "compile_ms", "tflops", "backward_tflops"]:
            self.assertGreater(value[key], 0, key)
        for key in ["cached_compile_ms", "fraction_of_peak"]:
            self.assertIn(key, value)
        self.assertAlmostEqual(value["visible_fraction"], 65 / 128, places=6)
        self.assertEqual(value["fills"], {"slopes": "normal:0.1"})
        for key in ["launch_ms", "update_ms", "update_host_ms", "update_on_device_ms"]:  # of GPUs, of requests
            self.assertIsNone(value[key], key)

    @needs_cpu
    def test_bench_says_a_line_to_people(self):
        shape = ["--shape", "1,2,1,64,64,16", "--dtype", "f32", "--device", "cpu"]
        text = self.expect(0, "bench", self.write("mod.flex", ALIBI), *shape, "--backward")
        number = r"[\d.e+-]+"
        self.assertRegex(text, rf"^cpu: forward {number} ms, {number} TFLOP/s; backward {number} ms, {number} TFLOP/s; "
                               rf"50\.78 % visible; compile {number} ms( \({number} ms cached\))?\n$")
        self.assertNotIn("backward", self.expect(0, "bench", "causal", *shape))

    @needs_cpu
    def test_bench_shows_progress_on_a_terminal(self):
        main, other = os.openpty()
        call = [FLEXC, "bench", "causal", "--shape", "1,1,1,8,8,8", "--dtype", "f32", "--device", "cpu", "--json"]
        done = subprocess.run(call, stdout=subprocess.PIPE, stderr=other, env=self.environment, timeout=300)
        os.close(other)
        seen = b""
        try:
            while part := os.read(main, 1 << 16):  # a terminal gives what it likes at once
                seen += part
        except OSError:  # how a terminal ends whose other side is closed
            pass
        os.close(main)
        seen = seen.decode()
        self.assertEqual(done.returncode, 0)
        json.loads(done.stdout)
        self.assertIn("timing the forward", seen)
        self.assertTrue(seen.endswith("\r\x1b[K"), "the line is gone in the end")

    @needs_cpu
    def test_bench_after_rests(self):
        text = self.expect(0, "bench", self.write("mod.flex", ALIBI), "--shape", "1,2,1,64,64,16", "--dtype", "f32",
                           "--device", "cpu", "--rested", "--json")
        value = json.loads(text.strip().splitlines()[-1])
        self.assertGreater(value["forward_ms"], 0)
        self.assertIsNone(value["backward_ms"])

    def test_kernels_of_eight_bits(self):
        call = ["explain", "alibi", "--stage", "plan", "--kv-dtype", "e4m3"]
        text = self.expect(0, *call)
        self.assertIn("not Hopper's kernel: keys and values have eight bits", text)
        self.assertNotIn("backward", text)
        self.assertIn("use f16 or bf16", self.expect(1, *call, "--dtype", "f32"))

    @needs_cpu
    def test_bench_of_eight_bits(self):
        shape = ["--shape", "1,2,1,64,64,16", "--dtype", "bf16", "--device", "cpu"]
        for dtype in ("e4m3", "e5m2", "i8"):
            value = json.loads(self.expect(0, "bench", "alibi", *shape, "--kv-dtype", dtype, "--json"))
            self.assertEqual((value["dtype"], value["kv_dtype"]), ("bf16", dtype))
            self.assertGreater(value["forward_ms"], 0)
        self.assertIn("expected e4m3, e5m2 or i8", self.expect(2, "bench", "alibi", *shape, "--kv-dtype", "f32"))
        self.assertIn("forward only", self.expect(1, "bench", "alibi", *shape, "--kv-dtype", "i8", "--backward"))

    @needs_cpu
    def test_bench_of_strides(self):
        shape = ["--shape", "1,2,1,64,64,16", "--dtype", "bf16", "--device", "cpu"]
        for strides in ("bhsd", "bshd", "padded"):
            value = json.loads(self.expect(0, "bench", "alibi", *shape, "--backward", "--strides", strides, "--json"))
            self.assertGreater(value["backward_ms"], 0)
        self.assertIn("expected bhsd, bshd or padded", self.expect(2, "bench", "alibi", *shape, "--strides", "x"))
        self.assertIn("--requests", self.expect(2, "bench", "causal", "--shape", "4,2,16", "--requests", "2x1@30",
                                                "--strides", "bshd"))

    @needs_cpu
    def test_bench_of_requests(self):
        for pages in [[], ["--page-size", "16"]]:
            text = self.expect(0, "bench", "causal", "--shape", "4,2,16", "--requests", "2x1@30,1x10@20", "--dtype",
                               "f32", "--device", "cpu", "--json", *pages)
            value = json.loads(text)
            self.assertGreater(value["forward_ms"], 0)
            self.assertGreater(value["update_ms"], 0)
            self.assertIsNone(value["update_on_device_ms"])
            self.assertAlmostEqual(value["visible_fraction"], (2 * 30 + sum(range(11, 21))) / (12 * 30), places=6)

    def test_bench_has_limits(self):
        on_cpu = ["--dtype", "f32", "--device", "cpu"]
        for requests in "1000000000x1@1", "1048575x1@1,1x1@1":
            self.assertIn("2^20 requests",
                          self.expect(2, "bench", "causal", "--shape", "1,1,8", "--requests", requests))
        for requests in "1000x1073741824@1", "2x1@536870912":
            self.assertIn("2^30 rows", self.expect(2, "bench", "causal", "--shape", "1,1,8", "--requests", requests))
        # 2^63 elements: of two bytes each, their number of bytes wraps to none.
        for dtype in "f32", "i16":
            table = ["-e", "score + t[0, 0, 0, 0, 0, 0, 0]", "--buffer", f"t: {dtype}[N, N, N, N, N, N, N]"]
            self.assertIn("memory",
                          self.expect(1, "bench", *table, "--dim", "N=512", "--shape", "1,1,1,8,8,8", *on_cpu))

    @needs_cpu
    def test_bench_gives_up(self):
        long = ["bench", "causal", "--shape", "1,8,8,200000,200000,64", "--dtype", "f32", "--device", "cpu"]
        self.assertIn("not done after 1 seconds: take a smaller --shape", self.expect(1, *long, "--max-seconds", 1))
        error = json.loads(self.expect(1, *long, "--max-seconds", 1, "--json"))["error"]
        self.assertEqual((error["code"], error["exit_code"]), ("limit", 1))
        self.expect(2, *long, "--max-seconds", -1)
        self.expect(0, "bench", "causal", "--shape", "1,1,1,8,8,8", "--dtype", "f32", "--device", "cpu",
                    "--max-seconds", 0)

    def test_bench_times_what_launches_take_of_the_host(self):
        driver = os.environ.get("FLEXC_RECORDING_CUDA")
        if not driver:
            self.skipTest("run it by ctest")
        self.environment.update(FLEXC_LIBCUDA=driver, FLEXC_NVRTC=driver)
        value = json.loads(self.expect(0, "bench", "causal", "--shape", "4,2,64", "--requests", "3x1@100",
                                       "--page-size", "16", "--device", "cuda", "--json"))
        self.assertGreater(value["launch_ms"], 0)
        self.assertGreater(value["update_host_ms"], 0)
        for key in ["update_ms", "update_on_device_ms"]:
            self.assertEqual(value[key], 1, "each time of this driver's events")

    @needs_cpu
    def test_bench_counts_what_is_visible(self):
        def fraction(program, *arguments):
            text = self.expect(0, "bench", self.write("mod.flex", program), "--shape", "1,1,1,100,100,8",
                               "--dtype", "f32", "--device", "cpu", "--json", *arguments)
            return json.loads(text)["visible_fraction"]
        self.assertEqual(fraction("score_mod = score * 2"), 1)
        self.assertAlmostEqual(fraction("mask_mod = q_idx == kv_idx"), 0.01, places=6)
        documents = "buffer doc: i32[KV_LEN]\nscore_mod {\n  score * 3\n}\nmask_mod = doc[q_idx] == doc[kv_idx]"
        self.assertAlmostEqual(fraction(documents, "--fill", "doc=segments:25"), 0.25, places=6)
        self.assertEqual(fraction(documents), 1)
        self.assertEqual(fraction("mask_mod = false"), 0)
        causal = 101 / 200
        for program in ["score_mod = score + 5", "score + 5", "score_mod { score = score * 2; score + 50 }",
                        "def f(score, b, h, q, kv):\n    return score - 80", "score * 0 + exp(score) * 1e30",
                        "def score_mod(score, b, h, q, kv):\n    x = score * 3\n    return x + 7"]:
            self.assertEqual(fraction(program), 1, program)
        for program in ["where(q_idx >= kv_idx, score, -inf)", "score if q_idx >= kv_idx else -inf",
                        "score_mod = score + (0 if q_idx >= kv_idx else -inf)", "q_idx >= kv_idx",
                        "def mask(b, h, q, kv):\n    return q >= kv",
                        "def f(score, b, h, q, kv):\n    return torch.where(q >= kv, score + 5, float('-inf'))",
                        "fn near(n) = q_idx - kv_idx <= n\nscore_mod = where(near(99), score + 9, -inf)\n"
                        "mask_mod = q_idx >= kv_idx"]:
            self.assertAlmostEqual(fraction(program), causal, places=6, msg=program)
        self.assertAlmostEqual(fraction("score + 3", "--mask", "q_idx >= kv_idx"), causal, places=6)
        # The score decides, as the kernel computes it.
        halves = fraction("where(score > 0, score, -inf)") + fraction("where(score > 0, -inf, score)")
        self.assertAlmostEqual(halves, 1, places=6)

    @needs_cpu
    def test_bench_needs_every_dim(self):
        mod = self.write("mod.flex", "buffer t: f32[N] grad\nscore_mod = score + t[q_idx]")
        call = ["bench", mod, "--shape", "1,1,1,8,8,8", "--dtype", "f32", "--device", "cpu"]
        self.assertIn("--dim N=", self.expect(2, *call))
        self.expect(0, *call, "--dim", "N=16")

    @needs_cpu
    def test_cache(self):
        self.assertEqual(self.expect(0, "cache", "path").strip(), str(self.folder / "cache"))
        self.run_file(tensor_io.encode(inputs()))
        stats = json.loads(self.expect(0, "cache", "stats", "--json"))
        self.assertEqual(stats["directory"], str(self.folder / "cache"))
        self.expect(0, "cache", "clear")
        self.assertEqual(json.loads(self.expect(0, "cache", "stats", "--json"))["disk_entries"], 0)


if __name__ == "__main__":
    unittest.main()
