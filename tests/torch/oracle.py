"""Attention and its gradients by the float64 definition, `weft.acsr.interpret`, head by head."""

import numpy as np
import torch

from weft.acsr import interpret
from weft.score.dropout import Dropout
from weft.score.evaluate import Rule


def rules_of(score):
    """A Score as rules on float64 and integer arrays."""
    found, first = [], 0
    for one in () if score is None else score.expressions:
        tables = score.tables[first : first + len(one.tables)]
        first += len(tables)
        arrays = (x.detach().double() if x.is_floating_point() else x for x in tables)
        found.append(Rule(one, tuple(x.numpy() for x in arrays)))
    return tuple(found)


def attention(
    tensors, pattern, seeds, *, scale=None, softcap=None, sinks=None, alibi_slopes=None, shift=0, score=None,
    dropout=0.0, seed=None,
):  # fmt: skip
    """{name: tensor} of out, lse, dq, dk, dv (and dsinks, and of each table of the score d0, d1, ...), float64.

    tensors: q (B, Hq, M, D), k (B, Hkv, N, D), v (B, Hkv, N, Dv). seeds: gradients of out and of lse. shift: what
    alignment adds to a query's index. score: a Score.
    """
    rules = rules_of(score)
    d_tables = [np.zeros(x.shape) for rule in rules for x in rule.tables]
    q, k, v, d_out, d_lse = (x.detach().double().numpy() for x in (*tensors, *seeds))
    group = q.shape[1] // k.shape[1]
    out, lse = np.zeros(d_out.shape), np.zeros(d_lse.shape)
    dq, dk, dv, dsinks = np.zeros(q.shape), np.zeros(k.shape), np.zeros(v.shape), np.zeros(q.shape[1])
    for b, h in np.ndindex(*q.shape[:2]):
        acsr, one = pattern.acsr(q.shape[2], k.shape[2], b, h), (q[b, h], k[b, h // group], v[b, h // group])
        how = interpret.Scoring(
            q.shape[3] ** -0.5 if scale is None else scale, softcap,
            0.0 if alibi_slopes is None else float(alibi_slopes[h]), shift, None if sinks is None else float(sinks[h]),
            rules, Dropout(dropout, seed) if dropout else None, b, h,
        )  # fmt: skip
        out[b, h], lse[b, h] = interpret.forward(acsr, *one, how)
        found = interpret.backward(acsr, one, d_out[b, h], d_lse[b, h], how)
        dq[b, h] = found.dq
        dk[b, h // group] += found.dk
        dv[b, h // group] += found.dv
        dsinks[h] += found.d_sink
        for total, part in zip(d_tables, (x for tables in found.d_tables for x in tables), strict=True):
            np.add(total, part, out=total)
    given = {"out": out, "lse": lse, "dq": dq, "dk": dk, "dv": dv} | ({} if sinks is None else {"dsinks": dsinks})
    given |= {f"d{i}": x for i, x in enumerate(d_tables)}
    return {name: torch.from_numpy(x) for name, x in given.items()}


def assert_close(found, expected):
    """Of float64 results: every one of `expected`, to rounding."""
    for name, x in expected.items():
        torch.testing.assert_close(found[name].double(), x, rtol=1e-11, atol=1e-11, msg=lambda m, n=name: f"{n}: {m}")
