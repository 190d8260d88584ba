"""What a TilePlan means: it is walked tile by tile in float64, with full tiles trusted to be full.

A plan that drops, doubles or mislabels a tile gives other numbers here than `weft.acsr.interpret` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.acsr.interpret import Gradients, Reals, Scoring
from weft.planning.heads import Share, served
from weft.planning.problem import Problem
from weft.planning.tiles import TilePlan, Visit, walk


def attention(
    shares: Sequence[Share], problem: Problem, qkv: tuple[Any, Any, Any], scale: float | None
) -> tuple[Reals, Reals]:
    """(out, lse) of all heads, (B, Hq, M, Dv) and (B, Hq, M); q, k, v: (B, H, length, D) array-likes."""
    q, k, v = (np.asarray(x, np.float64) for x in qkv)
    out, lse = np.zeros((*q.shape[:3], v.shape[3])), np.full(q.shape[:3], -np.inf)
    scoring = Scoring(problem.d**-0.5 if scale is None else scale)
    for share in shares:
        for b, h in served(share.heads, problem.group):
            kv = h // problem.group
            out[b, h], lse[b, h] = forward(share.plan, q[b, h], k[b, kv], v[b, kv], scoring)
    return out, lse


def forward(plan: TilePlan, q: Reals, k: Reals, v: Reals, scoring: Scoring) -> tuple[Reals, Reals]:
    """(out (M, Dv), lse (M,)) of one head: q (M, D), k (N, D), v (N, Dv)."""
    out, lse = np.zeros((plan.acsr.m, v.shape[1])), np.full(plan.acsr.m, -np.inf)
    for visits in walk(plan):
        for visit in visits:
            s = _scores(visit, q, k, scoring)[0]
            part = np.logaddexp.reduce(s, axis=1)
            total = np.logaddexp(lse[visit.queries], part)
            safe = np.where(total == -np.inf, 0.0, total)
            kept = np.exp(lse[visit.queries] - safe)[:, None]
            weights = np.exp(s - safe[:, None]) * scoring.factors(visit.queries[:, None], visit.keys)
            out[visit.queries] = out[visit.queries] * kept + weights @ v[visit.keys]
            lse[visit.queries] = total
    return scoring.with_sink(out, lse)


def backward(
    plan: TilePlan, transposed: TilePlan, qkv: tuple[Reals, Reals, Reals], grads: tuple[Reals, Reals], scoring: Scoring
) -> Gradients:
    """Gradients of one head; dq by the plan, dk and dv by the transposed plan. grads: d_out (M, Dv), d_lse (M,)."""
    q, k, v = qkv
    d_out, d_lse = grads
    out, lse = forward(plan, q, k, v, scoring)
    delta = (out * d_out).sum(axis=1) - d_lse
    live = lse > -np.inf
    d_sink = 0.0 if scoring.sink is None else -float((np.exp(scoring.sink - lse[live]) * delta[live]).sum())
    dq, dk, dv = np.zeros(q.shape), np.zeros(k.shape), np.zeros(v.shape)
    for visits in walk(plan):
        for visit in visits:
            ds = _score_gradients(visit, qkv, (d_out, lse, delta), scoring)[1]
            dq[visit.queries] += ds @ k[visit.keys]
    for visits in walk(transposed):
        for visit in visits:
            straight = Visit(visit.keys, visit.queries, None if visit.mask is None else visit.mask.T)
            p, ds = _score_gradients(straight, qkv, (d_out, lse, delta), scoring)
            kept = scoring.factors(straight.queries[:, None], straight.keys)
            dv[straight.keys] += (p * kept).T @ d_out[straight.queries]
            dk[straight.keys] += ds.T @ q[straight.queries]
    return Gradients(dq, dk, dv, d_sink)


def _scores(visit: Visit, q: Reals, k: Reals, scoring: Scoring) -> tuple[Reals, Reals]:
    raw = q[visit.queries] @ k[visit.keys].T
    s, slope = scoring.scores(raw, visit.queries[:, None], visit.keys[None, :])
    return (s if visit.mask is None else np.where(visit.mask, s, -np.inf)), slope


def _score_gradients(
    visit: Visit, qkv: tuple[Reals, Reals, Reals], rows: tuple[Reals, Reals, Reals], scoring: Scoring
) -> tuple[Reals, Reals]:
    """(P, dS by q . k) of one visit."""
    q, k, v = qkv
    d_out, lse, delta = (x[visit.queries] for x in rows)
    s, slope = _scores(visit, q, k, scoring)
    p = np.exp(s - np.where(lse == -np.inf, 0.0, lse)[:, None])
    kept = scoring.factors(visit.queries[:, None], visit.keys)
    ds = p * (kept * (d_out @ v[visit.keys].T) - delta[:, None])
    return p, np.where(p > 0, ds * slope, 0.0) * scoring.scale
