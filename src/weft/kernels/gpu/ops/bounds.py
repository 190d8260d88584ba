"""What every emitted kernel calls: bounds of rows, read from the tables of a plan. Functions of Triton, inlined.

`stairs` reads four staircases of eight integers (`weft.pattern.bounds.Stair`) at known places, so all loads start
together. `lines` reads eight integers of two of them. It serves windows and causal masks, whose bounds are two clipped
lines. `lower_table` and `upper_table` walk lists of any length. A record of theirs is BOUND integers: 0 and a
staircase, or 1 and three places in the tables. Those are the breaks and values of a step function (`Steps`), and the
first and last value that each tile needs.
"""

from __future__ import annotations

import triton
import triton.language as tl

BOUND = tl.constexpr(12)
FAR = tl.constexpr(1 << 30)


@triton.jit
def stair(record, i):
    """clip(rise * floor((i + shift) / run) + base), -FAR below in_lo and FAR from in_hi on; i (rows,) from 0 on."""
    rise, run = tl.load(record), tl.load(record + 1)
    value = i + tl.load(record + 2)
    if run != 1:  # a division takes some twenty instructions
        value = value // run
    value = value * rise + tl.load(record + 3)
    value = tl.minimum(tl.maximum(value, tl.load(record + 4)), tl.load(record + 5))
    value = tl.where(i < tl.load(record + 6), -FAR, value)
    return tl.where(i >= tl.load(record + 7), FAR, value)


@triton.jit
def narrow_stair(record, i):
    """`stair` where steps are one index wide."""
    value = (i + tl.load(record + 2)) * tl.load(record) + tl.load(record + 3)
    value = tl.minimum(tl.maximum(value, tl.load(record + 4)), tl.load(record + 5))
    value = tl.where(i < tl.load(record + 6), -FAR, value)
    return tl.where(i >= tl.load(record + 7), FAR, value)


@triton.jit
def steps(tables, record, i, item):
    """values[number of breaks <= i]; only the breaks inside the tile are looked at."""
    breaks, values = tables + tl.load(record), tables + tl.load(record + 1)
    span = tables + tl.load(record + 2) + 2 * item
    first, last = tl.load(span), tl.load(span + 1)
    value = tl.zeros_like(i) + tl.load(values + first)
    for j in range(first, last):
        value = tl.where(i >= tl.load(breaks + j), tl.load(values + j + 1), value)
    return value


@triton.jit
def line(record, i):
    """clip(rise * i + base): a staircase whose steps are one index wide."""
    value = i * tl.load(record) + tl.load(record + 3)
    return tl.minimum(tl.maximum(value, tl.load(record + 4)), tl.load(record + 5))


@triton.jit
def lines(record, i, length):
    """`stairs` where the first on either side is a line, and the second says nothing."""
    return tl.maximum(line(record, i), 0), tl.minimum(line(record + 16, i), length)


@triton.jit
def stairs(record, i, length):
    """The larger of two staircases, (rows,), and the smaller of two more, within 0 and the length of the axis."""
    low = tl.maximum(stair(record, i), stair(record + 8, i))
    high = tl.minimum(stair(record + 16, i), stair(record + 24, i))
    return tl.maximum(low, 0), tl.minimum(high, length)


@triton.jit
def lower_table(tables, listed, i, item):
    """The largest of a list of bounds, (rows,). listed: where the list is, how long it is."""
    value = tl.zeros_like(i)
    first = tables + tl.load(listed)
    for b in range(tl.load(listed + 1)):
        record = first + b * BOUND
        if tl.load(record) == 0:
            value = tl.maximum(value, stair(record + 1, i))
        else:
            value = tl.maximum(value, steps(tables, record + 1, i, item))
    return value


@triton.jit
def upper_table(tables, listed, i, item, length):
    """The smallest of a list of bounds, (rows,), and of the length of the axis."""
    value = tl.zeros_like(i) + length
    first = tables + tl.load(listed)
    for b in range(tl.load(listed + 1)):
        record = first + b * BOUND
        if tl.load(record) == 0:
            value = tl.minimum(value, stair(record + 1, i))
        else:
            value = tl.minimum(value, steps(tables, record + 1, i, item))
    return value


@triton.jit
def positions(bound, first, step, inverse, digits):
    """Keys before `bound` among first, first + step, ...; inverse, digits: `tables.reciprocal` of the step."""
    beyond = tl.maximum(bound - first + (step - 1), 0).to(tl.uint32)
    return (tl.umulhi(beyond * 2, inverse.to(tl.uint32)) >> digits.to(tl.uint32)).to(tl.int32)


@triton.jit
def in_three(x):
    """x as a sum of three numbers of eight bits each, so that bfloat16 holds it to float32's precision."""
    high = x.to(tl.bfloat16).to(tl.float32)
    middle = (x - high).to(tl.bfloat16).to(tl.float32)
    return high, middle, x - high - middle


@triton.jit
def is_out(tables, bits_at, tokens):
    """1 for the tokens that a list leaves out, one bit a token in the tables; bits_at 0: none."""
    out = tl.zeros_like(tokens)
    if bits_at != 0:
        last = tl.load(tables + bits_at - 1)  # words before the closing one
        word = tl.load(tables + bits_at + tl.minimum(tokens >> 5, last))
        out = (word >> (tokens & 31)) & 1
    return out


@triton.jit
def tanh(x):
    """tanh by one exponential, which loses small arguments: these by the first terms of the series."""
    far = 1.0 - 2.0 / (1.0 + tl.exp2(x * 2.8853900817779268))
    y = x * x
    near = x * (1.0 + y * (-1.0 / 3 + y * (2.0 / 15 + y * (-17.0 / 315 + y * (62.0 / 2835)))))
    return tl.where(y < 0.05, near, far)
