"""weft's kernels from JAX on a GPU, beside the same kernels from torch and beside jax.nn: device time, and the host's.

    JAX_PLATFORMS=cuda,cpu XLA_PYTHON_CLIENT_PREALLOCATE=false \\
        python benchmarks/jax_gpu.py [--problems NAME ...] [--rounds N] [--seconds S] [--out FILE.csv]

Device time: one jitted function computes several copies of the inputs. Many calls of it are queued, then waited for;
the wall time of twice as many less that of these is divided. torch's calls are timed likewise, on the same copies, in
the same process and in turn: as they are launched, where a kernel may begin while the one before it ends (PDL), and
without that, as jaxlib launches. jax.nn joins where it can say the mask. Results are compared with weft's from JAX
before they are timed.

The host's time of a launch: a jitted function of 12 layers less one of a single layer, divided by 11, for calls so
small that the device waits for the host. Rows are appended as each problem ends. The bars: weft from JAX takes at most
3 % more than from torch without PDL, a launch costs the host 8 us, jax.nn with a dense mask takes 5 times as long.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

from jax_gpu_methods import Inputs, Method, Thunk, Torch, by_weft, difference, in_jax
from table import append

TOLERANCE = 2e-2  # of the largest number, between implementations in bfloat16
LAYERS, TINY = 12, (1, 2, 128, 64)
LONG = "causal_window_1024"
COLUMNS = (
    "date", "machine", "python", "jax", "jaxlib", "torch", "triton", "commit", "problem", "shape", "dtype", "direction",
    "method", "us", "least_us", "most_us", "rounds", "over_weft_jax", "difference", "message",
)  # fmt: skip
# What jax.nn can say of a core problem, by its own names.
SAID = {
    "dense": {}, "dense_d64": {}, "causal": {"is_causal": True},
    LONG: {"is_causal": True, "local_window_size": (1023, 0)}, "window_pm256": {"local_window_size": (256, 256)},
}  # fmt: skip


# ---- kernels, compiled by processes of their own ---------------------------------------------------------------------
def prepare(name: str) -> None:
    """Compile the kernels of a problem into the store; needs neither JAX, torch nor a GPU."""
    from triton.backends.compiler import GPUTarget

    from weft.kernels.gpu.compile import ahead
    from weft.kernels.gpu.layout import Layout, Options
    from weft.kernels.gpu.program import row_major
    from weft.kernels.gpu.programs.backward import backward_program
    from weft.kernels.gpu.programs.forward import chosen_forward
    from weft.planning.attention_plan import plan_attention
    from weft.target import GPU
    from weft.testing.workloads import named

    workload = named(name)
    problem = workload.problem("cuda")
    plan = plan_attention(workload.make(), problem, GPU)
    q, k = ((problem.batch, h, n, problem.d) for h, n in ((problem.q_heads, problem.m), (problem.kv_heads, problem.n)))
    strides = tuple(map(row_major, (q, k, k, q, q)))
    found = []
    for one_argument in (True, False):
        options = Options(problem.d**-0.5, deterministic=False, one_argument=one_argument)
        programs = (
            chosen_forward(plan, Layout(strides[:3], True), options, GPU.processors),
            backward_program(plan, Layout(strides, True), options),
        )
        found += [launch.kernel for program in programs for launch in program.launches]
    ahead.compile_all(found, GPUTarget("cuda", int(GPU.architecture.removeprefix("sm_")), 32))


def prepared(names: Iterable[str]) -> dict[str, subprocess.Popen[bytes]]:
    """Such processes, by problem."""
    command = [sys.executable, str(Path(__file__).resolve()), "--prepare"]
    return {name: subprocess.Popen([*command, name]) for name in names}


# ---- rows ------------------------------------------------------------------------------------------------------------
def installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


class Report:
    """Rows, in a file as soon as they are known, and printed."""

    def __init__(self, out: Path | None, rounds: int) -> None:
        import jax

        from weft.bench.origin import commit

        self.out, self.rounds = out, rounds
        packages = {name: installed(name) for name in ("jax", "jaxlib", "torch", "triton")}
        self.origin = {
            "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"), "machine": jax.devices()[0].device_kind,
            "python": sys.version.split()[0], **packages, "commit": commit(),
        }  # fmt: skip

    def timed(self, about: dict[str, Any], methods: list[Method]) -> None:
        """Time methods in turn, and add their rows."""
        for method in methods:
            method.prepare()
        for number in range(self.rounds):
            first = number % len(methods)  # who comes after the pause of a round meets other clocks
            for method in (*methods[first:], *methods[:first]):
                method.round()
        for method in methods:
            self.add(about | method.row(methods[0]))

    def add(self, row: dict[str, Any]) -> None:
        """One row."""
        told = " ".join(str(row[name]) for name in COLUMNS[8:] if row.get(name) not in (None, ""))
        print(f"{time.perf_counter() - BEGIN:5.0f} s  {told}", flush=True)
        append(self.out, COLUMNS, self.origin | row)


def guarded(report: Report, about: dict[str, Any], make: Callable[[], Any]) -> Any:
    """What `make` gives; None with its traceback and a row where it fails."""
    try:
        return make()
    except Exception as error:
        traceback.print_exc(limit=-3)
        said = " ".join(str(error).split())[:200]
        report.add(about | {"message": f"{type(error).__name__}: {said}"})
        return None


# ---- what is measured ------------------------------------------------------------------------------------------------
def host(report: Report, waiting: Iterable[subprocess.Popen[bytes]]) -> None:
    """A launch inside a jit, for the host, once nothing compiles any more."""
    import jax
    import jax.numpy as jnp

    import weft
    import weft.jax

    for process in waiting:
        process.wait()
    x = jax.random.normal(jax.random.key(0), TINY, jnp.bfloat16)

    def layers(count: int) -> Any:
        def run(q: Any) -> Any:
            for _ in range(count):
                q = weft.jax.attention(q, x, x, weft.causal(), layout="bhsd")
            return q

        return jax.jit(run)

    sent, done = {}, {}
    for count in (1, LAYERS):
        run = layers(count)
        jax.block_until_ready(run(x))
        rounds = []
        for _ in range(7):
            begin = time.perf_counter()
            for _ in range(200):
                made = run(x)
            queued = time.perf_counter()
            jax.block_until_ready(made)
            rounds.append((5e3 * (queued - begin), 5e3 * (time.perf_counter() - begin)))
        sent[count], done[count] = (median(each) for each in zip(*rounds, strict=True))
    about = {"problem": "tiny", "shape": str(TINY).replace(" ", ""), "dtype": "bfloat16", "direction": "fwd"}
    for name, found in (("the host alone", sent), ("all in all", done)):
        each = (found[LAYERS] - found[1]) / (LAYERS - 1)
        said = f"{name}: a jit of 1 layer {found[1]:.1f} us, of {LAYERS} {found[LAYERS]:.1f} us"
        report.add(about | {"method": "a launch inside a jit", "us": f"{each:.2f}", "rounds": 7, "message": said})


def core(report: Report, name: str, torch: Torch | None) -> None:
    """A problem by weft from JAX, from torch, and by jax.nn where it can say the mask."""
    from weft.testing.workloads import named

    inputs = Inputs(named(name))
    for direction in ("fwd", "bwd"):
        guarded(report, inputs.about(direction), partial(beside_torch, report, inputs, direction, torch))


def beside_torch(report: Report, inputs: Inputs, direction: str, torch: Torch | None) -> None:
    """Rows of one direction."""
    about, pattern = inputs.about(direction), inputs.workload.make()
    first, wanted = in_jax("weft.jax", by_weft(pattern), inputs.copies, direction)
    methods = [first]
    if torch is not None:
        by_torch = partial(torch.methods, inputs, pattern, direction, wanted)
        methods += guarded(report, about | {"method": "torch"}, lambda: list(by_torch())) or []
    if inputs.workload.name in SAID:
        methods += jax_nn(report, inputs, direction, "cudnn", wanted, SAID[inputs.workload.name])
    report.timed(about, methods)


def jax_nn(
    report: Report, inputs: Inputs, direction: str, implementation: str, wanted: Any, said: dict[str, Any]
) -> list[Method]:
    """jax.nn's attention; none where it refuses, or gives other numbers. said: its options, a mask or a bias too."""
    import jax

    told = [name for name, value in said.items() if isinstance(value, jax.Array)]
    label = " ".join(["jax.nn", implementation, *told])

    def attend(q: Any, k: Any, v: Any, *arrays: Any) -> Any:
        options = said | dict(zip(told, arrays, strict=True))
        return jax.nn.dot_product_attention(q, k, v, implementation=implementation, **options)

    def make() -> Method:
        copies = [[*copy, *(said[name] for name in told)] for copy in inputs.exchanged()]
        method, found = in_jax(label, attend, copies[:1] if told else copies, direction)
        turned = jax.tree.map(lambda x: x.swapaxes(1, 2), found)
        method.difference = difference(turned, wanted)
        if not method.difference < TOLERANCE:
            raise ValueError(f"its result is off by {method.difference:.2e} of the largest number")
        return method

    made = guarded(report, inputs.about(direction) | {"method": label}, make)
    return [] if made is None else [made]


def masked(report: Report, implementation: str, heads: int, told: str, directions: Iterable[str]) -> None:
    """A window of 1024 over 32,768 tokens beside jax.nn, which is told it as booleans, or as a bias."""
    import jax.numpy as jnp

    from weft.testing.workloads import named

    workload = named(LONG)
    inputs = Inputs(replace(workload, q_heads=heads, kv_heads=heads))
    places = jnp.arange(workload.n)
    behind = places[:, None] - places[None, :]
    live = ((behind >= 0) & (behind < 1024))[None, None]
    value = live if told == "mask" else jnp.where(live, 0, -1e30).astype(jnp.bfloat16)
    for direction in directions:
        first, wanted = in_jax("weft.jax", by_weft(workload.make()), inputs.copies, direction)
        methods = [first, *jax_nn(report, inputs, direction, implementation, wanted, {told: value})]
        if methods[1:]:
            guarded(report, inputs.about(direction), partial(report.timed, inputs.about(direction), methods))


BEGIN = time.perf_counter()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--problems", nargs="*", help="workloads; the core dozen")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=95, help="nothing more is begun after so many")
    parser.add_argument("--out", type=Path, help="append rows to this file")
    parser.add_argument("--no-torch", action="store_true", help="leave torch out")
    parser.add_argument("--prepare", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.prepare:
        prepare(asked.prepare)
        return 0
    from weft.bench.select import workloads

    names = workloads(asked.problems or ["core"])
    names.sort(key=lambda name: name != LONG)  # it is measured in three ways
    waiting = prepared(names)
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax

    if jax.default_backend() != "gpu":
        print("jax_gpu.py: JAX sees no GPU here; run it where there is one", file=sys.stderr)
        return 1
    report = Report(asked.out, asked.rounds)
    torch = None if asked.no_torch else guarded(report, {"method": "torch"}, Torch)
    jobs: list[tuple[str | None, Thunk]] = [(name, partial(core, report, name, torch)) for name in names]
    if LONG in names:
        jobs.insert(1, (None, partial(masked, report, "cudnn", 16, "bias", ("fwd", "bwd"))))
        jobs.insert(2, (None, partial(masked, report, "xla", 2, "mask", ("fwd",))))
    jobs.insert(3, (None, partial(host, report, waiting.values())))
    for name, job in jobs:
        if time.perf_counter() - BEGIN > asked.seconds:
            print(f"{name or 'jax.nn with a mask, or the host'}: no time left", flush=True)
            continue
        if name is not None:
            waiting[name].wait()
        guarded(report, {"problem": name or ""}, job)
    for process in waiting.values():
        process.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
