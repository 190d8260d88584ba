"""What attention over an Acsr means: three loops over affine rows in float64, forward and backward.

R-SDDMM (scores of the live pairs of a row), soft maximum over the row, R-SpMM (weighted sum of values), as SPLAT names
them (Gupta et al. 2025, doi 10.1145/3720503). Slow on purpose: this is the definition that everything faster is held
to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.acsr.format import Acsr
from weft.pattern.bounds import Ints

Reals: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class Scoring:
    """Score of a pair from x = scale * (q . k): softcap * tanh(x / softcap) if set, minus slope * |q_index + shift -
    k_index|.

    sink: a logit that joins the sum of every row and has no value; None for none.
    """

    scale: float
    softcap: float | None = None
    slope: float = 0.0
    shift: int = 0
    sink: float | None = None

    def scores(self, raw: Reals, rows: Ints, keys: Ints) -> tuple[Reals, Reals]:
        """(scores, their derivative by scale * (q . k)) of raw = q . k at token indices rows, keys (broadcast)."""
        x, slope = self.scale * raw, np.ones_like(raw)
        if self.softcap is not None:
            tanh = np.tanh(x / self.softcap)
            x, slope = self.softcap * tanh, 1 - tanh**2
        return x - self.slope * np.abs(rows + self.shift - keys), slope

    def with_sink(self, out: Reals, lse: Reals) -> tuple[Reals, Reals]:
        """Output (M, Dv) and lse (M,) after the sink has joined every row."""
        if self.sink is None:
            return out, lse
        total = np.logaddexp(lse, self.sink)
        safe = np.where(total == -np.inf, 0.0, total)
        return out * np.exp(lse - safe)[:, None], total


@dataclass(frozen=True, eq=False)
class Gradients:
    """dq (M, D), dk (N, D), dv (N, Dv), and d_sink."""

    dq: Reals
    dk: Reals
    dv: Reals
    d_sink: float = 0.0


def forward(acsr: Acsr, q: Reals, k: Reals, v: Reals, scoring: Scoring) -> tuple[Reals, Reals]:
    """(out (M, Dv), lse (M,)) of one head: q (M, D), k (N, D), v (N, Dv). A row without keys gives 0 and -inf."""
    out, lse = np.zeros((acsr.m, v.shape[1])), np.full(acsr.m, -np.inf)
    for row, columns in enumerate(acsr.rows()):
        if not columns.size:
            continue
        s, _ = scoring.scores(k[columns] @ q[row], np.asarray(row), columns)
        lse[row] = np.logaddexp.reduce(s)
        out[row] = np.exp(s - lse[row]) @ v[columns]
    return scoring.with_sink(out, lse)


def backward(acsr: Acsr, qkv: tuple[Reals, Reals, Reals], d_out: Reals, d_lse: Reals, scoring: Scoring) -> Gradients:
    """Gradients of sum(out * d_out) + sum(lse * d_lse) over the rows with a finite lse."""
    q, k, v = qkv
    out, lse = forward(acsr, q, k, v, scoring)
    dq, dk, dv, d_sink = np.zeros(q.shape), np.zeros(k.shape), np.zeros(v.shape), 0.0
    for row, columns in enumerate(acsr.rows()):
        if lse[row] == -np.inf:
            continue
        delta = out[row] @ d_out[row] - d_lse[row]
        if scoring.sink is not None:
            d_sink -= float(np.exp(scoring.sink - lse[row]) * delta)
        s, slope = scoring.scores(k[columns] @ q[row], np.asarray(row), columns)
        p = np.exp(s - lse[row])
        ds = p * (v[columns] @ d_out[row] - delta) * slope * scoring.scale
        dv[columns] += np.outer(p, d_out[row])
        dq[row] = ds @ k[columns]
        dk[columns] += np.outer(ds, q[row])
    return Gradients(dq, dk, dv, d_sink)
