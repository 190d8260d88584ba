"""Gradients of short windows: one walk, which reads each tensor once and makes five products, beside two kernels.

    python benchmarks/experiments/short_windows.py

On a Hopper GPU, at head dimension 64 in bfloat16: what weft launches for a call (`weft.kernels.triton.one_walk`), and
the kernels of dQ and of dK and dV that other windows have; medians and quartiles in microseconds, and how far the
gradients of either are from each other. What came out is in docs/decisions/0010-warp-groups-that-specialise.md.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "src")]

import weft  # noqa: E402
from weft.kernels.triton import measure  # noqa: E402
from weft.planning.attention_plan import plan_attention  # noqa: E402
from weft.planning.problem import Problem  # noqa: E402
from weft.target import GPUS  # noqa: E402

CASES = [  # left, right, batch rows, (heads of queries, of keys), tokens
    (127, 0, 1, (16, 16), 16384),
    (127, 0, 4, (16, 16), 8192),
    (127, 0, 1, (64, 8), 8192),
    (64, 64, 1, (16, 16), 16384),
    (63, 0, 1, (16, 16), 16384),
    (15, 0, 1, (16, 16), 16384),
    (127, 0, 1, (64, 8), 2048),
    (127, 0, 1, (32, 8), 4096),
    (127, 0, 1, (16, 16), 2048),
    (127, 0, 8, (24, 24), 1024),
    (127, 0, 1, (4, 4), 1024),
]


def compare(left: int, right: int, batch: int, heads: tuple[int, int], tokens: int) -> str:
    """One window's line."""
    plan = plan_attention(
        weft.window(left, right), Problem(batch, *heads, tokens, tokens, 64, 64, "bfloat16", "cuda"), GPUS["h200"]
    )
    subject = measure.Subject.of(plan)
    calls = [subject.call("dq", plan), subject.call("dkdv", plan), subject.walk(plan)]
    found = [x.float() for x in (calls[0]()[0], *calls[1]()[:2])]
    off = [float((x.float() - y).norm() / y.norm()) for x, y in zip(calls[2](), found, strict=True)]
    dq, keys, walk = measure.timings_of(calls, rounds=6)
    ratio = walk.seconds / (dq.seconds + keys.seconds)
    said = " ".join(f"{1e6 * t.seconds:7.1f} ({1e6 * t.low:6.1f} {1e6 * t.high:6.1f})" for t in (dq, keys, walk))
    what = f"{left:4d} before {right:3d} after, {batch} x {heads[0]}:{heads[1]} heads, {tokens:6d} tokens"
    return f"{what:52s} {said} {ratio:6.3f}  off {', '.join(f'{x:.0e}' for x in off)}"


if __name__ == "__main__":
    print(torch.cuda.get_device_name(), "   dQ, dK and dV, one walk in us, and the walk over both")
    for case in CASES:
        print(compare(*case), flush=True)
