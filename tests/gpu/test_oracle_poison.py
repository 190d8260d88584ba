"""NaN in keys that no query of the call sees, and in rows that are padding, stays out of results on the oracle.

Kernels promise it where such keys lie apart from seen ones: beyond a padded length or a prefix, before a window, in
another block or residue class. The oracle reads what kernels read, and multiplies by weights of 0 as they do.
"""

import numpy as np
import pytest

import weft

from .checked import EXACT, Call, check, computed, programs

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
    "nothing": (weft.nothing(), 70, 70, [(EVERY, EVERY)]),
}  # fmt: skip
WAYS = {
    "two kernels": {"dims": (64, 64)}, "one kernel": {"dims": (64, 64), "one_kernel": True},
    "another card": {"card": "mi300x", "options": {"softcap": 2.0}}, "wide": {"dims": (128, 128), "card": "b200"},
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", UNSEEN)
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
@pytest.mark.parametrize("name", PADDED)
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


def test_a_key_between_seen_ones_is_not_promised():
    """The oracle shows it: a window's key among those of one tile reaches the tile's queries."""
    call = Call(weft.window(3, 3) & ~weft.global_tokens([30], rows=False), 60, heads=(1, 1), batch=1)
    given = {x: y.copy() for x, y in call.arrays().items()}
    given["v"][0, 0, 30] = np.nan
    found = computed(call, given)
    assert np.isnan(found["out"]).any()


def test_what_nobody_writes_shows():
    """Outputs and workspaces begin as NaN: without its fills a program of rows that see nothing leaves it there."""
    from dataclasses import replace

    from weft.kernels.gpu.oracle import run_program
    from weft.kernels.gpu.program import Fill

    call = Call(weft.causal(offset=-100), 150, heads=(1, 1), batch=1)
    (forward, _), arrays = programs(call), call.arrays()
    inputs = {name: arrays[name] for name in ("q", "k", "v")}
    assert not np.isnan(run_program(forward, inputs)["out"]).any()
    assert any(isinstance(step, Fill) for step in forward.steps)
    without = replace(forward, steps=tuple(step for step in forward.steps if not isinstance(step, Fill)))
    assert np.isnan(run_program(without, inputs)["out"][0, 0, :64]).all()
