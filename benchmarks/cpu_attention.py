"""The CPU backend against torch's own attention, and the bars it has to meet. About three minutes, alone on two cores.

    python benchmarks/cpu_attention.py [--rounds 9] [--flex] [--record [--force]]

One process, two threads, float32. Every method is timed once a round, in turn, with a 2048^3 matrix product (the
ceiling) before each case; medians, 20th and 80th percentiles over the rounds, after a warm-up in which all results of a
case are compared. Methods:

weft        weft.attention; `first` is its first call, planning included
loop N      scaled_dot_product_attention over slices of the keys for each N queries (of a residue class), masks made
            beforehand; forward+backward takes gradients slice by slice and adds them up
dense       scaled_dot_product_attention with a dense boolean mask, made beforehand: the baseline
flex        FlexAttention under torch.compile, forward only (--flex; needs a C++ compiler)

Useful GFLOP/s count live pairs alone: 4 D for each forward, 10 D backward. Timings of threads that wait for each other
mean little while other processes run: a disturbed run says so, and is recorded only by force.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles

import torch
from planning import RESULTS, append, machine, provenance
from torch.nn.functional import scaled_dot_product_attention as sdpa

import weft

THREADS, HEADS, D = 2, 8, 64
BLOCKS = (64, 128, 256)
SIDE = 2048  # of the matrices whose product is the ceiling
TOLERANCE = 1e-4
OTHERS = 0.05  # cores that other processes may keep busy in a calm run
SLOWEST = 0.9  # of the best matrix product: what the median one must reach in a calm run
COLUMNS = (
    "date", "machine", "python", "torch", "commit", "case", "direction", "method", "median_ms", "p20_ms", "p80_ms",
    "useful_gflops", "ratio_to_sgemm", "ratio_to_baseline",
)  # fmt: skip

BOTH = "forward+backward"

Tensors = tuple[torch.Tensor, ...]


# ---- cases -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class Case:
    """One problem: (1, HEADS, tokens, D). band: (reach, step) where keys q + step * j, |j| <= reach, are live."""

    name: str
    mask: weft.Pattern
    tokens: int
    band: tuple[int, int] | None
    qkv: Tensors
    d_out: torch.Tensor

    @staticmethod
    def of(name: str, mask: weft.Pattern, tokens: int, band: tuple[int, int] | None = None) -> Case:
        generator = torch.Generator().manual_seed(0)
        *qkv, d_out = (torch.randn(1, HEADS, tokens, D, generator=generator) for _ in range(4))
        return Case(name, mask, tokens, band, tuple(qkv), d_out)

    def flops(self, direction: str) -> int:
        """Useful floating-point operations."""
        return (4 if direction == "forward" else 14) * self.mask.acsr(self.tokens).nnz * HEADS * D


def cases() -> list[Case]:
    return [
        Case.of("window 256+256", weft.window(256, 256), 8192, (256, 1)),
        Case.of("dilated 256+256 by 4", weft.dilated(256, 256, 4), 8192, (256, 4)),
        Case.of("2-D 7x7 of 64x64", weft.neighborhood((64, 64), (7, 7)), 4096),
    ]


# ---- methods -----------------------------------------------------------------------------------------------------
@dataclass(eq=False)
class Method:
    """`run` gives (out,) or (out, dq, dk, dv)."""

    case: Case
    direction: str
    name: str
    run: Callable[[], Tensors]
    first: float = 0.0
    error: float = 0.0
    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return median(self.seconds)

    @property
    def gflops(self) -> float:
        return self.case.flops(self.direction) / self.median / 1e9


def methods(case: Case, flex: bool) -> Iterator[Method]:
    """Every method of one case; the dense mask with gradients first, since the others are compared with it."""
    dense = torch.from_numpy(case.mask.to_dense(case.tokens))
    functions = {
        "dense": lambda q, k, v: sdpa(q, k, v, attn_mask=dense),
        "weft": lambda q, k, v: weft.attention(q, k, v, case.mask),
    }
    for name, function in functions.items():
        yield Method(case, BOTH, name, training_of(function, case))
        yield Method(case, "forward", name, forward_of(function, case))
    for block in BLOCKS if case.band else ():
        slices = list(band_slices(case.tokens, *case.band, block))
        yield Method(case, "forward", f"loop {block}", lambda s=slices: loop_forward(case, s))
        yield Method(case, BOTH, f"loop {block}", lambda s=slices: loop_training(case, s))
    if flex:
        yield Method(case, "forward", "flex", forward_of(flex_function(dense), case))


def forward_of(function: Callable[..., torch.Tensor], case: Case) -> Callable[[], Tensors]:
    def run() -> Tensors:
        with torch.no_grad():
            return (function(*case.qkv),)

    return run


def training_of(function: Callable[..., torch.Tensor], case: Case) -> Callable[[], Tensors]:
    leaves = tuple(x.clone().requires_grad_() for x in case.qkv)

    def run() -> Tensors:
        out = function(*leaves)
        return out.detach(), *torch.autograd.grad(out, leaves, case.d_out)

    return run


def flex_function(dense: torch.Tensor) -> Callable[..., torch.Tensor]:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    tokens = dense.shape[0]
    mask = create_block_mask(lambda b, h, q, k: dense[q, k], None, None, tokens, tokens, device="cpu")
    compiled = torch.compile(flex_attention)
    return lambda q, k, v: compiled(q, k, v, block_mask=mask)


Slices = list[tuple[slice, slice, torch.Tensor]]


def band_slices(tokens: int, reach: int, step: int, block: int) -> Iterator[tuple[slice, slice, torch.Tensor]]:
    """(queries, keys, additive mask) for each block of queries of each residue class; masks of one shape are shared."""
    masks: dict[tuple[int, int, int], torch.Tensor] = {}
    for phase in range(step):
        length = len(range(phase, tokens, step))
        for first in range(0, length, block):
            last = min(first + block, length)
            low, high = max(0, first - reach), min(length, last + reach)
            shape = (last - first, high - low, first - low)
            if shape not in masks:
                gap = torch.arange(low, high) - torch.arange(first, last)[:, None]
                masks[shape] = torch.zeros(gap.shape).masked_fill_(gap.abs() > reach, -torch.inf)
            yield _tokens(phase, step, first, last), _tokens(phase, step, low, high), masks[shape]


def _tokens(phase: int, step: int, first: int, last: int) -> slice:
    return slice(phase + step * first, phase + step * (last - 1) + 1, step)


def loop_forward(case: Case, slices: Slices) -> Tensors:
    q, k, v = case.qkv
    out = torch.empty_like(q)
    with torch.no_grad():
        for rows, keys, mask in slices:
            out[:, :, rows] = sdpa(q[:, :, rows], k[:, :, keys], v[:, :, keys], attn_mask=mask)
    return (out,)


def loop_training(case: Case, slices: Slices) -> Tensors:
    out = torch.empty_like(case.d_out)
    grads = [torch.zeros_like(x) for x in case.qkv]
    for rows, keys, mask in slices:
        places = (rows, keys, keys)
        leaves = [x[:, :, at].detach().requires_grad_() for x, at in zip(case.qkv, places, strict=True)]
        part = sdpa(*leaves, attn_mask=mask)
        out[:, :, rows] = part.detach()
        for grad, at, new in zip(grads, places, torch.autograd.grad(part, leaves, case.d_out[:, :, rows]), strict=True):
            grad[:, :, at] += new
    return out, *grads


# ---- measuring ---------------------------------------------------------------------------------------------------
class Disturbance:
    """How many cores other processes kept busy since it was made (Linux; 0 elsewhere)."""

    def __init__(self) -> None:
        self.begin = self._now()

    @staticmethod
    def _now() -> tuple[float, float, float]:
        """Seconds: by the clock, busy over all cores, busy for this process."""
        stat, busy = Path("/proc/stat"), 0.0
        if stat.exists():
            user, nice, system, _, _, irq, soft = map(int, stat.read_text().split()[1:8])
            busy = (user + nice + system + irq + soft) / os.sysconf("SC_CLK_TCK")
        return time.perf_counter(), busy, sum(os.times()[:4])

    def cores(self) -> float:
        wall, busy, own = (b - a for a, b in zip(self.begin, self._now(), strict=True))
        return max(0.0, busy - own) / wall


def compare(found: list[Method]) -> None:
    """Run every method of one case once; the program stops where two of them differ."""
    expected: Tensors = ()
    for method in found:
        begin = time.perf_counter()
        results = method.run()
        method.first = time.perf_counter() - begin
        expected = expected or results
        method.error = max(float((a - b).abs().max()) for a, b in zip(results, expected, strict=False))
        if not method.error <= TOLERANCE:
            sys.exit(f"{method.case.name}, {method.direction}, {method.name}: differs by {method.error:.1e}")


def timed(run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def measure(found: list[list[Method]], rounds: int) -> list[float]:
    """Fill in the times of every method; returns those of the matrix product."""
    a, b = torch.randn(2, SIDE, SIDE)
    out = torch.empty(SIDE, SIDE)
    for _ in range(3):
        torch.mm(a, b, out=out)
    ceiling = []
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", end="\r", file=sys.stderr, flush=True)
        for of_case in found:
            ceiling.append(timed(lambda: torch.mm(a, b, out=out)))
            for method in of_case:
                method.seconds.append(timed(method.run))
    return ceiling


# ---- report ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Report:
    """All methods by (case, direction, name), and the rate of the matrix product in GFLOP/s."""

    methods: dict[tuple[str, str, str], Method]
    sgemm: float

    def baseline(self, method: Method) -> float:
        """How many times faster than the dense mask."""
        return self.methods[method.case.name, method.direction, "dense"].median / method.median

    def of(self, case: str, direction: str, name: str) -> Method:
        """The method whose name begins so; the fastest if there are several."""
        keys = [key for key in self.methods if key[:2] == (case, direction) and key[2].startswith(name)]
        return min((self.methods[key] for key in keys), key=lambda method: method.median)

    def row(self, method: Method) -> dict[str, object]:
        fifths = quantiles(method.seconds, n=5, method="inclusive")
        return {
            "case": method.case.name, "direction": method.direction, "method": method.name,
            "median_ms": round(1e3 * method.median, 2), "p20_ms": round(1e3 * fifths[0], 2),
            "p80_ms": round(1e3 * fifths[-1], 2), "useful_gflops": round(method.gflops, 2),
            "ratio_to_sgemm": round(method.gflops / self.sgemm, 4),
            "ratio_to_baseline": round(self.baseline(method), 3),
        }  # fmt: skip

    def line(self, method: Method) -> str:
        row = self.row(method)
        return (
            f"{row['case']:22s}{row['direction']:18s}{row['method']:9s}{row['median_ms']:9.1f}{row['p20_ms']:9.1f}"
            f"{row['p80_ms']:9.1f}{row['useful_gflops']:9.1f}{row['ratio_to_sgemm']:8.1%}"
            f"{row['ratio_to_baseline']:8.1f}x{1e3 * method.first:9.1f}{method.error:9.0e}"
        )

    def bars(self) -> Iterator[tuple[bool, str]]:
        """Each bar: whether it is met, and the figure."""
        window, dilated, grid = dict.fromkeys(key[0] for key in self.methods)
        mine, loop = self.of(window, "forward", "weft"), self.of(window, "forward", "loop")
        share = mine.gflops / self.sgemm
        yield share >= 0.55, f"window, forward: {share:.1%} of sgemm in useful FLOPs (bar 55 %)"
        ahead = loop.median / mine.median
        yield ahead > 1, f"window, forward: {ahead:.2f} times as fast as the best slice loop, {loop.name} (bar 1)"
        slower = self.of(dilated, "forward", "weft").median / mine.median
        yield slower <= 1.5, f"dilated, forward: {slower:.2f} times the time of the window (bar 1.5)"
        for case, direction in ((grid, "forward"), (window, BOTH), (dilated, BOTH), (grid, BOTH)):
            times = self.baseline(self.of(case, direction, "weft"))
            yield times >= 10, f"{case}, {direction}: {times:.1f} times as fast as the dense mask (bar 10)"


def disturbed(ceiling: list[float], others: float) -> list[str]:
    """Why the run should not be believed; empty if it may be."""
    found = []
    if others > OTHERS:
        found.append(f"other processes kept {others:.2f} cores busy")
    if min(ceiling) < SLOWEST * median(ceiling):
        found.append(f"sgemm's median is {min(ceiling) / median(ceiling):.0%} of its best in this run")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Times the CPU backend against torch's attention")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--flex", action="store_true", help="FlexAttention too; needs a C++ compiler")
    parser.add_argument("--record", action="store_true", help="append to results/cpu.csv")
    parser.add_argument("--force", action="store_true", help="record a disturbed run too")
    asked = parser.parse_args()
    torch.set_num_threads(THREADS)
    print(f"{machine()}; torch {torch.__version__}, {THREADS} threads, float32, {HEADS} heads of {D}", end="")
    print(f"; load {os.getloadavg()[0]:.2f} before")
    found = [list(methods(case, asked.flex)) for case in cases()]
    for of_case in found:
        compare(of_case)
    watch = Disturbance()
    ceiling = measure(found, max(2, asked.rounds))
    warnings = disturbed(ceiling, watch.cores())
    every = [method for of_case in found for method in of_case]
    by_name = {(method.case.name, method.direction, method.name): method for method in every}
    report = Report(by_name, 2 * SIDE**3 / median(ceiling) / 1e9)
    print(f"sgemm {report.sgemm:.1f} GFLOP/s (median; best {2 * SIDE**3 / min(ceiling) / 1e9:.1f})")
    print(f"{'case':22s}{'direction':18s}{'method':9s}{'ms':>9s}{'p20':>9s}{'p80':>9s}{'GFLOP/s':>9s}{'/sgemm':>8s}"
          f"{'/dense':>9s}{'first':>9s}{'error':>9s}")  # fmt: skip
    for method in sorted(every, key=lambda m: (m.case.name, m.direction)):
        print(report.line(method))
    for met, text in report.bars():
        print(f"{'PASS' if met else 'MISS'}  {text}")
    for warning in warnings:
        print(f"DISTURBED: {warning}; do not conclude anything from this run")
    if asked.record and warnings and not asked.force:
        sys.exit("nothing recorded: run it again on a quiet machine, or add --force")
    if asked.record:
        append(RESULTS / "cpu.csv", COLUMNS, [provenance("torch") | report.row(method) for method in every])


if __name__ == "__main__":
    main()
