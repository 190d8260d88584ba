"""Gradients of short windows, alone and beside few keys: one walk, which reads each tensor once and makes five
products, with a kernel of the few keys after it, beside two kernels.

    python benchmarks/experiments/short_windows.py [--record]

On a Hopper GPU, at head dimension 64 in bfloat16: what weft launches where one walk is predicted to be faster
(`hopper.bwd_fused`), and the kernels of dQ and of dK and dV that other windows have; medians in
microseconds, and how far gradients of either are from each other. What came out is in
docs/decisions/0010-warp-groups-that-specialise.md.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
import triton

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks")]

from planning import RESULTS, append, provenance  # noqa: E402

import weft  # noqa: E402
from weft.planning.attention_plan import plan_attention  # noqa: E402
from weft.planning.problem import Problem  # noqa: E402
from weft.target import GPUS  # noqa: E402
from weft.torch import measure  # noqa: E402

CASES = [  # left, right, batch rows, (heads of queries, of keys), tokens
    (127, 0, 1, (16, 16), 16384),
    (127, 0, 4, (16, 16), 8192),
    (127, 0, 1, (64, 8), 8192),
    (64, 64, 1, (16, 16), 16384),
    (63, 0, 1, (16, 16), 16384),
    (15, 0, 1, (16, 16), 16384),
    (15, 0, 1, (16, 16), 4096),
    (127, 0, 1, (64, 8), 2048),
    (127, 0, 1, (64, 8), 1024),
    (127, 0, 1, (32, 8), 4096),
    (127, 0, 1, (16, 16), 2048),
    (127, 0, 8, (24, 24), 1024),
    (127, 0, 1, (4, 4), 1024),
]
BESIDE = [  # keys beside a causal window of 128: every so many, or so many first ones; the rest as above
    ("every 128", 1, (16, 16), 16384),
    ("every 128", 4, (16, 16), 8192),
    ("every 128", 1, (16, 16), 32768),
    ("every 128", 1, (64, 8), 8192),
    ("every 256", 1, (16, 16), 16384),
    ("every 64", 1, (16, 16), 16384),
    ("every 32", 1, (16, 16), 16384),
    ("first 4", 1, (16, 16), 16384),
    ("first 4", 1, (64, 8), 8192),
    ("first 128", 1, (16, 16), 16384),
    ("every 128", 1, (16, 16), 2048),
    ("every 128", 1, (4, 4), 4096),
    ("first 4", 8, (24, 24), 1024),
]
SIZES, TIMES = ("batch", "q_heads", "kv_heads", "tokens"), ("taken", "dq_us", "dkdv_us", "walk_us", "off")
MADE = ("date", "machine", "python", "torch", "commit", "triton", "device")


def keys_beside(text: str) -> weft.Pattern:
    """The pattern of a case of BESIDE."""
    kind, count = text.split()
    beside = weft.periodic_keys(int(count)) if kind == "every" else weft.prefix(int(count))
    return weft.causal() & (weft.window(left=127) | beside)


def measured(pattern: weft.Pattern, batch: int, heads: tuple[int, int], tokens: int) -> dict[str, object]:
    """One pattern's times. taken: whether a call takes the walk; off: of the three gradients the largest difference
    over what it is of.
    """
    problem = Problem(batch, *heads, tokens, tokens, 64, 64, "bfloat16", "cuda")
    plan = plan_attention(pattern, problem, GPUS["h200"])
    subject = measure.Subject.of(plan)
    calls = [subject.call("dq", plan), subject.call("dkdv", plan), subject.walk(plan)]
    found = [x.float() for x in (calls[0]()[0], *calls[1]()[:2])]
    off = max(float((x.float() - y).norm() / y.norm()) for x, y in zip(calls[2](), found, strict=True))
    times = [round(1e6 * one.seconds, 1) for one in measure.timings_of(calls, rounds=6)]
    named = dict(zip(SIZES, (batch, *heads, tokens), strict=True))
    return named | dict(zip(TIMES, (plan.fused_backward is not None, *times, f"{off:.1e}"), strict=True))


def show(row: dict[str, object]) -> dict[str, object]:
    """Print a row; returns it with where it is from."""
    ratio = float(str(row["walk_us"])) / (float(str(row["dq_us"])) + float(str(row["dkdv_us"])))
    print(f"{', '.join(f'{name} {value}' for name, value in row.items())}: {ratio:.3f}", flush=True)
    return provenance("torch") | {"triton": triton.__version__, "device": torch.cuda.get_device_name()} | row


def main() -> None:
    parser = argparse.ArgumentParser(description="Gradients of short windows, by one walk and by two kernels")
    parser.add_argument("--record", action="store_true", help="append to results/short-windows.csv and few-keys.csv")
    asked = parser.parse_args()
    windows = [
        show({"left": left, "right": right} | measured(weft.window(left, right), *rest)) for left, right, *rest in CASES
    ]
    beside = [show({"beside": text} | measured(keys_beside(text), *rest)) for text, *rest in BESIDE]
    if asked.record:
        append(RESULTS / "short-windows.csv", (*MADE, "left", "right", *SIZES, *TIMES), windows)
        append(RESULTS / "few-keys.csv", (*MADE, "beside", *SIZES, *TIMES), beside)


if __name__ == "__main__":
    main()
