"""Forty score functions of the kinds that FlexAttention's users publish, as formulas: what tests of tracing run.

Each is made for (batch, heads, m, n) and a random generator of torch. It answers traced values and tensors alike, so a
dense reference calls the same function. `tables` are the tensors whose gradients are compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

Score = Callable[..., Any]


@dataclass(frozen=True)
class Made:
    """A score function and the tables that it captured."""

    function: Score
    tables: tuple[torch.Tensor, ...] = ()


class At:
    """The sizes that a function is made for, and tables drawn for it."""

    def __init__(self, batch: int, heads: int, m: int, n: int, seed: int = 0) -> None:
        self.batch, self.heads, self.m, self.n = batch, heads, m, n
        self.random = torch.Generator().manual_seed(seed)

    def real(self, *shape: int) -> torch.Tensor:
        """A learned table, float64."""
        return torch.randn(shape, generator=self.random, dtype=torch.float64).requires_grad_()

    def ints(self, most: int, *shape: int) -> torch.Tensor:
        return torch.randint(0, most, shape, generator=self.random)


def _constant(function: Score) -> Callable[[At], Made]:
    return lambda at: Made(function)


def _of_tables(make: Callable[..., Score], *shapes: Callable[[At], tuple[int, ...]]) -> Callable[[At], Made]:
    def made(at: At) -> Made:
        tables = tuple(at.real(*shape(at)) for shape in shapes)
        return Made(make(at, *tables), tables)

    return made


def per_head(at: At) -> tuple[int, ...]:
    return (at.heads,)


def distances(at: At) -> tuple[int, ...]:
    return (at.heads, at.m + at.n - 1)


def _alibi_geometric(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score + (k - q) * torch.exp2(-(h + 1) * 0.5)


def _soft_windows(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return torch.where(abs(q - k) <= 4, score, score - 0.1 * (abs(q - k) - 4))


def _block_bonus(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score + (q // 8 == k // 8) * 0.5


def _checkerboard(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return torch.where((q + k) % 2 == 0, score * 0.5, score)


def _gaussian(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    distance = (q - k) / 16
    return score - 0.5 * distance * distance


def _rotation(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score * torch.cos((q - k) * 0.01)


def _grid_distance(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    dy, dx = q // 8 - k // 8, q % 8 - k % 8
    return score - 0.2 * torch.sqrt((dy * dy + dx * dx).to(torch.float64) + 1e-3)


def _manhattan(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score - 0.05 * (abs(q // 8 - k // 8) + abs(q % 8 - k % 8))


def _t5_buckets(at: At, table: torch.Tensor) -> Score:
    def f(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        back = (q - k).clamp(min=0)
        far = 4 + (torch.log((back + 1) / 4) / math.log(8) * 4).to(torch.int32)
        return score + table[h, torch.where(back < 4, back, far.clamp(0, 7))]

    return f


def _documents(at: At) -> Made:
    ids = at.ints(3, at.m + at.n).sort().values
    return Made(lambda score, b, h, q, k: torch.where(ids[q] == ids[k], score, -float("inf")))


def _soft_documents(at: At) -> Made:
    ids, cost = at.ints(3, at.m + at.n), at.real()
    return Made(lambda score, b, h, q, k: score - torch.where(ids[q] == ids[k], 0.0, cost * cost), (cost,))


def _key_weights(at: At) -> Made:
    logits = at.real(at.batch, at.n)
    return Made(lambda score, b, h, q, k: score + torch.log(torch.sigmoid(logits[b, k]) + 1e-6), (logits,))


def _type_pairs(at: At) -> Made:
    kinds, table = at.ints(4, at.batch, at.m + at.n), at.real(at.heads, 4, 4)
    return Made(lambda score, b, h, q, k: score + table[h, kinds[b, q], kinds[b, k]], (table,))


def _times(at: At) -> Made:
    times, rate = at.real(at.m + at.n).detach().abs().cumsum(0), at.real(at.heads)
    return Made(lambda score, b, h, q, k: score - abs(times[q] - times[k]) * rate[h] * rate[h], (rate,))


def _padding(at: At) -> Made:
    lengths = at.ints(at.n, at.batch) + 1
    return Made(lambda score, b, h, q, k: torch.where(k < lengths[b], score, -float("inf")))


def _flags(at: At) -> Made:
    flags, gain = at.ints(2, at.m + at.n).bool(), at.real(at.heads)
    return Made(lambda score, b, h, q, k: torch.where(flags[q] & flags[k], score * (1 + gain[h] * 0.1), score), (gain,))


FUNCTIONS: dict[str, Callable[[At], Made]] = {
    # without tables
    "identity": _constant(lambda score, b, h, q, k: score),
    "tanh_softcap": _constant(lambda score, b, h, q, k: 20.0 * torch.tanh(score / 20.0)),
    "temperature": _constant(lambda score, b, h, q, k: score / 1.7),
    "relative_position": _constant(lambda score, b, h, q, k: score + (q - k)),
    "causal": _constant(lambda score, b, h, q, k: torch.where(q >= k, score, -float("inf"))),
    "sliding_window": _constant(lambda score, b, h, q, k: torch.where((q - k).abs() <= 5, score, -float("inf"))),
    "prefix_bonus": _constant(lambda score, b, h, q, k: torch.where(k < 4, score + 1.0, score)),
    "alibi_geometric": _constant(_alibi_geometric),
    "alibi_per_group": _constant(lambda score, b, h, q, k: score - abs(q - k) * 2.0 ** (-(h % 2 + 1))),
    "log_distance": _constant(lambda score, b, h, q, k: score - torch.log(1.0 + abs(q - k))),
    "soft_windows": _constant(_soft_windows),
    "block_bonus": _constant(_block_bonus),
    "checkerboard": _constant(_checkerboard),
    "gaussian": _constant(_gaussian),
    "rotation": _constant(_rotation),
    "grid_distance": _constant(_grid_distance),
    "manhattan": _constant(_manhattan),
    "head_scale": _constant(lambda score, b, h, q, k: score * (1.0 + 0.1 * h)),
    "odd_heads_only": _constant(lambda score, b, h, q, k: torch.where(h % 2 == 1, score * 2, score)),
    "clamped": _constant(lambda score, b, h, q, k: score.clamp(-0.5, 0.5) + 0.01 * score),
    "squared": _constant(lambda score, b, h, q, k: score**2 - 0.5 * score**3 / 10),
    "sigmoid_gate": _constant(lambda score, b, h, q, k: score * torch.sigmoid(score)),
    "gelu": _constant(lambda score, b, h, q, k: functional.gelu(score) + 0.1 * functional.elu(score)),
    "softsign": _constant(lambda score, b, h, q, k: score / (1 + score.abs())),
    "length_scaled": _constant(lambda score, b, h, q, k: score * torch.log(q + 2.0)),
    "decay_of_steps": _constant(lambda score, b, h, q, k: score + torch.minimum(q // 4 - k // 4, k * 0) * 0.3),
    # with tables
    "alibi_learned": _of_tables(lambda at, s: lambda score, b, h, q, k: score - s[h] * (q - k).abs(), per_head),
    "head_bias": _of_tables(lambda at, s: lambda score, b, h, q, k: score + s[h], per_head),
    "head_temperature": _of_tables(lambda at, s: lambda score, b, h, q, k: score * torch.exp(s[h] * 0.1), per_head),
    "scalar_gain": _of_tables(lambda at, s: lambda score, b, h, q, k: score * (1 + 0.1 * s), lambda at: ()),
    "relative_table": _of_tables(lambda at, t: lambda score, b, h, q, k: score + t[h, q - k + at.n - 1], distances),
    "clipped_table": _of_tables(
        lambda at, t: lambda score, b, h, q, k: score + t[h, (k - q).clamp(-3, 3) + 3], lambda at: (at.heads, 7)
    ),
    "gated_table": _of_tables(
        lambda at, t: lambda score, b, h, q, k: score + score.tanh() * t[h, abs(q - k).clamp(max=6)],
        lambda at: (at.heads, 7),
    ),
    "query_bias": _of_tables(lambda at, t: lambda score, b, h, q, k: score * t[q], lambda at: (at.m,)),
    "key_bias": _of_tables(
        lambda at, t: lambda score, b, h, q, k: score + t[b, h, k], lambda at: (at.batch, at.heads, at.n)
    ),
    "dense_bias": _of_tables(lambda at, t: lambda score, b, h, q, k: score + t[q, k], lambda at: (at.m, at.n)),
    "swin": _of_tables(
        lambda at, t: lambda score, b, h, q, k: score + t[(q // 4 % 4 - k // 4 % 4 + 3) * 7 + (q % 4 - k % 4 + 3), h],
        lambda at: (49, at.heads),
    ),
    "t5_buckets": _of_tables(_t5_buckets, lambda at: (at.heads, 8)),
    "documents": _documents,
    "soft_documents": _soft_documents,
    "key_weights": _key_weights,
    "type_pairs": _type_pairs,
    "times": _times,
    "padding": _padding,
    "flags": _flags,
}
