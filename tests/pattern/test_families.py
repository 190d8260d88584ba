"""The masks of models, trees and tables of blocks: their oracles, their terms, and both ways of recognising them."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tiers import examples

import weft
from weft.acsr.format import MAX_TERMS
from weft.errors import LengthError, PatternError

from . import oracles as o
from .helpers import same_everywhere

laws = settings(max_examples=examples(40), deadline=None)


def formula(name, n, *args, **options):
    return o.dense(lambda q, k: getattr(o, name)(q, k, *args, **options), n)


# name -> (pattern, its oracle, most terms)
CASES = {
    "block diffusion": (weft.block_diffusion(40, 8), formula("block_diffusion", 80, 40, 8), 3),
    "block diffusion, ragged": (weft.block_diffusion(37, 8), formula("block_diffusion", 74, 37, 8), 3),
    "block diffusion, one block": (weft.block_diffusion(9, 16), formula("block_diffusion", 18, 9, 16), 2),
    "one prompt": (weft.shared_prefix([20, 7, 9, 4]), o.shared_prefix([20, 7, 9, 4]), 2),
    "two prompts": (
        weft.shared_prefix([9, 4, 6, 12, 3], [0, 0, 0, 3, 3]), o.shared_prefix([9, 4, 6, 12, 3], [0, 0, 0, 3, 3]), 2,
    ),
    "prefixes out of order": (
        weft.shared_prefix([5, 6, 7, 8], [0, 1, 0, 1]), o.shared_prefix([5, 6, 7, 8], [0, 1, 0, 1]), 2,
    ),
    "streaming": (weft.streaming_chunks(8, 2), formula("streaming_chunks", 70, 8, 2), 1),
    "streaming, all before": (weft.streaming_chunks(8), formula("streaming_chunks", 70, 8), 1),
    "streaming, none before": (weft.streaming_chunks(8, 0), formula("streaming_chunks", 70, 8, 0), 1),
    "sliding tile": (weft.sliding_tile((12, 8), (3, 2), (3, 2)), o.sliding_tile((12, 8), (3, 2), (3, 2)), 1),
    "sliding tile, 3 axes": (
        weft.sliding_tile((4, 6, 6), (2, 3, 2), (1, 2, 3)), o.sliding_tile((4, 6, 6), (2, 3, 2), (1, 2, 3)), 1,
    ),
    "sliding tile, text": (weft.sliding_tile(24, 4, 3, text=5), o.sliding_tile((24,), (4,), (3,), 5), 3),
    "spatial": (weft.svg_spatial(10, 2), formula("svg_spatial", 75, 10, 2), 1),
    "spatial, prompt": (weft.svg_spatial(10, 1, prompt=6), formula("svg_spatial", 76, 10, 1, 6), 3),
    "spatial, sink": (weft.svg_spatial(10, 2, 6, sink=True), formula("svg_spatial", 76, 10, 2, 6, True), 3),
    "temporal": (weft.svg_temporal(12, 6, 3), formula("svg_temporal", 72, 12, 6, 3), 1),
    "temporal, prompt": (weft.svg_temporal(12, 6, 2, prompt=5), formula("svg_temporal", 77, 12, 6, 2, 5), 3),
    "radial": (weft.radial(9, 8), o.radial(9, 8), 7),
    "radial, sink": (weft.radial(6, 9, sink=True), o.radial(6, 9, True), 8),
    "radial, small frames": (weft.radial(20, 3), o.radial(20, 3), 9),
    "radial, one frame": (weft.radial(1, 5), o.radial(1, 5), 1),
    "anchors": (weft.rotating_anchors(5, 1, 4, turn=2), formula("rotating_anchors", 75, 5, 1, 4, 2), 2),
    "anchors, turned round": (weft.rotating_anchors(6, 0, 3, turn=7), formula("rotating_anchors", 72, 6, 0, 3, 7), 2),
    "table": (
        weft.block_table([5, 9, 2], [5, 9, 2], [[True, False, True], [True, True, False], [False, False, True]]),
        o.block_table([5, 9, 2], [5, 9, 2], [[1, 0, 1], [1, 1, 0], [0, 0, 1]]), 3,
    ),
    "unlike sides": (
        weft.block_table([4, 0, 3], [10, 7], [[True, True], [True, False], [False, True]]),
        o.block_table([4, 0, 3], [10, 7], [[1, 1], [1, 0], [0, 1]]), 2,
    ),
    "tree": (weft.tree([-1, 0, 0, 1, 1, 2]), o.tree([-1, 0, 0, 1, 1, 2]), 3),
    "tree of nodes": (weft.tree([-1, 0, 1, 0, 3], [9, 4, 6, 5, 2]), o.tree([-1, 0, 1, 0, 3], [9, 4, 6, 5, 2]), 2),
    "tree after a cache": (weft.tree([-1, 0, 0, 2], past=30), o.tree([-1, 0, 0, 2], past=30), 3),
    "forest": (weft.tree([-1, -1, 0, 1], [3, 4, 5, 6], past=7), o.tree([-1, -1, 0, 1], [3, 4, 5, 6], 7), 3),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_family(name):
    pattern, expected, most = CASES[name]
    same_everywhere(pattern, expected)
    acsr = pattern.acsr(*expected.shape)
    assert len(acsr.terms) <= most and not len(acsr.remainder) and not acsr.notes
    assert eval(repr(pattern), vars(weft)) == pattern == eval(str(pattern), vars(weft))


@pytest.mark.parametrize("align", ["top-left", "bottom-right"])
@pytest.mark.parametrize(("m", "n"), [(0, 5), (17, 40), (40, 17), (64, 65)])
def test_rectangles(m, n, align):
    for name, args in (("streaming_chunks", (6, 1)), ("streaming_chunks", (7,)), ("svg_spatial", (5, 2, 3))):
        expected = o.dense(lambda q, k, name=name, args=args: getattr(o, name)(q, k, *args), m, n, align)
        same_everywhere(getattr(weft, name)(*args, align=align), expected)


@laws
@given(st.integers(0, 60), st.integers(1, 20))
def test_block_diffusion_of_any_size(tokens, block):
    pattern = weft.block_diffusion(tokens, block)
    same_everywhere(
        pattern, formula("block_diffusion", 2 * tokens, tokens, block) if tokens else np.zeros((0, 0), bool)
    )
    assert len(pattern.acsr(2 * tokens).terms) <= 3


@laws
@given(st.integers(1, 9), st.integers(1, 9), st.booleans())
def test_radial_of_any_size(frames, frame, sink):
    same_everywhere(weft.radial(frames, frame, sink=sink), o.radial(frames, frame, sink))


@laws
@given(st.data(), st.integers(1, 8), st.integers(0, 20))
def test_trees_of_any_shape(data, nodes, past):
    parents = [data.draw(st.integers(-1, i - 1)) for i in range(nodes)]
    lengths = data.draw(st.none() | st.lists(st.integers(0, 9), min_size=nodes, max_size=nodes))
    expected = o.tree(parents, lengths, past)
    pattern = weft.tree(parents, lengths=lengths, past=past)
    m, n = expected.shape
    assert (pattern.to_dense(m, n) == expected).all() and (pattern.acsr(m, n).to_dense() == expected).all()


@laws
@given(st.data(), st.integers(0, 7), st.integers(0, 7))
def test_tables_of_any_shape(data, rows, cols):
    sides = [data.draw(st.lists(st.integers(0, 12), min_size=count, max_size=count)) for count in (rows, cols)]
    allowed = [[data.draw(st.booleans()) for _ in range(cols)] for _ in range(rows)]
    if rows:
        expected = o.block_table(*sides, allowed)
        pattern = weft.block_table(*sides, allowed)
        m, n = expected.shape
        assert (pattern.to_dense(m, n) == expected).all() and (pattern.acsr(m, n).to_dense() == expected).all()


def test_large_irregular_tables_are_blocks():
    table = np.random.default_rng(0).random((60, 60)) < 0.3
    lengths = [64] * 60
    acsr = weft.block_table(lengths, lengths, table).acsr(64 * 60)
    assert not acsr.terms and len(acsr.remainder) == table.sum() and not len(acsr.remainder.bits)


def test_drafted_trees_after_a_cache_take_little_time():
    """A few milliseconds of making for 64 nodes; the figure is printed, since it depends on the machine."""
    rng = np.random.default_rng(1)
    parents = [-1, *(int(rng.integers(max(0, i - 12), i)) for i in range(1, 64))]
    times = []
    for past in range(4000, 4020):
        begin = time.process_time()
        pattern = weft.tree(parents, past=past)
        times.append(time.process_time() - begin)
    acsr = pattern.acsr(64, 4019 + 64)
    print(f"made in {1e3 * sorted(times)[10]:.2f} ms")
    assert len(acsr.terms) + len(acsr.remainder) <= 6
    assert (acsr.to_dense() == o.tree(parents, past=4019)).all()


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "attempt",
    [
        lambda: weft.block_diffusion(-1, 4),
        lambda: weft.block_diffusion(8, 0),
        lambda: weft.shared_prefix([3, 4], [0]),
        lambda: weft.shared_prefix([3, 4], [1, 1]),
        lambda: weft.streaming_chunks(0),
        lambda: weft.streaming_chunks(4, -1),
        lambda: weft.sliding_tile((8, 8), (3, 2), (1, 1)),
        lambda: weft.sliding_tile((8, 8), (2, 2), (5, 1)),
        lambda: weft.sliding_tile((8, 8, 8, 8), 2, 1),
        lambda: weft.svg_spatial(0),
        lambda: weft.svg_spatial(4, sink=3),
        lambda: weft.svg_temporal(4, 0),
        lambda: weft.radial(0, 4),
        lambda: weft.rotating_anchors(4, -1, 2),
        lambda: weft.rotating_anchors(4, 1, 0),
        lambda: weft.block_table([3, 4], [7], [[True]]),
        lambda: weft.block_table([3, 4], [7], [[1], [0]]),
        lambda: weft.block_table([3, 4], [7], [[True], [True, False]]),
        lambda: weft.tree([0]),
        lambda: weft.tree([-1, 2, 0]),
        lambda: weft.tree([-1, 0], lengths=[3]),
        lambda: weft.tree([-2]),
    ],
)
def test_arguments_are_checked(attempt):
    with pytest.raises(PatternError) as raised:
        attempt()
    assert raised.value.asked and raised.value.wrong and raised.value.cure


def test_lengths_are_those_of_the_parts():
    for pattern, n in ((weft.block_diffusion(8, 2), 17), (weft.radial(3, 4), 11), (weft.shared_prefix([3, 4]), 8)):
        with pytest.raises(LengthError):
            pattern.acsr(n)
    with pytest.raises(LengthError):
        weft.tree([-1, 0], past=3).acsr(2, 4)


# --- recognised -------------------------------------------------------------------------------------------------------

FROM_A_MASK = [name for name in CASES if not name.startswith(("radial", "temporal, prompt"))]  # these have no search


@pytest.mark.parametrize("name", FROM_A_MASK)
def test_family_recognised_as_a_mask(name):
    """No more terms than the family itself, or few."""
    pattern, expected, _ = CASES[name]
    found = weft.recognize(expected)
    acsr, own = found.pattern.acsr(*expected.shape), pattern.acsr(*expected.shape)
    assert (acsr.to_dense() == expected).all() and found.closed
    assert len(acsr.terms) <= max(len(own.terms) + 1, 4) <= MAX_TERMS


@pytest.mark.more
def test_families_recognised_as_the_functions_that_users_write():
    torch = pytest.importorskip("torch")
    lengths, prefixes = [30, 20, 25, 12, 33, 8], [0, 0, 0, 3, 3, 3]
    offsets, of = torch.tensor(np.cumsum([0, *lengths])), torch.tensor(prefixes)
    document = torch.repeat_interleave(torch.arange(6), torch.tensor(lengths))

    def shared(b, h, q, k):
        mine, other = document[q], of[document[q]]
        own = (k >= offsets[mine]) & (k <= q)
        return own | ((mine != other) & (k >= offsets[other]) & (k < offsets[other + 1]))

    def noisy(b, h, q, k):
        noisy_q, noisy_k = q < 50, k < 50
        block_q, block_k = (q % 50) // 8, (k % 50) // 8
        same = (block_q == block_k) & (noisy_q == noisy_k)
        return same | ((block_q > block_k) & noisy_q & ~noisy_k) | ((block_q >= block_k) & ~noisy_q & ~noisy_k)

    def spatial(b, h, q, k):
        return (q < 6) | (k < 6 + 14) | ((q - k).abs() < 28)

    def streaming(b, h, q, k):
        return (q // 16 >= k // 16) & (q // 16 - k // 16 <= 2)

    given = (
        (shared, weft.shared_prefix(lengths, prefixes), 128),
        (noisy, weft.block_diffusion(50, 8), 100),
        (spatial, weft.svg_spatial(14, 2, prompt=6, sink=True), 150),
        (streaming, weft.streaming_chunks(16, 2), 150),
    )
    for function, pattern, n in given:
        found = weft.recognize(function)
        assert found.proof == "symbolic" and found.closed
        assert (found.pattern.to_dense(n) == pattern.to_dense(n)).all()
        assert len(found.pattern.acsr(n).terms) <= len(pattern.acsr(n).terms)
