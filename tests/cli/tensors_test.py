"""Bad tensor files: every error names the tensor and what was expected, and no output appears."""
import json
import math
import struct
import unittest

from black_box import ALIBI, CommandTest, floats, inputs, needs_cpu, tensor_io


@needs_cpu
class BadTensors(CommandTest):
    def refused(self, content, *words, arguments=("--backward",), program=ALIBI):
        message = self.run_file(content, *arguments, code=1, program=program)
        for word in words:
            self.assertIn(word, message)
        self.assertEqual(sorted(p.name for p in self.folder.iterdir() if p.name != "cache"),
                         ["in.safetensors", "mod.flex"])
        return message

    def changed(self, **changes):
        tensors = inputs()
        for name, tensor in changes.items():
            if tensor is None:
                del tensors[name]
            else:
                tensors[name] = tensor
        return tensor_io.encode(tensors)

    def test_missing(self):
        for name, shape in [("q", "[B, H, Q_LEN, D]"), ("k", "[B, H_KV, KV_LEN, D]"),
                            ("v", "[B, H_KV, KV_LEN, DV]"), ("do", "[1, 2, 5, 6]"), ("slopes", "f32[H]")]:
            with self.subTest(name=name):
                self.refused(self.changed(**{name: None}), f"'{name}': missing", shape)

    def test_extra(self):
        message = self.refused(self.changed(slope=("F32", (2,), floats(2))), "'slope': not expected",
                               "did you mean 'slopes'?")
        self.assertIn("slopes", message)

    def test_a_hole_larger_than_memory(self):
        shapes = {"q": (1 << 16, 2, 1 << 20, 8), "k": (1 << 16, 1, 7, 8), "v": (1 << 16, 1, 7, 6), "slopes": (2,)}
        header, end = {}, 0
        for name, shape in shapes.items():
            begin, end = end, end + 4 * math.prod(shape)
            header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
        text = json.dumps(header).encode()
        path = self.folder / "hole.safetensors"
        with open(path, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            try:
                file.truncate(8 + len(text) + end)
            except OSError:
                self.skipTest("no file system for files of 4 TB")
        self.assertIn("tensor 'q' takes 4194304 MiB",
                      self.expect(1, "run", self.write("mod.flex", ALIBI), "--inputs", path, "--outputs", "out",
                                  "--device", "cpu"))

    def test_many_extra(self):
        message = self.refused(self.changed(**{f"n{i}": ("F32", (1,), floats(1)) for i in range(2000)}),
                               "not expected", "and 1980 more of these")
        self.assertEqual(message.count("not expected"), 20)

    def test_names_that_a_terminal_would_obey(self):
        for name in ["a\x1b[31m", "a\nflexc: error: all is well", "a\x7f", "n" * 1025]:
            with self.subTest(name=name):
                message = self.refused(self.changed(**{name: ("F32", (1,), floats(1))}), "the name of a tensor")
                self.assertNotIn(name, message)

    def test_wrong_shape(self):
        self.refused(self.changed(slopes=("F32", (3,), floats(3))), "'slopes'", "f32 [3]", "f32 [H] = [2]")
        self.refused(self.changed(slopes=("F32", (1, 2), floats(2))), "'slopes'", "1 dimension")
        self.refused(self.changed(k=("F32", (1, 1, 7, 9), floats(63))), "'k'", "[1, 1, 7, 8]")
        self.refused(self.changed(v=("F32", (1, 1, 8, 6), floats(48))), "'v'", "[1, 1, 7, 6]")
        self.refused(self.changed(do=("F32", (1, 2, 5, 8), floats(80))), "'do'", "[1, 2, 5, 6]")
        self.refused(self.changed(q=("F32", (2, 5, 8), floats(80))), "'q'", "[B, H, Q_LEN, D]")
        self.refused(self.changed(q=("F32", (1, 2, 0, 8), b"")), "'q'", "at least 1")
        self.refused(self.changed(dlse=("F32", (1, 2, 6), floats(12))), "'dlse'", "[1, 2, 5]")

    def test_heads_that_do_not_divide(self):
        tensors = inputs(heads=3, kv_heads=2)
        self.refused(tensor_io.encode(tensors), "'k'", "divisor of the 3 heads")

    def test_a_head_dim_beyond_the_limit(self):
        self.refused(tensor_io.encode(inputs(dim=257)), "'q'", "1 to 256")

    def test_wrong_type(self):
        self.refused(self.changed(slopes=("F64", (2,), b"\0" * 16)), "'slopes'", "f64", "f32 [H]")
        self.refused(self.changed(q=("F64", (1, 2, 5, 8), b"\0" * 640)), "'q'", "f32, f16 or bf16")
        self.refused(self.changed(k=("BF16", (1, 1, 7, 8), b"\0" * 112)), "'k'", "bf16", "f32")

    def test_every_problem_is_named_at_once(self):
        message = self.refused(self.changed(do=None, slopes=None, other=("U8", (1,), b"\0")),
                               "'do'", "'slopes'", "'other'")
        self.assertEqual(message.count("error:"), 3)

    def test_new_dims_must_agree(self):
        program = "buffer a: f32[N]\nbuffer c: f32[N]\nscore_mod = score + a[q_idx] + c[q_idx]"
        tensors = inputs()
        del tensors["slopes"]
        tensors["a"], tensors["c"] = ("F32", (3,), floats(3)), ("F32", (4,), floats(4))
        self.refused(tensor_io.encode(tensors), "'c'", "f32 [N] = [3]", program=program)

    def test_a_buffer_named_like_an_input(self):
        tensors = inputs()
        del tensors["slopes"]
        self.refused(tensor_io.encode(tensors), "'k'", "rename", program="buffer k: f32[H]\nscore_mod = score + k[h]")

    def test_lying_headers(self):
        whole = tensor_io.encode(inputs())
        (length,) = struct.unpack_from("<Q", whole)
        header, data = json.loads(whole[8:8 + length]), whole[8 + length:]

        def lie(name, **fields):
            return tensor_io.with_header(json.dumps({**header, name: {**header[name], **fields}}), data)
        self.refused(lie("k", shape=[1, 1, 7, 7]), "'k'", "expected 196")
        self.refused(lie("k", dtype="F64"), "'k'", "expected 448")
        self.refused(lie("k", dtype="F8_E8M0"), "'k'", "F8_E8M0")
        self.refused(lie("slopes", data_offsets=[0, 8]), "overlaps")
        self.refused(lie("slopes", data_offsets=[10 ** 6, 10 ** 6 + 8]), "'slopes'", "truncated?")
        self.refused(tensor_io.with_header("{", data), "not a JSON object")
        self.refused(struct.pack("<Q", 2 ** 63) + whole[8:], "in.safetensors", "header")
        self.refused(whole[:-1], "truncated?")
        self.refused(whole + b"\0", "in.safetensors")
        self.refused(whole[:40], "in.safetensors")
        self.refused(b"", "in.safetensors")


if __name__ == "__main__":
    unittest.main()
