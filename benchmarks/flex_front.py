"""FlexAttention's functions with weft underneath: what a first mask and an eager call cost the host.

    python benchmarks/flex_front.py [--calls N] [--rounds N] [--out FILE.csv]

First calls of create_block_mask at 32,768 tokens are of fresh processes, which have imported both libraries and woken
the device; the least and the median of two, in milliseconds. Eager calls of flex_attention and of weft.attention with
the same pattern are timed in turn without gradients, in microseconds of the host: the difference is what the interface
adds. Without a GPU launches do nothing, as in host.py. Bars: 50 ms, and 60 us.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import torch

TOKENS, REACH, PROCESSES = 32_768, 1024, 2
MASKS = ("documents", "window")
BARS = {"ms": 50.0, "us": 60.0}
COLUMNS = ("date", "machine", "python", "torch", "commit", "device", "what", "unit", "least", "median", "bar")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


# ---- the first mask of a process -------------------------------------------------------------------------------------
def mask_mod(name: str) -> Callable[..., Any]:
    """One of MASKS, as FlexAttention's users write it."""
    if name == "window":
        return lambda b, h, q, k: (q >= k) & (q - k <= REACH)
    ids = torch.arange(TOKENS, device=DEVICE) // 3000
    return lambda b, h, q, k: (q >= k) & (ids[q] == ids[k])


def first(name: str) -> float:
    """Milliseconds of the first create_block_mask in this process."""
    from weft.integrations.flex import create_block_mask

    mod = mask_mod(name)
    torch.zeros(1, device=DEVICE).item()
    begin = time.perf_counter()
    create_block_mask(mod, None, None, TOKENS, TOKENS, device=DEVICE)
    return 1e3 * (time.perf_counter() - begin)


def firsts(name: str) -> list[float]:
    command = [sys.executable, str(Path(__file__).resolve()), "--first", name]
    runs = (subprocess.run(command, check=False, capture_output=True, text=True) for _ in range(PROCESSES))
    return [json.loads(done.stdout) if done.stdout else _failed(done.stderr) for done in runs]


def _failed(text: str) -> float:
    raise RuntimeError(text)


# ---- an eager call ---------------------------------------------------------------------------------------------------
@torch.no_grad()
def added(calls: int, rounds: int) -> Iterator[tuple[str, list[float]]]:
    """What flex_attention costs over weft.attention of the same, one name after the other."""
    from host import GIVEN, SHAPE, microseconds, without_a_gpu

    import weft
    from weft.integrations.flex import AuxRequest, create_block_mask, flex_attention

    x = [torch.randn(SHAPE, device=DEVICE, dtype=torch.bfloat16) for _ in range(3)]
    mask = create_block_mask(GIVEN["a function"], None, None, SHAPE[2], SHAPE[2], device=DEVICE)
    pattern, aux = mask.pattern, AuxRequest(lse=True)
    pairs: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "a mask": (lambda: flex_attention(*x, block_mask=mask), lambda: weft.attention(*x, pattern)),
    }
    if DEVICE == "cuda":
        pairs["a mask, and lse"] = (
            lambda: flex_attention(*x, block_mask=mask, return_aux=aux),
            lambda: weft.attention(*x, pattern, return_lse=True),
        )
        pairs["no mask"] = lambda: flex_attention(*x), lambda: weft.attention(*x)
    with ExitStack() as stack:
        if DEVICE == "cpu":
            without_a_gpu(stack, x)
        for name, (by_flex, own) in pairs.items():
            yield name, [microseconds(by_flex, calls) - microseconds(own, calls) for _ in range(rounds)]


# ---- all of it -------------------------------------------------------------------------------------------------------
def found(calls: int, rounds: int) -> Iterator[tuple[str, str, list[float]]]:
    """(what, unit, its figures); what fails prints its traceback."""
    try:
        for name, us in added(calls, rounds):
            yield f"flex_attention over weft.attention, {name}", "us", us
    except Exception:
        traceback.print_exc()
    for mask in MASKS:
        try:
            yield f"first create_block_mask, {mask}, {TOKENS} tokens", "ms", firsts(mask)
        except Exception:
            traceback.print_exc()


def main() -> int:
    from planning import append, provenance  # here, since tests have a package of that name

    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, help="append rows to this CSV file")
    parser.add_argument("--first", choices=MASKS, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.first:
        print(json.dumps(first(asked.first)))
        return 0
    device = torch.cuda.get_device_name() if DEVICE == "cuda" else "none: launches do nothing"
    for what, unit, values in found(asked.calls, asked.rounds):
        least, bar = min(values), BARS[unit]
        verdict = "PASS" if median(values) <= bar else "MISS"
        print(f"{what:60s}{least:9.1f}{median(values):9.1f} {unit}  {verdict} ({bar:g})", flush=True)
        row = {"device": device, "what": what, "unit": unit, "bar": bar}
        row |= {"least": round(least, 1), "median": round(median(values), 1)}
        if asked.out:
            append(asked.out, COLUMNS, [provenance("torch") | row])
    return 0


if __name__ == "__main__":
    sys.exit(main())
