"""Gradients of few keys beside a short window, on a Hopper card: what runs as PTX too (tests/ptx), and larger ones."""

from dataclasses import replace

import pytest
import torch
from tests.ptx.problems import Call, check
from tests.ptx.test_sparse_keys import CALLS, CAUSAL, EVERY_FOURTH, PLAIN
from tests.triton.specs import card

import weft
from weft.planning.families import fused_backward, sparse_keys

from .planned import computed
from .test_group_queries import HOPPER, beside_tokens

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not HOPPER, reason="no Hopper card")]

STRIDED = CAUSAL & (weft.window(left=127) | weft.periodic_keys(step=16))
CARD = card("sm_90")
LARGE = {
    "many heads": Call(STRIDED, 700, heads=(64, 8), more=PLAIN),
    "more heads than processors": Call(EVERY_FOURTH, 200, heads=(200, 200), more=PLAIN),
    "long": Call(STRIDED, 5000, heads=(2, 1), more=PLAIN),
    "first keys, long": Call(CAUSAL & (weft.window(left=100) | weft.prefix(100)), 3001, heads=(3, 3), more=PLAIN),
    "later keys too": Call(weft.window(20, 40) | weft.periodic_keys(step=16), 1000, heads=(2, 2), more=PLAIN),
}


@pytest.fixture(autouse=True)
def _always(monkeypatch):
    """Whatever two kernels would take."""
    monkeypatch.setattr(fused_backward, "window_seconds", lambda *_: 0.0)
    monkeypatch.setattr(sparse_keys, "seconds", lambda *_: 0.0)


@pytest.mark.parametrize("lies", [lambda case: case, beside_tokens], ids=["heads first", "tokens first"])
@pytest.mark.parametrize("name", CALLS | LARGE)
def test_right_and_the_same_bits_twice(name, lies):
    case = lies((CALLS | LARGE)[name].case())
    directions, found = computed(case, CARD)
    walked = [one for one in directions if one != "forward"]
    assert walked[0] == "fused"
    assert walked[1:] == ["sparse_keys", "reduce_partials"] * (len(walked) // 2)
    check(case, found)
    for _ in range(3):
        _, again = computed(case, CARD)
        assert all(torch.equal(x, found[name]) for name, x in again.items())


def test_batch_rows():
    case = CALLS["two tiles of keys"].case()
    case = replace(case, tensors=tuple(torch.cat([x, 2 * x]) for x in case.tensors))
    directions, found = computed(case, CARD)
    assert "sparse_keys" in directions
    check(case, found)
