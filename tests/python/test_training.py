"""A model with a learned bias learns as PyTorch's own does, and what docs/python.md shows runs."""
import re

import pytest

import flexc  # noqa: F401
from conftest import ROOT

GUIDE = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs/python.md").read_text(), re.MULTILINE | re.DOTALL)


def test_training():
    pytest.importorskip("torch", reason="PyTorch is not installed")
    import train_learned_bias
    ours, theirs = train_learned_bias.train(True, 60), train_learned_bias.train(False, 60)
    assert max(abs(a - b) for a, b in zip(ours[:20], theirs[:20])) < 1e-3
    assert ours[-1] < 0.5 and theirs[-1] < 0.5


def test_guide(capsys):
    names = {}
    assert len(GUIDE) == 5
    for code in GUIDE:
        if "torch" in code:
            pytest.importorskip("torch", reason="PyTorch is not installed")
        exec(code, names)
    assert "torch.Size" in capsys.readouterr().out or names["gradients"].q.shape == (1, 4, 128, 64)
