"""One case: planned, proven, run, compared with dense attention, and both timed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

import weft
from weft.demo.inputs import Qkv
from weft.pattern.algebra import Pattern
from weft.planning.attention_plan import plan_attention
from weft.planning.problem import Problem

SLICE = 1024  # queries of dense attention at a time: its mask never exists whole, and it runs no slower
SAMPLES = 96  # rows compared with float64
PATIENCE = 2.0  # seconds of timing after which no further call is made
# Same dtype, another order of summation. So the error may be a few times that of dense attention, which on few rows may
# by luck be nearly nothing. The floor is a few roundings of an output near 1.
FACTOR, FLOOR = 4.0, 1e-6


@dataclass(frozen=True)
class Row:
    """What came out; times in seconds. live: share of all pairs. error: largest, against float64 on sampled rows;
    dense_error: that of dense float32 attention on the same rows; apart: largest between the two, on all rows."""

    live: float
    nbytes: int
    plan: float
    verify: float
    sparse: float
    dense: float
    error: float
    dense_error: float
    apart: float

    @property
    def allowed(self) -> float:
        """The largest error that passes."""
        return max(FACTOR * self.dense_error, FLOOR)

    @property
    def wrong(self) -> str:
        """Why the check fails; empty if it does not. Written so that NaN fails."""
        if not self.error <= self.allowed:
            return f"off by {self.error:.1e} from float64, allowed {self.allowed:.1e}"
        # Rows that were not sampled are held to a looser bound, since both sides of this comparison round.
        if not self.apart <= 10 * self.allowed:
            return f"{self.apart:.1e} apart from dense attention, allowed {10 * self.allowed:.1e}"
        return ""


def measure(pattern: Pattern, qkv: Qkv, progress: Callable[[str], None]) -> Row:
    """q, k, v (1, H, M, D) in float32. Raises what planning, verify() and attention() raise."""
    q, k, v = qkv
    (_, heads, m, d), n = q.shape, k.shape[2]
    progress("planning")
    start = perf_counter()
    plan = plan_attention(pattern, Problem(1, heads, heads, m, n, d, v.shape[3], "float32"))
    planned = perf_counter()
    progress("verifying")
    plan.verify()
    verified = perf_counter()
    progress("running weft")
    sparse_time, out = best_of(3, lambda: weft.attention(q, k, v, pattern))
    progress("running dense attention")
    dense_time, reference = dense_attention(qkv, pattern)
    progress("comparing with float64")
    rows = sampled_rows(m)
    truth = reference_rows(qkv, pattern, rows)
    return Row(
        live=plan.nnz / (heads * m * n), nbytes=plan.nbytes, plan=planned - start, verify=verified - planned,
        sparse=sparse_time, dense=dense_time, error=largest(out[0][:, rows], truth),
        dense_error=largest(reference[0][:, rows], truth), apart=largest(out, reference),
    )  # fmt: skip


def yield_cores() -> bool:
    """Goes down to one thread, and returns True, where several are slower. Then other work has the cores, and threads
    that wait for each other in turns of the scheduler make seconds out of milliseconds."""
    threads = torch.get_num_threads()
    if threads == 1:
        return False
    q, k, v = torch.zeros(3, 1, 8, 2048, 64)
    pattern = weft.causal() & weft.window(left=127)
    together = sum(best_of(1, lambda: weft.attention(q, k, v, pattern))[0] for _ in range(5))
    torch.set_num_threads(1)
    alone = sum(best_of(1, lambda: weft.attention(q, k, v, pattern))[0] for _ in range(5))
    busy = together > 1.25 * alone
    torch.set_num_threads(1 if busy else threads)
    return busy


def best_of(times: int, call: Callable[[], torch.Tensor]) -> tuple[float, torch.Tensor]:
    """(shortest of so many calls in seconds, the result) after one that is not counted; fewer on a busy machine."""
    result = call()
    found: list[float] = []
    while len(found) < times and sum(found) < PATIENCE:
        start = perf_counter()
        result = call()
        found.append(perf_counter() - start)
    return min(found), result


def dense_attention(qkv: Qkv, pattern: Pattern) -> tuple[float, torch.Tensor]:
    """(seconds, out) of torch's own attention with the boolean mask, which is made outside the clock."""
    q, k, v = qkv
    seconds, parts = 0.0, []
    m, n = q.shape[2], k.shape[2]
    for first in range(0, m, SLICE):
        rows = np.arange(first, min(first + SLICE, m))
        mask = torch.from_numpy(mask_rows(pattern, rows, m, n))
        some = q[:, :, first : first + SLICE]
        start = perf_counter()
        parts.append(scaled_dot_product_attention(some, k, v, attn_mask=mask))
        seconds += perf_counter() - start
    return seconds, torch.cat(parts, dim=2)


def mask_rows(pattern: Pattern, rows: np.ndarray, m: int, n: int) -> np.ndarray:
    """Some rows of the boolean mask, (rows, n), from what the pattern means and not from any plan."""
    mask = np.empty((rows.size, n), np.bool_)
    for first in range(0, rows.size, 64):  # what the predicate needs in between then stays in the cache
        some = slice(first, first + 64)
        mask[some] = pattern.contains(rows[some, None], np.arange(n), m, n)
    return mask


def sampled_rows(m: int) -> np.ndarray:
    """The first and last row, and random ones."""
    return np.unique(np.concatenate([[0, m - 1], np.random.default_rng(4).integers(0, m, SAMPLES - 2)]))


def reference_rows(qkv: Qkv, pattern: Pattern, rows: np.ndarray) -> torch.Tensor:
    """Attention of some rows in float64, (H, rows, Dv), spelled out."""
    q, k, v = (x[0].to(torch.float64) for x in qkv)
    mask = torch.from_numpy(mask_rows(pattern, rows, q.shape[1], k.shape[1]))
    scores = (q[:, rows] @ k.transpose(1, 2) * q.shape[2] ** -0.5).masked_fill(~mask, -torch.inf)
    return scores.softmax(dim=-1) @ v


def largest(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest absolute difference; NaN if there is one anywhere."""
    return float((a.to(b.dtype) - b).abs().max())
