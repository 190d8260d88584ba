"""Backward on the CPU: one walk over the query tiles gives dQ, dK and dV, in a fixed order, so the same bits every time.

With P = exp(S - lse) and delta = rowsum(dO * O) - dlse:  dV += P^T dO,  dS = P * (dO V^T - delta),  dQ += dS K,
dK += dS^T Q.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from weft.kernels.cpu.program import Box, Program, Step, Tile
from weft.kernels.cpu.scores import Modifiers, Scored, Workspace, key_slice, pieces_of, rows_of, score, staged_rows

LOG2E = 1.4426950408889634


@dataclass(frozen=True, eq=False)
class Gradients:
    """dq (P, G, M, D), dk (P, N, D), dv (P, N, Dv), zeroed, in the dtype of accumulation."""

    dq: torch.Tensor
    dk: torch.Tensor
    dv: torch.Tensor


@dataclass(frozen=True, eq=False)
class Saved:
    """What forward left: q, k, v, lse (P, G, M) with -inf in empty rows; and d_out (P, G, M, Dv), delta (P, G, M)."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    lse: torch.Tensor
    d_out: torch.Tensor
    delta: torch.Tensor


def backward(saved: Saved, grads: Gradients, program: Program, how: Modifiers) -> None:
    """Add the gradients of the rows and keys that the program visits."""
    work = Workspace(grads.dq.dtype)
    for tile in program.tiles:
        _tile(saved, grads, tile, work, how)


@dataclass(frozen=True, eq=False)
class Rows:
    """One query tile, staged: q (scaled) and d_out (P, rows, D), lse and delta (P, rows, 1), dq the sum so far."""

    q: torch.Tensor
    d_out: torch.Tensor
    lse: torch.Tensor
    delta: torch.Tensor
    dq: torch.Tensor


def _tile(saved: Saved, grads: Gradients, tile: Tile, work: Workspace, how: Modifiers) -> None:
    pairs, group = saved.q.shape[:2]
    size = group * tile.queries.size
    q = staged_rows(saved.q, tile.queries, work.take("q", pairs, size, saved.q.shape[3])).mul_(how.scale)
    d_out = staged_rows(saved.d_out, tile.queries, work.take("d_out", pairs, size, saved.d_out.shape[3]))
    lse, delta = (rows_of(x, tile.queries).reshape(pairs, size, 1) for x in (saved.lse, saved.delta))
    lse = lse.masked_fill(lse == -torch.inf, torch.inf)  # a row without keys: every probability is exp(-inf)
    rows = Rows(q, d_out, lse, delta, work.take("dq", *q.shape).zero_())
    for step in tile.steps:
        scored = score(q, saved.k, step, work, how, (tile.queries, group))
        ds = _score_gradients(scored, rows, step, (saved.v, grads.dv), (work, how))
        for piece, keys, part in zip(step.pieces, scored.keys, pieces_of(step, ds), strict=True):
            rows.dq.baddbmm_(part, keys)
            _accumulate(grads.dk, piece.keys, part, q, work)
    target = rows_of(grads.dq, tile.queries)
    target.add_(rows.dq.view(target.shape), alpha=how.scale)


def _score_gradients(
    scored: Scored, rows: Rows, step: Step, values: tuple[torch.Tensor, torch.Tensor], tools: tuple[Workspace, Modifiers]
) -> torch.Tensor:
    """dS of one step (P, rows, width), before scale; dV is added on the way."""
    (v, dv), (work, how) = values, tools
    factor = None if how.softcap is None else _slope_of_cap(scored, how.softcap)
    p = scored.scores.sub_(rows.lse)
    p = p.exp_() if p.dtype == torch.float64 else p.mul_(LOG2E).exp2_()
    ds = work.take("ds", *p.shape)
    for piece, weights, dp in zip(step.pieces, pieces_of(step, p), pieces_of(step, ds), strict=True):
        torch.bmm(rows.d_out, key_slice(v, piece.keys, work, "v").transpose(1, 2), out=dp)
        _accumulate(dv, piece.keys, weights, rows.d_out, work)
    ds.sub_(rows.delta).mul_(p)
    return ds if factor is None else ds.mul_(factor)


def _slope_of_cap(scored: Scored, cap: float) -> torch.Tensor:
    """d(cap * tanh(x / cap)) / dx = 1 - tanh^2, from the capped scores; dead pairs get 0."""
    assert scored.capped is not None
    return (1 - (scored.capped / cap) ** 2).nan_to_num_(neginf=0.0)


def _accumulate(total: torch.Tensor, keys: Box, weights: torch.Tensor, rows: torch.Tensor, work: Workspace) -> None:
    """total[keys] += weights^T rows."""
    view = keys.of(total, 1)
    if view.dim() == 3:
        view.baddbmm_(weights.transpose(1, 2), rows)
        return
    part = work.take("part", total.shape[0], keys.size, total.shape[2])
    torch.bmm(weights.transpose(1, 2), rows, out=part)
    view.add_(part.view(view.shape))
