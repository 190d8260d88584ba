"""Every library pattern against its oracle: to_dense, contains, acsr, nnz and the transpose."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from tests.tiers import every

import weft

from . import oracles as o
from .helpers import same, same_everywhere

LENGTHS = (0, 1, 2, 7, 63, 64, 65, 130)
RECTANGLES = ((0, 5), (5, 0), (1, 7), (7, 1), (2, 65), (65, 2), (63, 130), (130, 64))
ALIGNMENTS = ("top-left", "bottom-right")


class Case(NamedTuple):
    name: str
    make: Callable[..., Any]  # takes align=... where the pattern relates q to k
    oracle: Callable[..., Any]  # a formula on (q, k)


def at_positions():
    """Patterns that relate a query's position to a key's."""

    def case(name, *args, formula=None, **options):
        formula = formula or getattr(o, name)
        text = ",".join([str(a) for a in args] + [f"{key}={value}" for key, value in options.items()])
        yield Case(
            f"{name}({text})".replace(" ", ""),
            lambda align=None: getattr(weft, name)(*args, align=align, **options),
            lambda q, k: formula(q, k, *args, **options),
        )

    for offset in (0, 3, -2, 70, -70):
        yield from case("causal", offset)
    for left, right in ((0, 0), (3, 0), (0, 3), (2, 5), (64, 63), (500, 500)):
        yield from case("window", left, right)
    for side in ("left", "right"):
        for extent in (0, 3, 64):
            yield from case("window", **{side: extent})
    reaches = ((0, 0, 1), (2, 2, 1), (3, 0, 2), (0, 3, 5), (1, 2, 3), (4, 4, 7), (2, 2, 64), (90, 90, 2))
    for left, right, step in reaches:
        yield from case("dilated", left, right, step)
    for stride in (1, 2, 5, 8, 64, 200):
        yield from case("strided", stride)
        yield from case("fixed", stride)
    for stride, summary in ((2, 2), (5, 2), (8, 3), (8, 8), (64, 7)):
        yield from case("fixed", stride, summary=summary)
    for size in (1, 2, 5, 64, 65, 300):
        yield from case("chunks", size)
    for width in (0, 1, 2, 3, 8):
        yield from case("longformer", width)
    yield from case("longformer", 5, global_tokens=3)
    yield from case("longformer", 6, dilation=3)
    yield from case("longformer", 7, global_tokens=2, dilation=4)
    yield from case("longformer", 4, global_tokens=200)


def at_keys():
    """Patterns that need no alignment."""

    def case(name, *args, **options):
        text = ",".join([str(a) for a in args] + [f"{key}={value}" for key, value in options.items()])
        yield Case(
            f"{name}({text})".replace(" ", ""),
            lambda: getattr(weft, name)(*args, **options),
            lambda q, k: getattr(o, name)(q, k, *args, **options),
        )

    yield from case("full")
    yield from case("nothing")
    for step, phase in ((1, None), (2, None), (5, None), (5, 0), (5, 3), (64, None), (64, 0), (200, 7)):
        yield from case("periodic_keys", step, phase)
    for block, pairs in (
        (1, ((0, 0), (1, 5), (6, 2), (1, 6))),
        (4, ((0, 0), (1, 0), (1, 1), (0, 3), (15, 15))),
        (64, ((0, 0), (0, 1), (1, 0))),
        ((2, 3), ((0, 0), (0, 1), (0, 2), (3, 1), (7, 9))),
        ((16, 5), ((0, 1), (0, 3), (0, 5), (2, 2), (2, 3), (9, 9))),
        (3, ((2, 2), (2, 2))),
        (7, ()),
    ):
        yield from case("blocks", block, pairs)
    for length in (0, 1, 5, 64, 500):
        yield from case("prefix", length)
        yield from case("padding", length)
    for tokens in (0, 2, (0, 5, 6), (64, 1, 62), ()):
        yield from case("global_tokens", tokens, rows=False)


POSITIONAL = list(at_positions())
ABSOLUTE = list(at_keys())
# Position dependent, but with no align= argument: the alignment comes through aligned().
ROWS = [
    Case("global_tokens(0)", lambda: weft.global_tokens(0), lambda q, k: o.global_tokens(q, k, 0)),
    Case("global_tokens(3)", lambda: weft.global_tokens(3), lambda q, k: o.global_tokens(q, k, 3)),
    Case("global_tokens(200)", lambda: weft.global_tokens(200), lambda q, k: o.global_tokens(q, k, 200)),
    Case("global_tokens([6,1])", lambda: weft.global_tokens([6, 1]), lambda q, k: o.global_tokens(q, k, [6, 1])),
    Case(
        "global_tokens([1,64,0],columns=False)",
        lambda: weft.global_tokens([1, 64, 0], columns=False),
        lambda q, k: o.global_tokens(q, k, [1, 64, 0], columns=False),
    ),
    Case("padding(5,rows=True)", lambda: weft.padding(5, rows=True), lambda q, k: o.padding(q, k, 5, rows=True)),
    Case("padding(64,rows=True)", lambda: weft.padding(64, rows=True), lambda q, k: o.padding(q, k, 64, rows=True)),
]

named = {"ids": lambda value: value.name if isinstance(value, Case) else str(value)}


@pytest.mark.parametrize("length", every(3, LENGTHS))
@pytest.mark.parametrize("case", POSITIONAL + ABSOLUTE + ROWS, **named)
def test_square(case, length):
    same_everywhere(case.make(), o.dense(case.oracle, length))


@pytest.mark.parametrize("align", ALIGNMENTS)
@pytest.mark.parametrize("case", POSITIONAL, **named)
def test_rectangle_with_alignment(case, align):
    for m, n in RECTANGLES:
        expected = o.dense(case.oracle, m, n, align)
        same_everywhere(case.make(align=align), expected)
        same(case.make().aligned(align).to_dense(m, n), expected, "aligned()")


@pytest.mark.parametrize("align", ALIGNMENTS)
@pytest.mark.parametrize("case", ROWS, **named)
def test_rectangle_of_rows(case, align):
    for m, n in RECTANGLES:
        same_everywhere(case.make().aligned(align), o.dense(case.oracle, m, n, align))


@pytest.mark.parametrize("case", ABSOLUTE, **named)
def test_rectangle_without_alignment(case):
    for m, n in RECTANGLES:
        expected = o.dense(case.oracle, m, n)
        same_everywhere(case.make(), expected)
        same(case.make().aligned("bottom-right").to_dense(m, n), expected, "aligned() on what has no position")


@pytest.mark.parametrize("case", POSITIONAL, **named)
def test_alignment_says_nothing_on_a_square(case):
    expected = o.dense(case.oracle, 33)
    for align in ALIGNMENTS:
        same_everywhere(case.make(align=align), expected)


def test_aligned_leaves_declared_leaves_alone():
    mixed = weft.window(left=2, right=1, align="top-left") & weft.causal()
    expected = o.dense(lambda q, k: o.window(q, k, 2, 1), 5, 9, "top-left") & o.dense(o.causal, 5, 9, "bottom-right")
    same_everywhere(mixed.aligned("bottom-right"), expected)


def test_aligned_says_again_what_is_declared():
    declared = weft.window(left=2, align="top-left") & weft.prefix(3)
    assert declared.aligned("top-left") == declared
    assert declared.aligned(None) == declared


def test_padding_declares_what_distances_are_counted_by():
    for align in ALIGNMENTS:
        assert set(weft.padding([3, 4], align=align).alignments()) == {align}
    assert not set(weft.padding(3).alignments())  # and needs none
    assert weft.padding(3, align="top-left").to_dense(2, 5).tolist() == weft.padding(3).to_dense(2, 5).tolist()


def test_aligned_reaches_under_operators():
    pattern = ~weft.causal().shift(q=1) | weft.window(left=1, right=1) & weft.prefix(4)
    for m, n in RECTANGLES:
        for align in ALIGNMENTS:
            inner = o.shift(o.dense(o.causal, m, n, align), 1, 0)
            band = o.dense(lambda q, k: o.window(q, k, 1, 1), m, n, align)
            same_everywhere(pattern.aligned(align), ~inner | band & o.dense(lambda q, k: k < 4, m, n))


# --- patterns whose length is their own -------------------------------------------------------------------------------

DOCUMENTS = {
    "none": [],
    "one-empty": [0],
    "one-token": [1],
    "one": [7],
    "ones": [1] * 7,
    "with-empties": [0, 3, 0, 0, 4, 0],
    "63": [63],
    "64": [40, 24],
    "65": [64, 1],
    "130": [1, 63, 2, 0, 64],
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents(name):
    lengths = DOCUMENTS[name]
    expected = o.documents(lengths)
    ids = [document for document, length in enumerate(lengths) for _ in range(length)]
    bounds = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    same_everywhere(weft.documents(lengths), expected)
    same_everywhere(weft.documents(lengths=tuple(lengths)), expected)
    same_everywhere(weft.documents(np.array(lengths, dtype=np.int32)), expected)
    same_everywhere(weft.documents(cu_seqlens=bounds), o.documents(cu_seqlens=bounds))
    same_everywhere(weft.documents(ids=ids), o.documents(ids=ids))


@pytest.mark.parametrize(
    "ids",
    ([0, 0, 1, 1, 1], [3, 3, -5, -5, 3, 10**12], [1, 0] * 20, [2, 2, 1, 1, 2, 2, 7] * 5, list(range(65)), [4] * 64,
     [-(2**63), 2**63 - 1, -(2**63)]),
    ids=("sorted", "any-values", "interleaved", "returning", "all-apart", "all-one", "hashes"),
)  # fmt: skip
def test_document_ids(ids):
    same_everywhere(weft.documents(ids=ids), o.documents(ids=ids))
    same_everywhere(weft.documents(ids=np.array(ids)), o.documents(ids=ids))
    same_everywhere(weft.documents(ids=np.array(ids).astype(np.uint64)), o.documents(ids=ids))


def test_causal_documents():
    lengths = DOCUMENTS["130"]
    expected = o.documents(lengths) & o.dense(lambda q, k: o.window(q, k, 5, 0), 130)
    same_everywhere(weft.documents(lengths) & weft.window(left=5, right=0), expected)


# --- shift ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dq,dk", ((0, 0), (1, 0), (0, 1), (-2, 0), (0, -3), (3, 3), (4, -1), (70, 0), (0, -70)))
def test_shift(dq, dk):
    formulas = {
        weft.causal(): o.causal,
        weft.full(): o.full,
        weft.dilated(2, 1, 3): lambda q, k: o.dilated(q, k, 2, 1, 3),
        weft.chunks(4): lambda q, k: o.chunks(q, k, 4),
        weft.blocks(3, [(0, 1), (2, 2), (4, 0)]): lambda q, k: o.blocks(q, k, 3, [(0, 1), (2, 2), (4, 0)]),
    }
    for pattern, formula in formulas.items():
        for length in (0, 1, 7, 65):
            same_everywhere(pattern.shift(q=dq, k=dk), o.shift(o.dense(formula, length), dq, dk))
            same_everywhere(~pattern.shift(q=dq, k=dk), ~o.shift(o.dense(formula, length), dq, dk))
        for m, n in ((3, 20), (20, 3)):
            for align in ALIGNMENTS:
                expected = o.shift(o.dense(formula, m, n, align if "blocks" not in str(pattern) else None), dq, dk)
                same_everywhere(pattern.aligned(align).shift(q=dq, k=dk), expected)


def test_shift_forgets_what_left_the_matrix():
    there_and_back = weft.full().shift(q=2).shift(q=-2)
    same_everywhere(there_and_back, o.shift(o.shift(np.ones((5, 5), dtype=bool), 2), -2))
    there_and_back = weft.causal().shift(k=-3).shift(k=3)
    same_everywhere(there_and_back, o.shift(o.shift(o.dense(o.causal, 8), 0, -3), 0, 3))


# --- what a pattern is ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", POSITIONAL + ABSOLUTE + ROWS, **named)
def test_value(case):
    pattern, again = case.make(), case.make()
    assert pattern == again and hash(pattern) == hash(again)
    assert pattern != ~pattern
    assert repr(pattern) == str(pattern)
    assert eval(str(pattern), {**vars(weft), "weft": weft}) == pattern
    assert isinstance(pattern.acsr(12).nbytes, int)
    with pytest.raises(AttributeError):
        pattern.some_new_attribute = 1
