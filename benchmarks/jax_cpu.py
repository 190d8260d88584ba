"""weft.jax beside jax.nn with the dense mask on a CPU, and the bars it has to meet. Needs JAX and no torch; 5 minutes.

    python benchmarks/jax_cpu.py [--tokens 8192] [--rounds 5]

(1, tokens, 8, 64) in float32, a window of 256 either side. Methods take turns, so that both meet the same neighbours;
forward and backward of the dense mask, which takes half a minute and several GB, is timed once. Wall time is what
counts; CPU time of the process, over all its threads, is printed beside it, since it is what remains comparable while
other processes keep the cores busy.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import weft
import weft.jax

BARS = {"forward": 15, "forward+backward": 30}  # times the dense mask
REACH, HEADS, D = 256, 8, 64
TOLERANCE = 1e-4


@dataclass(eq=False)
class Method:
    """`run` gives arrays. rounds: how often it is timed."""

    name: str
    run: Callable[[], Any]
    rounds: int
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def time(self) -> None:
        """One call more."""
        wall, cpu = time.perf_counter(), time.process_time()
        jax.block_until_ready(self.run())
        self.wall.append(time.perf_counter() - wall)
        self.cpu.append(time.process_time() - cpu)

    def __str__(self) -> str:
        return f"{self.name:24s} {median(self.wall) * 1e3:9.0f} ms wall {median(self.cpu) * 1e3:9.0f} ms of CPU"


def methods(tokens: int, rounds: int) -> dict[str, tuple[Method, Method]]:
    """By direction (weft, dense)."""
    rng = np.random.default_rng(0)
    qkv = [jnp.asarray(rng.normal(size=(1, tokens, HEADS, D)), jnp.float32) for _ in range(3)]
    mask = weft.window(left=REACH, right=REACH)
    live = jnp.asarray(mask.to_dense(tokens))[None, None]
    functions = {
        "weft": lambda q, k, v: weft.jax.attention(q, k, v, mask),
        "dense": lambda q, k, v: jax.nn.dot_product_attention(q, k, v, mask=live),
    }
    found = {}
    for direction in BARS:
        pair = []
        for name, attend in functions.items():
            run = jax.jit(attend if direction == "forward" else jax.grad(_loss(attend), (0, 1, 2)))
            slow = name == "dense" and direction != "forward"
            pair.append(Method(f"{name}, {direction}", lambda run=run: run(*qkv), 1 if slow else rounds))
        found[direction] = (pair[0], pair[1])
    return found


def _loss(attend: Callable[..., Any]) -> Callable[..., Any]:
    return lambda q, k, v: attend(q, k, v).sum()


def main() -> None:
    """Time, compare, and say which bars are met."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    print(f"jax {jax.__version__}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    for direction, pair in methods(given.tokens, given.rounds).items():
        results = [jax.tree.leaves(method.run()) for method in pair]  # compiles, too
        error = max(float(abs(a - b).max()) for a, b in zip(*results, strict=True))
        for number in range(given.rounds):
            for method in pair:
                if number < method.rounds:
                    method.time()
        wall, cpu = (median(getattr(pair[1], x)) / median(getattr(pair[0], x)) for x in ("wall", "cpu"))
        met = "met" if wall >= BARS[direction] else "missed"
        print(*pair, sep="\n")
        print(f"  {wall:.1f}x by wall time (the bar is {BARS[direction]}x: {met}), {cpu:.1f}x by CPU time")
        print(f"  off by {error:.1e}")
        assert error < TOLERANCE


if __name__ == "__main__":
    main()
