"""verify() is sound: move any integer of a plan or of its format by one, and it is refused or it changes nothing."""

from dataclasses import replace

import numpy as np
import pytest
from tests.tiers import every

import weft
from weft.errors import VerificationError
from weft.planning.verify import verify_pattern, verify_plan

from .helpers import ANY_LENGTH, SMALL_BOXES, TARGETS, coverage, planned, replanned
from .mutations import every_bound, every_entry, every_number

SMALL_PLANS = {
    "causal": (weft.causal(), 70),
    "window": (weft.window(40, 9), 70),
    "dilated": (weft.dilated(9, 9, 3), 100),
    "strided and random blocks": (weft.strided(5) | weft.random_blocks(16, 1), 100),
    "longformer": (weft.longformer(8, 2, dilation=3), 70),
    "documents": (weft.documents([30, 3, 37]), 70),
    "padding": (weft.padding(40, rows=True) & weft.fixed(5), 70),
    "prefix": (weft.causal() | weft.prefix(9), 70),
    "columns": (weft.periodic_keys(3, phase=0), 6),
    "dead lanes": (ANY_LENGTH["dead lanes of queries"], 40),
    "dead lanes, transposed": (ANY_LENGTH["dead lanes of keys"], 40),
    "blocks": (weft.blocks(16, [(0, 0), (1, 3), (5, 0)]), 100),
    "neighborhood": (weft.neighborhood((6, 7), (3, 4), dilation=(2, 1)), 42),
    "scattered tokens": (weft.window(9, 4) | weft.global_tokens([0, 7, 40, 41, 66]), 70),
    "scattered tokens, dilated": (weft.dilated(9, 9, 3) | weft.global_tokens([2, 30, 31, 61], rows=False), 70),
    "scattered tokens, far classes": (weft.dilated(6, 6, 3) & weft.global_tokens([3, 9, 10, 50, 55]), 60),
    "without scattered tokens": (weft.causal() & ~weft.global_tokens([0, 7, 40]), 70),
    "neighborhood without tokens": (weft.neighborhood((4, 7), (3, 4)) | weft.global_tokens([3, 11, 12]), 28),
    "neighborhood and tokens": (weft.neighborhood((4, 7), (3, 4)) | weft.global_tokens(7), 28),
}
every_plan = pytest.mark.parametrize("name", every(4, SMALL_PLANS))
both_sides = pytest.mark.parametrize("side", ["forward", "transposed"])


def one_plan(name, side, target):
    pattern, length = SMALL_PLANS[name]
    (share,) = getattr(planned(pattern, length, target=target), side)
    return share.plan


def caught_and_harmless(plan, mutations):
    """How many mutations verify refuses, and how many it passes since nothing changes; AssertionError for others."""
    dense = coverage(plan)
    caught = harmless = 0
    for what, wrong in mutations:
        try:
            verify_plan(wrong)
        except VerificationError:
            caught += 1
            continue
        assert np.array_equal(coverage(wrong), dense), f"verify passes a plan of other pairs: {what}\n{plan}"
        harmless += 1
    return caught, harmless


@both_sides
@every_plan
@pytest.mark.parametrize("target", ["cpu", "small boxes"])
def test_every_entry_of_every_table(name, side, target):
    plan = one_plan(name, side, TARGETS[target])
    caught, harmless = caught_and_harmless(plan, every_entry(plan))
    assert caught > 2 * harmless


@both_sides
@every_plan
def test_every_number_that_is_in_no_table(name, side):
    plan = one_plan(name, side, SMALL_BOXES)
    caught, harmless = caught_and_harmless(plan, every_number(plan))
    assert caught > 2 * harmless or not plan.nests


@every_plan
def test_every_integer_of_every_bound(name):
    pattern, length = SMALL_PLANS[name]
    dense = pattern.to_dense(length)
    for what, acsr in every_bound(pattern.acsr(length)):
        plan = replanned(acsr)
        try:
            verify_plan(plan)
            verify_pattern(pattern, plan)
        except VerificationError:
            continue
        np.testing.assert_array_equal(coverage(plan), dense, what)


@pytest.mark.parametrize("seed", range(3))
def test_every_kind_of_bit(seed):
    pattern = weft.random_blocks(16, 2, seed=seed) | weft.window(2, 2)
    acsr, dense = pattern.acsr(70), pattern.to_dense(70)
    bits = acsr.remainder.bits
    for index in np.random.default_rng(seed).integers(0, bits.size, 40):
        wrong = bits.copy()
        wrong[np.unravel_index(index, bits.shape)] ^= np.uint8(1 << int(index) % 8)
        plan = replanned(replace(acsr, remainder=replace(acsr.remainder, bits=wrong)))
        if np.array_equal(coverage(plan), dense):
            continue  # a bit beyond the end of the sequence
        with pytest.raises(VerificationError):
            verify_plan(plan)
            verify_pattern(pattern, plan)


# --- lengths at which not every pair is looked at -------------------------------------------------------------------

LONG = 1100  # squared, this is more than verify compares pair by pair
LONG_PATTERNS = [
    weft.causal(),
    weft.causal() & weft.window(left=300),
    weft.padding(834, rows=True),
    weft.dilated(20, 20, 7),
    weft.chunks(300),
    weft.longformer(60, 5),
    weft.causal() | weft.prefix(777),
    weft.neighborhood((22, 50), (7, 9), stride=(3, 1)),
    weft.window(20, 20) | weft.global_tokens([0, 7, 333, 900, 1099]),
]


@pytest.mark.parametrize("pattern", every(4, LONG_PATTERNS), ids=str)
def test_every_bound_of_a_long_sequence(pattern):
    dense = pattern.to_dense(LONG)
    q, k = np.arange(LONG)[:, None], np.arange(LONG)[None, :]
    for what, acsr in every_bound(pattern.acsr(LONG)):
        plan = replanned(acsr)
        try:
            verify_plan(plan)
            verify_pattern(pattern, plan)
        except VerificationError:
            continue
        said = np.logical_or.reduce([term.contains(q, k) for term in acsr.terms])
        assert np.array_equal(said, dense), f"{pattern}: {what}"


@pytest.mark.more
@pytest.mark.parametrize(
    "pattern",
    [
        weft.causal() & weft.window(left=1023),
        weft.neighborhood((1024, 1024), (7, 9)) & weft.causal(),
        weft.dilated(64, 64, 8),
    ],
    ids=str,
)
def test_every_bound_of_a_million_tokens(pattern):
    right = pattern.acsr(1 << 20)
    wrong = [(what, acsr) for what, acsr in every_bound(right) if ".base" in what and acsr.nnz != right.nnz]
    assert len(wrong) >= 2
    for what, acsr in wrong:
        plan = replanned(acsr)
        with pytest.raises(VerificationError):
            verify_plan(plan)
            verify_pattern(pattern, plan)
            pytest.fail(f"{what} is passed")


def test_a_document_that_ends_a_row_late():
    length = 1 << 17
    pattern = weft.documents([70_001, length - 70_001])
    late = dict(every_bound(pattern.acsr(length)))["term 0, axis 0: lower[0].breaks[0] +1"]
    assert late.terms[0].contains(np.array(70_001), np.array(0))
    with pytest.raises(VerificationError):
        verify_pattern(pattern, replanned(late))


def test_a_thin_term_that_is_missing_from_a_long_sequence():
    length = 1 << 20
    pattern = weft.window(5, 5) | weft.window(0, 0).shift(q=1_000_000)
    acsr = pattern.acsr(length)
    thin = min(acsr.terms, key=lambda term: term.nnz)
    without = replace(acsr, terms=tuple(term for term in acsr.terms if term != thin))
    with pytest.raises(VerificationError):
        verify_pattern(pattern, replanned(without))


def test_a_block_that_is_missing_from_a_long_sequence():
    length = 1 << 20
    pattern = weft.random_blocks(64, 3)
    acsr = pattern.acsr(length)
    rest = acsr.remainder
    kept = np.arange(len(rest)) != 20_000
    without = replace(rest, rows=rest.rows[kept], cols=rest.cols[kept], bit_index=rest.bit_index[kept])
    with pytest.raises(VerificationError):
        verify_pattern(pattern, replanned(replace(acsr, remainder=without)))
