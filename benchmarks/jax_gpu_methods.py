"""Ways to compute a problem that `jax_gpu.py` times: weft from JAX, jax.nn, and the same kernels from torch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from statistics import median
from typing import Any

SLOWEST = 0.012  # seconds of queued calls in a round, at least
COPIES = 8  # of the inputs: one jitted function computes all of them, since equal calls would be one
LONG = 4e12  # operations of a forward, from which one copy is enough
Thunk = Callable[[], Any]
Attend = Callable[..., Any]


# ---- methods ---------------------------------------------------------------------------------------------------------
@dataclass(eq=False)
class Method:
    """A way to compute one problem in one direction. run: `calls` calls, queued; wait: until all are done."""

    name: str
    run: Thunk
    calls: int
    wait: Callable[[Any], None]
    difference: float | None = None
    seconds: list[float] = field(default_factory=list)
    times: int = 1

    def prepare(self) -> None:
        """Find how often it has to run so that a round is long enough."""
        self.wait(self.run())
        self.times = max(1, ceil(SLOWEST / max(1e-6, self._timed(2) / 2)))

    def round(self) -> None:
        """One round more: twice as many runs less that many, so that what a round takes to begin and to end is out."""
        more = self._timed(2 * self.times) - self._timed(self.times)
        self.seconds.append(more / (self.times * self.calls))

    def _timed(self, times: int) -> float:
        begin = time.perf_counter()
        for _ in range(times):
            made = self.run()
        self.wait(made)
        return time.perf_counter() - begin

    @property
    def us(self) -> float:
        """Microseconds of a call, in the median round."""
        return 1e6 * median(self.seconds)

    def row(self, first: Method) -> dict[str, Any]:
        """Its figures. first: weft from JAX."""
        return {
            "method": self.name, "us": f"{self.us:.2f}", "least_us": f"{1e6 * min(self.seconds):.2f}",
            "most_us": f"{1e6 * max(self.seconds):.2f}", "rounds": len(self.seconds),
            "over_weft_jax": f"{self.us / first.us:.4f}",
            "difference": "" if self.difference is None else f"{self.difference:.2e}",
        }  # fmt: skip


@dataclass
class Inputs:
    """Copies of q, k, v and dout of a problem, (B, H, S, D), as arrays of JAX."""

    workload: Any

    def __post_init__(self) -> None:
        import jax

        w = self.workload
        count = COPIES if w.flops("fwd") < LONG else 1
        sides = (w.q_heads, w.m), (w.kv_heads, w.n), (w.kv_heads, w.n), (w.q_heads, w.m)
        shapes = [(w.batch, h, n, w.d) for h, n in sides]

        @jax.jit
        def drawn(key: Any) -> Any:
            keys = jax.random.split(key, 4)
            return [jax.random.normal(key, shape, w.dtype) for key, shape in zip(keys, shapes, strict=True)]

        self.copies = [drawn(key) for key in jax.random.split(jax.random.key(0), count)]

    def about(self, direction: str) -> dict[str, Any]:
        """The columns of a row that say what is computed."""
        w = self.workload
        return {"problem": w.name, "shape": w.shape, "dtype": w.dtype, "direction": direction}

    def exchanged(self) -> list[Any]:
        """With tokens before heads, as jax.nn wants them."""
        import jax

        turn = jax.jit(lambda copy: [x.swapaxes(1, 2) for x in copy])
        return [turn(copy) for copy in self.copies]


def in_jax(name: str, attend: Attend, copies: list[Any], direction: str) -> tuple[Method, Any]:
    """(attend(q, k, v, *more) or its gradients, timed; the first result). copies: of q, k, v, dout and more."""
    import jax

    @jax.jit
    def saved(copy: Any) -> Any:
        return jax.vjp(lambda *qkv: attend(*qkv, *copy[4:]), *copy[:3])[1]

    forwards = direction == "fwd"
    given = copies if forwards else [(saved(copy), copy[3]) for copy in copies]

    def one(copy: Any) -> Any:
        return attend(*copy[:3], *copy[4:]) if forwards else copy[0](copy[1])

    every = jax.jit(lambda given: [one(copy) for copy in given])
    first = jax.block_until_ready(jax.jit(one)(given[0]))
    return Method(name, lambda: every(given), len(given), jax.block_until_ready), first


def by_weft(pattern: Any) -> Attend:
    """weft from JAX under a pattern."""
    import weft.jax

    def attend(q: Any, k: Any, v: Any) -> Any:
        return weft.jax.attention(q, k, v, pattern, layout="bhsd")

    return attend


def difference(found: Any, wanted: Any) -> float:
    """The largest, as a share of the largest number wanted."""
    import jax
    import jax.numpy as jnp

    @jax.jit
    def of(a: Any, b: Any) -> Any:
        a, b = a.astype(jnp.float32), b.astype(jnp.float32)
        return abs(a - b).max() / abs(b).max()

    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True)
    return max(float(of(a, b)) for a, b in pairs)


# ---- torch -----------------------------------------------------------------------------------------------------------
class Torch:
    """The same kernels by torch, with and without programmatic dependent launches: on a stream for each."""

    def __init__(self) -> None:
        import torch

        from weft.torch import driver

        if not torch.cuda.is_available():
            raise RuntimeError("torch finds no GPU")
        self.torch = torch
        self.streams = {"torch, PDL": torch.cuda.Stream(), "torch, no PDL": torch.cuda.Stream()}
        plain, configured = self.streams["torch, no PDL"].cuda_stream, driver.DriverLaunch._configured

        def without(launch: Any, grid: Any, stream: int) -> Any:
            function = launch.function
            launch.function = function._replace(early=function.early and stream != plain)
            try:
                return configured(launch, grid, stream)
            finally:
                launch.function = function

        driver.DriverLaunch._configured = without  # type: ignore[method-assign]

    def methods(self, inputs: Inputs, pattern: Any, direction: str, wanted: Any) -> Iterator[Method]:
        """Both, each compared with what JAX gave."""
        import jax.numpy as jnp

        torch = self.torch
        copies = [[torch.from_dlpack(x) for x in copy] for copy in inputs.copies]
        for name, stream in self.streams.items():
            functions = self._functions(copies, pattern, direction, stream)
            with torch.cuda.stream(stream):
                found = functions[0]()
            torch.cuda.synchronize()
            made = [jnp.from_dlpack(x) for x in (found if isinstance(found, tuple) else (found,))]
            far = difference(made, wanted if direction == "bwd" else [wanted])
            del found, made
            queued = partial(self._queued, functions, stream)
            yield Method(name, queued, len(functions), lambda _: torch.cuda.synchronize(), far)

    def _queued(self, functions: list[Thunk], stream: Any) -> list[Any]:
        """All results live until the next round has its own, as those of a jitted function do."""
        with self.torch.cuda.stream(stream):
            return [function() for function in functions]

    def _functions(self, copies: Any, pattern: Any, direction: str, stream: Any) -> list[Thunk]:
        import weft

        torch, found = self.torch, []
        with torch.cuda.stream(stream):
            for q, k, v, dout in copies:
                if direction == "fwd":
                    found.append(lambda q=q, k=k, v=v: self._forward(q, k, v, pattern))
                    continue
                leaves = [x.detach().requires_grad_() for x in (q, k, v)]
                out = weft.attention(*leaves, pattern)
                found.append(
                    lambda out=out, leaves=leaves, dout=dout: torch.autograd.grad(out, leaves, dout, retain_graph=True)
                )
        return found

    def _forward(self, q: Any, k: Any, v: Any, pattern: Any) -> Any:
        import weft

        with self.torch.no_grad():
            return weft.attention(q, k, v, pattern)
