"""Bounds of rows, read from packed tables: staircases, step functions, and lists of both.

`weft.kernels.gpu.tables.pack` and `weft.kernels.gpu.split_kv.tables` say how they are packed. Integers are those of a
kernel, 32 bits wide, and divisions round towards zero.
"""

from __future__ import annotations

import numpy as np

from weft.kernels.gpu.oracle.laws import law
from weft.kernels.gpu.oracle.memory import Ints
from weft.kernels.gpu.tables.pack import AXIS
from weft.planning.tiling.gpu import FAR

RECORD = 12  # integers of a bound in a list of tables
UPPER = 16  # integers of the two lower staircases, before the upper ones


def narrow(x: Ints) -> Ints:
    """x, which a kernel keeps in 32 bits."""
    law(np.size(x) == 0 or np.max(np.abs(x)) < 1 << 31, "an index leaves 32 bits")
    return x


def divided(x: Ints, by: int) -> Ints:
    """x // by, rounded towards zero."""
    found: Ints = np.sign(x) * (np.abs(x) // by)
    return found


def remainder(x: Ints, by: int) -> Ints:
    """What such a division leaves, with the sign of x."""
    found: Ints = np.fmod(x, by)
    return found


def stair(words: Ints, record: int, i: Ints) -> Ints:
    """clip(rise * floor((i + shift) / run) + base), -FAR below in_lo and FAR from in_hi on."""
    rise, run, shift, base, out_lo, out_hi, in_lo, in_hi = (int(x) for x in words[record : record + 8])
    value = narrow(narrow(divided(narrow(i + shift), run) * rise) + base)
    value = np.where(i < in_lo, -FAR, np.clip(value, out_lo, out_hi))
    return np.where(i >= in_hi, FAR, value)


def line(words: Ints, record: int, i: Ints) -> Ints:
    """clip(rise * i + base): a staircase whose steps are one index wide."""
    rise, _, _, base, out_lo, out_hi, _, _ = (int(x) for x in words[record : record + 8])
    found: Ints = np.clip(narrow(narrow(i * rise) + base), out_lo, out_hi)
    return found


def lines(words: Ints, here: int, i: Ints) -> tuple[Ints, Ints]:
    """(low, high) by one clipped line on either side, within the axis whose integers begin at `here`."""
    at, length = here + AXIS, int(words[here + 2])
    return np.maximum(line(words, at, i), 0), np.minimum(line(words, at + UPPER, i), length)


def stairs(words: Ints, here: int, i: Ints) -> tuple[Ints, Ints]:
    """(low, high) by two staircases on either side."""
    at, length = here + AXIS, int(words[here + 2])
    low = np.maximum(stair(words, at, i), stair(words, at + 8, i))
    high = np.minimum(stair(words, at + UPPER, i), stair(words, at + UPPER + 8, i))
    return np.maximum(low, 0), np.minimum(high, length)


def listed(words: Ints, here: int, i: Ints, item: int) -> tuple[Ints, Ints]:
    """(low, high) by a list of bounds on either side."""
    at, length = here + AXIS, int(words[here + 2])
    low, high = (_list(words, at + 2 * side, i, item) for side in range(2))
    return np.maximum.reduce([0 * i, *low]), np.minimum.reduce([0 * i + length, *high])


def _list(words: Ints, at: int, i: Ints, item: int) -> list[Ints]:
    first, count = (int(x) for x in words[at : at + 2])
    records = [first + RECORD * b for b in range(count)]
    return [steps(words, r + 1, i, item) if words[r] else stair(words, r + 1, i) for r in records]


def steps(words: Ints, record: int, i: Ints, item: int) -> Ints:
    """values[number of breaks <= i], of the breaks inside an item."""
    breaks, values, spans = (int(x) for x in words[record : record + 3])
    first, last = (int(x) for x in words[spans + 2 * item :][:2])
    value = np.full_like(i, words[values + first])
    for j in range(first, last):
        value = np.where(i >= words[breaks + j], words[values + j + 1], value)
    return value


def positions(words: Ints, here: int, bound: Ints, first: int) -> Ints:
    """Keys before `bound` among first, first + step, ..., by the reciprocal of the step."""
    step, inverse, digits = (int(words[here + n]) for n in (0, 4, 5))
    law(step > 0, f"keys are {step} apart")
    beyond = np.maximum(narrow(bound - first + (step - 1)), 0)
    found = (2 * beyond.astype(np.uint64) * np.uint64(inverse % (1 << 32)) >> np.uint64(32 + digits)).astype(np.int64)
    law(np.array_equal(found, beyond // step), f"the reciprocal of {step} divides wrongly")
    return found
