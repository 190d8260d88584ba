"""Numbers that kernels share: scores of pairs, and the soft maximum of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from weft.kernels.gpu.oracle.laws import law
from weft.kernels.gpu.oracle.memory import Call, Ints, Reals
from weft.kernels.gpu.oracle.tables import Visit
from weft.score.dropout import HEADER, halves
from weft.score.evaluate import Rule, evaluate


class Scored(NamedTuple):
    """Scores (queries, keys), their derivative by scale * (q . k), and of each read of a real table by a score function
    (the table, the indices, the derivative by what it gave).
    """

    s: Reals
    slope: Reals
    entries: Sequence[tuple[int, tuple[Ints, ...], Reals]] = ()


class Scoring:
    """Score of a pair from x = scale * (q . k): softcap * tanh(x / softcap), what score functions make of it, less
    slope * |query + shift - key|.
    """

    def __init__(self, call: Call, shift: int) -> None:
        spec, self.shift = call.spec, shift
        self.scale = call.real("scale")
        self.softcap = call.real("softcap") if getattr(spec, "softcap", False) else None
        self.slopes = call.flat("Slopes") if getattr(spec, "alibi", False) else None
        self.call = call
        self.rule = _rule(call) if getattr(spec, "rules", None) is not None else None

    def scores(self, raw: Reals, of: tuple[int, int | Ints], queries: Ints, keys: Ints) -> Scored:
        """Of raw = q . k (queries, keys). of: the batch row, and the head of all queries, or of each one."""
        entries: Sequence[tuple[int, tuple[Ints, ...], Reals]] = ()
        x, slope, (batch, head) = self.scale * raw, np.ones_like(raw), of
        if self.softcap is not None:
            capped = np.tanh(x / self.softcap)
            x, slope = self.softcap * capped, 1.0 - capped * capped
        if self.rule is not None:
            where = {"b": batch, "h": head, "q": queries[:, None], "k": keys[None, :], "shift": self.shift}
            found = evaluate(self.rule, {**where, "score": x}, clamps=True)
            x, slope, entries = found.score, slope * found.slope, found.by_entry
        if self.slopes is not None:
            x = x - self.slopes.load(head)[..., None] * np.abs(queries[:, None] + self.shift - keys[None, :])
        return Scored(x, slope, entries)

    def factors(self, of: tuple[int, int], queries: Ints, keys: Ints) -> Reals:
        """What dropout multiplies weights (queries, keys) by, by its law; 1 without."""
        if not self.call.spec.dropout:
            return np.ones((queries.size, keys.size))
        (batch, head), told = of, self.call.spec.renumbered
        if told:
            head += self.call.counted("Seed", 1)
            m = self.call.counted("Seed", 2)
            queries, keys = (
                np.array([self.call.counted("Seed", HEADER + int(x)) for x in tokens], np.int64)
                for tokens in (queries, m + keys)
            )
        found = halves(self.call.counted("Seed", 0), batch, head, queries[:, None], keys[None, :])
        return np.where(found >= self.call.integer("dropped_below"), self.call.real("kept_scale"), 0.0)


def _rule(call: Call) -> Rule:
    """The score functions of a launch with their tables, whose lengths and strides it is told."""
    rules, tables = call.spec.rules, []
    for name in rules.pointers:
        slot, values = call.captured(name)
        for axis, (length, stride) in enumerate(zip(slot.shape, slot.strides, strict=True)):
            law(call.integer(f"{name}_n{axis}") == length, f"axis {axis} of {slot.name} has another length")
            if f"{name}_s{axis}" in rules.scalars:
                law(call.integer(f"{name}_s{axis}") == stride, f"axis {axis} of {slot.name} has another stride")
            else:
                law(stride == 1, f"{slot.name} is not dense")
        tables.append(values)
    return Rule(rules.expression, tuple(tables))


def penalised(visit: Visit, s: Reals) -> Reals:
    """Scores with the penalties of a grid, which leave NaN as it is."""
    return s if visit.within is None else s + np.where(visit.within, 0.0, -np.inf)


def replaced(visit: Visit, x: Reals, dead: float) -> Reals:
    """Numbers of pairs, `dead` where a pair is not computed and the kernel masks the tile."""
    return np.where(visit.live, x, dead) if visit.masked else x


class SoftMaximum:
    """Sums of weights and of weighted values of so many rows, by the online form."""

    def __init__(self, rows: int, width: int) -> None:
        self.largest, self.total = np.full(rows, -np.inf), np.zeros(rows)
        self.acc = np.zeros((rows, width))

    def add(self, s: Reals, v: Reals, factors: Reals | float = 1.0) -> None:
        """More keys: scores (rows, keys), values (keys, width). factors: of weights, as they meet values."""
        new = np.maximum(self.largest, s.max(1, initial=-np.inf))
        safe = np.where(new == -np.inf, 0.0, new)  # of rows that have seen no key yet
        p, kept = np.exp(s - safe[:, None]), np.exp(self.largest - safe)
        self.total = self.total * kept + p.sum(1)
        self.acc = self.acc * kept[:, None] + (p * factors) @ v
        self.largest = new

    def finish(self, sink: Reals | float | None = None) -> tuple[Reals, Reals]:
        """(out, lse). sink: joins the sum of each row and has no value; None for none."""
        total, largest, acc, alone = self.total, self.largest, self.acc, self.total == 0
        if sink is not None:
            above = np.maximum(largest, sink)
            safe = np.where(above == -np.inf, 0.0, above)  # neither keys nor a sink
            less = np.where(alone, 0.0, np.exp(largest - safe))
            total, largest, acc = total * less + np.exp(sink - safe), safe, acc * less[:, None]
        with np.errstate(divide="ignore"):
            inverse = np.where(total == 0, 0.0, 1.0 / total)
            lse = np.where(total == 0, -np.inf, largest + np.log(total))
        return acc * inverse[:, None], lse if sink is None else np.where(alone, sink, lse)
