"""Reads of tables within their ends: what intervals tell, and what pairs do."""

import numpy as np
import pytest

from weft.score.ranges import beyond, beyond_at
from weft.score.text import parse

LIMITS = {"b": (0, 1), "h": (0, 3), "q": (0, 9), "k": (0, 11), "shift": (2, 2)}


def by_intervals(text, *shapes, contents=(0, 5)):
    return beyond(parse(text), LIMITS, shapes, lambda _: contents)


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("real0[h]", (4,)), ("real0[b, q, k]", (2, 10, 12)), ("real0[k - q + 9]", (21,)), ("real0[abs(k - q)]", (12,)),
        ("real0[max(min(k - q, 3), -3) + 3]", (7,)), ("real0[k % 5]", (5,)), ("real0[q // 4]", (3,)),
        ("real0[min(k, size(0, 0) - 1)]", (3,)), ("real0[where(q < k, h, 0)]", (4,)), ("real0[int(q < k)]", (2,)),
        ("real0[int(tanh(score) * 2.0) + 2]", (5,)), ("real0[q + shift - 2]", (10,)),
        ("real0[int(exp(min(score, 1.0)))]", (3,)),
        ("real0[int(min(max(score, 0.0), 3.0))]", (4,)), ("real0[q * 2]", (19,)),
    ],
)  # fmt: skip
def test_within(text, shape):
    assert by_intervals(text, shape) is None


@pytest.mark.parametrize(
    ("text", "shape", "axis", "low", "high"),
    [
        ("real0[h]", (3,), 0, 0, 3), ("real0[b, k]", (2, 11), 1, 0, 11), ("real0[k - q]", (12,), 0, -9, 11),
        ("real0[-k]", (12,), 0, -11, 0), ("real0[int(score)]", (9,), 0, -np.inf, np.inf),
    ],
)  # fmt: skip
def test_beyond(text, shape, axis, low, high):
    found = by_intervals(text, shape)
    assert (found.axis, found.length, found.low, found.high) == (axis, shape[axis], low, high)


def test_contents_of_tables_of_integers_count():
    assert by_intervals("real0[int1[q]]", (6,), (10,)) is None
    assert by_intervals("real0[int1[q]]", (5,), (10,)).high == 5


def test_pairs_tell_more():
    expression = parse("score + real0[q - k + int1[h]]")
    tables = (None, np.array([0, 1]))
    causal = [{"b": 0, "h": np.array([[0], [1]]), "q": q, "k": np.arange(q + 1), "shift": 0} for q in range(8)]
    assert beyond_at(expression, causal, [(9,), (2,)], tables) is None
    found = beyond_at(expression, causal, [(8,), (2,)], tables)
    assert (found.table, found.low, found.high) == (0, 0, 8)
    assert beyond_at(parse("score + real0[int(score)]"), causal, [(8,)], (None,)) is not None
