"""Programs of few queries against keys in pages, on the oracle: the plain mask's results, wherever the pages are."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given as drawn_from
from hypothesis import strategies as st

from weft.kernels.gpu.oracle import run_program

from .checked import EXACT
from .decoded import Counted, Step, cached_program, check_counted, expected, paged, pages_of
from .test_oracle_split_kv import OPTIONS, PATTERNS, STEP, laws

WINDOW = PATTERNS["window"]  # the last 31 tokens
COUNTS = {
    "one number": Counted((70,)),
    "each row its own": Counted((13, 96)),
    "none yet": Counted((0, 2)),
    "beyond the table": Counted((130,)),
    "an offset and a window": Counted((90, 20), offset=(80, 11), window=(9, 1), dtype="int64"),
    "a ring": Counted((130, 271), ring=True),
}


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("page", [16, 32, 48, 96])
def test_shuffled_pages_are_as_keys_in_a_row(name, page):
    step, counted = replace(STEP, room=96), replace(COUNTS[name], page=page)
    for m, options, processors in product((1, 5), OPTIONS[::2], (1, 64)):
        check_counted(replace(step, m=m, options=options, processors=processors), counted)


@pytest.mark.parametrize("name", PATTERNS)
def test_patterns(name):
    number = list(PATTERNS).index(name)
    step = Step(PATTERNS[name], m=4, room=160, options=OPTIONS[number % 3])
    for counted in (Counted((2, 130)), Counted((64,), offset=(61,)), Counted((40, 7), window=(11, 3))):
        check_counted(step, replace(counted, page=16))


@st.composite
def paged_steps(draw):
    page, each, rows = draw(st.sampled_from((16, 24, 64))), draw(st.integers(2, 6)), draw(st.sampled_from((1, 2)))
    name, ring = draw(st.sampled_from(("causal", "window", "strided", "dilated", "listed keys"))), draw(st.booleans())
    room, m = page * each, draw(st.sampled_from((1, 3, 9)))
    ring = ring and name in ("window", "dilated") and room > 90
    keys = st.lists(st.integers(0, 3 * room if ring else room), min_size=rows, max_size=rows).map(tuple)
    counted = Counted(draw(keys), ring=ring, page=page)
    return Step(PATTERNS[name], m, room, processors=draw(st.sampled_from((1, 16, 256)))), counted


@laws
@drawn_from(paged_steps())
def test_drawn_pages(drawn):
    check_counted(*drawn)


@pytest.mark.parametrize("m", [1, 4])
def test_pages_that_a_window_has_left_are_gone(m):
    """Neither the table nor the cache has them any more; nor those that no token has come to."""
    step, counted = replace(STEP, m=m, room=128), Counted((75, 119), page=16)
    first = [keys - m - 30 for keys in counted.keys]  # that the oldest query sees
    gone = [(b, page) for b, page in product(range(2), range(8))
            if 16 * (page + 1) <= first[b] or 16 * page >= counted.keys[b]]  # fmt: skip
    assert len(gone) == 2 + 3 + 5
    check_counted(step, counted, gone=gone)


def test_a_page_is_no_index_that_a_score_sees():
    """Distances of ALiBi are between tokens: the same in every order of the pages."""
    step, counted = replace(STEP, room=96, options=OPTIONS[2]), Counted((90, 47), page=16)
    check_counted(step, counted)


def test_one_program_at_changing_counts_and_tables():
    """What a captured graph replays: only arrays change."""
    step = replace(STEP, m=2, room=96)
    program = cached_program(step, Counted((1, 1), page=16))
    for keys in ((3, 96), (64, 17)):
        counted = Counted(keys, page=16)
        given = paged(step, counted, step.arrays(96)) | counted.arrays()
        swapped = given | {"block_table": given["block_table"][:, ::-1].copy()}
        swapped |= {x: given[x] for x in "q"}
        for x in "kv":
            swapped[x] = given[x].copy()
            swapped[x][swapped["block_table"]] = given[x][given["block_table"]]
        wanted = expected(step, counted)
        for arrays in (given, swapped):
            found = run_program(program, arrays)
            for x, y in zip(("out", "lse"), wanted, strict=True):
                np.testing.assert_allclose(found[x], y, **EXACT)


def test_numbers_that_are_no_pages_are_read_nowhere():
    """Of a table that is wrong: nothing outside of the cache is met, whatever comes out."""
    step, counted = replace(STEP, room=96), Counted((90,), page=16)
    given = paged(step, counted, step.arrays(96)) | counted.arrays()
    given["block_table"] = np.full_like(given["block_table"], 1 << 30)
    given["block_table"][1] = -5
    run_program(cached_program(step, counted), given)


def test_slots():
    step, counted = replace(STEP, room=96), Counted((90,), page=16)
    slots = {slot.name: (slot.dtype, slot.shape) for slot in cached_program(step, counted).of_role("input")}
    pages, each = pages_of(step, counted)
    assert list(slots) == ["q", "k", "v", "key_count", "block_table"]
    assert slots["k"] == slots["v"] == ("bfloat16", (pages, 2, 16, 16))
    assert slots["block_table"] == ("int32", (2, each))
