"""The way from a pattern to its plan."""

import numpy as np
import pytest

import weft
from weft.planning.attention_plan import plan_attention
from weft.planning.problem import Problem
from weft.runtime import pipeline
from weft.runtime.pipeline import compiled
from weft.target import CPU, GPU

PROBLEM = Problem(1, 2, 2, 300, 300, 64, 64, "bfloat16")


@pytest.mark.parametrize("target", [CPU, GPU], ids=["cpu", "gpu"])
def test_of_gradients_nothing_is_planned_before_they_are_asked(target, monkeypatch):
    """Nor to know what a plan holds."""
    monkeypatch.setattr(pipeline, "plan_attention", lambda *given: plan_attention(*given[:2], target))
    made, _ = compiled(weft.bigbird(64), PROBLEM)
    assert vars(made).keys() == vars(plan_attention(weft.bigbird(64), PROBLEM, target)).keys()
    assert "transposed" not in vars(made)


def test_what_a_mask_holds_is_counted_for_all_its_heads(monkeypatch):
    masks = [weft.recognize(np.random.default_rng(seed).random((300, 300)) < 0.3).pattern for seed in range(2)]
    counted = []
    monkeypatch.setattr(pipeline, "grew", counted.append)
    compiled(weft.per_head(masks), PROBLEM)
    assert counted == [sum(mask.acsr(300, 300).nbytes for mask in masks)]
