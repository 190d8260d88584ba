"""The masks of the named workloads: each as a weft pattern and, written apart from it, as a formula on indices.

A formula, `predicate(b, h, q, k)`, works on broadcastable integer arrays of numpy or torch. It serves as
FlexAttention's mask_mod and as the truth that results are checked with. Queries are aligned with the last keys.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

import weft
from weft.pattern.algebra import Pattern

Predicate = Callable[[Any, Any, Any, Any], Any]
Table = Callable[[np.ndarray], Any]  # makes a numpy array an array of the predicate's library


@dataclass(frozen=True)
class Mask:
    """One kind of mask with its sizes. A mask of fixed length says its `tokens`."""

    @property
    def tokens(self) -> int | None:
        """M == N, where the mask itself fixes it."""
        return None

    def pattern(self) -> Pattern:
        """The mask as weft's users write it."""
        raise NotImplementedError

    def formula(self, table: Table, n: int) -> Predicate:
        """The mask on aligned indices: queries end where the n keys end."""
        raise NotImplementedError

    def reduced(self, by: int) -> Mask:
        """The same kind at about 1/by of the tokens."""
        raise NotImplementedError


@dataclass(frozen=True)
class Full(Mask):
    """Every query sees every key."""

    def pattern(self) -> Pattern:
        return weft.full()

    def formula(self, table: Table, n: int) -> Predicate:
        return lambda b, h, q, k: (q >= 0) & (k >= 0)

    def reduced(self, by: int) -> Mask:
        return self


@dataclass(frozen=True)
class Band(Mask):
    """-left <= k - q <= right in tokens, on multiples of step; left None: open to the left."""

    left: int | None = None
    right: int = 0
    step: int = 1

    def pattern(self) -> Pattern:
        if self.left is None:
            return weft.causal(offset=self.right)
        if self.step > 1:
            return weft.dilated(self.left // self.step, self.right // self.step, self.step)
        if self.right == 0:
            return weft.causal() & weft.window(left=self.left)
        return weft.window(left=self.left, right=self.right)

    def formula(self, table: Table, n: int) -> Predicate:
        left, right, step = self.left, self.right, self.step
        if left is None:
            return lambda b, h, q, k: k <= q + right
        if step == 1:
            return lambda b, h, q, k: (k - q <= right) & (q - k <= left)
        return lambda b, h, q, k: (k - q <= right) & (q - k <= left) & ((q - k) % step == 0)

    def reduced(self, by: int) -> Mask:
        left, right = (None if x is None else x // self.step // by * self.step for x in (self.left, self.right))
        return Band(left, right or 0, self.step)


@dataclass(frozen=True)
class Longformer(Mask):
    """|q - k| <= reach, or q or k among the first `count`."""

    reach: int
    count: int

    def pattern(self) -> Pattern:
        return weft.longformer(2 * self.reach, self.count)

    def formula(self, table: Table, n: int) -> Predicate:
        reach, count = self.reach, self.count
        return lambda b, h, q, k: (abs(q - k) <= reach) | (q < count) | (k < count)

    def reduced(self, by: int) -> Mask:
        return Longformer(self.reach // by, max(1, self.count // by))


@dataclass(frozen=True)
class Strided(Mask):
    """k <= q, and q - k < local or k the last of its block of `period`."""

    local: int
    period: int

    def pattern(self) -> Pattern:
        return weft.causal() & (weft.window(left=self.local - 1) | weft.periodic_keys(self.period))

    def formula(self, table: Table, n: int) -> Predicate:
        local, period = self.local, self.period
        return lambda b, h, q, k: (q >= k) & ((q - k < local) | (k % period == period - 1))

    def reduced(self, by: int) -> Mask:
        return Strided(max(4, self.local // by), max(4, self.period // by))


@dataclass(frozen=True)
class SparseTransformer(Mask):
    """Even heads see the near factor, odd heads the far one: strided, or (summary > 0) fixed."""

    stride: int
    heads: int
    summary: int = 0

    def pattern(self) -> Pattern:
        if self.summary:
            return weft.sparse_transformer(self.stride, self.heads, kind="fixed", summary=self.summary)
        return weft.sparse_transformer(self.stride, self.heads)

    def formula(self, table: Table, n: int) -> Predicate:
        stride, summary = self.stride, self.summary

        def predicate(b: Any, h: Any, q: Any, k: Any) -> Any:
            near = q // stride == k // stride if summary else q - k < stride
            far = k % stride >= stride - summary if summary else (q - k) % stride == 0
            even = h % 2 == 0
            return (k <= q) & ((even & near) | ((h % 2 == 1) & far))

        return predicate

    def reduced(self, by: int) -> Mask:
        return SparseTransformer(max(4, self.stride // by), self.heads, min(2, self.summary))


@dataclass(frozen=True)
class Chunks(Mask):
    """q and k in the same chunk of `size`, and k <= q."""

    size: int

    def pattern(self) -> Pattern:
        return weft.causal() & weft.chunks(self.size)

    def formula(self, table: Table, n: int) -> Predicate:
        size = self.size
        return lambda b, h, q, k: (q >= k) & (q // size == k // size)

    def reduced(self, by: int) -> Mask:
        return Chunks(self.size // by)


@dataclass(frozen=True)
class Documents(Mask):
    """Tokens of one document, and k <= q; with `shared`, the first document is seen by all later ones as well."""

    lengths: tuple[int, ...]
    shared: bool = False

    @property
    def tokens(self) -> int:
        return sum(self.lengths)

    def pattern(self) -> Pattern:
        seen = weft.documents(list(self.lengths))
        return weft.causal() & (seen | weft.prefix(self.lengths[0]) if self.shared else seen)

    def formula(self, table: Table, n: int) -> Predicate:
        ids = table(np.repeat(np.arange(len(self.lengths)), self.lengths))
        if not self.shared:
            return lambda b, h, q, k: (q >= k) & (ids[q] == ids[k])
        first = self.lengths[0]
        return lambda b, h, q, k: (q >= k) & ((ids[q] == ids[k]) | (k < first))

    def reduced(self, by: int) -> Mask:
        return Documents(tuple(max(1, length // by) for length in self.lengths), self.shared)


@dataclass(frozen=True)
class Prefix(Mask):
    """k <= q, or k among the first `length`."""

    length: int

    def pattern(self) -> Pattern:
        return weft.causal() | weft.prefix(self.length)

    def formula(self, table: Table, n: int) -> Predicate:
        length = self.length
        return lambda b, h, q, k: (k <= q) | (k < length)

    def reduced(self, by: int) -> Mask:
        return Prefix(self.length // by)


@dataclass(frozen=True)
class BigBird(Mask):
    """Blocks of 64: the neighbours of each, the first and the last, and `random` drawn ones."""

    random: int = 3
    block: int = 64
    seed: int = 0

    def pattern(self) -> Pattern:
        return weft.bigbird(self.block, random=self.random, seed=self.seed)

    def formula(self, table: Table, n: int) -> Predicate:
        block, blocks = self.block, -(-n // self.block)
        # the draw is the library's own; it depends on the seed and on the number of blocks alone
        drawn = table(weft.random_blocks(1, self.random, self.seed).to_dense(blocks))

        def predicate(b: Any, h: Any, q: Any, k: Any) -> Any:
            i, j = q // block, k // block
            ends = (i == 0) | (j == 0) | (i == blocks - 1) | (j == blocks - 1)
            return (abs(i - j) <= 1) | ends | drawn[i, j]

        return predicate

    def reduced(self, by: int) -> Mask:
        return BigBird(self.random, max(8, self.block // by), self.seed)


@dataclass(frozen=True)
class RandomBlocks(Mask):
    """`count` drawn blocks of keys for each block of `block` queries."""

    count: int
    block: int = 64
    seed: int = 0

    def pattern(self) -> Pattern:
        return weft.random_blocks(self.block, self.count, self.seed)

    def formula(self, table: Table, n: int) -> Predicate:
        block = self.block
        # the draw is the library's own; it depends on the seed and on the number of blocks alone
        drawn = table(weft.random_blocks(1, self.count, self.seed).to_dense(-(-n // block)))
        return lambda b, h, q, k: drawn[q // block, k // block]

    def reduced(self, by: int) -> Mask:
        return RandomBlocks(min(self.count, 3), max(8, self.block // by), self.seed)


@dataclass(frozen=True)
class Dilations(Mask):
    """Head h sees `reach` keys to either side, steps[h] apart."""

    reach: int
    steps: tuple[int, ...]

    def pattern(self) -> Pattern:
        return weft.per_head([weft.dilated(self.reach, self.reach, step) for step in self.steps])

    def formula(self, table: Table, n: int) -> Predicate:
        reach, steps = self.reach, table(np.asarray(self.steps))

        def predicate(b: Any, h: Any, q: Any, k: Any) -> Any:
            step = steps[h]
            return (abs(q - k) <= reach * step) & ((q - k) % step == 0)

        return predicate

    def reduced(self, by: int) -> Mask:
        return Dilations(max(2, self.reach // by), self.steps)


@dataclass(frozen=True)
class Neighborhood(Mask):
    """NATTEN's neighbourhoods: `size` keys on each axis of a grid, pushed inwards at borders. One entry an axis."""

    shape: tuple[int, ...]
    size: tuple[int, ...]
    stride: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()

    @property
    def tokens(self) -> int:
        return prod(self.shape)

    @property
    def options(self) -> dict[str, tuple[int, ...]]:
        """NATTEN's keyword arguments."""
        ones = (1,) * len(self.shape)
        return {"kernel_size": self.size, "stride": self.stride or ones, "dilation": self.dilation or ones}

    def pattern(self) -> Pattern:
        chosen = self.options
        return weft.neighborhood(self.shape, self.size, chosen["stride"], chosen["dilation"])

    def formula(self, table: Table, n: int) -> Predicate:
        axes = list(zip(self.shape, *self.options.values(), strict=True))

        def predicate(b: Any, h: Any, q: Any, k: Any) -> Any:
            live = (q >= 0) & (k >= 0)
            for axis, row in enumerate(axes):
                after = prod(self.shape[axis + 1 :])
                live = live & _near((q // after) % row[0], (k // after) % row[0], *row)
            return live

        return predicate

    def reduced(self, by: int) -> Mask:
        side = max(1, round(by ** (1 / len(self.shape))))
        shape, size = (tuple(max(1, x // side) for x in values) for values in (self.shape, self.size))
        dilation = tuple(min(d, s // w) for d, s, w in zip(self.options["dilation"], shape, size, strict=True))
        stride = tuple(min(t, w) for t, w in zip(self.options["stride"], size, strict=True))
        return Neighborhood(shape, size, stride, dilation)


def _near(q: Any, k: Any, length: int, size: int, stride: int, dilation: int) -> Any:
    """One axis, for each residue class modulo `dilation`: windows follow the leader of q's group of `stride`."""
    if dilation == 1 and stride == 1:
        first = (q - size // 2).clip(0, length - size)
        return (k >= first) & (k < first + size)
    members = (length - q % dilation + dilation - 1) // dilation
    leader = _at_most(q // dilation // stride * stride + stride // 2, members - 1)
    first = _at_most((leader - size // 2).clip(0, None), members - size)
    place = k // dilation
    return (q % dilation == k % dilation) & (place >= first) & (place < first + size)


def _at_most(x: Any, limit: Any) -> Any:
    """The smaller of two arrays, in the words that numpy and torch share."""
    return x - (x - limit).clip(0, None)


@dataclass(frozen=True)
class TextImage(Mask):
    """Text that sees everything, then an image whose pixels see all the text and a neighbourhood of pixels."""

    text: int
    image: Neighborhood

    @property
    def tokens(self) -> int:
        return self.text + self.image.tokens

    def pattern(self) -> Pattern:
        cells = [[weft.full(), weft.full()], [weft.full(), self.image.pattern()]]
        return weft.segments([self.text, self.image.tokens], cells)

    def formula(self, table: Table, n: int) -> Predicate:
        text, pixels = self.text, self.image.formula(table, self.image.tokens)

        def predicate(b: Any, h: Any, q: Any, k: Any) -> Any:
            inside = pixels(b, h, (q - text).clip(0, None), (k - text).clip(0, None))
            return (q < text) | (k < text) | inside

        return predicate

    def reduced(self, by: int) -> Mask:
        image = self.image.reduced(by)
        assert isinstance(image, Neighborhood)
        return TextImage(max(1, self.text // by), image)
