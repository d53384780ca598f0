"""flexc mask against the mask at every element."""
import array
import json
import struct
import unittest
import zlib

from black_box import CommandTest, tensor_io

DOCUMENTS = """buffer doc: i32[B, KV_LEN]
mask_mod = doc[b, q_idx] == doc[b, kv_idx] and doc[b, q_idx] >= 0 and q_idx >= kv_idx
"""


def by_definition(visible, q_len, kv_len, tile):
    rows = []
    for top in range(0, q_len, tile[0]):
        row = ""
        for left in range(0, kv_len, tile[1]):
            seen = {visible(q, kv) for q in range(top, min(top + tile[0], q_len))
                    for kv in range(left, min(left + tile[1], kv_len))}
            row += "/" if len(seen) == 2 else "#" if True in seen else "."
        rows.append(row)
    return rows


class Mask(CommandTest):
    def mask(self, *arguments):
        return json.loads(self.expect(0, "mask", *arguments, "--json"))

    def test_a_map_without_arrays(self):
        found = self.mask("-e", "q_idx >= kv_idx and q_idx - kv_idx <= 20", "--q", 70, "--kv", 95, "--tile", "16,8")
        rows = by_definition(lambda q, kv: 0 <= q - kv <= 20, 70, 95, (16, 8))
        self.assertEqual(found["block_masks"], [{"b": 0, "h": 0, "rows": rows}])
        self.assertEqual(found["tile"], [16, 8])
        tiles = "".join(rows)
        for name, letter in (("empty", "."), ("partial", "/"), ("full", "#")):
            self.assertEqual(found[name], tiles.count(letter))

    def test_maps_of_batches_that_differ(self):
        documents = [[kv // 40 for kv in range(100)], [-1 if kv > 70 else kv // 9 for kv in range(100)]]
        content = array.array("i", documents[0] + documents[1]).tobytes()
        path = self.write("in.safetensors", tensor_io.encode({"doc": ("I32", (2, 100), content)}))
        found = self.mask(self.write("doc.flex", DOCUMENTS), "--q", 100, "--kv", 100, "--h", 3, "--tile", "16,16",
                          "--inputs", path)
        self.assertEqual([(one["b"], one["h"]) for one in found["block_masks"]], [(0, 0), (1, 0)])
        for doc, one in zip(documents, found["block_masks"]):
            rows = by_definition(lambda q, kv: doc[q] == doc[kv] >= 0 and q >= kv, 100, 100, (16, 16))
            self.assertEqual(one["rows"], rows)

    def test_pictures(self):
        text = self.expect(0, "mask", "-e", "q_idx >= kv_idx", "--q", 512, "--kv", 512)
        self.assertEqual(text.split("\n")[:4], ["/...", "#/..", "##/.", "###/"])
        path = self.folder / "causal.png"
        self.expect(0, "mask", "-e", "q_idx >= kv_idx", "--q", 512, "--kv", 512, "--png", path)
        data = path.read_bytes()
        self.assertEqual(data[:8], b"\x89PNG\r\n\x1a\n")
        chunks, at = {}, 8
        while at < len(data):
            size, kind = struct.unpack(">I4s", data[at:at + 8])
            body = data[at + 8:at + 8 + size]
            self.assertEqual(struct.unpack(">I", data[at + 8 + size:at + 12 + size])[0], zlib.crc32(kind + body))
            chunks[kind] = body
            at += 12 + size
        width, height = struct.unpack(">II", chunks[b"IHDR"][:8])
        pixels = zlib.decompress(chunks[b"IDAT"])
        self.assertEqual(len(pixels), (width + 1) * height)
        self.assertEqual(pixels[width], 255, "the upper right corner is empty")
        self.assertLess(pixels[(width + 1) * (height - 1) + 1], 100, "the lower left corner is full")

    def test_head_dims_are_asked_for(self):
        for program, size, option in [("q_idx - kv_idx < D", "D", "--head-dim"),
                                      ("q_idx - kv_idx < DV", "DV", "--head-dim-v"),
                                      ("where(q_idx > D, q_idx < kv_idx, true)", "D", "--head-dim")]:
            call = ["mask", "-e", program, "--q", 64, "--kv", 64]
            self.assertIn(f"the mask reads {size}; say what it is with {option} N", self.expect(2, *call))
        for dim in 3, 20, 256:
            found = self.mask("-e", "q_idx - kv_idx < D", "--q", 300, "--kv", 300, "--tile", "16,16", "--head-dim", dim)
            expected = by_definition(lambda q, kv: q - kv < dim, 300, 300, (16, 16))
            self.assertEqual(found["block_masks"][0]["rows"], expected)
        given = ["-e", "q_idx < DV and kv_idx < D", "--q", 20, "--kv", 20, "--tile", "1,1", "--head-dim", 7]
        self.assertEqual(self.mask(*given)["full"], 49)
        self.assertEqual(self.mask(*given, "--head-dim-v", 9)["full"], 63)
        # The score alone reads it.
        self.mask("-e", "score * D", "--mask", "q_idx >= kv_idx", "--q", 8, "--kv", 8)
        for dim in 0, 257, -1:
            self.expect(2, "mask", "-e", "q_idx - kv_idx < D", "--q", 8, "--kv", 8, "--head-dim", dim)

    def test_head_dims_of_the_inputs(self):
        path = self.write("in.safetensors", tensor_io.encode({"t": ("F32", (5,), b"\0" * 20)}))
        program = self.write("t.flex", "buffer t: f32[D]\nmask_mod = q_idx < D and t[kv_idx] == 0")
        found = self.mask(program, "--q", 8, "--kv", 5, "--tile", "1,1", "--inputs", path)
        self.assertEqual(found["full"], 25)
        self.assertIn("'t'", self.expect(1, "mask", program, "--q", 8, "--kv", 8, "--inputs", path, "--head-dim", 6))

    def test_a_map_has_limits(self):
        # No square leaves 2: nothing but a look at every element tells.
        squares = ["mask", "-e", "score", "--mask", "(q_idx * kv_idx) * (q_idx * kv_idx) % 3 != 2"]
        large = [*squares, "--q", 1_000_000, "--kv", 1_000_000]
        for tile in "128,128", "1000000,1000000":
            self.assertIn("--max-seconds", self.expect(1, *large, "--tile", tile, "--max-seconds", 0.2))
        error = json.loads(self.expect(1, *large, "--max-seconds", 0.2, "--json"))["error"]
        self.assertEqual(error["code"], "limit")
        # Before there are tiles, all positions are looked at.
        self.assertIn("--max-seconds", self.expect(1, "mask", "causal", "--q", 2**30 - 1, "--kv", 2**30 - 1, "--tile",
                                                   "4000000,4000000", "--max-seconds", 0.2))
        self.assertEqual(self.mask(*squares[1:], "--q", 9, "--kv", 9, "--max-seconds", 0)["full"], 1)
        self.expect(2, *large, "--max-seconds", -1)

    def test_a_picture_has_a_limit(self):
        self.assertIn("--b", self.expect(1, "mask", "-e", "q_idx + b >= kv_idx", "--q", 256, "--kv", 256, "--b", 10_000,
                                         "--png", self.folder / "many.png"))

    def test_what_is_missing_is_named(self):
        mod = self.write("doc.flex", DOCUMENTS)
        self.assertIn("doc", self.expect(1, "mask", mod, "--q", 8, "--kv", 8))
        self.expect(2, "mask", mod, "--q", 8)
        self.expect(2, "mask", mod, "--q", 8, "--kv", 0)


if __name__ == "__main__":
    unittest.main()
