"""Tilings of products, and which of them a card has room for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

ALIGNED = 16  # bytes of which strides of tensor descriptors are multiples
ACCUMULATORS = 128  # sums in float32 that a thread holds at most
WARP = 32
LARGE, SMALL = 128 * 128, 64 * 64  # numbers of a tile's result
MANY, FEW = 4, 4  # tiles a processor from which small tiles are not worth measuring; processors a tile, for large ones
RESERVED = 1024  # bytes of shared memory that each block takes beside its own


@dataclass(frozen=True)
class Card:
    """processors: of the card. room: bytes of shared memory that a block may have."""

    processors: int
    room: int


@dataclass(frozen=True)
class Config:
    """rows, cols: of a tile. depth: dimensions of a step. group: rows of tiles that pass over all columns together.

    stages: steps whose loads are under way. persistent: programs stay on their processors, and compute tiles one after
    the other. halved: a tile's columns are finished and stored in two halves, whose room the next one's loads take.
    """

    rows: int
    cols: int
    depth: int
    warps: int
    stages: int
    group: int = 8
    persistent: bool = False
    halved: bool = False

    def __str__(self) -> str:
        said = f"{self.rows}x{self.cols}x{self.depth}, {self.warps} warps, {self.stages} stages"
        return said + ", persistent" * self.persistent + ", halved" * self.halved

    @property
    def stored(self) -> int:
        """Columns that are finished and stored at once."""
        return self.cols // 2 if self.halved else self.cols

    def shared(self, weights: int, beside: int = 0, element: int = 2) -> int:
        """Bytes of shared memory that it takes. weights: how many share x. beside: how many times more what is stored
        takes, for a residual, for heads that turn, and for what is kept.
        """
        loads = self.stages * self.depth * (self.rows + weights * self.cols)
        stored = (1 + beside) * self.rows * self.stored  # beside the next tile's loads, or in their place
        return (loads + stored if self.persistent else max(loads, stored)) * element

    def programs(self, tiles: int, weights: int, card: Card, beside: int = 0) -> int:
        """How many programs are launched for so many tiles."""
        if not self.persistent:
            return tiles
        together = max(1, (card.room + RESERVED) // (self.shared(weights, beside) + RESERVED))
        return min(tiles, card.processors * together)

    def sums(self, weights: int) -> int:
        """Sums that a thread holds."""
        return self.rows * self.cols * weights // (self.warps * WARP)


SINGLE = (
    Config(128, 256, 64, 8, 3), Config(128, 128, 64, 4, 3), Config(128, 256, 64, 8, 3, persistent=True),
    Config(128, 256, 64, 8, 3, persistent=True, halved=True), Config(128, 256, 64, 8, 4, persistent=True, halved=True),
    Config(256, 128, 64, 8, 4, persistent=True, halved=True), Config(128, 128, 64, 8, 4, persistent=True),
    Config(128, 64, 64, 4, 4), Config(64, 128, 64, 4, 4), Config(64, 64, 64, 4, 4), Config(64, 64, 128, 4, 4),
    Config(64, 32, 128, 4, 4),
)  # fmt: skip
DOUBLE = (
    Config(128, 128, 64, 8, 3), Config(128, 128, 64, 8, 4), Config(128, 64, 64, 4, 3),
    Config(128, 128, 64, 8, 3, persistent=True), Config(128, 128, 64, 8, 4, persistent=True),
    Config(256, 64, 64, 8, 3, persistent=True), Config(128, 64, 64, 4, 3, persistent=True),
    Config(64, 64, 64, 4, 4), Config(64, 64, 128, 4, 3), Config(64, 32, 128, 4, 4),
)  # fmt: skip


def configs(m: int, n: int, weights: int, card: Card, multiple: int = 1, beside: int = 0) -> Iterator[Config]:
    """Those worth measuring for a product (m, n). weights: that share x. multiple: of which columns of a tile are, as
    they are stored. beside: as `shared` has it.

    Large tiles need less of a card's caches, so small ones are for products that have few tiles.
    """
    area = LARGE // weights
    many = m * n // area >= MANY * card.processors
    for one in SINGLE if weights == 1 else DOUBLE:
        if one.stored % multiple or one.shared(weights, beside) > card.room or one.sums(weights) > ACCUMULATORS:
            continue
        if (one.rows > 64 and one.rows >= 2 * m) or (one.cols > 64 and one.cols >= 2 * n):
            continue  # half of a tile and more would be beyond the end
        tiles = -(-m // one.rows) * -(-n // one.cols)
        if (many and one.rows * one.cols < area) or (tiles * FEW < card.processors and one.rows * one.cols > SMALL):
            continue
        yield one
