"""Whether a result is right: against float64, on sampled rows (out, dq) and sampled keys (dk, dv).

The truth uses the workload's formula, not its pattern. Beside it stands the plain computation in the inputs' dtype, on
the same samples. A result is wrong if its error is beyond SLACK times what `weft.testing.tolerance` allows over that. A
sample finds less than the largest plain error, and a wrong mask is wrong by orders of magnitude.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.bench.inputs import Tensors
from weft.testing.tolerance import TABLE

SLACK = 4.0
ROWS, KEYS = 48, 16  # sampled in each head that is looked at
CELLS = {"cuda": 1 << 27, "cpu": 1 << 22}  # scores in float64 at a time

Sample = tuple[str, tuple[Any, ...], Tensor, Tensor]  # quantity, where in its tensor, truth, plain


@dataclass(frozen=True)
class Verdict:
    """error: the largest over the largest number; over_plain: over the plain computation's. wrong: why, or empty."""

    error: float
    over_plain: float
    wrong: str = ""


class Truth:
    """The samples of one problem, computed once and compared with every peer."""

    def __init__(self, tensors: Tensors) -> None:
        self.workload, self.tensors, self.case = tensors.workload, tensors, tensors.cases[0]
        self.predicate = self.workload.predicate(tensors.table)

    def verdict(self, direction: str, results: tuple[Tensor, ...]) -> Verdict:
        """results: (out,) or (dq, dk, dv), heads before tokens."""
        samples = self.forward if direction == "fwd" else self.backward
        found = []
        for name, result in zip(("out",) if direction == "fwd" else ("dq", "dk", "dv"), results, strict=True):
            mine = [(result[where].double(), truth, plain) for n, where, truth, plain in samples if n == name]
            flat = (torch.cat([x.flatten() for x in part]) for part in zip(*mine, strict=True))
            found.append(self._compare(name, *flat))
        return max(found, key=lambda verdict: (bool(verdict.wrong), verdict.over_plain))

    def _compare(self, name: str, got: Tensor, truth: Tensor, plain: Tensor) -> Verdict:
        rule = TABLE[name, self.workload.dtype]
        largest = max(float(truth.abs().max()), torch.finfo(torch.float32).tiny)
        worst, usual = (float((x - truth).abs().nan_to_num(torch.inf).max()) for x in (got, plain))
        allowed = SLACK * (rule.c * usual + rule.floor * largest)
        wrong = "" if worst <= allowed else f"{name} is off by {worst:.2g}, allowed is {allowed:.2g}"
        return Verdict(worst / largest, worst / (usual or rule.floor * largest), wrong)

    # ---- samples -------------------------------------------------------------------------------------------------
    @cached_property
    def forward(self) -> list[Sample]:
        """Rows of `out` in a few heads."""
        w = self.workload
        found: list[Sample] = []
        for b, h in {(0, 0), (0, w.q_heads // 2), (w.batch - 1, w.q_heads - 1)}:
            rows = self._places(w.m, ROWS)
            found.append(("out", (b, h, rows), *(self._out(b, h, rows, dtype) for dtype in self._dtypes)))
        return found

    @cached_property
    def backward(self) -> list[Sample]:
        """Rows of dq, and keys of dk and dv with everything that sees them."""
        w = self.workload
        found: list[Sample] = []
        group = w.q_heads // w.kv_heads
        heads = {(0, 0), (w.batch - 1, w.kv_heads - 1)} if self.tensors.device == "cuda" else {(0, 0)}
        for b, kv in heads:
            rows, keys = self._places(w.m, ROWS), self._places(w.n, KEYS)
            h = kv * group
            found.append(("dq", (b, h, rows), *(self._dq(b, h, rows, dtype) for dtype in self._dtypes)))
            (dk, dv), (plain_dk, plain_dv) = (self._dk_dv(b, kv, keys, dtype) for dtype in self._dtypes)
            found += [("dk", (b, kv, keys), dk, plain_dk), ("dv", (b, kv, keys), dv, plain_dv)]
        return found

    @property
    def _dtypes(self) -> tuple[torch.dtype, torch.dtype]:
        return torch.float64, self.case.q.dtype

    def _places(self, length: int, count: int) -> Tensor:
        """`count` indices: both ends, the neighbourhoods of usual tile edges, and random ones."""
        edges = [0, length - 1, 63, 64, 127, 128, length // 2 - 1, length // 2]
        drawn = np.random.default_rng(0).integers(0, length, count - len(edges))
        wanted = np.unique([place for place in (*edges, *drawn) if 0 <= place < length])
        return self.tensors.table(wanted)

    # ---- attention of some rows ----------------------------------------------------------------------------------
    def _rows(self, b: int, h: int, rows: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(q of the rows, k, v, probabilities) of one query head, in dtype."""
        kv, scale = h // (self.workload.q_heads // self.workload.kv_heads), self.workload.d**-0.5
        q, k, v = (x.to(dtype) for x in (self.case.q[b, h][rows], self.case.k[b, kv], self.case.v[b, kv]))
        live = self.predicate(b, self.tensors.table(h), rows[:, None], self.tensors.arange(self.workload.n)[None, :])
        scores = ((q @ k.T) * scale).masked_fill(~live, -torch.inf)
        if self.tensors.sinks is not None:
            scores = torch.cat([scores, self.tensors.sinks[h].to(dtype).expand(len(rows), 1)], 1)
        return q, k, v, torch.softmax(scores, 1).nan_to_num(0)[:, : self.workload.n]

    def _out(self, b: int, h: int, rows: Tensor, dtype: torch.dtype) -> Tensor:
        parts = (self._rows(b, h, some, dtype) for some in self._portions(rows))
        return torch.cat([(p @ v).double() for _, _, v, p in parts])

    def _scores_gradient(self, b: int, h: int, rows: Tensor, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """(dS, probabilities, q, k, dout) of some rows."""
        q, k, v, p = self._rows(b, h, rows, dtype)
        dout = self.case.dout[b, h][rows].to(dtype)
        delta = (dout * (p @ v)).sum(1, keepdim=True)
        return p * (dout @ v.T - delta) * self.workload.d**-0.5, p, q, k, dout

    def _dq(self, b: int, h: int, rows: Tensor, dtype: torch.dtype) -> Tensor:
        parts = (self._scores_gradient(b, h, some, dtype) for some in self._portions(rows))
        return torch.cat([(ds @ k).double() for ds, _, _, k, _ in parts])

    def _dk_dv(self, b: int, kv: int, keys: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Sums over rows and heads of the group are rounded once, as one matrix product rounds them."""
        w = self.workload
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        dk, dv = (torch.zeros(len(keys), size, dtype=wide, device=keys.device) for size in (w.d, w.dv))
        group = w.q_heads // w.kv_heads
        for h in range(kv * group, kv * group + group):
            queries = self.tensors.arange(w.m)
            seen = self.predicate(b, self.tensors.table(h), queries[:, None], keys[None, :])
            rows = queries[seen.expand(w.m, len(keys)).any(1)]
            for some in self._portions(rows):
                ds, p, q, _, dout = self._scores_gradient(b, h, some, dtype)
                dk += ds[:, keys].T.to(wide) @ q.to(wide)
                dv += p[:, keys].T.to(wide) @ dout.to(wide)
        return dk.to(dtype).double(), dv.to(dtype).double()

    def _portions(self, rows: Tensor) -> Iterator[Tensor]:
        return iter(rows.split(max(1, CELLS[self.tensors.device] // self.workload.n)))
