"""What the first call of a process waits for: its kernels' compilation, without a store and from a filled one.

    python benchmarks/compiling.py [--rounds N] [--target sm_90] [NAME ...]

Of workloads by name (`weft bench --list`). Every figure is the least of some rounds, each in a process of its own that
has imported weft and Triton already: seconds of each kernel alone, of all kernels of a forward and a backward one after
the other, of all together as a first call has them (`weft.kernels.gpu.compile.ahead`), and of all from the store that
was filled so. Needs no GPU, and no torch. Run with PYTHONPATH at the sources of an older commit, it measures these,
where nothing compiles together.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("causal", "window_pm256", "na2d_128x128_k21", "gpt_oss_window_128")
ALONE, SERIAL, TOGETHER, STORED = "alone", "one after the other", "together", "from the store"


def sources_of(name: str, architecture: str) -> list[Any]:
    """What a call of a workload compiles, forward and backward."""
    from weft.kernels.gpu.programs.kernels import kernels_of
    from weft.planning.attention_plan import plan_attention
    from weft.target import GPUS
    from weft.testing.workloads import WORKLOADS

    workload = WORKLOADS[name]
    card = next(gpu for gpu in GPUS.values() if gpu.architecture == architecture)
    return list(kernels_of(plan_attention(workload.make(), workload.problem("cuda"), card)))


def child(name: str, way: str, at: int, architecture: str) -> None:
    """Print seconds and kernels of one measurement, with the store that the environment names."""
    from triton.backends.compiler import GPUTarget

    from weft.kernels.gpu.compile import compiler

    target = GPUTarget("cuda", int(architecture.removeprefix("sm_")), 32)
    found = sources_of(name, architecture)
    chosen = found[at : at + 1] if way == ALONE else found
    began = time.perf_counter()
    if way == TOGETHER:
        from weft.kernels.gpu.compile import ahead

        ahead.compile_all(chosen, target)
    for one in chosen:
        compiler.stored(one, target)
    print(json.dumps({"seconds": time.perf_counter() - began, "kernels": [one.name for one in found]}))


def measured(name: str, way: str, at: int, architecture: str, store: Path) -> dict[str, Any] | None:
    """What a process of its own says; None where this commit cannot do that."""
    env = os.environ | {"WEFT_CACHE_DIR": str(store / "weft"), "TRITON_CACHE_DIR": str(store / "triton")}
    command = [sys.executable, __file__, "--child", name, way, str(at), "--target", architecture]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stderr.strip().splitlines()[-1], file=sys.stderr)
        return None
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def rounds_of(name: str, architecture: str) -> Iterator[tuple[str, float]]:
    """(what, seconds) of one round."""
    with tempfile.TemporaryDirectory() as folder:
        first = measured(name, SERIAL, 0, architecture, Path(folder, "serial"))
        assert first is not None, "nothing compiles"
        yield SERIAL, first["seconds"]
        for at, kernel in enumerate(first["kernels"]):
            alone = measured(name, ALONE, at, architecture, Path(folder, f"alone {at}"))
            yield kernel, alone["seconds"] if alone else float("nan")
        store = Path(folder, "together")
        together = measured(name, TOGETHER, 0, architecture, store)
        if together:
            yield TOGETHER, together["seconds"]
        again = measured(name, STORED, 0, architecture, store if together else Path(folder, "serial"))
        yield STORED, again["seconds"] if again else float("nan")


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", default=list(NAMES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--target", default="sm_90")
    parser.add_argument("--child", nargs=3, metavar=("NAME", "WAY", "AT"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        name, way, at = asked.child
        child(name, way, int(at), asked.target)
        return
    for name in asked.names:
        least: dict[str, float] = {}
        for _ in range(asked.rounds):
            for what, seconds in rounds_of(name, asked.target):
                least[what] = min(seconds, least.get(what, seconds))
        print(name)
        for what, seconds in least.items():
            print(f"  {seconds:7.3f} s  {what}", flush=True)


if __name__ == "__main__":
    main()
