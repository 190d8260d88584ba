"""Other forms of a mask: listed blocks, equal on every pair, and taken where they are predicted to be faster."""

import numpy as np
import pytest
import torch
from tests.fusion.helpers import M, agree, fused, qkv

import weft
from weft.fusion import decide, faster
from weft.fusion.decide import _forms, _predicted
from weft.fusion.forms import by_blocks
from weft.fusion.settings import Settings
from weft.planning.problem import Problem
from weft.recognition import recognize_mask
from weft.runtime.pipeline import compiled

N = 512


def sdpa(q, k, v, mask):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask)


def mask_of(pattern):
    return torch.from_numpy(pattern.to_dense(N))[None, None]


@pytest.mark.parametrize(
    "pattern", [weft.bigbird(64), weft.bigbird(32), weft.bigbird(64) & weft.causal(), weft.chunks(128)], ids=str
)
def test_blocks_say_the_mask(pattern):
    (form,) = by_blocks(mask_of(pattern))
    assert np.array_equal(form.to_dense(N), pattern.to_dense(N))


@pytest.mark.parametrize("pattern", [weft.window(left=9, right=0), weft.bigbird(16)], ids=str)
def test_what_blocks_do_not_say(pattern):
    assert not list(by_blocks(mask_of(pattern)))
    assert not list(by_blocks(mask_of(weft.chunks(128)).expand(2, 1, N, N)))


def fastest(live, problem):
    return min(_forms(live, problem), key=_predicted)


def test_the_faster_form_is_taken_on_a_gpu():
    live = mask_of(weft.bigbird(64))
    problem = Problem(16, 12, 12, N, N, 64, 64, "float16", "cuda")
    pattern, plan = fastest(live, problem)
    first = compiled(recognize_mask(live).pattern, problem)[0]
    assert plan.forwards.taken.seconds <= first.forwards.taken.seconds
    assert np.array_equal(pattern.to_dense(N), live[0, 0].numpy())
    assert fastest(live, Problem(1, 1, 1, N, N, 64, 64))[0].to_dense(N).sum() == live.sum()


@pytest.mark.parametrize(("seconds", "taken"), [(9e-6, True), (9.9e-6, False)])
def test_what_is_measured_decides(monkeypatch, seconds, taken):
    """A mask that keeps most pairs, and saves less than a call costs the host, is replaced where that is faster."""
    decide.forget()
    monkeypatch.setattr(Settings, "measures", lambda self, device: True)
    monkeypatch.setattr(faster, "of_graph", lambda *_: 10e-6)
    monkeypatch.setattr(faster, "of_pattern", lambda pattern, *_: seconds)
    live = torch.ones(M, M, dtype=torch.bool)
    live[0, 1] = False
    made, explanation = fused(sdpa, *qkv(), live, options={"weft.inner": "eager", "weft.least": 0})
    agree(made(*qkv(), live), sdpa(*qkv(), live))
    assert bool(explanation.replaced) is taken and "where the graph takes 10.0" in str(explanation)
