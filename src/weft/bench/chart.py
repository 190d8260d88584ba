"""The chart of the core dozen: weft beside the peer that does best on each problem, forward, from rows and quotations.

The README and docs/performance.md open with it. `pairs` is what it shows, `conclusion` what a reader may take from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from weft.bench.figures import Machine
from weft.bench.quoted import QUOTED
from weft.testing.workloads import WORKLOADS

# What people call the problems and the peers.
PROBLEMS = {
    "dense": "full attention", "dense_d64": "full attention", "causal": "causal",
    "causal_window_1024": "causal window of 1,024", "window_pm256": "window of 256 either side",
    "longformer_w512_g64": "Longformer, 64 global tokens", "dilated_w512_d4": "dilated window, every 4th key",
    "strided_l128_s128": "local 128 and every 128th key", "chunk_2048_causal": "causal chunks of 2,048",
    "na2d_128x128_k21": "2-D neighbourhood, 21 x 21", "na3d_30x48x80_k18x24x24": "3-D neighbourhood, 18 x 24 x 24",
    "document_causal": "packed documents, causal",
}  # fmt: skip
PEERS = {
    "flex": "FlexAttention", "flex-tuned": "FlexAttention, tuned", "flex-flash": "FlexAttention, FLASH",
    "fa4": "FlashAttention-4", "xformers": "FlashAttention-3", "fa2": "FlashAttention-2", "cudnn": "cuDNN",
    "flashinfer": "FlashInfer", "sdpa-mask": "SDPA with a mask", "natten": "NATTEN", "cudnn-flex": "cuDNN flex",
}  # fmt: skip
FLASH = ("FlashAttention-3", "FlashAttention-4", "FlexAttention, FLASH")  # one family of kernels
MARKED = (
    "A star marks figures that were measured apart from this benchmark; they stand at the end of this page. NATTEN's "
    "dilated window differs from weft's at the ends of the sequence."
)
HEIGHT = 0.4  # of a bar; two of them and a gap are 1


class Pair(NamedTuple):
    """Useful TFLOP/s of weft and of a peer on one problem. apart: figures that are quoted, since no row has them."""

    workload: str
    weft: float
    peer: str
    rate: float
    apart: bool

    @property
    def ratio(self) -> float:
        """How many times as fast weft is."""
        return self.weft / self.rate

    @property
    def label(self) -> str:
        """The problem in words."""
        return f"{PROBLEMS[self.workload]} (D={WORKLOADS[self.workload].d})"


def pairs(machine: Machine) -> list[Pair]:
    """For each problem of the core the pair in which weft does worst, best ones first."""
    found = [min(some, key=lambda pair: pair.ratio) for name in PROBLEMS if (some := list(_pairs(machine, name)))]
    return sorted(found, key=lambda pair: -pair.ratio)


def complete(machine: Machine) -> bool:
    """Whether there is a pair for every problem of the core: only then there is a chart."""
    return len(pairs(machine)) == len(PROBLEMS)


def _pairs(machine: Machine, workload: str) -> Iterator[Pair]:
    compared = machine.comparison(workload, "fwd")
    if compared.mine is None or compared.rival is None:
        return
    mine, peer = float(compared.mine["tflops"]), compared.rival["peer"]
    yield Pair(workload, mine, PEERS.get(peer, peer), float(compared.rival["tflops"]), False)
    measured = {PEERS.get(peer, peer) for peer in machine.timed(workload, "fwd")}
    for library, figures in QUOTED.items() if machine.name == "NVIDIA H200" else ():
        if library in measured:  # beside weft, so that no figure of another card stands for it
            continue
        yield from (
            Pair(workload, one.weft_fwd or mine, library, one.fwd, True) for one in figures if one.workload == workload
        )


def conclusion(machine: Machine) -> str:
    """What the pairs say, in three sentences."""
    shown = pairs(machine)
    ahead = [pair for pair in shown if pair.ratio > 1]
    behind = [pair for pair in shown if pair.ratio <= 1]
    told = [
        f"On one {machine.name}, forward, weft is ahead of every peer on {len(ahead)} of {len(shown)} core problems."
    ]
    if ahead:
        told.append(f"There it is {_span(ahead)} times as fast as the best peer.")
    if behind:
        kind = "FlashAttention" if all(pair.peer in FLASH for pair in behind) else "the best peer"
        told.append(f"On the other {len(behind)} it runs at {_span(behind)} of the speed of {kind}.")
    return " ".join(told)


def advice(machine: Machine) -> str:
    """What to take for each of the problems, where speed alone decides."""
    shown = pairs(machine)
    lists = [
        f"- Take {whom}: {'; '.join(pair.label for pair in some)}."
        for whom, some in (
            ("weft", [pair for pair in shown if pair.ratio > 1]),
            ("the peer in the chart", [pair for pair in shown if pair.ratio <= 1]),
        )
        if some
    ]
    return "\n".join(["Where speed alone decides:", "", *lists])


def _span(shown: list[Pair]) -> str:
    """The least and the largest ratio."""
    return " to ".join(dict.fromkeys((times(shown[-1].ratio), times(shown[0].ratio))))


def times(ratio: float) -> str:
    """A ratio in two figures.

    >>> times(0.773), times(1.98), times(31.7)
    ('0.77', '2.0', '32')
    """
    return f"{ratio:.2f}" if ratio < 0.995 else f"{ratio:.1f}" if ratio < 9.95 else f"{ratio:.0f}"


def draw(axes: Any, machine: Machine, colours: tuple[str, str]) -> None:
    """Two bars for each pair, weft's above, with their figures and the ratio at the right edge."""
    shown = pairs(machine)
    most = max(max(pair.weft, pair.rate) for pair in shown)
    for y, pair in enumerate(shown):
        mark = " *" if pair.apart else ""
        axes.barh(y - HEIGHT / 2, pair.weft, HEIGHT, color=colours[0], label="weft" if y == 0 else None)
        axes.barh(y + HEIGHT / 2, pair.rate, HEIGHT, color=colours[1], label="best peer" if y == 0 else None)
        axes.text(pair.weft + most / 90, y - HEIGHT / 2, f"{pair.weft:.0f}", va="center", fontsize=8)
        axes.text(pair.rate + most / 90, y + HEIGHT / 2, f"{pair.rate:.0f}  {pair.peer}{mark}", va="center", fontsize=8)
        weight = "bold" if pair.ratio > 1 else "normal"
        axes.text(most * 1.45, y, f"{times(pair.ratio)}x", va="center", ha="right", fontsize=10, weight=weight)
    axes.set_yticks(range(len(shown)), [pair.label for pair in shown])
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, most * 1.46)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    starred = "  (* measured apart)" if any(pair.apart for pair in shown) else ""
    axes.set_xlabel(f"useful TFLOP/s, forward, 16 bits, more is better{starred}")
    axes.set_title(f"weft beside the best peer of each problem, {machine.name}", loc="left", parse_math=False)
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, borderaxespad=0.2)
