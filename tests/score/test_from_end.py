"""Negative indices of tables: the same numbers as numpy reads, and no other index touched."""

import numpy as np
import pytest

from weft.score.evaluate import Rule, evaluate
from weft.score.from_end import counted_from_the_end
from weft.score.text import parse

SIZES = (2, 3, 8, 11)


def test_what_numpy_reads():
    table = np.random.default_rng(0).normal(size=(3, 20))
    text = counted_from_the_end("score + real0[h - 2, q - k] * real0[0, k]", (table.shape,), SIZES)
    assert text == "score + real0[(h - 2) % size(0, 0), (q - k) % size(0, 1)] * real0[0, k]"
    h, q, k = np.arange(3)[:, None, None], np.arange(8)[:, None], np.arange(11)
    env = {"score": np.zeros((3, 8, 11)), "b": np.array(0), "h": h, "q": q, "k": k, "shift": np.array(0)}
    found = evaluate(Rule(parse(text), (table,)), env).score
    np.testing.assert_allclose(found, table[h - 2, q - k] * table[0, k])


@pytest.mark.parametrize(
    "text",
    [
        "score + real0[q + k]",  # never negative
        "score + real0[q - k]",  # from -10 on, beyond a table of 9
        "score + real0[q + 5]",  # beyond the end
        "score * 2.0",
    ],
)
def test_left_as_they_are(text):
    assert counted_from_the_end(text, ((9,),), SIZES) == text


def test_several_functions():
    both = "score + real0[q - k]\n\nscore * real0[h]"
    assert counted_from_the_end(both, ((20,), (3,)), SIZES) == "score + real0[(q - k) % size(0, 0)]\n\nscore * real0[h]"
