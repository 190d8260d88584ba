"""cuDNN's flex attention for Hopper and Blackwell: any mask whose rows are few intervals of keys, told by their ends.

Its documentation: docs.nvidia.com/deeplearning/cudnn/frontend, "Flex Attention" (experimental).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from weft.bench.peers.base import Peer, Prepared, missing
from weft.testing.workloads import Workload

MOST = 64  # intervals of a row; a plan lists the ends of as many for every row
SAMPLED = 257  # rows that are looked at before a problem is taken
ROWS = 1024  # whose mask is in memory at a time


@dataclass(frozen=True)
class CudnnFlex(Peer):
    """`cudnn.flex_attention`. Row r sees [0, F0), [F1, F2), ...: an odd number of ends."""

    def reason_absent(self, device: str) -> str:
        return missing("cudnn.flex_attention", device)

    def reasons_against(self, workload: Workload, direction: str, device: str) -> list[str]:
        reasons = ["no attention sinks"] if workload.sinks else []
        reasons += [] if workload.dtype in ("bfloat16", "float16") else ["16-bit types only"]
        if most_intervals(workload) > MOST:
            reasons.append(f"more than {MOST} intervals of keys in a row")
        return reasons

    def prepare(self, workload: Workload, tensors: Any) -> Prepared:
        from cudnn.flex_attention import create_mask_plan, flex_attn_func

        told, case = interval_ends(workload, tensors), tensors.laid_out(self.layout)[0]

        def make() -> Any:
            plan = create_mask_plan(told, case.q, case.k, case.v, build_backward=True)
            tensors.synchronize()
            return plan

        make()  # compiles
        begin = time.perf_counter()
        plan = make()
        planned = 1e3 * (time.perf_counter() - begin)
        return Prepared(lambda q, k, v: flex_attn_func(q, k, v, mask_plan=plan), plan_ms=planned)


def most_intervals(workload: Workload) -> int:
    """Intervals of the row that has most, among some rows of every head."""
    import torch

    rows = torch.linspace(0, workload.m - 1, min(SAMPLED, workload.m)).long()
    predicate, keys = workload.predicate(torch.as_tensor), torch.arange(workload.n)
    lives = (_live(predicate, head, rows, keys) for head in _heads(workload))
    return max(_intervals(live)[0].shape[1] for live in lives)


def interval_ends(workload: Workload, tensors: Any) -> Any:
    """(heads or 1, ends of a row, B * M) int32, as `create_mask_plan` wants them; missing intervals are empty."""
    import torch

    predicate, keys = workload.predicate(tensors.table), tensors.arange(workload.n)
    blocks = tensors.arange(workload.m).split(ROWS)
    found = [[_intervals(_live(predicate, head, rows, keys)) for rows in blocks] for head in _heads(workload)]
    most = max(starts.shape[1] for parts in found for starts, _ in parts)

    def joined(side: int) -> Any:
        return torch.stack([torch.cat([_widened(part[side], most, workload.n) for part in parts]) for parts in found])

    starts, stops = joined(0), joined(1)
    ends = torch.stack([starts, stops], 3).flatten(2)  # (heads, M, 2 * most)
    first = torch.zeros_like(ends[:, :, :1])
    ends = ends[:, :, 1:] if bool((starts[:, :, 0] == 0).all()) else torch.cat([first, ends], 2)
    return ends.mT.repeat(1, 1, workload.batch).int().contiguous()


def _widened(numbers: Any, most: int, fill: int) -> Any:
    """The same rows with `most` columns."""
    from torch.nn.functional import pad

    return pad(numbers, (0, most - numbers.shape[1]), value=fill)


def _heads(workload: Workload) -> range:
    return range(workload.q_heads if workload.per_head else 1)


def _live(predicate: Any, head: int, rows: Any, keys: Any) -> Any:
    """(rows, keys) booleans, of the first batch row."""
    return predicate(0, head, rows[:, None], keys[None, :]).expand(len(rows), len(keys))


def _intervals(live: Any) -> tuple[Any, Any]:
    """(first keys, keys after the last) of the intervals of each row: (rows, most), filled up with the key count."""
    from torch.nn.functional import pad

    wide = pad(live, (1, 1))
    return _places(wide[:, 1:] & ~wide[:, :-1]), _places(wide[:, :-1] & ~wide[:, 1:])


def _places(marks: Any) -> Any:
    """The columns of each row's marks."""
    counts = marks.sum(1)
    rows, columns = marks.nonzero(as_tuple=True)
    found = columns.new_full((len(marks), max(1, int(counts.max()))), marks.shape[1] - 1)
    before = (counts.cumsum(0) - counts)[rows]  # marks of earlier rows
    found[rows, before.new_ones(len(before)).cumsum(0) - 1 - before] = columns
    return found


def peers() -> list[Peer]:
    """Measured where it is named: its kernels compile for seconds, and its package is large."""
    return [CudnnFlex("cudnn-flex", package="nvidia-cudnn-frontend", layout="bshd", default=False)]
