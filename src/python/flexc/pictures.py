"""A mask's tiles, as text and as a picture."""
from __future__ import annotations

import struct
import zlib
from typing import List

_COLOURS = {"#": (35, 87, 137), "/": (140, 182, 214), ".": (240, 240, 240)}


class Mask:
    """Tiles of each map: '#' full, '/' partly visible, '.' empty. Maps that are equal are one."""

    def __init__(self, batches, heads, rows, columns, tile, lengths, tiles):
        self.batches, self.heads, self.tile, self.lengths = batches, heads, tile, lengths
        self._rows, self._columns, self._tiles = rows, columns, tiles

    def rows(self, b: int = 0, h: int = 0) -> List[str]:
        """One string for each row of tiles."""
        b, h = min(b, self.batches - 1), min(h, self.heads - 1)
        start = (b * self.heads + h) * self._rows * self._columns
        return [self._tiles[start + i * self._columns:start + (i + 1) * self._columns] for i in range(self._rows)]

    @property
    def sparsity(self) -> float:
        """The percentage of tiles that are empty."""
        return 100 * self._tiles.count(".") / len(self._tiles)

    def __str__(self):
        return "\n".join(self.rows())

    def __repr__(self):
        return (f"<flexc.Mask of {self.lengths[0]} queries and {self.lengths[1]} keys in tiles of {self.tile[0]} x "
                f"{self.tile[1]}, {self.sparsity:.1f} % empty>\n{self}")

    def png(self, b: int = 0, h: int = 0, size: int = 256) -> bytes:
        """The picture of one map, `size` points or more for its longer side."""
        rows = self.rows(b, h)
        zoom = max(1, size // max(self._rows, self._columns))
        lines = []
        for row in rows:
            line = b"\0" + b"".join(bytes(_COLOURS[tile]) * zoom for tile in row)
            lines.append(line * zoom)
        header = struct.pack(">IIBBBBB", self._columns * zoom, self._rows * zoom, 8, 2, 0, 0, 0)
        chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(b"".join(lines))), (b"IEND", b"")]
        return b"\x89PNG\r\n\x1a\n" + b"".join(
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
            for name, data in chunks)

    def _repr_png_(self) -> bytes:
        return self.png()
