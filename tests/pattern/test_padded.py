"""padding(mask=...): the mask again, pair by pair, whatever is padded; a few expressions of other patterns."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft
from weft.errors import PatternError
from weft.pattern import crossing
from weft.pattern.padded import MOST_SPANS
from weft.testing.refusals import refuse


def dense(mask, rows=False):
    """(B, 1, S, S) by the definition."""
    live = np.broadcast_to(mask[:, None, None, :], (len(mask), 1, mask.shape[1], mask.shape[1]))
    return live & mask[:, None, :, None] if rows else live


def held(mask, rows=False):
    """The pattern of a mask, after its own check against every pair, as pairs and as affine rows."""
    pattern = weft.padding(mask=mask, rows=rows)
    size = mask.shape[1]
    assert np.array_equal(pattern.to_dense(size), dense(mask, rows))
    for b in range(len(mask)):
        assert np.array_equal(pattern.acsr(size, batch=b).to_dense(), dense(mask, rows)[b, 0])
    return pattern


def rows_of(*texts):
    return np.array([[letter == "x" for letter in text] for text in texts])


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize(
    ("mask", "said"),
    [
        (rows_of("xxxxx...", "xxxxxxxx", "x......."), "padding(lengths=[5, 8, 1])"),
        (rows_of("...xxxxx", "xxxxxxxx", ".......x"), "~padding(lengths=[3, 0, 7])"),
        (rows_of("..xxx...", "xxxxxxxx", "........"), "~padding(lengths=[2, 0, 0])"),
        (rows_of("xx.xxx..", "xxxxxxxx"), "padding(lengths=[2, 8])"),
        (rows_of("x.x.x.x.x.x.", "xxxxxxxx...."), "global_tokens"),
        (rows_of("x.xxxx.xxxxx.xxxxxx.xxxx", "........................"), "~global_tokens"),
        (rows_of("........"), "padding(lengths=[0])"),
    ],
)
def test_what_it_becomes(mask, said, rows):
    assert said in str(held(mask, rows))


masks = st.integers(1, 3).flatmap(
    lambda b: st.integers(1, 40).flatmap(
        lambda s: st.lists(st.lists(st.booleans(), min_size=s, max_size=s), min_size=b, max_size=b)
    )
)


@given(masks, st.booleans())
def test_any_mask(mask, rows):
    held(np.array(mask), rows)


def test_one_structure_for_all_masks_of_a_kind():
    """So that torch.compile makes one graph of them."""
    right = [weft.padding(mask=rows_of(*texts)) for texts in (("xx..", "x..."), ("xxx.", "...."))]
    both = [weft.padding(mask=rows_of(*texts)) for texts in ((".x..", "x..."), (".xx.", "..xx"))]
    for one, other in (right, both):
        assert one.structure == other.structure
        assert crossing.decode(other.structure, other.numbers.tobytes()) == other


def test_tensors_and_copies():
    torch = pytest.importorskip("torch")
    mask = rows_of("..xxx...", "xxxxxxxx")
    pattern = weft.padding(mask=torch.from_numpy(mask))
    assert pattern == weft.padding(mask=mask) == pickle.loads(pickle.dumps(pattern))


def test_lengths_as_before():
    assert str(weft.padding([3, 5], True)) == "padding(lengths=[3, 5], rows=True)"
    assert str(weft.padding(lengths=7, align="bottom-right")) == "padding(lengths=7, align='bottom-right')"


def test_alignment():
    """Two queries beside the last two of four tokens, the third of which is padding in the second row."""
    mask = rows_of("..xx", "xx.x")
    keys = np.broadcast_to(mask[:, None], (2, 2, 4))
    for rows, live in ((False, keys), (True, keys & mask[:, 2:, None])):
        pattern = weft.padding(mask=mask, rows=rows, align="bottom-right")
        assert np.array_equal(pattern.to_dense(2, 4)[:, 0], live)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, ("padding()", "lengths or a mask")),
        ({"lengths": [3], "mask": rows_of("x")}, ("padding(lengths, mask)",)),
        ({"mask": [[True]]}, ("padding(mask=list)",)),
        ({"mask": np.ones((2, 4), np.int64)}, ("int64", "mask.bool()")),
        ({"mask": np.zeros((2, 4))}, ("float64",)),
        ({"mask": np.ones(4, bool)}, ("padding(mask=(4,))", "(B, S)")),
        ({"mask": np.ones((2, 1, 1, 4), bool)}, ("(2, 1, 1, 4)", "mask[:, 0, 0]")),
        ({"mask": np.ones((0, 4), bool)}, ("(0, 4)",)),
        ({"mask": rows_of("xx"), "rows": 1}, ("rows",)),
    ],
)
def test_refused(given, words):
    refuse(lambda: weft.padding(**given), PatternError, words)


def test_more_spans_than_bounds_say():
    few, many = ("".join("x." for _ in range(count)) for count in (MOST_SPANS, MOST_SPANS + 1))
    assert "global_tokens" not in str(held(rows_of(few)))
    assert "global_tokens" in str(held(rows_of(many)))
