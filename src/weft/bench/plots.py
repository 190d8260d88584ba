"""The plots of docs/performance.md: SVG, the same for the same rows. matplotlib is loaded when one is drawn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from weft.bench.figures import YARDSTICKS, Machine, is_weft
from weft.bench.rows import OK, number
from weft.errors import UnsupportedError
from weft.testing.workloads import WORKLOADS

# Okabe and Ito's colours, told apart by every kind of colour vision; weft's is black.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b8a800", "#999999")
WEFT = "#22303c"
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "weft", "svg.fonttype": "none", "font.size": 9, "axes.spines.top": False,
    "axes.spines.right": False, "axes.grid": True, "grid.color": "#e4e4e0", "axes.axisbelow": True,
    "legend.frameon": False,
}  # fmt: skip


def draw(machine: Machine, folder: Path) -> Iterator[Path]:
    """Every plot that the machine's rows suffice for."""
    for direction in ("fwd", "bwd"):
        problems = [name for name, way in machine.problems() if way == direction]
        if baseline := _baseline(machine, problems, direction):
            with _figure(folder / f"{machine.slug}-speed-{direction}.svg", (8, 1 + 0.5 * len(problems))) as axes:
                _speeds(axes, machine, problems, direction, baseline)
            yield folder / f"{machine.slug}-speed-{direction}.svg"
    product, copied = machine.ceiling("matmul", "tflops"), machine.ceiling("copy", "gbs")
    if product and copied and list(machine.problems()):
        with _figure(folder / f"{machine.slug}-roofline.svg", (8, 5)) as axes:
            _roofline(axes, machine, product, copied)
        yield folder / f"{machine.slug}-roofline.svg"
    for column, title in (("median_ms", "scaling"), ("plan_ms", "plan")):
        series = _series(machine, column)
        if any(len(points) > 1 for points in series.values()):
            with _figure(folder / f"{machine.slug}-{title}.svg", (8, 4.5)) as axes:
                _growth(axes, series, title)
            yield folder / f"{machine.slug}-{title}.svg"


@contextmanager
def _figure(path: Path, size: tuple[float, float]) -> Iterator[Any]:
    """Axes of a figure that is written to `path` at the end."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise UnsupportedError("weft bench --report", "the plots need matplotlib", "pip install 'weft[plot]'") from None
    path.parent.mkdir(parents=True, exist_ok=True)
    with rc_context(STYLE):
        figure = Figure(size, layout="constrained")
        yield figure.add_subplot()
        figure.savefig(path, metadata={"Date": None})


def _colours(peers: list[str]) -> dict[str, str]:
    others = [peer for peer in peers if not is_weft(peer)]
    return dict.fromkeys(peers, WEFT) | {peer: COLOURS[i % len(COLOURS)] for i, peer in enumerate(others)}


def _baseline(machine: Machine, problems: list[str], direction: str) -> str:
    """The peer with most times: what speeds are relative to; a peer that runs everything is the general one."""
    counts: dict[str, int] = {}
    for name in problems:
        for peer in machine.timed(name, direction):
            counts[peer] = counts.get(peer, 0) + (not is_weft(peer))
    return max(sorted(counts), key=lambda peer: counts[peer], default="")


def _speeds(axes: Any, machine: Machine, problems: list[str], direction: str, baseline: str) -> None:
    """For each problem one bar a peer, from 1 to its speed relative to the baseline's."""
    timed = {name: machine.timed(name, direction) for name in problems}
    shown = [name for name in problems if baseline in timed[name]]
    peers = sorted({peer for name in shown for peer in timed[name]}, key=lambda peer: (not is_weft(peer), peer))
    peers.remove(baseline)
    colours, height = _colours(peers), 0.84 / max(1, len(peers))
    for i, peer in enumerate(peers):
        have = [(y, name) for y, name in enumerate(shown) if peer in timed[name]]
        gains = [
            float(timed[name][baseline]["median_ms"]) / float(timed[name][peer]["median_ms"]) - 1 for _, name in have
        ]
        places = [y + (i - (len(peers) - 1) / 2) * height for y, _ in have]
        axes.barh(places, gains, height, left=1, color=colours[peer], label=peer)
    axes.set_yticks(range(len(shown)), shown)
    axes.invert_yaxis()
    axes.axvline(1, color=WEFT, linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel(f"speed relative to {baseline}")
    axes.set_title(f"{machine.name}: {'forward' if direction == 'fwd' else 'backward'}")
    if peers:
        axes.legend(fontsize=8)


def _roofline(axes: Any, machine: Machine, product: float, copied: float) -> None:
    """Useful TFLOP/s against useful operations per byte of inputs and outputs."""
    ridge = product * 1e3 / copied
    axes.plot(
        [ridge / 64, ridge, ridge * 256], [product / 64, product, product], color="#9aa3ab", label="measured roof"
    )
    marks: dict[str, list[tuple[float, float]]] = {}
    for name, direction in machine.problems():
        work = WORKLOADS[name]
        compared = machine.comparison(name, direction)
        for row, label in ((compared.mine, "weft"), (compared.rival, "fastest peer")):
            if row is not None:
                at = (work.flops(direction) / work.nbytes(direction), float(row["tflops"]))
                marks.setdefault(label, []).append(at)
    for label, points in marks.items():
        style = {"weft": ("o", WEFT), "fastest peer": ("x", COLOURS[0])}[label]
        axes.scatter(*zip(*points, strict=True), marker=style[0], color=style[1], label=label, s=28)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("useful operations per byte of q, k, v and out, each moved once")
    axes.set_ylabel("useful TFLOP/s")
    axes.set_title(f"{machine.name}: roofline")
    axes.legend()


def _series(machine: Machine, column: str) -> dict[str, list[tuple[int, float]]]:
    """(tokens, milliseconds) of the scaling set, by peer and direction."""
    found: dict[str, list[tuple[int, float]]] = {}
    for name in machine.workloads("scaling"):
        for (workload, way, peer), row in machine.latest.items():
            value = number(row, column)
            is_shown = row["status"] == OK and (peer not in YARDSTICKS or column == "plan_ms")
            if workload == name and is_shown and value and not (column == "plan_ms" and way == "bwd"):
                label = peer if way == "any" or column == "plan_ms" else f"{peer} {way}"
                found.setdefault(label, []).append((WORKLOADS[name].n, value))
    return found


def _growth(axes: Any, series: dict[str, list[tuple[int, float]]], title: str) -> None:
    peers = list(dict.fromkeys(label.split()[0] for label in series))
    colours = _colours(peers)
    for label, points in series.items():
        backward = label.endswith(" bwd")
        colour = colours[label.split()[0]]
        axes.plot(
            *zip(*points, strict=True), marker="o", linestyle="--" if backward else "-", color=colour, label=label
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("tokens")
    axes.set_ylabel("milliseconds")
    what = "time of a call" if title == "scaling" else "making the mask or the plan, once compiled"
    axes.set_title(f"causal window of 1024: {what}")
    axes.legend(fontsize=8)
