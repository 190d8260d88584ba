"""What is done to scores and weights on the CPU, for the heads at hand; and the indices that it depends on."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from weft.kernels.cpu.boxes import StridedBox
from weft.kernels.cpu.rules import Heads, Rule
from weft.kernels.cpu.tiles import Step
from weft.kernels.options import Dropping, Modifiers
from weft.score import dropout
from weft.score.text import parse

ALIBI = "score - abs(q + shift - k) * real0[h]"


@dataclass(frozen=True, eq=False)
class Kept:
    """Dropout of weights: its rate and its seed. part: see `weft.score.dropout.whole_indices`."""

    rate: float
    seed: int
    part: np.ndarray | None = None

    @staticmethod
    def of(given: Dropping) -> Kept:
        """From what a call asks."""
        seed, *_ = numbers = given.seed.cpu().numpy()
        return Kept(given.rate, int(seed), numbers[1:] if given.tokens else None)

    def whole(self, heads: Heads, q: np.ndarray, k: np.ndarray) -> tuple[np.ndarray, ...]:
        """b, h (pairs, group), q (rows,) and k (width,) in the whole sequence; they broadcast but for q and k."""
        b, h = heads.b.numpy()[:, None, None, None], heads.h.numpy()[:, :, None, None]
        if self.part is None:
            return b, h, q, k
        (first, m, _), numbers = self.part[: dropout.HEADER - 1], self.part[dropout.HEADER - 1 :]
        return b, h + first, numbers[:m][q], numbers[m:][k]


@dataclass(eq=False, slots=True)  # not frozen: a small call makes several, and a frozen one takes four times as long
class How:
    """As `Modifiers`, with ALiBi among the rules. heads: which ones are computed, where that matters. unit: what scores
    are multiplied by at last.
    """

    scale: float
    softcap: float | None = None
    shift: int = 0
    rules: tuple[Rule, ...] = ()
    dropout: Kept | None = None
    heads: Heads | None = None
    unit: float = 1.0

    @staticmethod
    def of(what: Modifiers, dtype: torch.dtype) -> How:
        """With tables in the dtype of accumulation."""
        if not what.rules and what.alibi is None and what.dropout is None:
            return How(what.scale, what.softcap, what.shift)
        rules = [
            Rule.of(one.expression, tuple(_as_read(x, dtype) for x in one.tables), one.wanted) for one in what.rules
        ]
        if what.alibi is not None:
            rules.append(Rule(parse(ALIBI), (what.alibi.to(dtype),)))
        drop = None if what.dropout is None else Kept.of(what.dropout)
        return How(what.scale, what.softcap, what.shift, tuple(rules), drop)

    @property
    def by_index(self) -> bool:
        """Whether anything depends on where a pair is."""
        return bool(self.rules) or self.dropout is not None

    def of_head(self, pair: int, head: int) -> How:
        """That of one head of one pair."""
        return self if self.heads is None else replace(self, heads=self.heads.of_head(pair, head))

    def times(self, unit: float) -> How:
        """That which makes every score `unit` times as large."""
        if self.rules:
            return replace(self, unit=self.unit * unit)
        cap = None if self.softcap is None else self.softcap * unit
        return How(self.scale * unit, cap, self.shift, (), self.dropout, self.heads, self.unit)


def _as_read(table: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if table.dtype is torch.bool:
        return table
    return table.to(dtype if table.is_floating_point() else torch.int64)


@dataclass(frozen=True, eq=False)
class Pairs:
    """The tokens of one run of tiles and one step: q (tiles, rows), k (tiles, width)."""

    q: np.ndarray
    k: np.ndarray

    @staticmethod
    def of(queries: StridedBox, step: Step) -> Pairs:
        return Pairs(queries.tokens(), np.concatenate([piece.keys.tokens() for piece in step.pieces], axis=1))

    def indices(self) -> dict[str, torch.Tensor]:
        """q and k, which broadcast against scores (tiles, pairs, group, rows, width)."""
        q, k = (torch.from_numpy(np.array(x)) for x in (self.q, self.k))
        return {"q": q[:, None, None, :, None], "k": k[:, None, None, None, :]}

    def factors(self, how: Kept, heads: Heads, dtype: torch.dtype) -> torch.Tensor:
        """What dropout multiplies weights by: (tiles, pairs, group, rows, width)."""
        least, kept = dropout.threshold(how.rate), dropout.scale(how.rate)
        found = [_halves(how.seed, *how.whole(heads, q, k)) for q, k in zip(self.q, self.k, strict=True)]
        return torch.from_numpy(np.stack(found) >= least).to(dtype).mul_(kept)


def _halves(seed: int, b: np.ndarray, h: np.ndarray, q: np.ndarray, k: np.ndarray) -> np.ndarray:
    """`weft.score.dropout.halves` of all pairs of q (rows,) and k (width,), with one call of Philox for each group."""
    q, k = q.astype(np.uint32), k.astype(np.uint32)
    (rows, row), (columns, column) = (
        np.unique(dropout.group(x, drop), return_inverse=True) for x, drop in ((q, 0), (k, 1))
    )
    key = seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF
    words = np.stack(dropout.philox((rows[:, None], columns, h, b), key), axis=-1)
    halves = words.astype("<u4").view("<u2")  # (..., rows, columns, 8): low half first
    place = (q >> 3 & 1)[:, None] * 4 + (k >> 3 & 1) * 2 + (k & 1)
    return halves[..., row[:, None], column, place]
