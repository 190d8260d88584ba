"""Forward on the CPU: for each query tile scores, soft maximum, accumulate, and a merge by lse where rows are met
again.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product as cartesian
from typing import Any

import torch

from weft.kernels.cpu.how import How
from weft.kernels.cpu.program import Program
from weft.kernels.cpu.scores import LOG2E, Batch, Scored, Stage, Workspace, schedule, score

Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
Places = tuple[torch.Tensor, torch.Tensor | None]


# A row is right without a maximum if its sum of powers of two lies within SUMS, and its products with v below LARGEST.
# Then no power or partial sum has overflowed (float32 ends at 2^128). What vanished below 2^-126 is less than 2^-110 of
# a value for each key.
SUMS = (2.0**-16, 2.0**100)
LARGEST = 2.0**120


@dataclass(frozen=True, eq=False)
class Call:
    """What all tiles of a call share. wanted: lse is. merges: the program does."""

    work: Workspace
    wanted: bool
    merges: bool


def forward(tensors: Inputs, result: Places, program: Program, how: How, work: Workspace) -> None:
    """Write out and lse. q (P, G, M, D), k (P, N, D), v (P, N, Dv); out (P, G, M, Dv), lse (P, G, M) or None.

    P counts pairs of batch row and key/value head, G the query heads that share one. Unless the program covers every
    row, out comes zeroed and lse at -inf. If it merges, lse must be given and out have the dtype of accumulation.
    """
    (q, k, v), (out, lse) = tensors, result
    call = Call(work, lse is not None, program.merges)
    lse = None if lse is None else lse[..., None]
    strips, batches = schedule(program, q.shape[0] * q.shape[1])
    for pair, head in cartesian(range(q.shape[0]), range(q.shape[1])) if strips else ():
        one, places = (q[pair, head], k[pair], v[pair]), (out[pair, head], None if lse is None else lse[pair, head])
        local = how.of_head(pair, head)
        for strip in strips:
            _tiles(one, places, strip, call, local)
    for batch in batches:
        _tiles(tensors, (out, lse), batch, call, how)


@dataclass(frozen=True, eq=False)
class Attended:
    """o (tiles * P, rows, Dv), which is still to be divided by `sums` if these are given; lse, or None.

    sums, lse: (tiles * P, rows, 1).
    """

    o: torch.Tensor
    lse: torch.Tensor | None
    sums: torch.Tensor | None = None


def _tiles(tensors: Inputs, result: Places, batch: Batch, call: Call, how: How) -> None:
    """Put (o, lse) of some tiles in their places, or merge them with what is there; lse (..., M, 1)."""
    out, lse = result
    q = batch.query_rows(tensors[0], call.work, "q")
    new = _attend_simply(q, tensors[1:], batch, call, how.times(LOG2E))
    assert new.sums is not None
    if new.o.numel() and not _within(*_ends(new.o), *_ends(new.sums)):
        new = _choose(new, _attend(q, tensors[1:], batch, call, how))
    if call.merges:
        if new.sums is not None:
            new.o.div_(new.sums)
        old = batch.query_rows(out, call.work, "old o"), batch.query_rows(lse, call.work, "old lse")
        new = Attended(*merge(new.o, new.lse, *old))
    batch.put(out, new.o, over=new.sums)
    if lse is not None:
        batch.put(lse, new.lse)


def _attend_simply(q: torch.Tensor, kv: tuple[torch.Tensor, ...], batch: Batch, call: Call, bits: How) -> Attended:
    """As `_attend` from exp2 of scores in bits with no maximum subtracted: fewer passes over the scores."""
    k, v = kv
    o = call.work.take("o", *q.shape[:2], v.shape[-1])
    sums: Any = None
    for number in range(len(batch.steps)):
        scored = score(q, k, Stage(batch, number, bits), call.work)
        powers = scored.scores.exp2_()
        part = powers.sum(-1, keepdim=True)
        sums = part if sums is None else sums.add_(part)
        if scored.factors is not None:
            powers.mul_(scored.factors)
        torch.baddbmm(o, powers, batch.key_rows(number, v, call.work, "v"), beta=float(number > 0), out=o)
    lse = sums.log() if call.wanted else None
    if batch.dead is not None:
        _fill(o, batch, batch.dead, 0.0)
        _fill(sums, batch, batch.dead, 1.0)
    return Attended(o, lse, sums)


def _ends(x: torch.Tensor) -> tuple[float, float]:
    """The least and the largest number of a tensor."""
    least, most = x.aminmax()
    return float(least), float(most)


def _within(least: Any, most: Any, low: Any, high: Any) -> Any:
    """Whether products with v from `least` to `most`, and sums from `low` to `high`, prove that nothing was lost.

    Of numbers or tensors; NaN proves nothing.
    """
    return (least >= -LARGEST) & (most <= LARGEST) & (low >= SUMS[0]) & (high <= SUMS[1])


def _choose(simple: Attended, safe: Attended) -> Attended:
    """Row by row, so that no row depends on what its neighbours hold: the simple result wherever nothing was lost."""
    assert simple.sums is not None
    least, most = simple.o.aminmax(dim=-1, keepdim=True)
    good = _within(least, most, simple.sums, simple.sums)
    lse = None if simple.lse is None else torch.where(good, simple.lse, safe.lse)
    return Attended(torch.where(good, simple.o.div_(simple.sums), safe.o), lse)


def _attend(q: torch.Tensor, kv: tuple[torch.Tensor, ...], batch: Batch, call: Call, how: How) -> Attended:
    """Queries (tiles * P, rows, D) over all steps of their tiles; lse if it is wanted."""
    k, v = kv
    o = lse = None
    wanted = call.wanted or len(batch.steps) > 1
    for number, steps in enumerate(batch.steps):
        scored = score(q, k, Stage(batch, number, how), call.work)
        scores = scored.scores
        part = call.work.take("safe o" if number == 0 else "next o", *q.shape[:2], v.shape[-1])
        dead = steps[0].dead
        if dead is not None:  # any finite score will do: what comes of it is thrown away
            _fill(scores, batch, dead, 0.0)
        gone = _without_scores(scores) if how.rules else None
        part_lse = _finish(scored, batch.key_rows(number, v, call.work, "v"), part, wanted)
        if gone is not None:
            part.masked_fill_(gone, 0.0)
            part_lse = None if part_lse is None else part_lse.masked_fill_(gone, -torch.inf)
        if dead is not None:
            _fill(part, batch, dead, 0.0)
            if part_lse is not None:
                _fill(part_lse, batch, dead, -torch.inf)
        o, lse = (part, part_lse) if o is None else merge(part, part_lse, o, lse)
    return Attended(o, lse)


def _fill(x: torch.Tensor, batch: Batch, which: torch.Tensor, value: float) -> None:
    """x (tiles * P, group * rows, any): the same rows of every head of the group."""
    x.unflatten(1, (-1, batch.rows)).index_fill_(2, which, value)


def _without_scores(scores: torch.Tensor) -> torch.Tensor | None:
    """Rows whose rules left no score above -inf, (tiles * P, rows, 1), which get any finite score; None if all have
    one.
    """
    gone = scores.amax(-1, keepdim=True) == -torch.inf
    if not gone.any():
        return None
    scores.masked_fill_(gone, 0.0)
    return gone


def _finish(scored: Scored, values: torch.Tensor, o: torch.Tensor, wanted: bool) -> torch.Tensor | None:
    """Soft maximum, and its product with the values into o; returns lse if it is wanted.

    In a row the largest probability is exp(0) / sum, which gives lse without an exponential of its own.
    """
    scores = scored.scores
    lse = scores.amax(-1, keepdim=True) if wanted else None
    torch.softmax(scores, -1, out=scores)
    if lse is not None:
        lse.sub_(scores.amax(-1, keepdim=True).log_())
    if scored.factors is not None:
        scores.mul_(scored.factors)
    torch.bmm(scores, values, out=o)
    return lse


def merge(
    o: torch.Tensor, lse: torch.Tensor, old_o: torch.Tensor, old_lse: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention over the union of two disjoint sets of keys, from the outputs and lse over each; both may be empty."""
    largest = torch.maximum(lse, old_lse)
    largest.masked_fill_(largest == -torch.inf, 0.0)
    new, old = (lse - largest).exp_(), (old_lse - largest).exp_()
    total = new + old  # at least 1, and so divided by: large lse have no digits left for their logarithm
    merged = (o * new + old_o * old).div_(total.masked_fill(total == 0.0, 1.0))
    return merged, total.log_().add_(largest)
