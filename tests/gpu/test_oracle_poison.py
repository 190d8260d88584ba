"""NaN in keys that no query of the call sees, and in rows that are padding, stays out of results on the oracle.

Kernels promise it where such keys lie apart from seen ones: beyond a padded length or a prefix, before a window, in
another block or residue class. The oracle reads what kernels read, and multiplies by weights of 0 as they do.
"""

from dataclasses import replace

import numpy as np
import pytest
from tests.tiers import every

import weft
from weft.kernels.gpu.oracle import run_program
from weft.kernels.gpu.program import Fill

from .checked import EXACT, Call, check, computed, given_to, programs

EVERY = slice(None)
# name -> (pattern, m, n, the keys that no query sees by batch row)
UNSEEN = {
    "padding": (weft.padding([37, 90]), 90, 90, [(0, slice(37, None))]),
    "padding, causal": (weft.padding([37, 90]) & weft.causal(), 90, 90, [(0, slice(37, None))]),
    "padding of all": (weft.padding([0, 200]), 90, 200, [(0, EVERY)]),
    "prefix": (weft.prefix(19), 90, 90, [(EVERY, slice(19, None))]),
    "causal, fewer queries": (weft.causal(align="top-left"), 50, 131, [(EVERY, slice(50, None))]),
    "before a window": (
        weft.causal(align="bottom-right") & weft.window(left=30, align="bottom-right"), 50, 131,
        [(EVERY, slice(None, 51))],
    ),
    "residue classes": (weft.periodic_keys(4), 90, 90, [(EVERY, slice(x, None, 4)) for x in range(3)]),
    "empty blocks": (weft.blocks(64, [(0, 2), (1, 2), (2, 0)]), 190, 190, [(EVERY, slice(64, 128))]),
    "blocks of single pairs": (weft.bigbird(8) & weft.padding([37, 90]), 90, 90, [(0, slice(37, None))]),
    "a query that a list leaves alone": (
        weft.window(20, 0) & ~weft.global_tokens([*range(40), 62], columns=False), 64, 64, [(EVERY, slice(None, 20))],
    ),
    "rows of a grid": (weft.neighborhood([10, 9], [5, 5]) & weft.prefix(45), 90, 90, [(EVERY, slice(45, None))]),
    "scattered keys of no query": (
        weft.documents(ids=[1, 2, 4] * 30, key_ids=[0, 1, 2] * 30), 90, 90, [(EVERY, slice(0, None, 3))]
    ),
    "nothing": (weft.nothing(), 70, 70, [(EVERY, EVERY)]),
}  # fmt: skip
WAYS = {
    "two kernels": {"dims": (64, 64)}, "one kernel": {"dims": (64, 64), "one_kernel": True},
    "another card": {"card": "mi300x", "options": {"softcap": 2.0}}, "wide": {"dims": (128, 128), "card": "b200"},
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", every(3, UNSEEN))
def test_keys_that_no_query_sees(name, way):
    pattern, m, n, unseen = UNSEEN[name]
    call = Call(pattern, m, n, **WAYS[way])
    given = {x: y.copy() for x, y in call.arrays().items()}
    for batch, keys in unseen:
        given["k"][batch][..., keys, :] = np.nan
        given["v"][batch][..., keys, :] = np.nan
    found = check(call, given)
    dead = np.isnan(given["k"])
    assert dead.any()
    assert (found["dk"][dead] == 0).all()
    assert (found["dv"][dead] == 0).all()


ROWS = weft.padding([37, 90], rows=True)
PADDED = {"alone": ROWS, "causal": ROWS & weft.causal(), "blocks": ROWS & weft.bigbird(8)}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", every(3, PADDED))
def test_everything_that_is_padding(name, way):
    """Beyond the length of a batch row q, k, v and the gradient of out may hold anything."""
    more = WAYS[way]
    call = Call(PADDED[name], 90, **(more | {"options": {**more.get("options", {}), "sinks": True}}))
    arrays = call.arrays()
    given = {x: y.copy() for x, y in arrays.items()}
    for x in ("q", "k", "v", "dout"):
        given[x][0, :, 37:] = np.nan
    clean = computed(call, arrays)
    for x, y in computed(call, given).items():
        np.testing.assert_allclose(y, clean[x], **EXACT, err_msg=x)


# name -> (pattern, where its last document begins, in which everything is NaN)
APART = {
    "documents": (weft.documents([37, 1, 52]), 38),
    "causal documents": (weft.causal() & weft.documents([37, 1, 52]), 38),
    "short documents": (weft.causal() & weft.documents([1 + i % 5 for i in range(30)]), 85),
    "other numbers of keys": (weft.documents([50, 40], key_lengths=[30, 60]), 50),
    "segments": (weft.segments([37, 1, 52], [[weft.causal(), None, None], [None, True, None], [None, None, True]]), 38),
    "nothing before the fifth": (weft.causal(offset=-5) & weft.documents([37, 1, 52]), 38),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", every(4, APART))
def test_other_documents(name, way):
    """What a document holds reaches no other one, forward and backward."""
    pattern, first = APART[name]
    first_key = 30 if name == "other numbers of keys" else first
    call = Call(pattern, 90, **WAYS[way])
    arrays = call.arrays()
    given = {x: y.copy() for x, y in arrays.items()}
    for x in ("q", "k", "v", "dout"):
        given[x][0, :, first_key if x in "kv" else first :] = np.nan
    clean = computed(call, arrays)
    for x, y in computed(call, given).items():
        before = first_key if x in ("dk", "dv") else first
        np.testing.assert_allclose(y[0, :, :before], clean[x][0, :, :before], **EXACT, err_msg=x)
        np.testing.assert_allclose(y[1], clean[x][1], **EXACT, err_msg=x)


@pytest.mark.parametrize("pattern", [weft.causal(offset=-5), weft.blocks(64, [(0, 0), (2, 1)])], ids=str)
@pytest.mark.parametrize("one_kernel", [False, True])
def test_the_gradient_of_lse_in_rows_that_see_nothing(pattern, one_kernel):
    """It may be anything there, as what torch.logaddexp sends back where both of its terms are -inf."""
    call = Call(pattern, 190, heads=(2, 1), one_kernel=one_kernel, options={"lse": True, "with_delta": True})
    arrays = call.arrays()
    empty = ~pattern.to_dense(190, 190).any(1)
    assert empty.any()
    given = {x: y.copy() for x, y in arrays.items()}
    given["dlse"][..., empty] = np.nan
    check(call, given)


def test_a_key_that_one_query_of_a_tile_sees_is_not_promised():
    """Other queries of the tile multiply it by a weight of 0, on the oracle as in a kernel."""
    call = Call(weft.window(3, 3), 60, heads=(1, 1), batch=1)
    given = {x: y.copy() for x, y in call.arrays().items()}
    given["v"][0, 0, 30] = np.nan
    assert np.isnan(computed(call, given)["out"]).all()


def test_what_nobody_writes_shows():
    """Outputs and workspaces begin as NaN: without its fills a program leaves it where no kernel writes."""
    call = Call(weft.blocks(64, [(0, 0), (2, 1)]), 190, heads=(1, 1), batch=1)
    (forward, _), arrays = programs(call), call.arrays()
    without = replace(forward, steps=tuple(step for step in forward.steps if not isinstance(step, Fill)))
    assert len(without.steps) < len(forward.steps)
    whole, holed = (run_program(one, given_to(one, arrays)) for one in (forward, without))
    assert not np.isnan(whole["out"]).any()
    assert np.isnan(holed["out"][0, 0, 64:128]).all()
    assert np.array_equal(holed["out"][0, 0, :64], whole["out"][0, 0, :64])
