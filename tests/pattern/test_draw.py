"""Block characters say what they are given, with colours or without."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from weft.pattern.draw import SHADES, commonest, framed, glyphs, half_blocks, plain, shaded, whole_blocks

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


@given(KINDS)
def test_commonest_is_the_kind_itself_where_a_cell_is_a_pair(kinds):
    np.testing.assert_array_equal(commonest(kinds, 9, 9), kinds)


@pytest.mark.parametrize("kind", [0, 1, 3])
def test_commonest_of_many(kind):
    kinds = np.full((64, 32), kind)
    kinds[::4, ::4] = 2
    assert (commonest(kinds, 4, 4) == kind).all()


def test_glyphs():
    assert glyphs(np.array([[0, 1], [2, 0]]), " ab") == [" a", "b "]


@pytest.mark.parametrize("lines", [1, 2, 5])
def test_a_frame_is_straight(lines):
    drawn = framed(["x" * 20] * lines, 20, (3, 1000), (0, 1999999))
    assert len({len(line) for line in drawn[1:]}) == 1
    assert drawn[0].endswith("1999999") and "query 3" in drawn[2] and "key 0" in drawn[0]
    assert ("1000" in drawn[-2]) == (lines > 1)
