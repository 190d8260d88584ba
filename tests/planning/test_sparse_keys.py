"""Keys that many queries see beside a short window: which are found, cut into launches, and told to their kernel."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft
from weft.errors import VerificationError
from weft.planning.attention_plan import plan_attention
from weft.planning.families.sparse_keys import EDGES, GROUPS, RANGES, TILE, TILES, SparseKeys, parts_of
from weft.planning.problem import Problem
from weft.planning.verify_fused import verify_fused, verify_sparse_keys
from weft.target import GPUS

H200, ROOT = GPUS["h200"], Path(__file__).parents[2]
CAUSAL, NEAR = weft.causal(), weft.window(left=127)


def planned(pattern, tokens=4096, heads=(16, 16), batch=1):
    problem = Problem(batch, *heads, tokens, tokens, 64, 64, "bfloat16", "cuda")
    return plan_attention(pattern, problem, H200)


@pytest.mark.parametrize(
    ("pattern", "keys"),
    [
        (CAUSAL & (NEAR | weft.periodic_keys(step=128)), [(127, 128, 31)]),
        (CAUSAL & (NEAR | weft.prefix(4)), [(0, 1, 4)]),
        (CAUSAL & (NEAR | weft.periodic_keys(step=16)), [(15, 16, 128), (2063, 16, 120)]),
        (CAUSAL & (NEAR | weft.global_tokens([0, 1, 2], rows=False)), [(0, 1, 3)]),
    ],
    ids=str,
)
def test_keys_beside_a_window_are_found(pattern, keys):
    plan = planned(pattern)
    assert [(few.base, few.step, few.count) for few in plan.fused.launches] == keys
    plan.verify()
    assert plan.fused_backward is plan.fused
    assert f"then {keys[0][2]} keys beside the window" in plan.explain()


@pytest.mark.parametrize(
    "pattern",
    [
        CAUSAL & (NEAR | weft.documents([2000, 2096])),  # more keys than are worth it
        CAUSAL & NEAR | weft.prefix(4) & weft.periodic_keys(step=3) | weft.global_tokens(1, columns=False),
    ],
    ids=["documents", "a query that sees all"],
)
def test_other_terms_have_two_kernels(pattern):
    assert planned(pattern).fused_backward is None


def test_a_walk_takes_what_is_predicted():
    """Rows of an H200, to which the constants are fitted."""
    with (ROOT / "benchmarks" / "results" / "few-keys.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if "H200" in row["device"]]
    assert rows
    for row in rows:
        kind, count = row["beside"].split()
        beside = weft.periodic_keys(int(count)) if kind == "every" else weft.prefix(int(count))
        heads = int(row["q_heads"]), int(row["kv_heads"])
        plan = planned(CAUSAL & (NEAR | beside), int(row["tokens"]), heads, int(row["batch"]))
        assert plan.fused.seconds(plan.problem, H200) == pytest.approx(1e-6 * float(row["walk_us"]), rel=0.1), row
        assert (plan.fused_backward is not None) == (row["taken"] == "True"), row


@st.composite
def few(draw):
    count = draw(st.integers(1, 300))
    low = draw(st.lists(st.integers(0, 900), min_size=count, max_size=count))
    more = draw(st.lists(st.integers(1, 100), min_size=count, max_size=count))
    return SparseKeys(draw(st.integers(0, 9)), draw(st.integers(1, 9)), np.array(low), np.array(low) + np.array(more))


@given(few())
def test_launches_and_their_tables_say_who_sees_what(found):
    keys = found.base + found.step * np.arange(found.count)
    told = []
    for one in found.launches():
        table = one.table()
        begin, middle, end = table[:3]
        edges = table[RANGES : RANGES + EDGES * TILES].reshape(TILES, EDGES)
        low, high = table[RANGES + EDGES * TILES :].reshape(2, TILES * TILE)
        told += list(zip(one.base + one.step * np.arange(one.count), low[: one.count], high[: one.count], strict=True))
        assert begin * TILE <= one.low.min()
        assert one.high.max() <= end * TILE
        assert (high[one.count :] == low[one.count :]).all()
        if one.tiles == TILES:
            assert middle * TILE <= one.low[TILE:].min()
        for tile, (every, until) in enumerate(edges):
            mine = slice(TILE * tile, TILE * tile + TILE)
            queries = np.arange(every, until) if every < until else np.zeros(0, int)
            assert ((low[mine, None] <= queries) & (queries < high[mine, None])).all()
    assert told == list(zip(keys, found.low, found.high, strict=True))


@given(st.integers(1, 300), st.integers(1, 20000))
def test_parts_leave_no_processor_without_need(heads, tokens):
    one = SparseKeys(0, 1, np.zeros(70, np.int64), np.full(70, tokens))
    problem = Problem(1, heads, heads, tokens, tokens, 64, 64, "bfloat16", "cuda")
    chosen = parts_of(one, problem, H200)
    assert 1 <= chosen.parts <= max(1, -(-tokens // TILE // GROUPS) + 1)


def test_what_is_wrong_is_refused():
    plan = planned(CAUSAL & (NEAR | weft.periodic_keys(step=128)))
    acsr, (term, few) = plan.forward[0].plan.acsr, plan.fused.beside[0]
    changes = (
        {"low": few.low - 1},
        {"high": few.high - (few.low < 999)},
        {"base": 126},
        {"step": 127},
        {"low": few.low[1:], "high": few.high[1:]},
    )
    for wrong in changes:
        with pytest.raises(VerificationError, match="do not see"):
            verify_sparse_keys(replace(few, **wrong), acsr.terms[term])
    with pytest.raises(VerificationError, match="not there"):
        verify_sparse_keys(replace(few, high=few.high + 1), acsr.terms[term])
    with pytest.raises(VerificationError, match=r"terms .0. are walked, there are 2"):
        verify_fused(replace(plan.fused, beside=()), acsr)
