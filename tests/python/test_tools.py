"""Errors, signatures, explanations, masks, the library, the cache, the doctor."""
import ast
import pathlib
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest

import flexc


def test_errors_show_the_place():
    with pytest.raises(flexc.errors.ProgramError) as caught:
        flexc.compile("score + slopes[h] * kv_id", buffers={"slopes": "f32[H]"}, source_name="alibi.flex")
    assert caught.value.code == "syntax"
    text = str(caught.value)
    assert text.startswith("alibi.flex:1:21: error: unknown name 'kv_id'")
    assert "^~~~~" in text and "did you mean 'kv_idx'" in text
    with pytest.raises(flexc.errors.InvalidOption):
        flexc.compile("score", dtype="f64", device="cpu")
    with pytest.raises(flexc.errors.InvalidOption, match="element type"):
        flexc.compile("score", dtype="complex64")
    with pytest.raises(flexc.errors.InvalidOption, match="device is one of"):
        flexc.compile("score", device="tpu")
    with pytest.raises(TypeError, match=r"no option 'headdim' \(did you mean 'head_dim'"):
        flexc.compile("score", headdim=64)
    with pytest.raises(TypeError):
        flexc.compile("score", head_dims=64)
    with pytest.raises(ValueError, match="zero byte"):
        flexc.compile("score\0")
    with pytest.raises(flexc.errors.InvalidOption, match="write a declaration"):
        flexc.compile("score", buffers={"t": "f32"})


def test_signature():
    signature = flexc.check("buffer t: i32[N]\nparam cap: f32 = 20.0\ncap * tanh(score / cap) + t[h]")
    assert signature.buffers == [("t", "i32", ("N",), False)]
    assert signature.params == [("cap", "f32", 20.0)]
    assert signature.score_depends_on == ["score", "h"] and signature.mask_depends_on == []
    assert "t: i32[N]" in repr(signature)


def test_explain():
    assert "tanh" in flexc.explain("tanh(score)", "ir")
    assert "sm_90" in flexc.explain("tanh(score)", "plan", arch="sm_90a") or flexc.explain("tanh(score)", "plan")
    kernel = flexc.compile("tanh(score)", dtype="f32", head_dim=16, device="cpu")
    assert "define" in kernel.explain("llvm")
    assert kernel.device == "cpu" and kernel.functions and kernel.has_backward
    assert flexc.supports("score", device="cpu") is None
    assert isinstance(flexc.supports("score +"), flexc.errors.ProgramError)


def test_mask_is_a_picture():
    mask = flexc.mask("mask_mod = q_idx >= kv_idx", 512, 512)
    assert mask.rows() == ["/...", "#/..", "##/.", "###/"]
    assert mask.sparsity == 37.5 and "37.5 %" in repr(mask)
    png = mask._repr_png_()
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", png[16:24])
    start = png.index(b"IDAT") + 4
    (size,) = struct.unpack(">I", png[start - 8:start - 4])
    assert len(zlib.decompress(png[start:start + size])) == height * (1 + 3 * width)
    doc = (np.arange(256) // 128).astype(np.int32)
    kernel = flexc.compile("score", mask_mod="doc[q_idx] == doc[kv_idx]", buffers={"doc": "i32[KV_LEN]"}, device="cpu")
    assert kernel.mask(256, 256, buffers={"doc": doc}).rows() == ["#.", ".#"]


def test_library():
    assert "alibi" in flexc.library and len(flexc.library) > 50
    mod = flexc.library["alibi"]
    assert mod.group == "score" and mod.summary
    flexc.compile(mod.text, dtype="f32", head_dim=8, device="cpu", backward=False)
    with pytest.raises(flexc.Error, match="alibi"):
        flexc.library["alibbi"]


def test_cache(tmp_path):
    options = {"dtype": "f32", "head_dim": 8, "device": "cpu", "cache_directory": str(tmp_path), "memory_cache": False}
    text = "score * 0.734 + 0.001 * h"
    assert not flexc.compile(text, **options).from_cache
    assert flexc.compile(text, **options).from_cache
    assert flexc.cache.statistics(cache_directory=str(tmp_path))["disk_entries"] >= 1
    flexc.cache.clear(cache_directory=str(tmp_path))
    assert flexc.cache.statistics(cache_directory=str(tmp_path))["disk_entries"] == 0
    assert "flexc.cache" in repr(flexc.cache)


def test_doctor():
    findings = flexc.doctor()
    assert any(f.what == "CPU backend" and f.found for f in findings)
    assert "CPU backend" in repr(findings)


def test_messages_are_logged(caplog):
    with caplog.at_level("WARNING", logger="flexc"):
        flexc.compile("buffer t: f32[H] grad\nscore", dtype="f32", head_dim=8, device="cpu")
    assert any("t" in record.message for record in caplog.records)


def test_stub_has_what_the_module_has():
    def names_of(body):
        return {node.name if hasattr(node, "name") else node.target.id for node in body
                if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AnnAssign))}

    def public(thing):
        return {name for name in vars(thing) if not name.startswith("_")}
    core = flexc._core
    stub = ast.parse(pathlib.Path(flexc.__file__).with_name("_core.pyi").read_text()).body
    assert names_of(stub) == public(core)
    for kind in stub:
        if isinstance(kind, ast.ClassDef):
            assert names_of(kind.body) - {"__new__"} == public(getattr(core, kind.name)), kind.name


def test_types(tmp_path):
    """What a type checker knows of a program, and that it finds nothing wrong in the package."""
    pytest.importorskip("mypy", reason="mypy is not installed")
    pytest.importorskip("torch", reason="PyTorch is not installed")
    program = tmp_path / "program.py"
    program.write_text("""import flexc
from flexc.torch import create_block_mask, create_mask
kernel = flexc.compile("score", dtype="f32", head_dim=8, device="cpu")
reveal_type(kernel.plan(1, 2, 3).backward(1, 2, 3, 4, 5, 6).buffers)
reveal_type(flexc.library["alibi"].text)
reveal_type(create_mask(lambda b, h, q, k: q >= k, 1, 1, 8, 8))
reveal_type(create_block_mask(lambda b, h, q, k: q >= k, None, None, 8, 8))
""")
    for checked in ([str(program)], ["-p", "flexc"]):
        ran = subprocess.run([sys.executable, "-m", "mypy", "--follow-imports=silent", "--cache-dir", str(tmp_path),
                              *checked], capture_output=True, text=True, cwd=tmp_path)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        if checked[0] == str(program):
            revealed = [line.split('"')[1] for line in ran.stdout.splitlines() if "Revealed" in line]
            kinds = ["dict[str, Any]", "str", "Tensor", "BlockMask"]
            assert [kind.rsplit(".", 1)[-1] if "[" not in kind else kind for kind in revealed] == kinds
