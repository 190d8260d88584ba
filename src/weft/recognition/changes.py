"""Where a long list of integers changes: one pass, in strips that a core's cache holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from weft.pattern.bounds import Ints
from weft.pattern.relation import NDBool

STRIP = 1 << 19  # answers that are made before they are looked at
BLOCK = 1 << 17  # entries subtracted together
WORD = 8  # answers looked at together


def steps(values: Any, most: int) -> Ints | None:
    """Where a value begins that is not the one before it; None if there are more than `most` such places."""

    def unlike(start: int, stop: int, out: NDBool) -> None:
        np.not_equal(values[start + 1 : stop + 1], values[start:stop], out=out)

    found = _places(unlike, values.size - 1, most)
    return None if found is None else np.append(0, found + 1)


def bends(values: Any, dtype: Any, most: int) -> Ints | None:
    """Where runs of one slope begin: at the index after a step unlike the step before it. After that none begins at
    once, since a jump is a step unlike both of its neighbours.
    """
    rises = np.empty(min(BLOCK, values.size) + 1, dtype)

    def unlike(start: int, stop: int, out: NDBool) -> None:
        for at in range(start, stop, BLOCK):
            end = min(at + BLOCK, stop)
            step = rises[: end - at + 1]
            np.subtract(values[at + 1 : end + 2], values[at : end + 1], out=step, dtype=dtype)
            np.not_equal(step[1:], step[:-1], out=out[at - start : end - start])

    found = _places(unlike, values.size - 2, 2 * most)
    if found is None:
        return None
    fresh = np.append(True, found[1:] - found[:-1] != 1)[: found.size]
    index = np.arange(found.size)
    turn = index - np.maximum.accumulate(np.where(fresh, index, 0))
    begin = np.append(0, found[turn % 2 == 0] + 2)
    return begin if begin.size <= most else None


def _places(test: Callable[[int, int, NDBool], None], size: int, most: int) -> Ints | None:
    """Where a test holds, which fills in its answers from one place to another; None if in more than `most` places.

    In strips, whose answers stay in a cache: what is as long as the table would cost more than the comparison. Few of
    them are true, so eight are looked at together first.
    """
    words = np.zeros(-(-max(1, min(STRIP, size)) // WORD), np.uint64)
    answers = words.view(np.bool_)
    by_word = answers.reshape(-1, WORD)
    found, total = [], 0
    for start in range(0, size, STRIP):
        stop = min(start + STRIP, size)
        test(start, stop, answers[: stop - start])
        answers[stop - start :] = False
        (some,) = (words != 0).nonzero()
        (at,) = by_word[some].reshape(-1).nonzero()
        total += at.size
        if total > most:
            return None
        if at.size:
            found.append(some[at // WORD] * WORD + at % WORD + start)
    return np.concatenate(found) if found else np.zeros(0, np.int64)
