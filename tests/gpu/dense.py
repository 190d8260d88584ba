"""Dense attention of one head in float64: the definition, with all pairs in memory."""

from typing import NamedTuple

import numpy as np


class Scores(NamedTuple):
    """What scores become, as `weft.acsr.interpret.Scoring` has it. sink: joins the sum of every row; -inf: none."""

    scale: float
    softcap: float | None = None
    slope: float = 0.0
    sink: float = -np.inf


class Rows(NamedTuple):
    """Rows of a head: weights (M, N), their scores' derivative by q . k, out (M, Dv), lse (M,)."""

    p: np.ndarray
    slope: np.ndarray
    out: np.ndarray
    lse: np.ndarray


def attend(qkv, live, distance, scores):
    """Rows of q (M, D), k (N, D), v (N, Dv) under the mask live (M, N). distance: of tokens, (M, N)."""
    q, k, v = qkv
    x, slope = scores.scale * q @ k.T, np.full(live.shape, scores.scale)
    if scores.softcap is not None:
        capped = np.tanh(x / scores.softcap)
        x, slope = scores.softcap * capped, slope * (1.0 - capped**2)
    x = np.where(live, x - scores.slope * distance, -np.inf)
    top = np.maximum(x.max(1, initial=-np.inf), scores.sink)
    safe = np.where(top == -np.inf, 0.0, top)
    p = np.exp(x - safe[:, None])
    total = p.sum(1) + np.exp(scores.sink - safe)
    with np.errstate(divide="ignore"):
        lse = np.where(total == 0, -np.inf, safe + np.log(total))
    p = p / np.where(total == 0, 1.0, total)[:, None]
    return Rows(p, slope, p @ v, lse)


class Gradients(NamedTuple):
    """dq (M, D), dk (N, D), dv (N, Dv), delta (M,), and of the sink."""

    dq: np.ndarray
    dk: np.ndarray
    dv: np.ndarray
    delta: np.ndarray
    dsink: float


def gradients(qkv, rows, dout, dlse, scores):
    """Gradients of sum(out * dout) + sum(lse * dlse) over the rows with a finite lse."""
    q, k, v = qkv
    some = rows.lse > -np.inf
    delta = (rows.out * dout).sum(1) - np.where(some, dlse, 0.0)
    ds = rows.p * (dout @ v.T - delta[:, None]) * rows.slope
    share = np.exp(scores.sink - np.where(some, rows.lse, 0.0)) * some
    return Gradients(ds @ k, ds.T @ q, rows.p.T @ dout, delta, -float((share * delta).sum()))
