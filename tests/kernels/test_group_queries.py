"""The forward by warp groups on a Hopper card: what runs as PTX too (tests/ptx), and larger ones."""

from dataclasses import replace

import pytest
import torch
from tests.ptx.problems import Call, check
from tests.ptx.test_group_queries import CALLS, FIXED, loud
from tests.triton.specs import card

import weft

from .planned import bound, results, specs_of

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not HOPPER, reason="no Hopper card")]

LARGE = {
    "window of 256 either side": Call(weft.window(256, 256), 3000),
    "causal window of 128": Call(weft.causal() & weft.window(left=127), 2048),
    "dilated by 4": Call(weft.dilated(200, 200, 4), 2400, heads=(2, 2)),
    "every 128th key": Call(weft.causal() & (weft.periodic_keys(128) | weft.window(left=127)), 2500, heads=(2, 2)),
    "full attention": Call(weft.full(), 1500),
}


def computed(case, fixed=FIXED):
    """(how many warp groups of each kernel that is prepared, results) of a forward."""
    with bound() as programs:
        found = results(case, card("sm_90"), fixed, "cuda", backward=False)
    return [spec.groups for spec in specs_of(programs)], found


def beside_tokens(case):
    """(B, S, H, D) in memory."""
    return replace(case, tensors=tuple(x.transpose(1, 2).contiguous().transpose(1, 2) for x in case.tensors))


@pytest.mark.parametrize("lies", [lambda case: case, beside_tokens], ids=["heads first", "tokens first"])
@pytest.mark.parametrize("makes", [lambda case: case, loud], ids=["usual", "loud"])
@pytest.mark.parametrize("name", CALLS | LARGE)
def test_right_and_the_same_bits_twice(name, makes, lies):
    case = lies(makes((CALLS | LARGE)[name].case()))
    groups, found = computed(case)
    assert groups == [4]
    check(case, found)
    _, again = computed(case)
    assert all(torch.equal(x, found[name]) for name, x in again.items())
