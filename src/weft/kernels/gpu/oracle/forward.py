"""Out and lse by tiles of queries."""

from __future__ import annotations

import numpy as np

from weft.kernels.gpu.oracle.laws import law
from weft.kernels.gpu.oracle.memory import Call, Ints, Reals
from weft.kernels.gpu.oracle.numbers import Scoring, SoftMaximum, penalised, replaced
from weft.kernels.gpu.oracle.programs import tiles
from weft.kernels.gpu.oracle.tables import Owner, Tile


def forward(call: Call) -> None:
    """Out = softmax(scores) V, Lse its logarithm; merged with what earlier launches left where rows meet."""
    scoring = Scoring(call, call.integer("shift"))
    sinks = call.flat("Sinks") if call.spec.sinks else None
    for owner, tile in tiles(call):
        sums = _attended(call, scoring, owner, tile)
        out, lse = sums.finish(None if sinks is None else float(sinks.load(owner.head)))
        at = numbers_of(call, owner.batch, owner.head, tile.rows)
        if call.spec.accumulate:
            out, lse = _merged(call, at, out, lse)
        call.flat("Lse").store(lse, at)
        call.tensor("Out").store(out, owner.batch, owner.head, tile.rows)


def numbers_of(call: Call, batch: int, head: int, rows: Ints, length: str = "my_length") -> Ints:
    """The numbers of queries among those of all batch rows and heads."""
    return (batch * call.integer("all_heads") + head) * call.integer(length) + rows


def _attended(call: Call, scoring: Scoring, owner: Owner, tile: Tile) -> SoftMaximum:
    batch, kv_head, head, _ = owner
    q = call.tensor("Q").load(batch, head, tile.rows)
    sums = SoftMaximum(tile.rows.size, call.spec.dv)
    for visit in (visit for part in tile.parts for visit in part.visits):
        k, v = (_keys(call, name, (batch, kv_head), visit.cols) for name in ("K", "V"))
        s = scoring.scores(q @ k.T, (batch, head), tile.rows, visit.cols).s
        factors = scoring.factors((batch, head), tile.rows, visit.cols)
        sums.add(replaced(visit, penalised(visit, s), -np.inf), v, factors)
    return sums


def _keys(call: Call, name: str, head: tuple[int, int], cols: Ints) -> Reals:
    """Keys or values; where they lie in pages, a column is counted from the first page on, by the stride of tokens."""
    keys, (batch, kv_head) = call.tensor(name), head
    if not call.spec.paged:
        return keys.load(batch, kv_head, cols)
    per, rest = divmod(call.integer(f"{name}_batch"), call.integer(f"{name}_row"))
    law(rest == 0, "pages begin a whole number of tokens apart")
    return keys.load(cols // per, kv_head, cols % per)


def _merged(call: Call, at: Ints, out: Reals, lse: Reals) -> tuple[Reals, Reals]:
    """(out, lse) with what earlier launches left in Sum and Lse: both are over disjoint keys."""
    sums = call.flat("Sum", call.spec.dv)
    was, old = sums.load(at), call.flat("Lse").load(at)
    total = np.logaddexp(lse, old)
    safe = np.where(total == -np.inf, 0.0, total)
    both = out * np.exp(lse - safe)[:, None] + was * np.exp(old - safe)[:, None]
    sums.store(both, at)
    return both, total
