"""Block characters say what they are given, with colours or without."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

import weft
from weft.pattern.draw import SHADES, commonest, edges, framed, glyphs, half_blocks, plain, shaded, whole_blocks
from weft.testing.strategies import problems

KINDS = arrays(np.int64, array_shapes(min_dims=2, max_dims=2, max_side=9), elements=st.integers(0, 3))
HALVES = {" ": (0, 0), "▀": (1, 0), "▄": (0, 1), "█": (1, 1)}


class Canvas:
    """A painter that remembers the colours of every character that it paints."""

    def __init__(self):
        self.cells = []

    def __call__(self, text, ink, ground):
        self.cells += [(c, ink, ground) for c in text]
        return text

    def halves(self, columns):
        """The kinds of the cells painted, two for each character."""
        where = [(*HALVES[c], ink, ground) for c, ink, ground in self.cells]
        pairs = np.array([[ink if x else ground for x in (top, bottom)] for top, bottom, ink, ground in where])
        return pairs.reshape(-1, columns, 2).transpose(0, 2, 1).reshape(-1, columns)


@given(KINDS)
def test_half_blocks_in_colour_tell_every_kind(kinds):
    canvas = Canvas()
    half_blocks(kinds, canvas)
    drawn = canvas.halves(kinds.shape[1])
    np.testing.assert_array_equal(drawn[: len(kinds)], kinds)
    assert (drawn[len(kinds) :] == 0).all()


@given(KINDS)
def test_half_blocks_without_colour_tell_what_is_there(kinds):
    lines = half_blocks(kinds)
    drawn = np.array([[HALVES[c] for c in line] for line in lines]).transpose(0, 2, 1).reshape(-1, kinds.shape[1])
    np.testing.assert_array_equal(drawn[: len(kinds)], kinds > 0)


@given(KINDS)
def test_whole_blocks(kinds):
    canvas = Canvas()
    lines = whole_blocks(kinds, canvas)
    assert [len(line) for line in lines] == [2 * kinds.shape[1]] * len(kinds)
    inks = np.array([ink for _, ink, _ in canvas.cells]).reshape(len(kinds), -1)
    np.testing.assert_array_equal(inks[:, ::2], kinds)
    np.testing.assert_array_equal(np.array([list(line) for line in lines])[:, ::2] == "█", kinds > 0)


@given(KINDS)
def test_shades_are_blank_only_for_nothing_and_solid_only_for_everything(kinds):
    share = kinds / 3
    drawn = np.array([list(line) for line in shaded(kinds, share, plain)])
    np.testing.assert_array_equal(drawn == SHADES[0], share == 0)
    np.testing.assert_array_equal(drawn == SHADES[-1], share == 1)


def cut(whole, rows, cols):
    """The cells of a picture of at most rows x cols of them, row by row."""
    down, across = (list(pairwise(edges(size, count))) for size, count in zip(whole.shape, (rows, cols), strict=True))
    return [[whole[a:b, c:d] for c, d in across] for a, b in down]


def nothing_or_all(cell):
    """How a cell is drawn if it has no live pair, or no other; else nothing is said."""
    return "" if cell.any() and not cell.all() else 2 * SHADES[-1 if cell.all() else 0]


@given(problems(longest=200), st.integers(1, 60))
def test_a_cell_is_blank_only_for_nothing_and_solid_only_for_everything(problem, width):
    pattern, m, n = problem
    dense = pattern.at(0, 0).to_dense(m, n)
    lines = pattern.draw(m, n, width).split("\n") if m else []
    wanted = [[nothing_or_all(cell) for cell in row] for row in cut(dense, width, width)]
    cells = [[line[at : at + 2] for at in range(0, len(line), 2)] for line in lines]
    assert [[cell if cell[0] in SHADES[:: len(SHADES) - 1] else "" for cell in row] for row in cells] == wanted


@pytest.mark.parametrize("cells", [24, 48, 100])
def test_thin_columns_are_drawn_whatever_their_period(cells):
    pattern = weft.causal() & (weft.window(left=127) | weft.periodic_keys(step=128))
    live = np.array([list(line)[::2] for line in pattern.draw(16384, width=cells).split("\n")]) != SHADES[0]
    np.testing.assert_array_equal(live, np.tri(cells, dtype=bool))


@pytest.mark.parametrize("length, cells", [(0, 5), (1, 5), (5, 5), (7, 5), (1000, 48), (2**31, 100)])
def test_edges_are_even(length, cells):
    widths = np.diff(edges(length, cells))
    assert widths.size == min(length, cells) and widths.sum() == length
    assert np.ptp(widths) <= 1 if length else not widths.size


@given(KINDS)
def test_commonest_is_the_kind_itself_where_a_cell_is_a_pair(kinds):
    np.testing.assert_array_equal(commonest(kinds, 9, 9), kinds)


@pytest.mark.parametrize("kind", [1, 3])
def test_commonest_of_many(kind):
    kinds = np.full((64, 32), kind)
    kinds[::4, ::4] = 2
    assert (commonest(kinds, 4, 4) == kind).all()


@given(KINDS, st.integers(1, 9), st.integers(1, 9))
def test_commonest_is_none_only_where_there_is_none(kinds, rows, cols):
    found = commonest(kinds, rows, cols)
    for line, row in zip(found, cut(kinds, rows, cols), strict=True):
        for kind, cell in zip(line, row, strict=True):
            counts = np.bincount(cell.reshape(-1), minlength=4)
            assert counts[1:].max() == counts[kind] if kind else not cell.any()


def test_glyphs():
    assert glyphs(np.array([[0, 1], [2, 0]]), " ab") == [" a", "b "]


@pytest.mark.parametrize("lines", [1, 2, 5])
def test_a_frame_is_straight(lines):
    drawn = framed(["x" * 20] * lines, 20, (3, 1000), (0, 1999999))
    assert len({len(line) for line in drawn[1:]}) == 1
    assert drawn[0].endswith("1999999") and "query 3" in drawn[2] and "key 0" in drawn[0]
    assert ("1000" in drawn[-2]) == (lines > 1)


@pytest.mark.parametrize("m,n", ((0, 0), (1, 1), (5, 5), (64, 64), (400, 400), (3, 200), (200, 3), (0, 5)))
def test_draw_is_small(m, n):
    pattern = weft.causal(align="top-left") | weft.global_tokens(2, rows=False)
    for width in (16, 64):
        picture = pattern.draw(m, n, width=width)
        assert isinstance(picture, str)
        # A cell may be two characters wide, to look square; there is room for a margin.
        assert max((len(line) for line in picture.splitlines()), default=0) <= 2 * width + 16
        assert len(picture.splitlines()) <= width + 16


def test_draw_shows_the_pattern():
    pictures = {pattern.draw(16) for pattern in (weft.full(), weft.nothing(), weft.causal(), weft.chunks(4))}
    assert len(pictures) == 4
    assert weft.causal().draw(9, 9) == weft.causal().draw(9)
