"""Backward on the CPU: one walk over the query tiles gives dQ, dK and dV, in a fixed order, so the same bits every
time.

With P = exp(S - lse) and delta = rowsum(dO * O) - dlse:  dV += P^T dO,  dS = P * (dO V^T - delta),  dQ += dS K, dK +=
dS^T Q.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from weft.kernels.cpu.program import Program, batches
from weft.kernels.cpu.scores import (
    Scored,
    Steps,
    Tiles,
    Workspace,
    add_key_rows,
    key_rows,
    query_rows,
    score,
    split,
)
from weft.kernels.options import Modifiers

LOG2E = 1.4426950408889634  # scores and lse are in bits here: exp2 costs a third of exp
SPARE = "spare"  # one buffer for part of dV, then V, then part of dK: what is used must stay in a cache


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
    for tiles in batches(program, saved.q.shape[0] * saved.q.shape[1]):
        dq = _tiles(saved, grads, tiles, work, how)
        for tile, part in zip(tiles, split(dq, tiles), strict=True):
            tile.queries.put(grads.dq, 2, part, add=not program.covers)


@dataclass(frozen=True, eq=False)
class Rows:
    """The queries of some tiles: q and d_out (tiles * P, rows, D), lse in bits and delta (tiles * P, rows, 1)."""

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
    lse = lse.masked_fill(lse == -torch.inf, torch.inf).mul_(LOG2E)  # without keys every probability is exp(-inf)
    rows = Rows(q, d_out, lse, delta)
    dq, bits = work.take("dq", *q.shape), how.times(LOG2E)
    for number, steps in enumerate(zip(*(tile.steps for tile in tiles), strict=True)):
        scored = score(q, saved.k, tiles, steps, work, bits)
        ds = _score_gradients(scored, rows, steps, (saved.v, grads.dv), (work, bits))
        torch.baddbmm(dq, ds, scored.keys, beta=float(number > 0), alpha=how.scale, out=dq)
        dk = work.take(SPARE, q.shape[0], steps[0].width, q.shape[2])
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
    (v, dv), (work, bits) = values, tools
    factor = None if bits.softcap is None else _slope_of_cap(scored, bits.softcap)
    p = scored.scores.sub_(rows.lse).exp2_()
    part = work.take(SPARE, p.shape[0], steps[0].width, v.shape[2])
    add_key_rows(dv, steps, torch.bmm(p.transpose(1, 2), rows.d_out, out=part))
    ds = work.take("ds", *p.shape)
    torch.bmm(rows.d_out, key_rows(v, steps, work, SPARE).transpose(1, 2), out=ds)
    ds.sub_(rows.delta).mul_(p)
    return ds if factor is None else ds.mul_(factor)


def _slope_of_cap(scored: Scored, cap: float) -> torch.Tensor:
    """d(cap * tanh(x / cap)) / dx = 1 - tanh^2, from the capped scores; dead pairs get 0."""
    assert scored.capped is not None
    return (1 - (scored.capped / cap) ** 2).nan_to_num_(neginf=0.0)
