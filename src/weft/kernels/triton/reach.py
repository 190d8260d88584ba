"""What tensor descriptors reach: the tokens that tiles of a line may read, as places and lanes.

A tile is read whole, and may end up to 63 places beyond the last one of its run. So all places that a descriptor
reaches are of some run: what lies in a key that no query sees may be anything, and is never read. Beyond them a
descriptor reads zeros.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from weft.kernels.triton.tables import PART, Place, Words, axis_words
from weft.pattern.bounds import Ints

TILE, CHANNELS = 64, 64  # places and channels of a box
# Boxes of a forward: a tensor, and which side's tokens. Of queries Out is written whole, where a tile is.
FORWARD = (("Out", 0), ("Q", 0), ("K", 1), ("V", 1), ("K", 2), ("V", 2))


class Reach(NamedTuple):
    """Tokens base + step * place + lane for places and lanes from 0 on."""

    base: int
    step: int
    lanes: int
    places: int


def reaches(words: Words, place: Place, count: int) -> tuple[Reach, ...] | None:
    """Of the queries and of each term's keys of one launch on lines, of so many items; None where tokens are no such
    places, or some of them are keys that no query sees.
    """
    items = words[place.items_at :][: count * place.record].reshape(count, place.record).astype(np.int64)
    sides = [(items[:, 0], items[:, 1], words[0], words[3], words[4], False)]
    for part in range(place.parts):
        at = place.parts_at + part * (PART + axis_words(1))
        first, count = items[:, 2 + 4 * part], items[:, 3 + 4 * part]
        sides.append((first, count, words[at], words[at + PART], words[at + PART + 2], True))
    found = [_reach(first, count, (int(origin), int(step), int(length)), all_of_them)
             for first, count, origin, step, length, all_of_them in sides]  # fmt: skip
    return None if None in found else tuple(one for one in found if one is not None)


def _reach(first: Ints, count: Ints, grid: tuple[int, int, int], all_of_them: bool) -> Reach | None:
    """Of runs of `count` tokens from `first` on; grid: its origin, step and length. all_of_them: or None."""
    origin, step, length = grid
    first, count = first[count > 0], count[count > 0]
    if not first.size:
        return Reach(origin, step, 1, 1)
    lane = first % step
    lanes = 1 if (lane == lane[0]).all() else step
    begin = first // step
    low, high = int(begin.min()), int((begin + count).max())
    base = low * step + (int(lane[0]) if lanes == 1 else 0)
    if base + (high - low - 1) * step + lanes > length:
        return None
    if all_of_them and not all(_is_whole(begin[lane == one], count[lane == one], low, high) for one in np.unique(lane)):
        return None
    if all_of_them and lanes > 1 and np.unique(lane).size < lanes:
        return None
    return Reach(origin + base, step, lanes, high - low)


def _is_whole(begin: Ints, count: Ints, low: int, high: int) -> bool:
    """Whether runs leave no place out between low and high."""
    order = np.argsort(begin, kind="stable")
    ends = np.maximum.accumulate((begin + count)[order])
    return bool(begin.min() == low and ends[-1] == high and (begin[order][1:] <= ends[:-1]).all())


# ---- descriptors -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Box:
    """A descriptor but for its address. tensor: which of a launch's; ahead: bytes before its first token. shape,
    strides: batch row, head, place, lane, channel, in elements.
    """

    tensor: int
    ahead: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def at(self, address: int) -> Placed:
        return Placed(self, address + self.ahead)


@dataclass(frozen=True)
class Placed:
    """A descriptor as Triton's launchers read it."""

    box: Box
    address: int
    padding: str = "zero"
    round_f32_to_tf32: bool = False

    @property
    def base(self) -> Placed:
        return self

    def data_ptr(self) -> int:
        return self.address

    @property
    def shape(self) -> tuple[int, ...]:
        return self.box.shape

    @property
    def strides(self) -> tuple[int, ...]:
        return self.box.strides


def boxes(
    found: tuple[Reach, ...], names: tuple[str, ...], sizes: Mapping[str, tuple[int, int]],
    strides: Mapping[str, tuple[int, ...]],
) -> tuple[Box, ...]:  # fmt: skip
    """Of a forward of so many terms. names: of a launch's tensors, in order; sizes: batch rows and heads of each;
    strides: batch row, head, token, channel, in elements of 16 bits.
    """
    made = []
    for name, side in FORWARD[: 2 * len(found)]:
        reach, (batch, head, token, _) = found[side], strides[name]
        shape = (*sizes[name], reach.places, reach.lanes, CHANNELS)
        made.append(Box(
            names.index(name), 2 * reach.base * token, shape, (batch, head, reach.step * token, token, 1)
        ))  # fmt: skip
    return tuple(made)


def box_names(terms: int) -> tuple[str, ...]:
    """Names of the descriptors among a kernel's arguments."""
    return tuple(f"{name}_{'near' if side < 2 else 'far'}" for name, side in FORWARD[: 2 + 2 * terms])


def box_kind() -> str:
    """The type of a descriptor among a kernel's arguments."""
    from triton.experimental.gluon import language as gl

    shape: Any = [1, 1, TILE, 1, CHANNELS]
    return f"tensordesc<bf16{shape},{gl.NVMMASharedLayout.get_default_for(shape, gl.bfloat16)!r}>"
