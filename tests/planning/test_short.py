"""Which gradients come of one walk over queries, and that its tiles hold what a short window sees."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from weft.errors import VerificationError
from weft.planning.attention_plan import plan_attention
from weft.planning.families import fused_backward
from weft.planning.families.fused_backward import SEEN, FusedBackward, ShortWindow, cut, has_kernel, window_seconds
from weft.planning.families.sparse_keys import TILE
from weft.planning.families.tile import usual
from weft.planning.problem import Problem
from weft.planning.verify_fused import verify_fused, verify_window
from weft.target import GPUS
from weft.testing.refusals import refuse

H200, ROOT = GPUS["h200"], Path(__file__).parents[2]
NAMES = ("left", "right", "batch", "q_heads", "kv_heads", "tokens")
CAUSAL = weft.causal() & weft.window(left=127)


def problem(tokens=4096, heads=(16, 16), d=64, dtype="bfloat16", batch=1):
    return Problem(batch, *heads, tokens, tokens, d, d, dtype, "cuda")


def planned(pattern, given=None, gpu=H200, fixed=()):
    return plan_attention(pattern, given or problem(), gpu, fixed)


def of_window(left, right, length):
    """(the term of a window, how many tokens)"""
    (term,) = weft.window(left, right).acsr(length, length).terms
    return term, length


@pytest.mark.parametrize(
    ("pattern", "left", "right"),
    [
        (CAUSAL, 127, 0),
        (weft.window(64, 64), 64, 64),
        (weft.window(3, 5), 3, 5),
        (weft.window(0, 128), 0, 128),
        (weft.causal() & weft.window(20, 30), 20, 0),
        (weft.dilated(9, 9, 1), 9, 9),
    ],
    ids=str,
)
def test_short_windows_are_taken(pattern, left, right):
    plan = planned(pattern)
    assert plan.fused_backward == FusedBackward(ShortWindow(4096, left, right), 0)
    plan.verify()
    assert "but taken is: one pass over queries" in plan.explain()


@pytest.mark.parametrize(
    ("pattern", "given", "gpu"),
    [
        (weft.window(129, 0), None, H200),
        (weft.window(65, 64), None, H200),  # no multiple of 64 is so far before 64 queries that see so many keys
        (weft.window(100, 20), None, H200),
        (weft.causal(), None, H200),
        (weft.dilated(9, 9, 2), None, H200),
        (CAUSAL & weft.documents([2000, 2096]), None, H200),
        (CAUSAL & weft.padding([3000]), None, H200),
        (CAUSAL | weft.global_tokens(3), None, H200),  # where some queries see all keys
        (weft.per_head([CAUSAL, weft.window(9, 9)] * 8), None, H200),
        (CAUSAL, problem(dtype="float16"), H200),
        (CAUSAL, problem(d=128), H200),
        (CAUSAL, None, GPUS["a100"]),
        (CAUSAL, None, GPUS["b200"]),
    ],
    ids=str,
)
def test_others_are_not(pattern, given, gpu):
    plan = planned(pattern, given, gpu)
    assert plan.fused is None
    assert plan.fused_backward is None


ROWS = weft.global_tokens(64, columns=False)  # whole tiles of queries that a window beside it does not have
LAST = weft.global_tokens(range(4096 - 128, 4096), columns=False)


PARTLY = {
    "but the first, beside keys": (weft.window(20, 20) & ~ROWS) | weft.prefix(8),
    "but the last, beside keys": (weft.window(20, 20) & ~LAST) | weft.periodic_keys(64),
    "but the first, which see all": CAUSAL | ROWS,
    "but the last, which see all": weft.window(20, 20) | LAST,
    "but the first": weft.window(20, 20) & ~ROWS,
}


@pytest.mark.parametrize("name", PARTLY)
@pytest.mark.parametrize("heads", [(1, 1), (64, 64)])
def test_a_window_that_some_tiles_of_queries_do_not_have_is_not_taken(name, heads):
    """Of these tiles lines say nothing, since other kernels pass them over."""
    plan = planned(PARTLY[name], problem(heads=heads))
    assert plan.fused is None
    plan.verify()


def test_a_window_is_held_to_the_pattern_before_it_is_taken(monkeypatch):
    """Whatever is taken for a window by mistake, as those above were once."""
    monkeypatch.setattr(fused_backward, "_of_all", lambda launch, length: True)
    plan = planned(PARTLY["but the first, beside keys"], problem(heads=(64, 64)))
    assert plan.fused is not None
    refuse(lambda: plan.fused_backward, VerificationError, ("rows do not see the", "ShortWindow"))


NEAR_64 = st.sampled_from([0, 1, 20, 63, 64, 65, 100])
TOKENS = st.sampled_from([1, 64, 128, 130, 192])
OTHERS = st.one_of(
    st.builds(weft.prefix, TOKENS),
    st.builds(weft.periodic_keys, st.sampled_from([31, 64, 100])),
    st.builds(lambda n: weft.global_tokens(n, columns=False), TOKENS),
)


@settings(deadline=None)
@given(st.builds(weft.window, NEAR_64, NEAR_64), st.lists(st.tuples(st.sampled_from("|&~"), OTHERS), max_size=3))
def test_what_is_walked_is_what_is_seen(pattern, others):
    for how, other in others:
        pattern = {"|": pattern | other, "&": pattern & other, "~": pattern & ~other}[how]
    plan = planned(pattern, problem(tokens=320, heads=(1, 1)))
    if plan.fused is not None:
        verify_fused(plan.fused, plan.forward[0].plan.acsr)


def test_nor_where_few_heads_of_keys_are_shared_by_many():
    given = problem(1024, (32, 1))
    plan = planned(CAUSAL, given)
    assert plan.fused
    assert plan.fused_backward is None
    two = plan.candidate("dq").cost.seconds + plan.candidate("dkdv").cost.seconds
    assert plan.fused.seconds(given, H200) > two
    assert "rejected: one pass over queries" in plan.explain()


def test_the_walk_takes_what_is_predicted():
    """Rows of an H200: its own constants are fitted to the first of them."""
    with (ROOT / "benchmarks" / "results" / "short-windows.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if "H200" in row["device"]]
    assert rows
    for row in rows:
        left, right, batch, q_heads, kv_heads, tokens = (int(row[name]) for name in NAMES)
        given = problem(tokens, (q_heads, kv_heads), batch=batch)
        walk = window_seconds(ShortWindow(tokens, left, right), given, H200)
        assert walk == pytest.approx(1e-6 * float(row["walk_us"]), rel=0.1), row
        assert (planned(weft.window(left, right), given).fused_backward is not None) == (row["taken"] == "True")


def test_nor_where_there_are_not_as_many_keys_as_queries():
    assert has_kernel(problem(), H200)
    assert not has_kernel(replace(problem(), n=5000), H200)
    assert not has_kernel(problem(0), H200)
    assert not has_kernel(problem(batch=0), H200)


@pytest.mark.parametrize("direction", ["dq", "dkdv"])
def test_nor_where_a_tiling_is_asked_for(direction):
    fixed = ((direction, usual(direction, problem(), 1, H200)),)
    assert planned(CAUSAL, fixed=fixed).fused_backward is None


@given(length=st.integers(1, 700), left=st.integers(0, 140), right=st.integers(0, 140))
def test_tiles_hold_what_is_seen(length, left, right):
    """Those windows that say so; every tile that is written begins at a token; every key is in one of the tiles."""
    window = ShortWindow(length, left, right)
    rows = np.arange(length)
    first = rows // TILE * TILE - window.shift
    if window.fits:
        assert (np.maximum(rows - left, 0) >= first).all()
        assert (np.minimum(rows + right, length - 1) < first + SEEN * TILE).all()
        verify_window(window, *of_window(left, right, length))
    assert window.shift % TILE == 0
    assert window.tiles * TILE - window.shift >= length > (window.tiles - 1) * TILE - window.shift


@given(length=st.integers(1, 10**6), heads=st.integers(1, 600))
def test_runs_cover_all_tiles_once(length, heads):
    window = ShortWindow(length, 127, 0)
    found = cut(window, problem(length, (heads, heads)), H200)
    assert (found.runs - 1) * found.per < window.tiles <= found.runs * found.per
    whole = -(-heads // 132) * (window.tiles + SEEN - 1)
    assert found.steps <= whole


@pytest.mark.parametrize("wrong", [{"left": 126}, {"left": 128}, {"right": 1}])
def test_a_wrong_window_is_refused(wrong):
    with pytest.raises(VerificationError, match="do not see"):
        verify_window(replace(ShortWindow(500, 127, 0), **wrong), *of_window(127, 0, 500))
    with pytest.raises(VerificationError, match="more than 3 tiles"):
        verify_window(ShortWindow(500, 190, 0), *of_window(190, 0, 500))
