"""Other forms of a mask: listed blocks, equal on every pair, and taken where they are predicted to be faster."""

import numpy as np
import pytest
import torch

import weft
from weft.fusion.decide import _fastest
from weft.fusion.forms import by_blocks
from weft.planning.problem import Problem
from weft.recognition import recognize_mask
from weft.runtime.pipeline import compiled

N = 512


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


def test_the_faster_form_is_taken_on_a_gpu():
    live = mask_of(weft.bigbird(64))
    problem = Problem(16, 12, 12, N, N, 64, 64, "float16", "cuda")
    pattern, plan = _fastest(live, problem)
    first = compiled(recognize_mask(live).pattern, problem)[0]
    assert plan.forwards.taken.seconds <= first.forwards.taken.seconds
    assert np.array_equal(pattern.to_dense(N), live[0, 0].numpy())
    assert _fastest(live, Problem(1, 1, 1, N, N, 64, 64))[0].to_dense(N).sum() == live.sum()
