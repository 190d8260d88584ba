"""Steps of decoding on a GPU and how their shares of keys are dealt, beside SDPA on the live keys; masks found again.

    PYTHONPATH=src python benchmarks/decoding.py --out FILE.csv [--only TEXT ...] [--seconds N] [--small]

Rows come as they are measured: microseconds of a call in a CUDA graph, and how much of the time of `sdpa` that is. What
`weft` takes by itself comes first for every problem, then what other shapes of its programs take. Without a GPU --small
tries it all at small sizes, and times nothing of worth.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from options import write
from options_steps import OURS, PAGED, WINDOW, Problem, cache_hits

from weft import caching
from weft.bench.origin import commit, machine
from weft.kernels.gpu.programs import split_kv
from weft.planning.families.split_kv import MOST_SPLITS, shape_of

Row = dict[str, Any]
Ways = dict[str, Callable[[], AbstractContextManager[None]]]
# Other shapes of a program than `shape_of` takes. filled: programs that a processor is given at once.
SHAPES: dict[str, dict[str, int]] = {
    "filled 1": {"filled": 1}, "filled 3": {"filled": 3}, "filled 4": {"filled": 4},
    "stages 4": {"stages": 4}, "filled 1, stages 5": {"filled": 1, "stages": 5},
    "32 keys, stages 5": {"cols": 32, "stages": 5}, "128 keys, filled 1": {"cols": 128, "filled": 1},
    "32 keys, filled 4, stages 4": {"cols": 32, "filled": 4, "stages": 4}, "2 warps": {"warps": 2},
}  # fmt: skip
APART = "launches apart"  # the one that combines shares begins when the other has ended


@contextmanager
def shaped(changes: dict[str, int]) -> Iterator[None]:
    """Programs of another shape."""

    def changed(plan: Any, processors: int) -> Any:
        rest = {name: x for name, x in changes.items() if name != "filled"}
        shape = replace(shape_of(plan, processors), **rest)
        programs = changes.get("filled", 2) * processors // max(1, shape.programs)
        return replace(shape, splits=max(1, min(programs, plan.longest(shape.cols), MOST_SPLITS)))

    with mock.patch.object(split_kv, "shape_of", changed):
        caching.clear()
        yield
    caching.clear()


@contextmanager
def apart() -> Iterator[None]:
    """Launches that wait for each other."""
    from weft.torch import gpu

    with mock.patch.object(gpu, "launches_overlap", lambda device: False):
        caching.clear()
        yield
    caching.clear()


def others() -> Ways:
    """Other ways than what weft takes by itself."""
    return {APART: apart, **{name: partial(shaped, changes) for name, changes in SHAPES.items()}}


# ---- rows ------------------------------------------------------------------------------------------------------------
def tables(device: str, small: bool) -> Iterator[tuple[str, Callable[[], Iterator[Row]]]]:
    """Tables by name, the most important first."""
    window, sizes = (64, (256, 512)) if small else (WINDOW, (8192, 65536))
    some, many = (2, 3) if small else (32, 256)
    problems = [partial(Problem, device, 1, keys, reach) for keys in sizes for reach in (None, window)]
    large = [partial(Problem, device, batch, sizes[0], reach) for batch in (many, some) for reach in (window, None)]
    yield "masks", partial(cache_hits, device)
    yield "steps", partial(_steps, problems)
    yield "large steps", partial(_steps, large)
    yield "other shapes", partial(_others, problems[:2], (OURS,))
    yield "other shapes in pages", partial(_others, problems[1:2], (PAGED,))
    yield "other shapes, large", partial(_others, large[:1], (OURS,))


def _steps(problems: list[Callable[[], Problem]]) -> Iterator[Row]:
    for make in problems:
        yield from make().rows(("sdpa", OURS, PAGED))


def _others(problems: list[Callable[[], Problem]], names: tuple[str, ...]) -> Iterator[Row]:
    for make in problems:
        problem = make()
        yield from problem.rows(("sdpa", OURS, *{*names} - {OURS}))
        for name, other in others().items():
            with ExitStack() as stack:
                stack.enter_context(other())
                yield from problem.rows(names, name)


def main() -> None:
    """Measure, and append rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", nargs="*", default=[""], help="tables whose names have one of these words")
    parser.add_argument("--seconds", type=float, default=75.0)
    parser.add_argument("--small", action="store_true")
    given = parser.parse_args()
    device, begin = "cuda" if torch.cuda.is_available() else "cpu", time.perf_counter()
    everywhere = machine(device) | {"commit": commit(), "date": time.strftime("%Y-%m-%d %H:%M", time.gmtime())}
    for name, rows in tables(device, given.small):
        if not any(word in name for word in given.only):
            continue
        try:
            for row in rows():
                write(given.out, everywhere | row)
                if time.perf_counter() - begin > given.seconds:
                    print("out of time", flush=True)
                    sys.exit(0)
        except Exception:
            traceback.print_exc()


if __name__ == "__main__":
    main()
