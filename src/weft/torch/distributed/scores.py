"""Score functions of parts: those of the whole sequence, told which of its tokens a part's rows and keys are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from weft.distributed.local import Part
from weft.distributed.plan import Plan
from weft.errors import UnsupportedError
from weft.pattern.bounds import Ints
from weft.score.dropout import whole_indices
from weft.score.value import Score
from weft.torch.distributed.rows import tensor_of
from weft.torch.extras import Extras, check_rate, score_of, seed_tensor


def asked_for(options: dict[str, Any]) -> Score | None:
    """score, bias and alibi_slopes as one score function, None where none is given."""
    found = score_of(options, options["alibi_slopes"])
    for part in () if found is None else found.parts:
        if part.dense:
            raise UnsupportedError(
                "distributed.attention(bias=tensor)", "a number for each pair of the whole sequence is held by no rank",
                "pass a bias by distance, e.g. weft.bias.relative(table), or a score function",
            )  # fmt: skip
    return found


def dropping(dropout: float, seed: Any, q: Tensor, group: Any) -> tuple[float, Tensor] | None:
    """The rate, and the seed of the group's first rank on q's device: no two ranks can draw by different ones."""
    rate = check_rate(dropout)
    if not rate:
        return None
    found = seed_tensor(seed, q).clone()
    dist.broadcast(found, group=group, group_src=0)
    return rate, found


def extras_of(score: Score | None, drop: tuple[float, Tensor] | None, whole: Tensor | None) -> Extras:
    """What an operator takes. whole: what follows the seed, see `weft.score.dropout.whole_indices`."""
    text, tables = ("", ()) if score is None else (score.text, score.tables)
    if drop is None or whole is None:
        return Extras(text, tables, 0.0, None)
    return Extras(text, tables, drop[0], torch.cat([drop[1], whole]))


def of_part(score: Score, rows: Ints, keys: Ints, device: torch.device) -> Score:
    """The function of a part. rows, keys: their tokens in the whole sequence."""
    made = None
    for one in score.parts:
        text, tables = re.sub(r"\bshift\b", "0", one.text), list(one.tables)
        for name, tokens in (("q", rows), ("k", keys)):
            place = f"({name} + {int(tokens[0])})" if _is_run(tokens) else f"int{len(tables)}[{name}]"
            if place.startswith("int"):
                tables.append(tensor_of(tokens, device))
            text = re.sub(rf"\b{name}\b", place, text)
        placed = Score(text, tuple(tables), one.name)
        made = placed if made is None else made + placed
    return score if made is None else made


def of_heads(score: Score, first: int) -> Score:
    """The function of heads from `first` on."""
    made = None
    for one in score.parts:
        placed = Score(re.sub(r"\bh\b", f"(h + {first})", one.text), one.tables, one.name)
        made = placed if made is None else made + placed
    return score if made is None else made


def own_tables(score: Score, grads: Sequence[Any]) -> list[Any]:
    """Of the gradients of a part's tables those of the whole function's: parts have tables of tokens behind them."""
    found: list[Any] = []
    first, more = 0, (len(grads) - sum(len(one.tables) for one in score.parts)) // len(score.parts)
    for one in score.parts:
        found += grads[first : first + len(one.tables)]
        first += len(one.tables) + more
    return found


def _is_run(tokens: Ints) -> bool:
    return bool(tokens.size) and tokens[-1] - tokens[0] + 1 == tokens.size


@lru_cache(maxsize=512)
def tokens_of(plan: Plan, rank: int, part: Part, rows: int) -> tuple[Ints, Ints]:
    """Tokens of a part's rows and keys. rows: whose rows they are."""
    held = plan.shards.tokens[rank].array()
    of_rows = held[part.rows] if rows == rank else plan.asked[rank][rows].array()
    if isinstance(part.keys, str):
        return of_rows, held
    places = np.concatenate([held, *(tokens.array() for tokens in plan.halo[rank]), [0]])  # nothing is seen by nobody
    return of_rows, places[part.keys]


@lru_cache(maxsize=512)
def whole_of(place: tuple[Plan, int, Part, int], head: int, device: torch.device) -> Tensor:
    """What dropout needs of a part. place: as for `tokens_of`; head: the first one's number."""
    return tensor_of(whole_indices(head, *tokens_of(*place)), device)


@lru_cache(maxsize=64)
def whole_of_heads(first: int, tokens: int, device: torch.device) -> Tensor:
    """What dropout needs of some heads of a whole sequence."""
    every = np.arange(tokens, dtype=np.int64)
    return tensor_of(whole_indices(first, every, every), device)


def with_tables(score: Score, tables: tuple[Tensor, ...]) -> Score:
    """The function with other tensors for its tables, one part's after the other's."""
    made, first = None, 0
    for one in score.parts:
        last = first + len(one.tables)
        placed = Score(one.text, tables[first:last], one.name)
        made, first = placed if made is None else made + placed, last
    return score if made is None else made
