"""hypothesis strategies: lengths around the block borders, random pattern expressions, and both together.

`@given(problems())` gives a test (pattern, m, n); `patterns()` and `lengths()` are its parts. Strategies are kept: to
build them anew for every example takes longer than what the examples are for.
"""

from functools import cache
from itertools import pairwise

from hypothesis import strategies as st

import weft

LENGTHS = (0, 1, 2, 7, 15, 16, 17, 63, 64, 65)
ALIGNMENTS = ("top-left", "bottom-right")


@cache
def lengths(longest=65):
    """0, 1 and one either side of the usual blocks, and sometimes anything up to `longest`."""
    return st.sampled_from([length for length in LENGTHS if length <= longest]) | st.integers(0, longest)


@cache
def sizes(largest=20):
    """A window, stride or block size: mostly small, sometimes a power of two or beyond the sequence."""
    return st.integers(1, largest) | st.sampled_from((1, 2, 4, 8, 16, 32, 64, 100))


@cache
def extents(largest=20):
    """How far a window reaches; 0 included."""
    return st.integers(0, largest) | st.sampled_from((0, 63, 64, 100))


def _windows():
    sides = st.tuples(extents() | st.none(), extents() | st.none()).filter(lambda sides: sides != (None, None))
    return sides.map(lambda sides: weft.window(left=sides[0], right=sides[1]))


def _fixed():
    strides = sizes().flatmap(lambda stride: st.tuples(st.just(stride), st.integers(1, stride)))
    return strides.map(lambda pair: weft.fixed(pair[0], summary=pair[1]))


def _periodic_keys():
    steps = sizes().flatmap(lambda step: st.tuples(st.just(step), st.none() | st.integers(0, step - 1)))
    return steps.map(lambda pair: weft.periodic_keys(pair[0], phase=pair[1]))


def _blocks():
    pairs = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=6)
    return st.builds(weft.blocks, sizes() | st.tuples(sizes(), sizes()), pairs)


def _global_tokens():
    tokens = st.integers(0, 5) | st.lists(st.integers(0, 70), max_size=12)
    sides = st.sampled_from(((True, True), (True, False), (False, True)))
    return st.builds(lambda t, side: weft.global_tokens(t, rows=side[0], columns=side[1]), tokens, sides)


@cache
def leaves():
    """Every library pattern that fits any (M, N); those that relate q to k have no alignment yet."""
    return st.one_of(
        st.sampled_from((weft.full(), weft.nothing())),
        st.builds(weft.causal, st.integers(-20, 20)),
        _windows(),
        st.builds(weft.dilated, st.integers(0, 6), st.integers(0, 6), sizes(8)),
        _periodic_keys(),
        st.builds(weft.strided, sizes()),
        _fixed(),
        st.builds(weft.chunks, sizes()),
        _blocks(),
        st.builds(weft.padding, st.integers(0, 70), rows=st.booleans()),
        st.builds(weft.prefix, st.integers(0, 70)),
        _global_tokens(),
        st.builds(weft.random_blocks, sizes(), st.integers(0, 4), seed=st.integers(0, 9)),
        st.builds(weft.longformer, st.integers(0, 16), global_tokens=st.integers(0, 3), dilation=st.integers(1, 4)),
    )


def _documents(length):
    cuts = st.lists(st.integers(0, length), max_size=5).map(lambda cuts: [0, *sorted(cuts), length])
    by_length = cuts.map(lambda cuts: weft.documents([b - a for a, b in pairwise(cuts)]))
    by_bounds = cuts.map(lambda cuts: weft.documents(cu_seqlens=cuts))
    ids = st.lists(st.integers(-2, 3), min_size=length, max_size=length)
    by_id = ids.map(lambda ids: weft.documents(ids=ids))
    by_two = st.builds(lambda ids, key_ids: weft.documents(ids=ids, key_ids=key_ids), ids, ids)
    return st.one_of(by_length, by_bounds, by_id, by_two)


@cache
@st.composite
def axes(draw, length):
    """(size, stride, dilation, causal) that NATTEN's rule allows on an axis of `length` >= 1."""
    size = draw(st.integers(1, length))
    return size, draw(st.integers(1, size)), draw(st.integers(1, length // size)), draw(st.booleans())


@st.composite
def _neighborhoods(draw, length):
    divisors = [d for d in range(1, length + 1) if length % d == 0]
    rows = draw(st.sampled_from(divisors))
    shape = draw(st.sampled_from(((length,), (rows, length // rows))))
    size, stride, dilation, causal = zip(*(draw(axes(extent)) for extent in shape), strict=True)
    return weft.neighborhood(shape, size, stride=stride, dilation=dilation, causal=causal)


@st.composite
def _products(draw, length):
    rows = draw(st.sampled_from([d for d in range(1, length + 1) if length % d == 0]))
    return weft.product([draw(leaves()), draw(leaves())], (rows, length // rows))


@cache
def _cells():
    return st.sampled_from((True, False, None)) | leaves().map(lambda leaf: leaf.filled("top-left"))


@st.composite
def _segments(draw, length):
    cut, cell = draw(st.integers(0, length)), _cells()
    return weft.segments([cut, length - cut], [[draw(cell), draw(cell)], [draw(cell), draw(cell)]])


@cache
def fitted_leaves(length):
    """Library patterns made for a square of `length` tokens: documents, segments, products, neighbourhoods."""
    kinds = [_documents(length), _segments(length)]
    if length:
        kinds += [_neighborhoods(length), _products(length)]
        bigbird = st.builds(
            weft.bigbird,
            block=sizes(),
            window=st.integers(1, 5),
            global_blocks=st.integers(0, 2),
            random=st.integers(0, 2),
            seed=st.integers(0, 9),
        )
        kinds.append(bigbird)
    return st.one_of(kinds)


def _expressions(children, others=None):
    others = children if others is None else others
    shifts = st.integers(-9, 9)
    return st.one_of(
        st.builds(lambda a, b: a & b, children, others),
        st.builds(lambda a, b: a | b, others, children),
        st.builds(lambda a: ~a, children),
        st.builds(lambda a, dq, dk: a.shift(q=dq, k=dk), children, shifts, shifts),
    )


@cache
def patterns(max_leaves=4, length=None):
    """Random expressions of `& | ~ shift` over the library; with a length also over patterns fitted to that square.

    Leaves that relate q to k have no alignment: ask at M == N, or say `.aligned(...)` first.
    """
    base = leaves() if length is None else leaves() | fitted_leaves(length)
    return st.recursive(base, _expressions, max_leaves=max_leaves)


@cache
def per_row_patterns(max_leaves=3):
    """Expressions that depend on the head (two of them), on the batch row (three), or on both."""
    plain = patterns(max_leaves)
    heads = st.lists(plain, min_size=2, max_size=2).map(weft.per_head)
    rows = st.lists(plain, min_size=3, max_size=3).map(weft.per_batch)
    lengths_per_row = st.lists(st.integers(0, 70), min_size=3, max_size=3)
    rows = rows | lengths_per_row.map(weft.prefix) | lengths_per_row.map(weft.padding)
    return st.recursive(heads | rows, lambda children: _expressions(children, children | plain), max_leaves=max_leaves)


@st.composite
def problems(draw, max_leaves=4, longest=65):
    """(pattern, m, n): squares with everything in the library, rectangles with an alignment."""
    m = draw(lengths(longest))
    if draw(st.booleans()):
        return draw(patterns(max_leaves, length=m)), m, m
    align = draw(st.sampled_from(ALIGNMENTS))
    return draw(patterns(max_leaves)).filled(align), m, draw(lengths(longest))
