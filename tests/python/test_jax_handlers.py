"""What XLA's calls launch on a GPU, without one: see recorded_xla.py."""
import re

import pytest

import recorded_xla

pytestmark = pytest.mark.skipif(not recorded_xla.RECORDER.exists(), reason="./tools/dev build makes what stands in for "
                                "the driver")
STREAM = 0xabc0
B, H, H_KV, Q, KV, D = 2, 4, 2, 256, 512, 64


class Addresses:
    def __init__(self, first=0x10_0000_0000):
        self.at = first

    def __call__(self, dtype, *shape):
        self.at += 0x1_0000_0000
        return dtype, shape, self.at


def forward(new=None, dtype="bf16", buffers=(), **given):
    new = new or Addresses()
    return {"name": "flexc_forward", "stream": STREAM,
            "arguments": [new(dtype, B, H, Q, D), new(dtype, B, H_KV, KV, D), new(dtype, B, H_KV, KV, D),
                          *(new(*buffer) for buffer in buffers)],
            "results": [new(dtype, B, H, Q, D), new("f32", B, H, Q)], **given}


def backward(new=None, dtype="bf16", buffers=(), gradients=(), **given):
    new = new or Addresses()
    q, k, v, rows = (dtype, B, H, Q, D), (dtype, B, H_KV, KV, D), (dtype, B, H_KV, KV, D), ("f32", B, H, Q)
    return {"name": "flexc_backward", "stream": STREAM,
            "arguments": [new(*x) for x in (q, k, v, q, rows, q, rows, *buffers)],
            "results": [new(*x) for x in (q, k, v, *gradients)], **given}


def launches(result):
    """(function, its arguments) of a call that went well and was all in its stream."""
    assert result["error"] == ""
    work = [line for line in result["recorded"] if line.startswith(("flexc_", "fill"))]
    assert work and all(line.endswith(f"in stream {STREAM:x}") for line in work)
    return [line.split()[0] for line in work]


def later(call, **changes):
    """Of two calls alike, the second: of a plan that there is already."""
    return recorded_xla.run(call, {**call, **changes})[1]


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
def test_forward(dtype):
    call = forward(dtype=dtype)
    first, again = recorded_xla.run(call, call)
    assert launches(again) == ["flexc_forward" if dtype == "f32" else "flexc_forward_sm90"]
    assert "wait" not in first["recorded"] + again["recorded"]
    text = " ".join(again["recorded"])
    for name, (_, _, address) in zip(("q", "k", "v", "o", "lse"), call["arguments"] + call["results"]):
        assert f" {name}={address:x}[" in text
    assert " scale=0.125" in text


def test_backward():
    program = "buffer slopes: f32[H] grad\nscore + slopes[h] * (kv_idx - q_idx)"
    call = backward(buffers=[("f32", H)], gradients=[("f32", H)],
                    attributes={"program": program, "mask_mod": "q_idx >= kv_idx"})
    result = later(call)
    assert "flexc_backward_sm90" in launches(result)
    (taken, size), (given_back, same) = result["memory"]
    assert (taken, given_back) == ("taken", "given back") and size == same
    # A workspace is aligned better than what XLA promises.
    text = " ".join(result["recorded"])
    used = {int(address, 16) for address in re.findall(r"(?:dq_accumulator|blocks_done)=(\w+)", text)}
    assert len(used) == 2 and all(address % 256 == 0 and recorded_xla.MEMORY <= address < recorded_xla.MEMORY + size
                                  for address in used)
    assert "wait" not in result["recorded"]


def test_generic_kernels():
    """Where a tensor is not aligned as TMA wants it, and on another GPU."""
    call = forward()
    odd = forward()
    dtype, shape, address = odd["arguments"][1]
    odd["arguments"][1] = dtype, shape, address + 2
    aligned, unaligned = recorded_xla.run(call, odd)
    assert launches(aligned) == ["flexc_forward_sm90"]
    assert launches(unaligned) == ["flexc_forward"]
    assert launches(recorded_xla.run(call, arch=80)[0]) == ["flexc_forward"]


def test_vmap():
    """A launch for each part; what has one element in front is the same for all."""
    new = Addresses()
    call = {"name": "flexc_forward", "stream": STREAM,
            "arguments": [new("bf16", 3, B, H, Q, D), new("bf16", 1, B, H_KV, KV, D), new("bf16", 3, B, H_KV, KV, D)],
            "results": [new("bf16", 3, B, H, Q, D), new("f32", 3, B, H, Q)]}
    result = later(call)
    assert launches(result) == ["flexc_forward_sm90"] * 3
    q, k, v = (address for _, _, address in call["arguments"])
    bytes_of_q, bytes_of_v = (2 * B * heads * length * D for heads, length in ((H, Q), (H_KV, KV)))
    for part, line in enumerate(line for line in result["recorded"] if " lse=" in line):
        assert f" q={q + part * bytes_of_q:x}[" in line and f" k={k:x}[" in line
        assert f" v={v + part * bytes_of_v:x}[" in line


def packed(**given):
    new = Addresses()
    return {"name": "flexc_forward", "stream": STREAM,
            "arguments": [new("bf16", 300, H, D), new("bf16", 400, H_KV, D), new("bf16", 400, H_KV, D), new("i32", 4),
                          new("i32", 4)],
            "results": [new("bf16", 300, H, D), new("f32", 300, H)],
            "attributes": {"layout": "query_layout=1 key_layout=1 query_start=0 q_len=-1 kv_len=-1",
                           "lengths": "cu_seqlens_q cu_seqlens_k", **given}}


def test_packed():
    """The device reads lengths, at each call; requests may be as long as tensors are."""
    call = packed()
    result = later(call)
    names = launches(result)
    assert names.index("flexc_read_lengths") < names.index(next(name for name in names if "forward" in name))
    text = " ".join(result["recorded"])
    assert " batch=3" in text and " q_len=300" in text and " kv_len=400" in text
    assert "wait" not in result["recorded"]
    told = later(packed(layout="query_layout=1 key_layout=1 query_start=0 q_len=64 kv_len=128"))
    assert " q_len=64" in " ".join(told["recorded"]) and " kv_len=128" in " ".join(told["recorded"])


def test_pages():
    new = Addresses()
    call = {"name": "flexc_forward", "stream": STREAM,
            "arguments": [new("bf16", 3, H, D), new("bf16", 32, 16, H_KV, D), new("bf16", 32, 16, H_KV, D),
                          new("i32", 4), new("i32", 3), new("i32", 3, 5)],
            "results": [new("bf16", 3, H, D), new("f32", 3, H)],
            "attributes": {"layout": "query_layout=1 key_layout=2 query_start=0 q_len=1 kv_len=-1",
                           "lengths": "cu_seqlens_q seqused_k page_table"}}
    result = later(call)
    launches(result)
    assert " kv_len=80" in " ".join(result["recorded"])


def test_streams_have_lengths_of_their_own():
    """Two streams may run at once, and each has its plan's memory."""
    calls = [{**packed(), "stream": stream} for stream in (STREAM, STREAM, STREAM + 16)]
    first, again, other = (result["recorded"][result["recorded"].index(next(
        line for line in result["recorded"] if line.startswith("flexc_read_lengths"))) + 2]
        for result in recorded_xla.run(*calls))
    assert first == again != other


def test_block_mask_is_of_the_call():
    call = forward(buffers=[("i32", KV)], attributes={
        "program": "buffer doc: i32[KV_LEN]\nscore", "mask_mod": "doc[q_idx] == doc[kv_idx]"})
    names = launches(later(call))
    assert re.match("flexc_block_mask_", names[0]) and names[-1] == "flexc_forward_sm90"


def test_errors():
    wrong = forward(buffers=[("f32", 3)], attributes={"program": "buffer slopes: f32[H]\nscore * slopes[h]"})
    program, shape, memory, device, old = (result["error"] for result in recorded_xla.run(
        forward(attributes={"program": "score + kv_idy"}), wrong, backward(has_no_memory=True), forward(device=7),
        forward(is_old=True)))
    assert "kv_idy" in program and "'slopes': expected" in shape
    assert re.search(r"a workspace of \d+ bytes: RESOURCE_EXHAUSTED", memory)
    assert "7" in device and "device" in device
    assert "needs JAX 0.6.2" in old
    # What XLA made of its own, flexc ends.
    assert ["destroyed", 1] in recorded_xla.run(backward(has_no_memory=True))[0]["memory"]


def test_no_command_buffers():
    for name in ("flexc_forward", "flexc_backward"):
        asked, = recorded_xla.run({"name": name, "asks_traits": True})
        assert asked["traits"] == 0 and asked["version"] == [0, 1]
