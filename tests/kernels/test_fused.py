"""Gradients of short windows in one walk, on a Hopper card: what runs as PTX too (tests/ptx), and larger ones."""

from dataclasses import replace
from unittest import mock

import pytest
import torch
from tests.ptx.problems import Call, check
from tests.ptx.test_fused import CALLS, PLAIN
from tests.triton.specs import card

import weft
from weft.planning.families import fused_backward

from .planned import computed
from .test_group_queries import HOPPER, beside_tokens

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not HOPPER, reason="no Hopper card")]

CARD = card("sm_90")
LARGE = {
    "many heads": Call(weft.causal() & weft.window(left=127), 700, heads=(64, 8), more=PLAIN),
    "more heads than processors": Call(weft.window(64, 64), 200, heads=(200, 200), more=PLAIN),
    "long": Call(weft.causal() & weft.window(left=100), 5000, heads=(2, 1), more=PLAIN),
    "both sides": Call(weft.window(20, 40), 3001, heads=(3, 3), more=PLAIN),
}


@pytest.fixture(autouse=True)
def _always(monkeypatch):
    """Whatever two kernels would take."""
    monkeypatch.setattr(fused_backward, "window_seconds", lambda *_: 0.0)


@pytest.mark.parametrize("lies", [lambda case: case, beside_tokens], ids=["heads first", "tokens first"])
@pytest.mark.parametrize("name", CALLS | LARGE)
def test_right_and_the_same_bits_twice(name, lies):
    case = lies((CALLS | LARGE)[name].case())
    directions, found = computed(case, CARD)
    assert directions == ["forward", "fused"]
    check(case, found)
    for _ in range(3):
        _, again = computed(case, CARD)
        assert all(torch.equal(x, found[name]) for name, x in again.items())


def test_batch_rows():
    """Each as it is alone."""
    case = CALLS["causal window"].case()
    _, alone = computed(case, CARD)
    twice = replace(case, tensors=tuple(torch.cat([x, x]) for x in case.tensors))
    seeds = [torch.cat([x, x]) for x in case.seeds()]
    with mock.patch.object(type(case), "seeds", lambda self: seeds):
        _, both = computed(twice, CARD)
    for row in range(2):
        assert all(torch.equal(x[row : row + 1], alone[name]) for name, x in both.items())
