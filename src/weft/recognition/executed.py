"""A traced function, executed at some pairs: what a trace took for true, and no array is, shows there.

A function may ask what its indices are (`isinstance`, a device, a number of axes). It may compute something else for an
array than for what traces it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from weft.errors import LengthError
from weft.pattern.algebra import Pattern
from weft.pattern.bounds import Ints
from weft.pattern.relation import NDBool
from weft.recognition.evaluate import Manner, block, every_manner

LONG = 1 << 20  # tokens, where any number may come
ENDS, NEAR, PLACES = 12, 4, 6  # indices at either end, beside each other, and how often; fewer where asked one by one
ROWS = 3  # batch rows and heads


def otherwise(
    function: Callable[..., Any], names: tuple[str, ...], pattern: Pattern, size: tuple[Any, Any], rows: tuple[int, int]
) -> str:
    """Where the function answers otherwise than its pattern, in words; "" if it does not. size: lengths, None for any;
    rows: how many batch rows and heads there are.
    """
    m, n = (LONG if length is None else length for length in size)
    if not (m and n):
        return ""
    for index in _some_rows(rows):
        for single in (False, True):  # one pair at a time where it takes no arrays
            q, k = (_indices(length, min(m, n), single=single) for length in (m, n))
            said = _answers(function, names, dict(zip("bh", index, strict=True)), (q, k), single=single)
            for manner, answer in said:
                place = _unlike(pattern, (q, k), (m, n), answer, index)
                if place:
                    return f"{place} to {manner.text}"
            if said:
                break
    return ""


def _some_rows(counts: tuple[int, int]) -> list[tuple[int, int]]:
    """The first batch row and head, the last, and some between them."""
    generator = np.random.default_rng(0)
    drawn = zip(*(generator.integers(0, count, ROWS - 2).tolist() for count in counts), strict=True)
    return list(dict.fromkeys([(0, 0), (counts[0] - 1, counts[1] - 1), *drawn]))


def _indices(length: int, shared: int, *, single: bool) -> Ints:
    """Some indices of a length: both ends, and neighbours here and there. Queries and keys have the same ones, below
    the shorter length (`shared`): most of what a mask says is about pairs near each other.
    """
    ends, places = np.arange(ENDS if not single else 1), PLACES if not single else 1
    near = np.random.default_rng(0).integers(0, shared, places)[:, None] + np.arange(NEAR)
    some = np.unique(np.concatenate([ends, length - 1 - ends, near.reshape(-1)]))
    return some[(some >= 0) & (some < length)]


def _answers(
    function: Callable[..., Any], names: tuple[str, ...], at: dict[str, int], pairs: tuple[Ints, Ints], *, single: bool
) -> list[tuple[Manner, NDBool]]:
    """(queries, keys) of answers, in every manner in which it has some."""
    found = []
    for manner in every_manner():
        # what it raises nobody needs: the other manners answer
        with suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if manner.single == single:
                found.append((manner, block(function, names, at, (pairs[0][:, None], pairs[1][None]), manner)))
    return found


def _unlike(
    pattern: Pattern, pairs: tuple[Ints, Ints], size: tuple[int, int], said: NDBool, row: tuple[int, int]
) -> str:
    """A pair at which an answer is not the pattern's, in words; "" if there is none."""
    extent = pattern.extent()
    batch, head = (0 if count is None else at for count, at in zip(extent, row, strict=True))
    try:
        traced = pattern.contains(pairs[0][:, None], pairs[1][None], *size, batch, head)
    except LengthError:  # a pattern of other lengths only
        return ""
    wrong = np.argwhere(traced != said)
    if not wrong.size:
        return ""
    q, k = (int(x[i]) for x, i in zip(pairs, wrong[0], strict=True))
    return f"at q={q}, k={k} it answers {bool(said[tuple(wrong[0])])}"
