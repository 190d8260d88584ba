"""Tokens in another order on the GPU at hand: what gathering rows by a list costs beside the same problem sorted.

    PYTHONPATH=src python benchmarks/scattered.py [--out FILE.csv] [--rounds N] [--tokens N]

A problem is two labellings: tokens as they come, and sorted by label, where documents are contiguous. Both have the
same tiles. The sorted one runs as the tile family has it. Each direction is timed by itself, under the tiling that a
call chooses and under others; ratio is the sorted problem's time over this one's. One head of every result is compared
with dense attention in float32. Rows are appended as they come. Without a GPU it prints plans alone.
"""

from __future__ import annotations

import argparse
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from planning import commit
from table import append

import weft
from weft.pattern.algebra import Pattern
from weft.planning.attention_plan import AttentionPlan, plan_attention
from weft.planning.problem import Problem
from weft.planning.tiling import DIRECTIONS, Direction, Tiling
from weft.target import GPU
from weft.torch.card import at_hand

COLUMNS = (
    "run", "device", "torch", "triton", "commit", "problem", "order", "direction", "tiling", "median_us", "tflops",
    "ratio", "error", "message",
)  # fmt: skip
FLOPS = {"forward": 4, "dq": 6, "dkdv": 8}  # operations of a pair and head dimension
# What the sorted problem runs as, and what the scattered one is tried as beside what a call chooses.
SORTED: dict[Direction, Tiling] = {"forward": Tiling(64, 64, 4, 3)}
TRIED: dict[Direction, tuple[Tiling, ...]] = {
    "forward": (Tiling(64, 64, 4, 4), Tiling(64, 64, 4, 3)),
    "dq": (Tiling(64, 64, 4, 4), Tiling(64, 64, 4, 3), Tiling(64, 64, 4, 3, apart=True)),
    "dkdv": (Tiling(64, 32, 4, 4), Tiling(64, 32, 4, 3), Tiling(64, 32, 4, 3, apart=True)),
}


@dataclass(frozen=True)
class Labels:
    """Queries see the keys that carry their label; causal: those that are not after them. heads: (query, key)."""

    queries: Any
    keys: Any
    causal: bool = False
    heads: tuple[int, int] = (16, 16)
    d: int = 128
    tried: bool = False

    def sorted(self) -> Labels:
        """The same with tokens sorted by label."""
        return replace(self, queries=np.sort(self.queries), keys=np.sort(self.keys))

    def pattern(self) -> Pattern:
        """As users write it."""
        same = np.array_equal(self.queries, self.keys)
        found = weft.documents(ids=self.queries) if same else weft.documents(ids=self.queries, key_ids=self.keys)
        return weft.causal() & found if self.causal else found

    def problem(self) -> Problem:
        """In bfloat16, one batch row."""
        m, n = len(self.queries), len(self.keys)
        return Problem(1, *self.heads, m, n, self.d, self.d, "bfloat16", "cuda")


def problems(tokens: int) -> dict[str, Labels]:
    """The most important first."""
    random = np.random.default_rng(0)
    ids, even = random.integers(0, 64, tokens), random.permutation(np.arange(tokens) % 64)
    side = int(tokens**0.5)
    y, x = np.divmod(np.arange(side * side), side)
    swin = y // 16 * (side // 16 + 1) + x // 16
    seven = y // 7 * (side // 7 + 1) + x // 7
    chunks = np.arange(tokens) // 256
    return {
        "64 documents": Labels(ids, ids, tried=True),
        "64 documents, causal": Labels(ids, ids, causal=True),
        "64 documents, 16:4 heads": Labels(ids, ids, heads=(16, 4)),
        "windows of 16x16": Labels(swin, swin),
        "a chosen chunk of 256": Labels(random.integers(0, chunks[-1] + 1, tokens), chunks),
        "windows of 7x7, D=64": Labels(seven, seven, d=64),
        "64 documents, D=64": Labels(ids, ids, d=64),
        "64 documents of one length": Labels(even, even),
    }


def plan_of(labels: Labels, fixed: dict[Direction, Tiling], gpu: Any) -> AttentionPlan:
    """The plan of one order."""
    return plan_attention(labels.pattern(), labels.problem(), gpu, tuple(fixed.items()))


def ways(labels: Labels, gpu: Any) -> Iterator[tuple[str, Direction, AttentionPlan]]:
    """(order, direction, plan) in the order of rows; the sorted one of each direction first."""
    straight = plan_of(labels.sorted(), {} if labels.d == 64 else SORTED, gpu)
    chosen = plan_of(labels, {}, gpu)
    for direction in DIRECTIONS:
        yield "sorted", direction, straight
        yield "scattered", direction, chosen
    for direction in DIRECTIONS if labels.tried else ():
        for tiling in TRIED[direction]:
            if tiling != _tiling(chosen, direction):
                yield "scattered", direction, plan_of(labels, {direction: tiling}, gpu)


def _tiling(plan: AttentionPlan, direction: Direction) -> Tiling:
    return plan.candidate(direction).tilings[0]


# ---- on a card -------------------------------------------------------------------------------------------------------
def truth_of(labels: Labels, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Dense attention of the first key head in float32, and its gradients."""
    group = labels.heads[0] // labels.heads[1]
    q, dout = (tensors[name][0, :group].float() for name in ("q", "dout"))
    q, k, v = (x.requires_grad_() for x in (q, *(tensors[name][0, :1].float() for name in ("k", "v"))))
    live = torch.from_numpy(np.asarray(labels.queries)).cuda()[:, None] == torch.from_numpy(labels.keys).cuda()
    outs = []
    for head in range(group):  # a head at a time: scores take a gigabyte
        scores = (q[head] @ k[0].T * labels.d**-0.5).masked_fill(~(live.tril() if labels.causal else live), -torch.inf)
        outs.append(scores.softmax(-1).nan_to_num() @ v[0])
        outs[-1].backward(dout[head])
    assert q.grad is not None and k.grad is not None and v.grad is not None
    return {"out": torch.stack(outs).detach(), "dq": q.grad, "dk": k.grad, "dv": v.grad}


def rows(name: str, labels: Labels, every: list[Any], rounds: int) -> Iterator[dict[str, Any]]:
    """A row for each way of one problem."""
    from weft.torch import measure

    subjects = {order: measure.Subject.of(next(plan for o, _, plan in every if o == order)) for order in
                ("sorted", "scattered")}  # fmt: skip
    calls = [subjects[order].call(direction, plan) for order, direction, plan in every]
    errors = _errors(labels, subjects["scattered"], every, calls)
    seconds = measure.seconds_of(calls, rounds)
    straight = {d: s for (order, d, _), s in zip(every, seconds, strict=True) if order == "sorted"}
    for (order, direction, plan), took in zip(every, seconds, strict=True):
        work = FLOPS[direction] * labels.d * plan.nnz
        yield {
            "problem": name, "order": order, "direction": direction,
            "tiling": str(_tiling(plan, direction)), "median_us": round(took * 1e6, 2),
            "tflops": round(work / took / 1e12, 1), "ratio": round(straight[direction] / took, 3),
            "error": errors.get(direction, "") if order == "scattered" else "",
        }  # fmt: skip


def _errors(labels: Labels, subject: Any, every: list[Any], calls: list[Any]) -> dict[str, str]:
    """How far results of each direction lie from dense attention, over the largest number: the worst of all ways."""
    names = {"forward": ("out",), "dq": ("dq",), "dkdv": ("dk", "dv")}
    meant, found = truth_of(labels, subject.tensors), dict.fromkeys(names, 0.0)
    for (order, direction, _), call in zip(every, calls, strict=True):
        for name, got in zip(names[direction], call(), strict=False) if order == "scattered" else ():
            off = (got[0, : len(meant[name])].float() - meant[name]).abs().max() / meant[name].abs().max()
            found[direction] = max(float(off), found[direction])
    torch.cuda.empty_cache()
    return {name: f"{value:.4f}" for name, value in found.items()}


def _compile(asked: list[tuple[Direction, AttentionPlan]]) -> None:
    from weft.kernels.gpu.configure import specs_of
    from weft.torch.measure import compile_all

    for spec, why in compile_all([s for d, plan in asked for s in specs_of(plan, d, d == "dkdv")]).items():
        print(f"# {spec.name}: {why}", flush=True)


def main() -> None:
    """Print a line a way, and append rows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--limit", type=float, default=60, help="seconds after which no problem begins")
    asked = parser.parse_args()
    card = at_hand()
    if card is None:
        for name, labels in problems(asked.tokens).items():
            for order, direction, plan in ways(labels, GPU):
                print(f"{name:28}{order:10}{direction:9}{_tiling(plan, direction)}")
        return
    began = time.monotonic()
    about = {"run": time.strftime("%Y-%m-%dT%H:%M", time.gmtime()) + "-scattered", "commit": commit()}
    about |= {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": version("triton")}
    known = {name: (labels, list(ways(labels, card.gpu))) for name, labels in problems(asked.tokens).items()}
    _compile([(direction, plan) for _, every in known.values() for _, direction, plan in every])
    print(f"# compiled: {time.monotonic() - began:.0f} s", flush=True)
    for name, (labels, every) in known.items():
        if time.monotonic() - began > asked.limit:
            print(f"# {name}: no time left", flush=True)
            continue
        try:
            for row in rows(name, labels, every, asked.rounds):
                print(*(str(row.get(x, "")) for x in COLUMNS[5:]), sep="  ", flush=True)
                append(asked.out, COLUMNS, about | row)
        except Exception as failed:  # the other problems are measured all the same
            traceback.print_exc()
            append(asked.out, COLUMNS, about | {"problem": name, "message": f"{type(failed).__name__}: {failed}"[:300]})
        print(f"# {name}: {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
