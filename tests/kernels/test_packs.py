"""Unlike heads apart, in launches that follow each other: chosen by cost, so at sizes that tests can afford they are
made to.
"""

from math import inf

import pytest

import weft
from weft import caching
from weft.planning.attention_plan import plan_attention
from weft.planning.families import base
from weft.planning.problem import Problem
from weft.target import GPU

from .compare import BACKENDS, Case, check, generator, normal, qkv

pytestmark = pytest.mark.skipif("triton" not in BACKENDS, reason="other backends plan every head alone")

STRIDED = weft.causal() & weft.strided(8)
UNLIKE = {
    "strided beside dense": [STRIDED, weft.causal(), STRIDED, weft.causal()],
    "tables beside formulas": [weft.documents([40, 3, 57]) & weft.causal(), weft.window(9, 9)] * 2,
    "rows without a key": [weft.nothing(), weft.causal(), STRIDED, weft.window(5, 0)],
}


@pytest.fixture(autouse=True)
def _apart(monkeypatch):
    """Packs, whatever they cost."""
    monkeypatch.setattr(base, "WORTH", inf)
    caching.clear()
    yield
    caching.clear()


@pytest.mark.parametrize("kv_heads", [4, 1])
@pytest.mark.parametrize("name", UNLIKE)
def test_unlike_heads(name, kv_heads):
    """Where heads share keys, packs add to the same rows of dK and dV."""
    pattern = weft.per_head(UNLIKE[name])
    plan = plan_attention(pattern, Problem(2, 4, kv_heads, 100, 100, 8, 8, "float32", "cuda"), GPU)
    assert len({share.pack for share in plan.forward}) > 1
    assert len({share.pack for share in plan.transposed}) > 1
    tensors = qkv(generator(f"packs {name}"), (100, 100), heads=(4, kv_heads), dims=(8, 8))
    check(Case(pattern, tensors, options={"sinks": normal((4,), generator("sinks"))}, backend="triton"))
