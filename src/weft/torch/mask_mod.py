"""A pattern as a function of (b, h, q_idx, kv_idx), in operations of torch that FlexAttention compiles into kernels.

It is written from the affine rows. Bounds are arithmetic on q_idx. Tables of steps, lists of tokens and what is not
affine are tensors that it captures.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import and_, or_
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.acsr.format import BLOCK, Acsr, Grid, Remainder, Term
from weft.pattern.algebra import Pattern
from weft.pattern.bounds import INF, Bound, Ints, Stair
from weft.pattern.listed import Listed
from weft.pattern.relation import Relation

Condition = Callable[[Any, Any], Any]  # of a query and a key
FAR = 1 << 30  # beyond any token, in 32 bits


def mask_mod_of(pattern: Pattern, m: int, n: int, device: Any) -> Callable[[Any, Any, Any, Any], Any]:
    """The function of a pattern at m queries and n keys. It captures tensors on `device`."""
    batch, heads = (count or 1 for count in pattern.extent())
    kinds: dict[Acsr, int] = {}
    which = np.zeros((batch, heads), np.int64)
    for at in np.ndindex(batch, heads):
        which[at] = kinds.setdefault(pattern.acsr(m, n, *at, orders=False), len(kinds))
    conditions = tuple(_of_acsr(acsr, device) for acsr in kinds)
    if len(conditions) == 1:
        alike = conditions[0]
        return lambda b, h, q_idx, kv_idx: alike(q_idx, kv_idx)
    kind_of = _tensor(which, device)
    by_row, by_head = batch > 1, heads > 1

    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        kind = kind_of[b if by_row else b * 0, h if by_head else h * 0]
        live = (kind == 0) & conditions[0](q_idx, kv_idx)
        for number in range(1, len(conditions)):
            live = live | ((kind == number) & conditions[number](q_idx, kv_idx))
        return live

    return mask_mod


def _of_acsr(acsr: Acsr, device: Any) -> Condition:
    parts = [_of_term(term, (acsr.m, acsr.n), device) for term in acsr.terms]
    if len(acsr.remainder):
        parts.append(_of_remainder(acsr.remainder, acsr.m, acsr.n, device))
    return _joined(parts, or_)


def _joined(parts: list[Condition], join: Callable[[Any, Any], Any]) -> Condition:
    """All of the conditions (and_), or any (or_); where there are none, always or never."""
    if not parts:
        return (lambda i, k: (i >= 0) & (k >= 0)) if join is and_ else (lambda i, k: (i < 0) & (k < 0))
    first, rest = parts[0], tuple(parts[1:])
    if not rest:
        return first

    def live(i: Any, k: Any) -> Any:
        found = first(i, k)
        for part in rest:
            found = join(found, part(i, k))
        return found

    return live


def _of_term(term: Term, lengths: tuple[int, int], device: Any) -> Condition:
    parts = [*_inside(term.q, lengths[0], queries=True), *_inside(term.k, lengths[1], queries=False)]
    parts += [*_listed(term.rows, term.q, device, queries=True), *_listed(term.keys, term.k, device, queries=False)]
    inner_q = inner_k = 1
    for axis, rows, keys in reversed(list(zip(term.axes, term.q.shape, term.k.shape, strict=True))):
        relation = _of_relation(axis, rows, device)
        of_q = _coordinate(term.q.origin, inner_q, rows, whole=term.rank == 1)
        of_k = _coordinate(term.k.origin, inner_k, keys, whole=term.rank == 1)
        parts.append(_on_axis(relation, of_q, of_k))
        inner_q, inner_k = inner_q * rows, inner_k * keys
    return _joined(parts, and_)


def _coordinate(first: int, inner: int, size: int, *, whole: bool) -> Callable[[Any], Any]:
    """A token's coordinate on an axis of a grid. inner: tokens of one step of it; whole: the grid has no other axis."""
    if whole:
        return (lambda x: x - first) if first else lambda x: x
    return lambda x: (x - first) // inner % size


def _on_axis(relation: Condition, of_q: Callable[[Any], Any], of_k: Callable[[Any], Any]) -> Condition:
    return lambda i, k: relation(of_q(i), of_k(k))


def _inside(grid: Grid, length: int, *, queries: bool) -> list[Condition]:
    first, after = grid.origin, grid.origin + grid.size
    if first <= 0 and after >= length:
        return []
    if queries:
        return [lambda i, k: (i >= first) & (i < after)]
    return [lambda i, k: (k >= first) & (k < after)]


def _listed(tokens: Listed, grid: Grid, device: Any, *, queries: bool) -> list[Condition]:
    if tokens.is_every:
        return []
    live = _tensor(tokens.holds(np.arange(grid.origin + grid.size, dtype=np.int64)), device)
    after = live.shape[0] - 1
    if queries:
        return [lambda i, k: live[i.clamp(max=after)]]
    return [lambda i, k: live[k.clamp(max=after)]]


def _of_relation(axis: Relation, rows: int, device: Any) -> Condition:
    parts = [_of_bound(bound, rows, device, below=True) for bound in axis.lower]
    parts += [_of_bound(bound, rows, device, below=False) for bound in axis.upper]
    for residue, of in ((axis.rows, "q"), (axis.keys, "k"), (axis.diagonal, "d")):
        if residue.step > 1:
            parts.append(_of_residue(residue.step, residue.phase, of))
    return _joined(parts, and_)


def _of_residue(step: int, phase: int, of: str) -> Condition:
    if of == "q":
        return lambda i, k: i % step == phase
    if of == "k":
        return lambda i, k: k % step == phase
    return lambda i, k: (k - i) % step == phase


def _of_bound(bound: Bound, rows: int, device: Any, *, below: bool) -> Condition:
    """k >= T(i) of a bound that lies below the keys, k < T(i) of one above them."""
    if not isinstance(bound, Stair):
        table, last = _tensor(np.clip(bound(np.arange(rows, dtype=np.int64)), -FAR, FAR), device), rows - 1
        return _compared(lambda i: table[i.clamp(0, last)], below=below)
    first, after = bound.in_lo, bound.in_hi
    if bound.is_threshold:
        return (lambda i, k: i < after) if below else (lambda i, k: i >= first)
    found = _compared(_stair(bound), below=below)
    if first > -INF:
        found = (
            _joined([found, lambda i, k: i < first], or_) if below else _joined([found, lambda i, k: i >= first], and_)
        )
    if after < INF:
        found = (
            _joined([found, lambda i, k: i < after], and_) if below else _joined([found, lambda i, k: i >= after], or_)
        )
    return found


def _compared(value: Callable[[Any], Any], *, below: bool) -> Condition:
    return (lambda i, k: k >= value(i)) if below else (lambda i, k: k < value(i))


def _stair(bound: Stair) -> Callable[[Any], Any]:
    rise, run, shift, base, low, high = bound.rise, bound.run, bound.shift, bound.base, bound.out_lo, bound.out_hi
    if bound.is_constant:
        return lambda i: low
    lowest, highest = None if low <= -INF else low, None if high >= INF else high

    def value(i: Any) -> Any:
        found = (i + shift) // run * rise + base
        return found if lowest is None and highest is None else found.clamp(lowest, highest)

    return value


def _of_remainder(left: Remainder, m: int, n: int, device: Any) -> Condition:
    """Blocks of pairs: the first has none, the second all."""
    slots = np.zeros((-(-m // BLOCK), -(-n // BLOCK)), np.int64)
    slots[left.rows, left.cols] = np.where(left.bit_index < 0, 1, left.bit_index.astype(np.int64) + 2)
    bits = np.zeros((len(left.bits) + 2, BLOCK, BLOCK), np.bool_)
    bits[1] = True
    bits[2:] = np.unpackbits(left.bits, axis=2).reshape(-1, BLOCK, BLOCK)
    block, pairs = _tensor(slots, device), _tensor(bits, device)
    return lambda i, k: pairs[block[i // BLOCK, k // BLOCK], i % BLOCK, k % BLOCK]


def _tensor(values: Ints | Any, device: Any) -> Tensor:
    values = values.astype(np.int32) if values.dtype == np.int64 else values
    return torch.from_numpy(np.ascontiguousarray(values)).to(device)
