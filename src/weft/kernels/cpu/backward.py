"""Backward on the CPU: one walk over the query tiles gives dQ, dK and dV, in a fixed order, so the same bits every
time.

With P = exp(S - lse) and delta = rowsum(dO * O) - dlse:  dV += P^T dO,  dS = P * (dO V^T - delta),  dQ += dS K, dK +=
dS^T Q.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from weft.kernels.cpu.program import Program
from weft.kernels.cpu.scores import (
    Modifiers,
    Scored,
    Steps,
    Tiles,
    Workspace,
    add_key_rows,
    key_rows,
    query_rows,
    rows_of,
    score,
)

LOG2E = 1.4426950408889634


@dataclass(frozen=True, eq=False)
class Gradients:
    """dq (P, G, M, D), dk (P, N, D), dv (P, N, Dv), in the dtype of accumulation; zeroed, dq only if not covered."""

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


def backward(saved: Saved, grads: Gradients, program: Program, how: Modifiers, work: Workspace) -> None:
    """Add the gradients of the rows and keys that the program visits."""
    for tiles in program.batches(saved.q.shape[0] * saved.q.shape[1]):
        dq = _tiles(saved, grads, tiles, work, how)
        for tile, part in zip(tiles, dq.unflatten(0, (len(tiles), -1)), strict=True):
            target = rows_of(grads.dq, tile.queries)
            if program.covers:
                target.copy_(part.view(target.shape))
            else:
                target.add_(part.view(target.shape))


@dataclass(frozen=True, eq=False)
class Rows:
    """The queries of some tiles: q and d_out (tiles * P, rows, D), lse and delta (tiles * P, rows, 1)."""

    q: torch.Tensor
    d_out: torch.Tensor
    lse: torch.Tensor
    delta: torch.Tensor


def _tiles(saved: Saved, grads: Gradients, tiles: Tiles, work: Workspace, how: Modifiers) -> torch.Tensor:
    """dQ of some tiles (tiles * P, rows, D); dK and dV are added on the way."""
    q, d_out = query_rows(saved.q, tiles, work, "q"), query_rows(saved.d_out, tiles, work, "d_out")
    lse, delta = (
        query_rows(x[..., None], tiles, work, name) for x, name in ((saved.lse, "lse"), (saved.delta, "delta"))
    )
    lse = lse.masked_fill(lse == -torch.inf, torch.inf)  # a row without keys: every probability is exp(-inf)
    dq = work.take("dq", *q.shape).zero_()
    rows = Rows(q, d_out, lse, delta)
    for steps in zip(*(tile.steps for tile in tiles), strict=True):
        scored = score(q, saved.k, tiles, steps, work, how)
        ds = _score_gradients(scored, rows, steps, (saved.v, grads.dv), (work, how))
        dq.baddbmm_(ds, scored.keys, alpha=how.scale)
        dk = work.take("dk", q.shape[0], steps[0].width, q.shape[2])
        torch.baddbmm(dk, ds.transpose(1, 2), q, beta=0, alpha=how.scale, out=dk)
        add_key_rows(grads.dk, steps, dk)
    return dq


def _score_gradients(
    scored: Scored,
    rows: Rows,
    steps: Steps,
    values: tuple[torch.Tensor, torch.Tensor],
    tools: tuple[Workspace, Modifiers],
) -> torch.Tensor:
    """dS of one step (tiles * P, rows, width), before scale; dV is added on the way."""
    (v, dv), (work, how) = values, tools
    factor = None if how.softcap is None else _slope_of_cap(scored, how.softcap)
    p = scored.scores.sub_(rows.lse)
    p = p.exp_() if p.dtype == torch.float64 else p.mul_(LOG2E).exp2_()
    part = work.take("dv", p.shape[0], steps[0].width, v.shape[2])
    add_key_rows(dv, steps, torch.bmm(p.transpose(1, 2), rows.d_out, out=part))
    ds = work.take("ds", *p.shape)
    torch.bmm(rows.d_out, key_rows(v, steps, work, "v").transpose(1, 2), out=ds)
    ds.sub_(rows.delta).mul_(p)
    return ds if factor is None else ds.mul_(factor)


def _slope_of_cap(scored: Scored, cap: float) -> torch.Tensor:
    """d(cap * tanh(x / cap)) / dx = 1 - tanh^2, from the capped scores; dead pairs get 0."""
    assert scored.capped is not None
    return (1 - (scored.capped / cap) ** 2).nan_to_num_(neginf=0.0)
