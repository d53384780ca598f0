"""What the black-box tests of the command share: running it, and inputs for it."""
import array
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "golden"))
import tensor_io  # noqa: E402

FLEXC = os.environ["FLEXC"]
HAS_CPU = os.environ.get("FLEXC_TEST_CPU", "1") not in ("0", "OFF", "")

ALIBI = """buffer slopes: f32[H] grad
score_mod = score + slopes[h] * (kv_idx - q_idx)
mask_mod = q_idx >= kv_idx
"""


def floats(count, seed=0):
    source = random.Random(seed)
    return array.array("f", (source.gauss(0, 1) for _ in range(count))).tobytes()


def inputs(batch=1, heads=2, kv_heads=1, q_len=5, kv_len=7, dim=8, dim_v=6):
    """Small f32 tensors that fit ALIBI, backward too."""
    def tensor(seed, *shape):
        count = 1
        for extent in shape:
            count *= extent
        return ("F32", shape, floats(count, seed))
    return {
        "q": tensor(1, batch, heads, q_len, dim), "k": tensor(2, batch, kv_heads, kv_len, dim),
        "v": tensor(3, batch, kv_heads, kv_len, dim_v), "do": tensor(4, batch, heads, q_len, dim_v),
        "slopes": tensor(5, heads),
    }


class CommandTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        self.environment = {**os.environ, "FLEXC_CACHE_DIR": str(self.folder / "cache")}

    def flexc(self, *arguments, stdin=""):
        return subprocess.run([FLEXC, *map(str, arguments)], input=stdin, capture_output=True, text=True,
                              env=self.environment, cwd=self.folder, timeout=300)

    def expect(self, code, *arguments, stdin=""):
        done = self.flexc(*arguments, stdin=stdin)
        self.assertEqual(done.returncode, code, f"{arguments}\nstdout: {done.stdout}\nstderr: {done.stderr}")
        if code == 0:
            return done.stdout
        self.assertEqual(done.stdout, "", "an error prints nothing on stdout")
        self.assertRegex(done.stderr, "error:|\"error\":")
        return done.stderr

    def write(self, name, content):
        path = self.folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def run_file(self, content, *arguments, code=0, program=ALIBI):
        """`flexc run` on a tensor file with this content."""
        mod = self.write("mod.flex", program)
        source = self.write("in.safetensors", content)
        return self.expect(code, "run", mod, "--inputs", source, "--outputs", self.folder / "out.safetensors",
                           "--device", "cpu", *arguments)

    def outputs(self):
        return tensor_io.read(self.folder / "out.safetensors")


needs_cpu = unittest.skipUnless(HAS_CPU, "built without the CPU backend")
