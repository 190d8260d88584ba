"""dQ, dV and dK at D=256 by warp groups, a launch each, as PTX, on a card of one processor."""

import pytest
import torch
from tests.kernels.planned import results

import weft
from weft.settings import interpreted

from .problems import ORDERS, Call, check
from .run import Way, emulated
from .test_group_queries import few
from .threads import EAGER

pytestmark = pytest.mark.skipif(interpreted(), reason="Triton interprets, and compiles nothing")

WIDEST = (256, 256)
CALLS = {
    "causal": Call(weft.causal(), 300, WIDEST, heads=(1, 1)),
    "heads share keys": Call(weft.causal() & weft.window(left=150), 300, WIDEST, heads=(4, 2)),
    "full": Call(weft.full(), 200, WIDEST, heads=(1, 1)),
    "documents": Call(weft.causal() & weft.documents([30, 100, 1, 129, 60]), 320, WIDEST, heads=(1, 1)),
    "keys that no query sees": Call(weft.window(20, 20) & weft.padding([150]), 250, WIDEST, heads=(1, 1)),
    "float16": Call(weft.causal(), 200, WIDEST, torch.float16, heads=(1, 1)),
}


@pytest.mark.more
@pytest.mark.parametrize("name", CALLS)
def test_right_in_every_order(name):
    """The same bits, however early or late copies and products come."""
    case = CALLS[name].case()
    with emulated(Way(90, EAGER, lambda name, text: text)) as names:
        found = results(case, few(1))
    by_groups = [
        one.partition("_bfloat16" if case.tensors[0].dtype == torch.bfloat16 else "_float16")[0]
        for one in names
        if "_2_groups_" in one
    ]
    assert by_groups == ["forward", "dq", "dkdv_dv", "dkdv_dk"]
    check(case, found)
    with emulated(Way(90, ORDERS["late, warps reversed"], lambda name, text: text)):
        again = results(case, few(1))
    assert all(torch.equal(x, found[name]) for name, x in again.items())
