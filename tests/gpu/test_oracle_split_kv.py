"""Programs of a few rows against many keys on the oracle: what the plain mask says at every number of keys."""

import os
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.tiers import every, examples

import weft
from weft.kernels.gpu.oracle import run_program
from weft.kernels.gpu.programs.split_kv import split_kv_program
from weft.planning.rowwise import RowPlan, row_plan
from weft.target import GPUS
from weft.testing.cases import CASES, HEADS, At

from .checked import EXACT, Call, given_to
from .checked import expected as dense
from .decoded import POSITIONS, Counted, Step, at_length, cached_program, check_counted, expected, steady_plan

END = "bottom-right"
laws = settings(
    max_examples=examples(60),
    deadline=None,
    derandomize=bool(os.environ.get("CI")),  # under CI the examples are always the same
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
WINDOW = weft.causal() & weft.window(left=30)
PATTERNS = {
    "full": weft.full(),
    "causal": weft.causal(align=END),
    "window": WINDOW.aligned(END),
    "strided": weft.strided(16, align=END),
    "first keys and a window": (WINDOW | (weft.causal() & weft.prefix(4))).aligned(END),
    "dilated": weft.dilated(20, 0, 3, align=END),
    "two moduli": (weft.causal() & (weft.dilated(9, 0, 4) | weft.periodic_keys(6, phase=1))).aligned(END),
    "by head": weft.per_head([weft.causal(), weft.window(9, 0), weft.dilated(5, 0, 2), weft.strided(7)]).aligned(END),
    "padded": weft.padding([50, 120]) & weft.causal(align=END),
    "listed keys": weft.causal(align=END) & weft.global_tokens([0, 5, 6, 40], rows=False),
}
OPTIONS = ({}, {"softcap": 2.0, "sinks": True}, {"alibi": True, "sinks": True})
STEP = Step(PATTERNS["window"], m=3, room=100)


NO_FORMULA = (
    "it has a grid of several axes, or tokens in another order",
    "some of it is listed block by block",
    "it has tokens given by a list",
)


# ---- whole problems --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("number,name", every(4, enumerate(CASES)))
def test_rows_of_the_library(number, name):
    """Every pattern whose rows have a formula, by one share of the keys and by several; the others say why not."""
    at = At(9, 130, END) if CASES[name].fits(9, 130) else At(70, 70)
    options = OPTIONS[number % 2]
    call = Call(CASES[name].make(at), at.m, at.n, (HEADS, 2), options=options)
    plan = row_plan(call.pattern, call.plan.problem, call.plan.forward)
    if isinstance(plan, str):
        assert plan in NO_FORMULA
        return
    arrays = call.arrays()
    wanted = dense(call, arrays)
    for processors in (1, 64):
        program = split_kv_program(plan, call.layout(False), call.how, processors)
        found = run_program(program, given_to(program, arrays))
        for x in ("out", "lse"):
            np.testing.assert_allclose(found[x], wanted[x], **EXACT, err_msg=f"{x} of {call}, {processors}")


def test_a_plan_by_rows():
    """One that `AttentionPlan.by_rows` chooses: a few queries against many keys."""
    call = Call(weft.causal(align=END), 4, 8192, (2, 1), 1, (64, 64))
    chosen = call.plan.by_rows
    assert chosen is not None
    program = split_kv_program(chosen.plan, call.layout(False), call.how, GPUS["h200"].processors)
    assert len(program.launches) == 2, "shares and a merge"
    arrays = call.arrays()
    found, wanted = run_program(program, given_to(program, arrays)), dense(call, arrays)
    np.testing.assert_allclose(found["out"], wanted["out"], **EXACT)
    np.testing.assert_allclose(found["lse"], wanted["lse"], **EXACT)


# ---- the host gives the number of keys -------------------------------------------------------------------------------
@pytest.mark.parametrize("name", PATTERNS)
def test_one_plan_at_every_length(name):
    """Planned once; the same program at lengths that the host gives."""
    number = list(PATTERNS).index(name)
    for m, processors in ((1, 64), (3, 1)):
        step = Step(PATTERNS[name], m, options=OPTIONS[number % 3], processors=processors)
        plan = steady_plan(step, 40)
        for n in (m, 17, 64, 150):
            now = replace(step, room=n)
            program, found = at_length(now, plan, n)
            assert set(program.given) == {"shift", "beside", "length"}
            for x, y in zip((found["out"], found["lse"]), expected(now, Counted((n,))), strict=True):
                np.testing.assert_allclose(x, y, **EXACT, err_msg=f"{name} at {n}")


# ---- the device knows it ---------------------------------------------------------------------------------------------
COUNTS = {
    "one number": Counted((70,)),
    "each row its own": Counted((13, 100)),
    "none yet": Counted((0, 2)),
    "beyond the cache": Counted((130,)),
    "64 bits": Counted((70, 3), dtype="int64"),
    "an offset": Counted((70, 80), offset=(40, -2)),
    "a window": Counted((70,), window=(5,)),
    "an offset and a window": Counted((90, 20), offset=(80, 11), window=(9, 0), dtype="int64"),
    "a ring that is not full": Counted((70, 3), ring=True),
    "a ring": Counted((130, 271), ring=True),
    "a ring, an offset and a window": Counted((230,), offset=(222,), window=(12,), ring=True),
}


@pytest.mark.parametrize("name", COUNTS)
def test_counts_on_the_device(name):
    for m, options, processors in product((1, 5), OPTIONS[::2], (1, 64)):
        check_counted(replace(STEP, m=m, options=options, processors=processors), COUNTS[name])


@pytest.mark.parametrize("name", PATTERNS)
def test_patterns_by_counts_on_the_device(name):
    """Rows before the first token see no key, the others what the pattern says."""
    number = list(PATTERNS).index(name)
    step = Step(PATTERNS[name], m=4, room=150, options=OPTIONS[number % 3])
    for counted in (Counted((2, 130)), Counted((64,), offset=(61,)), Counted((40, 7), window=(11, 3))):
        check_counted(step, counted)


@st.composite
def counted_steps(draw):
    """A step and counts; of rings those patterns whose keys are never forgotten."""
    name, m = draw(st.sampled_from(sorted(PATTERNS))), draw(st.sampled_from((1, 2, 7, 40)))
    room, rows = draw(st.sampled_from((64, 100))), draw(st.sampled_from((1, 2)))
    ring = draw(st.booleans())
    heads = (4, 2) if name == "by head" else draw(st.sampled_from(((4, 2), (4, 4), (12, 4), (4, 1))))
    dims, dtype = draw(st.sampled_from((((16, 16), "bfloat16"), ((33, 40), "float16"), ((16, 16), "float32"))))
    keys = st.integers(0, 3 * room if ring else room + 20)
    each = st.lists(keys, min_size=rows, max_size=rows).map(tuple)
    count = draw(each)
    offsets = st.lists(st.integers(-m, max(count)), min_size=rows, max_size=rows).map(tuple)
    windows = st.lists(st.integers(0, 50), min_size=rows, max_size=rows).map(tuple)
    counted = Counted(count, draw(st.none() | offsets), draw(st.none() | windows), ring)
    processors = draw(st.sampled_from((1, 4, 64, 256)))
    return Step(PATTERNS[name], m, room, heads, 2, dims, dtype, draw(st.sampled_from(OPTIONS)), processors), counted


@laws
@given(counted_steps())
def test_drawn_counts(drawn):
    check_counted(*drawn)


def test_a_sequence_far_beyond_its_ring():
    """Keys are found by their token modulo the capacity, whatever the token: the results are those of any other lap."""
    step, laps = replace(STEP, m=2), (30_000, POSITIONS - POSITIONS % STEP.room)
    arrays = step.arrays(step.room)
    near, far = (
        run_program(cached_program(step, one), arrays | one.arrays())
        for one in (Counted((x,), ring=True) for x in laps)
    )
    for x in ("out", "lse"):
        np.testing.assert_allclose(far[x], near[x], **EXACT)
    assert np.isfinite(far["lse"]).all()


@pytest.mark.parametrize("ring", [False, True])
@pytest.mark.parametrize("name", ["causal", "window", "strided", "first keys and a window"])
def test_nothing_is_read_where_no_key_is_yet(name, ring):
    """The cache beyond the number of keys may hold anything."""
    step, counted = Step(PATTERNS[name], m=4, room=100), Counted((13, 71), ring=ring)
    given = step.arrays(step.room)
    for x, (b, keys) in product("kv", enumerate(counted.keys)):
        given[x][b, :, keys:] = np.nan
    check_counted(step, counted, given)


def test_a_steady_plan_is_one_program_for_all_lengths():
    """What depends on the length is given: the table and the grids do not."""
    step = replace(STEP, room=100)
    plan = steady_plan(step, 40)
    assert isinstance(plan, RowPlan)
    (first, _), (second, _) = (at_length(replace(step, room=n), plan, n) for n in (40, 90))
    assert first.tables["rows"] is second.tables["rows"]
    assert [one.grid for one in first.launches] == [one.grid for one in second.launches]
