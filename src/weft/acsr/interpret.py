"""What attention over an Acsr means: three loops over affine rows in float64, forward and backward.

R-SDDMM (scores of the live pairs of a row), soft maximum over the row, R-SpMM (weighted sum of values). SPLAT names
them so (doi 10.1145/3720503). Slow on purpose: this is the definition that everything faster is held to.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.acsr.format import Acsr
from weft.pattern.bounds import Ints
from weft.score.dropout import Dropout
from weft.score.evaluate import Rule, evaluate
from weft.score.text import parse

Reals: TypeAlias = NDArray[np.float64]
CAP = "real0[()] * tanh(score / real0[()])"
ALIBI = "score - real0[()] * abs(q + shift - k)"


@dataclass(frozen=True)
class Scores:
    """Scores of some pairs. slope: their derivative by scale * (q . k). entries: of each entry of a real table that was
    read (its rule, its table, the indices, the derivative by it). All broadcast to the pairs.
    """

    s: Reals
    slope: Reals
    entries: tuple[tuple[int, int, tuple[Ints, ...], Reals], ...] = ()


@dataclass(frozen=True)
class Scoring:
    """What is done to the scores of one head, in this order. Times `scale`. Then softcap * tanh(score / softcap). Then
    the rules, each of the result of the one before it. Then minus slope * |q_index + shift - k_index|. And to weights:
    dropout.

    sink: a logit that joins the sum of every row and has no value; None for none. b, h: the batch row and the head.
    """

    scale: float
    softcap: float | None = None
    slope: float = 0.0
    shift: int = 0
    sink: float | None = None
    rules: tuple[Rule, ...] = ()
    dropout: Dropout | None = None
    b: int = 0
    h: int = 0

    @cached_property
    def chain(self) -> tuple[Rule, ...]:
        """All that follows the scale, as rules."""
        capped = () if self.softcap is None else (Rule(parse(CAP), (np.array(self.softcap),)),)
        sloped = (Rule(parse(ALIBI), (np.array(self.slope),)),) if self.slope else ()
        return (*capped, *self.rules, *sloped)

    def of_pairs(self, raw: Reals, rows: Ints, keys: Ints) -> Scores:
        """The scores of raw = q . k at token indices rows, keys, which broadcast."""
        where = {"b": self.b, "h": self.h, "q": rows, "k": keys, "shift": self.shift}
        x, slope = self.scale * raw, np.ones_like(raw)
        entries: list[Any] = []
        first = int(self.softcap is not None)
        for number, rule in enumerate(self.chain):
            found = evaluate(rule, {**where, "score": x})
            entries = [(*place, by * found.slope) for *place, by in entries]
            entries += [(number - first, *entry) for entry in found.by_entry]
            x, slope = found.score, slope * found.slope
        own = (entry for entry in entries if 0 <= entry[0] < len(self.rules))
        return Scores(x, slope, tuple(own))

    def scores(self, raw: Reals, rows: Ints, keys: Ints) -> tuple[Reals, Reals]:
        """(scores, their derivative by scale * (q . k)), as `of_pairs`."""
        found = self.of_pairs(raw, rows, keys)
        return found.s, found.slope

    def factors(self, rows: Ints, keys: Ints) -> Reals | float:
        """What dropout multiplies weights by."""
        return 1.0 if self.dropout is None else self.dropout.factors(self.b, self.h, rows, keys)

    def with_sink(self, out: Reals, lse: Reals) -> tuple[Reals, Reals]:
        """Output (M, Dv) and lse (M,) after the sink has joined every row."""
        if self.sink is None:
            return out, lse
        total = np.logaddexp(lse, self.sink)
        safe = np.where(total == -np.inf, 0.0, total)
        return out * np.exp(lse - safe)[:, None], total


@dataclass(frozen=True, eq=False)
class Gradients:
    """dq (M, D), dk (N, D), dv (N, Dv), d_sink, and of each rule those of its tables, 0 of integers."""

    dq: Reals
    dk: Reals
    dv: Reals
    d_sink: float = 0.0
    d_tables: tuple[tuple[Reals, ...], ...] = ()


def forward(acsr: Acsr, q: Reals, k: Reals, v: Reals, scoring: Scoring) -> tuple[Reals, Reals]:
    """(out (M, Dv), lse (M,)) of one head: q (M, D), k (N, D), v (N, Dv).

    A row without keys gives 0 and -inf. So does one whose scores a rule makes -inf, as such pairs are masked. The lse
    is that of all weights, also of those that dropout drops.
    """
    out, lse = np.zeros((acsr.m, v.shape[1])), np.full(acsr.m, -np.inf)
    for row, columns in enumerate(acsr.rows()):
        if not columns.size:
            continue
        s, _ = scoring.scores(k[columns] @ q[row], np.asarray(row), columns)
        lse[row] = np.logaddexp.reduce(s)
        if lse[row] > -np.inf:
            out[row] = (np.exp(s - lse[row]) * scoring.factors(np.asarray(row), columns)) @ v[columns]
    return scoring.with_sink(out, lse)


def backward(acsr: Acsr, qkv: tuple[Reals, Reals, Reals], d_out: Reals, d_lse: Reals, scoring: Scoring) -> Gradients:
    """Gradients of sum(out * d_out) + sum(lse * d_lse) over the rows with a finite lse."""
    q, k, v = qkv
    out, lse = forward(acsr, q, k, v, scoring)
    dq, dk, dv, d_sink = np.zeros(q.shape), np.zeros(k.shape), np.zeros(v.shape), 0.0
    d_tables = tuple(tuple(np.zeros(np.shape(table)) for table in rule.tables) for rule in scoring.rules)
    for row, columns in enumerate(acsr.rows()):
        if lse[row] == -np.inf:
            continue
        delta = out[row] @ d_out[row] - d_lse[row]
        if scoring.sink is not None:
            d_sink -= float(np.exp(scoring.sink - lse[row]) * delta)
        found = scoring.of_pairs(k[columns] @ q[row], np.asarray(row), columns)
        p, kept = np.exp(found.s - lse[row]), scoring.factors(np.asarray(row), columns)
        ds = p * (kept * (v[columns] @ d_out[row]) - delta)
        for rule, table, indices, by in found.entries:
            np.add.at(d_tables[rule][table], indices, np.where(p > 0, ds * by, 0.0))
        ds = np.where(p > 0, ds * found.slope, 0.0) * scoring.scale
        dv[columns] += np.outer(p * kept, d_out[row])
        dq[row] = ds @ k[columns]
        dk[columns] += np.outer(ds, q[row])
    return Gradients(dq, dk, dv, d_sink, d_tables)
