"""Documents and segments with other lengths for queries and keys: pairs by the definition, as pairs and affine rows."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tiers import every

import weft
from weft.acsr.packed import packed
from weft.errors import AlignmentError, LengthError, PatternError
from weft.pattern import crossing
from weft.testing.refusals import refuse

LAST = "bottom-right"


def blocks(lengths, key_lengths, cell):
    """The mask of documents: cell(i, m, n) is that of document i."""
    live = np.zeros((sum(lengths), sum(key_lengths)), bool)
    q0 = k0 = 0
    for i, (m, n) in enumerate(zip(lengths, key_lengths, strict=True)):
        if m and n:
            live[q0 : q0 + m, k0 : k0 + n] = cell(i, m, n)
        q0, k0 = q0 + m, k0 + n
    return live


def held(pattern, live, head=0):
    """Against every pair, as affine rows, transposed, and after a way into a graph and back."""
    m, n = live.shape
    dense = pattern.to_dense(m, n)
    assert np.array_equal(dense if dense.ndim == 2 else dense[0, head], live)
    acsr = pattern.acsr(m, n, head=head)
    assert np.array_equal(acsr.to_dense(), live)
    assert np.array_equal(acsr.transpose().to_dense(), live.T)
    assert crossing.decode(pattern.structure, pattern.numbers.tobytes()) == pattern
    assert pickle.loads(pickle.dumps(pattern)) == pattern
    return acsr


sizes = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=6)


@given(sizes)
def test_documents(lengths):
    queries, keys = [a for a, _ in lengths], [b for _, b in lengths]
    live = blocks(queries, keys, lambda i, m, n: True)
    of_lengths = weft.documents(queries, key_lengths=keys)
    acsr = held(of_lengths, live)
    assert len(acsr.terms) <= 1 and not len(acsr.remainder)
    sums, key_sums = (np.cumsum([0, *x]) for x in (queries, keys))
    of_sums = weft.documents(cu_seqlens=sums, key_cu_seqlens=key_sums)
    assert np.array_equal(of_sums.to_dense(*live.shape), live)


def test_documents_joined_with_what_counts_over_all_of_them():
    pattern = weft.documents([3, 4], key_lengths=[5, 2]) & weft.causal(align="top-left")
    live = blocks([3, 4], [5, 2], lambda i, m, n: True) & np.tri(7, 7, dtype=bool)
    held(pattern, live)


def test_square_documents_are_as_before():
    assert weft.documents([3, 4]).body == weft.documents(cu_seqlens=[0, 3, 7]).body
    assert weft.documents([3, 4], key_lengths=[3, 4]).acsr(7).terms == weft.documents([3, 4]).acsr(7).terms


@given(st.lists(st.integers(0, 5), min_size=1, max_size=3), st.lists(st.integers(0, 5), min_size=1, max_size=3))
def test_segments(lengths, key_lengths):
    choice = [weft.full(), weft.window(1, align="top-left"), False, True, None, weft.causal(align=LAST)]
    cells = [[choice[(i + 2 * j) % 6] for j in range(len(key_lengths))] for i in range(len(lengths))]
    live = np.zeros((sum(lengths), sum(key_lengths)), bool)
    q0 = np.cumsum([0, *lengths])
    k0 = np.cumsum([0, *key_lengths])
    for i, row in enumerate(cells):
        for j, cell in enumerate(row):
            here = bool(cell) if cell is None or isinstance(cell, bool) else cell.to_dense(lengths[i], key_lengths[j])
            live[q0[i] : q0[i + 1], k0[j] : k0[j + 1]] = here
    held(weft.segments(lengths, cells, key_lengths=key_lengths), live)


PARTS = {
    "causal": weft.causal(align=LAST),
    "window": (weft.causal() & weft.window(2)).aligned(LAST),
    "chunks": weft.chunks(3, align="top-left"),
    "longformer": weft.longformer(2, 1, align=LAST),
    "prefix": weft.causal(align=LAST) | weft.prefix(2),
    "outside": ~weft.window(1, 1, align=LAST),
    "nothing": weft.nothing(),
    "dilated": weft.dilated(1, 1, 2, align=LAST),
    "a list": weft.global_tokens([1, 4, 5], rows=False),
}
INTERVALS = set(PARTS) - {"dilated", "a list"}


@pytest.mark.parametrize("name", every(3, PARTS))
@given(sizes)
def test_packed(name, lengths):
    """Where rows are intervals: a term for each of them at most, whatever the number of documents."""
    part, queries, keys = PARTS[name], [a for a, _ in lengths], [b for _, b in lengths]
    live = blocks(queries, keys, lambda i, m, n: part.to_dense(m, n))
    acsr = held(packed(part, queries, keys), live)
    if name in INTERVALS:
        assert len(acsr.terms) <= 4 and not len(acsr.remainder)


def test_packed_heads_and_rows():
    queries, keys = [3, 0, 5], [4, 2, 5]
    each = [weft.window(i, align=LAST) for i in range(3)]
    held(packed(weft.per_batch(each), queries, keys), blocks(queries, keys, lambda i, m, n: each[i].to_dense(m, n)))
    heads = weft.per_head([weft.causal(align=LAST), weft.full()])
    both = packed(heads, queries, keys)
    assert both.extent() == (None, 2)
    for head, part in enumerate((weft.causal(align=LAST), weft.full())):
        held(both, blocks(queries, keys, lambda i, m, n, part=part: part.to_dense(m, n)), head)
    nested = weft.per_batch([heads, heads.aligned(LAST), weft.per_head([weft.full()] * 2)])
    live = blocks(queries, keys, lambda i, m, n: nested.to_dense(m, n)[i, 1])
    held(packed(nested, queries, keys), live, 1)


def test_packed_asks_for_alignment_and_lengths():
    assert packed(weft.causal(), [3, 2], [3, 2]).acsr(5).nnz == 9
    refuse(lambda: packed(weft.causal(), [3, 2], [3, 4]).acsr(5, 7), AlignmentError, ("M=5, N=7", "align"))
    aligned = packed(weft.causal(), [3, 2], [3, 4]).aligned(LAST)
    assert aligned == packed(weft.causal(align=LAST), [3, 2], [3, 4])
    refuse(lambda: aligned.acsr(5, 8), LengthError, ("5 queries and 7 keys",))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: weft.documents([3], key_lengths=[3, 4]), PatternError, ("1 documents of queries and 2 of keys",)),
        (lambda: weft.documents([3], key_cu_seqlens=[0, 3]), PatternError, ("key_cu_seqlens does not go",)),
        (lambda: weft.documents(ids=[0, 1], key_lengths=[3]), PatternError, ("key_lengths does not go with ids",)),
        (lambda: weft.documents(cu_seqlens=[0, 3], key_cu_seqlens=[0, 4, 3]), PatternError, ("falls",)),
        (lambda: weft.documents([3], key_lengths=[-1]), PatternError, ("key_lengths[0] is -1",)),
        (lambda: weft.documents([3], key_lengths=[1 << 30, (1 << 30) + 1]), PatternError, ("key_lengths", "2**31")),
        (lambda: weft.documents([3], key_lengths=[4]).acsr(4, 4), LengthError, ("3 queries and 4 keys",)),
        (lambda: weft.segments([3], [[True]], key_lengths=[3, 4]), PatternError, ("1 parts of queries and 2 of keys",)),
        (lambda: weft.segments([3], [[True]], key_lengths=[4]).acsr(3), LengthError, ("M=3", "3 tokens")),
        (lambda: packed(weft.full(), [3], [3, 4]), PatternError, ("1 lengths of queries and 2 of keys",)),
        (lambda: packed(None, [3], [3]), PatternError, ("packed(None", "pass a pattern")),
        (lambda: packed(weft.per_batch([weft.full()]), [3, 4], [3, 4]).acsr(7), PatternError, ("2 documents",)),
    ],
)  # fmt: skip
def test_refused(call, error, words):
    refuse(call, error, words)
