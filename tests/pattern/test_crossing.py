"""A pattern becomes a structure without sizes and an array of numbers, and comes back from both."""

import pickle
import re
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tiers import examples

import weft
from weft.errors import InputError
from weft.pattern import crossing
from weft.testing.cases import CASES, At
from weft.testing.strategies import lengths, patterns, per_row_patterns

AT = (At(24, 24), At(130, 130, "top-left"), At(60, 130, "bottom-right"))
LIBRARY = [
    pytest.param(CASES[name], at, id=f"{name}-{at.m}x{at.n}")
    for name in CASES
    for at in AT
    if CASES[name].fits(at.m, at.n)
]


def back(pattern):
    return crossing.decode(pattern.structure, pattern.numbers.tobytes())


def check(pattern):
    """There and back, and the rules that a compiler needs kept."""
    again = back(pattern)
    assert again == pattern
    assert hash(again) == hash(pattern)
    assert str(again) == str(pattern)
    assert again.structure == pattern.structure
    assert np.array_equal(again.numbers, pattern.numbers)

    assert not re.search(r"\d", pattern.structure), "a size in the structure"
    numbers = pattern.numbers
    assert type(numbers) is np.ndarray and numbers.dtype == np.int64 and numbers.ndim == 1
    assert numbers.flags.owndata and numbers.base is None
    assert numbers[0] == len(numbers)
    assert len(numbers) % 16 == 13  # seldom the size of another dimension


@pytest.mark.parametrize("case,at", LIBRARY)
def test_library(case, at):
    check(case.make(at))


@pytest.mark.parametrize("case,at", LIBRARY)
def test_it_means_the_same(case, at):
    pattern = case.make(at)
    again = back(pattern)
    assert np.array_equal(again.to_dense(at.m, at.n), pattern.to_dense(at.m, at.n))


def test_an_empty_table_is_an_empty_list():
    """As recognition leaves one."""
    key = np.arange(17)
    check(weft.recognize(np.broadcast_to((key % 3 == 1) | (key < 5), (40, 17))).pattern)


@settings(max_examples=examples(80), deadline=None)
@given(data=st.data())
def test_expressions(data):
    length = data.draw(lengths())
    check(data.draw(patterns(length=length) | per_row_patterns()))


@settings(max_examples=examples(50), deadline=None)
@given(patterns(max_leaves=6))
def test_aligned_expressions(pattern):
    for align in ("top-left", "bottom-right"):
        check(pattern.aligned(align))


# ---- what the structure may depend on -----------------------------------------------------------------------------
SAME = {
    "causal": [weft.causal(), weft.causal(0), weft.causal(offset=7), weft.causal(-3)],
    "window": [weft.window(left=x) for x in (0, 1, 5, 1 << 30)],
    "window, both": [weft.window(0, 0), weft.window(left=3, right=1)],
    "dilated": [weft.dilated(1, 2, 3), weft.dilated(left=0, right=0, step=1)],
    "strided": [weft.strided(1), weft.strided(64)],
    "fixed": [weft.fixed(8), weft.fixed(8, 1), weft.fixed(8, summary=8)],
    "sparse_transformer": [weft.sparse_transformer(8, 2), weft.sparse_transformer(4, 8, summary=3)],
    "chunks": [weft.chunks(1), weft.chunks(100)],
    "blocks": [weft.blocks(8, [(7, 0)]), weft.blocks(4, [(0, 0)]), weft.blocks(1, [(i, i) for i in range(40)]),
               weft.blocks(8, [])],
    "documents": [weft.documents([5]), weft.documents([0, 3, 9]), weft.documents((1,) * 50), weft.documents([])],
    "document ids": [weft.documents(ids=[0]), weft.documents(ids=np.arange(30) % 4)],
    "cu_seqlens": [weft.documents(cu_seqlens=[0, 4]), weft.documents(cu_seqlens=range(90))],
    "padding": [weft.padding([1]), weft.padding([4, 5, 6])],
    "prefix": [weft.prefix(0), weft.prefix(9)],
    "global_tokens": [weft.global_tokens(0), weft.global_tokens(3)],
    "global_tokens, list": [weft.global_tokens([]), weft.global_tokens([4, 9, 1])],
    "random_blocks": [weft.random_blocks(8, 2), weft.random_blocks(4, 0, seed=9), weft.random_blocks(4, 1, 0)],
    "longformer": [weft.longformer(4), weft.longformer(9, global_tokens=2, dilation=3), weft.longformer(4, 0, 1)],
    "bigbird": [weft.bigbird(), weft.bigbird(64, 3, 1, 3, 0), weft.bigbird(block=1, window=0, random=0, seed=5)],
    "neighborhood": [
        weft.neighborhood((4, 4), (2, 2)),
        weft.neighborhood((9, 7), (3, 5), stride=2, dilation=1),
        weft.neighborhood((9, 7), (3, 1), stride=1, dilation=2),
    ],
    "product": [weft.product([weft.causal(x), weft.full()], shape) for x, shape in ((0, (2, 3)), (1, (9, 0)))],
    "shift": [weft.causal().shift(), weft.causal().shift(q=4), weft.causal().shift(k=-1), weft.causal().shift(1, 1)],
    "operators": [
        weft.causal() & weft.window(left=x) | ~weft.prefix(x).shift(q=x) for x in (0, 1, 9)
    ],
    "per_head": [weft.per_head([weft.window(x, 0), weft.strided(x + 1)]) for x in (0, 1, 9)],
    "per_batch": [weft.per_batch([weft.window(x, 0), weft.strided(x + 1)]) for x in (0, 1, 9)],
    "segments": [
        weft.segments([a, b], [[weft.causal(a - 2), None], [True, weft.window(b)]]) for a, b in ((1, 1), (3, 8), (0, 2))
    ],
    "aligned": [weft.causal(x, align="top-left") for x in (0, 4)] + [weft.causal().aligned("top-left")],
}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_integers_do_not_show_in_the_structure(name):
    """Not even whether one is equal to its default, or how many are in a table."""
    first, *others = SAME[name]
    for other in others:
        assert other.structure == first.structure
        if other != first:
            assert not np.array_equal(other.numbers, first.numbers)


def test_how_a_call_was_spelt_does_not_show():
    pairs = [
        (weft.window(3, 0), weft.window(right=0, left=3)),
        (weft.documents([3, 4]), weft.documents(np.array([3, 4], np.int32))),
        (weft.documents(cu_seqlens=[0, 3]), weft.documents(cu_seqlens=(0, 3))),
        (weft.prefix(np.int64(3)), weft.prefix(3)),
        (weft.blocks(8, [(0, 1), (2, 3)]), weft.blocks(8, np.array([[0, 1], [2, 3]]))),
    ]
    for one, other in pairs:
        assert one == other
        assert one.structure == other.structure
        assert np.array_equal(one.numbers, other.numbers)


def test_unlike_expressions_have_unlike_structures():
    found = [
        weft.causal(), weft.causal(align="top-left"), weft.causal(align="bottom-right"), weft.window(left=0),
        weft.window(right=0), weft.window(0, 0), ~weft.causal(), weft.causal() & weft.full(),
        weft.causal() | weft.full(), weft.full() | weft.causal(), weft.full() & weft.causal(), weft.causal().shift(),
        weft.prefix(3), weft.prefix([3]), weft.padding([3]), weft.padding([3], rows=True), weft.documents([3]),
        weft.documents(ids=[3]),
        weft.documents(cu_seqlens=[0, 3]), weft.sparse_transformer(4, 2), weft.sparse_transformer(4, 2, kind="fixed"),
        weft.per_head([weft.causal()]), weft.per_head([weft.causal()] * 2), weft.per_batch([weft.causal()]),
        weft.neighborhood((4, 4), 2), weft.neighborhood((4, 4), 2, causal=True),
        weft.neighborhood((4, 4), 2, causal=(True, False)), weft.full() & (weft.full() | weft.causal()),
        (weft.full() & weft.full()) | weft.causal(),
    ]  # fmt: skip
    assert len({pattern.structure for pattern in found}) == len(found)


@settings(max_examples=examples(80), deadline=None)
@given(patterns(), patterns())
def test_equal_on_the_way_means_equal(one, other):
    """(structure, bytes) is the key of plan caches: patterns that share it are the same pattern."""
    same = one.structure == other.structure and one.numbers.tobytes() == other.numbers.tobytes()
    assert same == (one == other)


def test_a_pattern_may_be_pickled():
    for case in CASES.values():
        pattern = case.make(At(24, 24))
        again = pickle.loads(pickle.dumps(pattern))
        assert again == pattern
        check(again)


def test_a_damaged_record_is_refused():
    pattern = weft.documents([3, 4, 5])
    for wrong in (pattern.numbers[:-1], pattern.numbers[1:], np.zeros_like(pattern.numbers), pattern.numbers[:0]):
        with pytest.raises(InputError, match="damaged"):
            crossing.decode(pattern.structure, wrong.tobytes())


def test_a_bare_leaf_does_not_cross():
    """What no library call made has no structure, and neither has what is built of it."""
    leaf = weft.causal().body
    assert not hasattr(leaf, "structure")
    assert not hasattr(leaf & weft.full(), "structure")


# ---- written down inside a compiled function ------------------------------------------------------------------------
class Written(SimpleNamespace):
    """What weft.torch makes of a call while a compiler traces, with arrays for tensors."""

    def __and__(self, other):
        return written("and_", [("", self), ("", other)])

    def __or__(self, other):
        return written("or_", [("", self), ("", other)])

    def __invert__(self):
        return written("invert", [("", self)])

    def shift(self, q=0, k=0):
        return written("shift", [("", self), ("q", q), ("k", k)])

    def aligned(self, align):
        return written("aligned", [("", self), ("align", align)])


def written(name, args):
    structure, numbers = crossing.cross(name, args)
    return Written(structure=structure, numbers=numbers)


class Tracer:
    @staticmethod
    def is_compiling():
        return True

    @staticmethod
    def record(own, tables):
        size = 1 + len(own) + sum(len(t) for t in tables)
        return np.concatenate([np.array([size, *own], np.int64), *tables])

    @staticmethod
    def column(values):
        return np.array(list(values), np.int64)

    call = staticmethod(written)


@pytest.mark.parametrize("name", CASES)
def test_a_call_written_down_is_the_call(name, monkeypatch):
    """The same pattern when it is read, and the same structure: `.aligned` alone is a word of its own there."""
    at = At(24, 24)
    outside = CASES[name].make(at)
    with monkeypatch.context() as patch:
        patch.setattr(crossing, "tracer", Tracer)
        inside = CASES[name].make(at)
    assert isinstance(inside, Written)
    assert inside.structure == outside.structure or inside.structure.startswith("aligned(")
    assert crossing.decode(inside.structure, inside.numbers.tobytes()) == outside


def test_patterns_from_outside_are_used_inside(monkeypatch):
    documents = weft.documents([3, 4])
    shifted = documents.shift(q=1)
    expected = weft.causal() & documents | shifted
    with monkeypatch.context() as patch:
        patch.setattr(crossing, "tracer", Tracer)
        found = [weft.causal() & documents | shifted, (documents & weft.causal()) | shifted]
    for inside in found:
        again = crossing.decode(inside.structure, inside.numbers.tobytes())
        assert np.array_equal(again.to_dense(7), expected.to_dense(7))
