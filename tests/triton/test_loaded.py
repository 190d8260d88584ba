"""Tables on a device: none goes while a kernel may read it."""

import gc
import weakref

import pytest
import torch

import weft
from weft import caching
from weft.kernels.triton import launch, loaded
from weft.planning.attention_plan import plan_attention
from weft.planning.problem import Problem
from weft.target import GPU

CARD = torch.device("cuda", 1)


@pytest.fixture
def tables():
    plan = plan_attention(weft.causal(), Problem(1, 1, 1, 100, 100, 64, 64, "bfloat16", "cuda"), GPU)
    found = loaded.loaded(plan.forward, plan.problem, False, torch.device("cpu"))
    return [weakref.ref(words) for _, words in found.waves]


@pytest.mark.parametrize("capturing", [False, True])
def test_kernels_end_before_tables_are_forgotten(capturing, tables, monkeypatch):
    """But for a graph's capture, which may not be waited for."""
    waited = []
    monkeypatch.setattr(loaded, "_devices", {CARD})
    monkeypatch.setattr(launch, "is_capturing", lambda: capturing)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda gpu: waited.append((gpu, [x() is None for x in tables])))
    caching.clear()
    gc.collect()
    assert waited == ([] if capturing else [(CARD, [False] * len(tables))])
    assert tables and all(x() is None for x in tables)


def test_where_tables_are(monkeypatch):
    monkeypatch.setattr(loaded, "_devices", set())
    words = torch.arange(5, dtype=torch.int32)
    assert torch.equal(loaded.put(words.numpy(), torch.device("cpu")), words)
    assert not loaded._devices  # nothing there is to be waited for
    loaded.put(words.numpy(), torch.device("meta"))
    assert loaded._devices == {torch.device("meta")}
