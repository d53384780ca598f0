"""Safetensors files with nothing but the standard library, for the black-box tests."""
import array
import json
import pathlib
import struct

_ARRAY_CODE = {"F32": "f", "F64": "d", "I64": "q", "I32": "i", "I16": "h", "I8": "b", "U8": "B", "BOOL": "B"}


def to_numbers(dtype, data):
    """The values of raw little-endian bytes as an array of numbers."""
    if dtype == "BF16":
        widened = bytearray(2 * len(data))
        widened[2::4], widened[3::4] = data[0::2], data[1::2]
        return array.array("f", bytes(widened))
    if dtype == "F16":
        return array.array("f", (x for (x,) in struct.iter_unpack("<e", data)))
    return array.array(_ARRAY_CODE[dtype], data)


def read(path):
    """name -> (dtype, shape, numbers)"""
    raw = pathlib.Path(path).read_bytes()
    (length,) = struct.unpack_from("<Q", raw)
    body = memoryview(raw)[8 + length:]
    tensors = {}
    for name, entry in json.loads(raw[8:8 + length]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            tensors[name] = (entry["dtype"], tuple(entry["shape"]), to_numbers(entry["dtype"], bytes(body[begin:end])))
    return tensors


def encode(tensors):
    """name -> (dtype, shape, raw bytes), as the bytes of a file."""
    header, offset = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    return with_header(json.dumps(header), b"".join(data for _, _, data in tensors.values()))


def with_header(header, data):
    """A file with this header text, true or not."""
    text = header.encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data
