"""Plans of masks without structure are forgotten, with all that was made of them, before they fill the memory."""

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from time import sleep

import pytest
import torch

import weft
from weft import caching
from weft.runtime import pipeline
from weft.settings import interpreted

from .compare import BACKENDS, Case, generator, qkv

SIZE, MASKS = 192, 7


@pytest.fixture(params=BACKENDS)
def made(request, monkeypatch):
    """Weak references to the plans that were made; there is room for two of them."""
    plans = []

    def plan(*args):
        found = planned(*args)
        plans.append(weakref.ref(found))
        return found

    planned = pipeline.plan_attention
    monkeypatch.setattr(pipeline, "plan_attention", plan)
    monkeypatch.setattr(caching, "SMALL", 0)
    monkeypatch.setattr(caching, "plans_bytes", lambda: 2 * _pattern(0).acsr(SIZE, SIZE).nbytes)
    monkeypatch.setattr(caching._kept, "warned", True)
    caching.clear()
    return plans


@pytest.mark.more
def test_plans_of_masks_do_not_pile_up(made, request):
    """Whoever computes with a third finds the first gone, forward and backward, tables too."""
    for each in range(MASKS):
        _case(each, request).weft()
        gc.collect()
        assert sum(one() is not None for one in made) <= 2
    assert len(made) == MASKS


@pytest.mark.skipif(interpreted(), reason="Triton interprets in one thread at a time")
def test_others_may_forget_meanwhile(made, request):
    cases = [_case(each, request) for each in range(3)]
    truth = [case.weft() for case in cases]
    with ThreadPoolExecutor(3) as pool:
        found = [pool.submit(cases[each % 3].weft) for each in range(12)]
        while not all(one.done() for one in found):
            caching.clear()
            sleep(0.01)
    for each, one in enumerate(found):
        for name, x in one.result().items():
            assert torch.equal(x, truth[each % 3][name]), name


def _pattern(each):
    mask = torch.rand(SIZE, SIZE, generator=generator(f"mask {each}")) < 0.3
    pattern = weft.recognize(mask).pattern
    assert len(pattern.acsr(SIZE, SIZE).remainder) == (SIZE // 64) ** 2
    return pattern


def _case(each, request):
    backend = request.node.callspec.params["made"]
    return Case(_pattern(each), qkv(generator("caching"), (SIZE, SIZE), heads=(1, 1), batch=1), backend=backend)
