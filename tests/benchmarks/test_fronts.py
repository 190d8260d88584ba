"""benchmarks/flex_front.py and video_blocks.py without a GPU and diffusers: what they time, and their ratios."""

import importlib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module


@pytest.mark.more
@pytest.mark.skipif(torch.cuda.is_available(), reason="there launches do something")
def test_an_interface_is_timed_beside_what_it_calls(script):
    front = script("flex_front")
    found = dict(front.added(calls=3, rounds=2))
    assert list(found) == ["a mask"] and len(found["a mask"]) == 2
    assert front.first("documents") > 0


def test_a_mask_whose_process_fails_is_left_out(script, monkeypatch, capsys):
    front = script("flex_front")
    monkeypatch.setattr(front, "firsts", lambda mask: front._failed("no card") if mask == "window" else [1.0])
    monkeypatch.setattr(front, "added", lambda calls, rounds: iter([("a mask", [3.0])]))
    assert [what for what, _, _ in front.found(1, 1)] == [
        "flex_attention over weft.attention, a mask", f"first create_block_mask, documents, {front.TOKENS} tokens",
    ]  # fmt: skip
    assert "no card" in capsys.readouterr().err


def test_what_is_allowed_of_a_block(script, monkeypatch):
    """100 ms, of which 60 are attention with a quarter of its pairs live: 40 + 15."""
    blocks = script("video_blocks")
    under = []
    block = SimpleNamespace(cuda=False, under=under.append, problem=lambda: {"live": "0.25"})
    times = {blocks.State: 50.0, blocks.ByFlex: 80.0, None: 100.0, blocks.ByNothing: 40.0}
    monkeypatch.setattr(blocks, "timed", lambda block, direction, rounds: times[under[-1]])
    rows = list(blocks.measured(block, list(blocks.METHODS), rounds=1))
    assert [(row["method"], row["of_weft"], row["allowed"]) for row in rows[:4]] == [
        ("weft", "1.00", ""), ("flex", "1.60", ""), ("dense", "2.00", "1.82"), ("nothing", "0.80", ""),
    ]  # fmt: skip
    assert {row["direction"] for row in rows[4:]} == {"fwd"}


@pytest.mark.parametrize("off", [1.4, 1.6])
def test_a_block_may_be_as_far_from_float32_as_a_dense_masks(script, monkeypatch, capsys, off):
    """Of each tensor by its own norm; what is zero by mathematics, and noise in both, is no difference."""
    blocks = script("video_blocks")
    exact = {"the output": torch.ones(4), "bias": torch.full((4,), 1e-4), "zero": torch.zeros(4)}
    noise = {blocks.ByMask: (1.01, 1e-12), blocks.State: (1 + off / 100, -3e-12)}

    class Block:
        def __init__(self, *_):
            self.model = torch.nn.Linear(2, 2, dtype=torch.bfloat16)

        def in_float32(self):
            return SimpleNamespace(under=lambda kind: None, results=lambda: exact)

        def under(self, kind):
            self.factor, self.added = noise[kind]

        def results(self):
            return {name: x * (self.factor if name == "bias" else 1) + self.added for name, x in exact.items()}

    monkeypatch.setattr(blocks, "Block", Block)
    if off < blocks.MORE:
        blocks.beside_a_dense_mask("ltx")
        assert "furthest off is bias: 1.4e-02 of its norm, a dense mask's 1.0e-02" in capsys.readouterr().out
    else:
        with pytest.raises(ValueError, match=r"ltx: bias of weft is 1\.5 times"):
            blocks.beside_a_dense_mask("ltx")
