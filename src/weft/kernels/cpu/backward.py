"""Backward on the CPU: one walk over the query tiles gives dQ, dK and dV, in a fixed order, so the same bits every
time.

With P = exp(S - lse) and delta = rowsum(dO * O) - dlse:  dV += P^T dO,  dS = P * (dO V^T - delta),  dQ += dS K, dK +=
dS^T Q.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product as cartesian

import torch

from weft.kernels.cpu.how import How
from weft.kernels.cpu.program import Program
from weft.kernels.cpu.scores import LOG2E, Batch, Scored, Stage, Workspace, rules_backward, schedule, score

SPARE = "spare"  # one buffer for part of dV, then V, then part of dK: what is used must stay in a cache


@dataclass(frozen=True, eq=False)
class Gradients:
    """dq (P, G, M, D), dk (P, N, D), dv (P, N, Dv), in the dtype of accumulation; zeroed, dq only if not covered."""

    dq: torch.Tensor
    dk: torch.Tensor
    dv: torch.Tensor

    def of_head(self, pair: int, head: int) -> Gradients:
        """Those of one head of one pair."""
        return Gradients(self.dq[pair, head], self.dk[pair], self.dv[pair])


@dataclass(frozen=True, eq=False)
class Saved:
    """What forward left: q, k, v, lse (P, G, M) with -inf in empty rows; and d_out (P, G, M, Dv), delta (P, G, M).

    Inside this module lse and delta are columns (P, G, M, 1), and lse is in bits and +inf in empty rows. Torch's kernel
    alone takes out (P, G, M, Dv), and makes delta of it.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    lse: torch.Tensor
    d_out: torch.Tensor
    delta: torch.Tensor
    out: torch.Tensor | None = None

    def of_head(self, pair: int, head: int) -> Saved:
        """Those of one head of one pair."""
        rows = (x[pair, head] for x in (self.lse, self.d_out, self.delta))
        return Saved(self.q[pair, head], self.k[pair], self.v[pair], *rows)


def backward(saved: Saved, grads: Gradients, program: Program, how: How, work: Workspace) -> None:
    """Add the gradients of the rows and keys that the program visits."""
    lse = saved.lse * LOG2E
    lse.masked_fill_(lse == -torch.inf, torch.inf)  # without keys, whose lse a sink may be: exp(-inf) everywhere
    saved = replace(saved, lse=lse[..., None], delta=saved.delta[..., None])
    strips, batches = schedule(program, saved.q.shape[0] * saved.q.shape[1])
    for pair, head in cartesian(*map(range, saved.q.shape[:2])) if strips else ():
        one, places, local = saved.of_head(pair, head), grads.of_head(pair, head), how.of_head(pair, head)
        for strip in strips:
            strip.put(places.dq, _tiles(one, places, strip, work, local), add=not program.covers)
    for batch in batches:
        batch.put(grads.dq, _tiles(saved, grads, batch, work, how), add=not program.covers)


@dataclass(frozen=True, eq=False)
class Rows:
    """The queries of some tiles: q and d_out (tiles * P, rows, D), lse in bits and delta (tiles * P, rows, 1)."""

    q: torch.Tensor
    d_out: torch.Tensor
    lse: torch.Tensor
    delta: torch.Tensor


def _tiles(saved: Saved, grads: Gradients, batch: Batch, work: Workspace, how: How) -> torch.Tensor:
    """dQ of some tiles (tiles * P, rows, D); dK and dV are added on the way."""
    names = ("q", "d_out", "lse", "delta")
    rows = Rows(*(batch.query_rows(getattr(saved, name), work, name) for name in names))
    q = rows.q
    dq, bits = work.take("dq", *q.shape), how.times(LOG2E)
    for number, steps in enumerate(batch.steps):
        stage = Stage(batch, number, bits, keeps=True)
        scored = score(q, saved.k, stage, work)
        ds = _score_gradients(scored, rows, stage, (saved.v, grads.dv), work)
        torch.baddbmm(dq, ds, scored.keys, beta=float(number > 0), alpha=how.scale, out=dq)
        dk = work.take(SPARE, q.shape[0], steps[0].width, q.shape[2])
        torch.baddbmm(dk, ds.transpose(1, 2), q, beta=0, alpha=how.scale, out=dk)
        batch.add_key_rows(number, grads.dk, dk)
    return dq


def _score_gradients(
    scored: Scored, rows: Rows, stage: Stage, values: tuple[torch.Tensor, torch.Tensor], work: Workspace
) -> torch.Tensor:
    """dS of one step (tiles * P, rows, width), before scale; dV is added on the way."""
    (batch, bits), (v, dv) = (stage.batch, stage.how), values
    factor = None if bits.softcap is None else _slope_of_cap(scored, bits.softcap)
    p = scored.scores.sub_(rows.lse).exp2_()
    part = work.take(SPARE, p.shape[0], p.shape[2], v.shape[-1])
    kept = p if scored.factors is None else p * scored.factors
    batch.add_key_rows(stage.number, dv, torch.bmm(kept.transpose(1, 2), rows.d_out, out=part))
    ds = work.take("ds", *p.shape)
    torch.bmm(rows.d_out, batch.key_rows(stage.number, v, work, SPARE).transpose(1, 2), out=ds)
    if scored.factors is not None:
        ds.mul_(scored.factors)
    ds.sub_(rows.delta).mul_(p)
    if scored.applied:
        ds = rules_backward(scored, batch, ds, p)
    return ds if factor is None else ds.mul_(factor)


def _slope_of_cap(scored: Scored, cap: float) -> torch.Tensor:
    """d(cap * tanh(x / cap)) / dx = 1 - tanh^2, from the capped scores; dead pairs get 0."""
    assert scored.capped is not None
    return (1 - (scored.capped / cap) ** 2).nan_to_num_(neginf=0.0)
