"""Plans of masks without structure are forgotten, with all that was made of them, before they fill the memory."""

import gc
import weakref

import pytest
import torch

import weft
from weft import caching
from weft.runtime import pipeline

from .compare import BACKENDS, Case, generator, qkv

SIZE, MASKS = 192, 7


@pytest.mark.parametrize("backend", BACKENDS)
def test_plans_of_masks_do_not_pile_up(backend, monkeypatch):
    """Room for two of them: whoever computes with a third finds the first gone, forward and backward, tables too."""
    made, sizes = [], []

    def plan(*args):
        found = planned(*args)
        made.append(weakref.ref(found))
        sizes.append(found.nbytes + found.metadata)
        return found

    planned = pipeline.plan_attention
    monkeypatch.setattr(pipeline, "plan_attention", plan)
    monkeypatch.setattr(caching, "SMALL", 0)
    monkeypatch.setattr(caching, "plans_bytes", lambda: 2 * max(sizes))
    monkeypatch.setattr(caching._kept, "warned", True)
    caching.clear()
    for each in range(MASKS):
        _attend(each, backend)
        gc.collect()
        assert sum(one() is not None for one in made) <= 2
    assert len(made) == MASKS


def _attend(each, backend):
    mask = torch.rand(SIZE, SIZE, generator=generator(f"mask {each}")) < 0.3
    pattern = weft.recognize(mask).pattern
    assert len(pattern.acsr(SIZE, SIZE).remainder) == (SIZE // 64) ** 2
    Case(pattern, qkv(generator("caching"), (SIZE, SIZE), heads=(1, 1), batch=1), backend=backend).weft()
