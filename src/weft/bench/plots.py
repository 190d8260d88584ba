"""The plots of docs/performance.md: SVG, the same for the same rows. matplotlib is loaded when one is drawn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from weft.bench import chart
from weft.bench.figures import CEILINGS, PLANNERS, Machine, is_weft
from weft.bench.rows import Row
from weft.errors import UnsupportedError, install_line
from weft.testing.workloads import WORKLOADS

# Okabe and Ito's colours, told apart by every kind of colour vision, and two more; weft's is black.
COLOURS = (
    "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b8a800", "#999999", "#5d3a9b", "#7f4f24",
)  # fmt: skip
WEFT = "#22303c"
PEER = "#e69f00"
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "weft", "svg.fonttype": "none", "font.size": 9, "axes.spines.top": False,
    "axes.spines.right": False, "axes.grid": True, "grid.color": "#e4e4e0", "axes.axisbelow": True,
    "legend.frameon": False,
}  # fmt: skip


def draw(machine: Machine, folder: Path) -> Iterator[Path]:
    """Every plot that the machine's rows suffice for."""
    if chart.complete(machine):
        with _figure(folder / f"{machine.slug}-core.svg", (9.5, 6.3)) as axes:
            chart.draw(axes, machine, (WEFT, PEER))
        yield folder / f"{machine.slug}-core.svg"
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
    for title, of_plans in (("scaling", False), ("plan", True)):
        series = _series(machine, of_plans)
        if any(len(points) > 1 for points in series.values()):
            with _figure(folder / f"{machine.slug}-{title}.svg", (8, 4.5)) as axes:
                _growth(axes, series, title, _colours(machine))
            yield folder / f"{machine.slug}-{title}.svg"


@contextmanager
def _figure(path: Path, size: tuple[float, float]) -> Iterator[Any]:
    """Axes of a figure that is written to `path` at the end."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise UnsupportedError("weft bench --report", "the plots need matplotlib", install_line("plot")) from None
    path.parent.mkdir(parents=True, exist_ok=True)
    with rc_context(STYLE):
        figure = Figure(size, layout="constrained")
        yield figure.add_subplot()
        figure.savefig(path, metadata={"Date": None})


def _colours(machine: Machine) -> dict[str, str]:
    """Of peers by name, the same in every plot of a machine."""
    peers = sorted({peer for _, _, peer in machine.latest} - set(CEILINGS))
    others = [peer for peer in peers if not peer.startswith("weft-")]
    return dict.fromkeys(peers, WEFT) | {peer: COLOURS[i % len(COLOURS)] for i, peer in enumerate(others)}


def _times(x: float, _: int) -> str:
    """A power of two in few characters."""
    return f"{x:g}" if x >= 1 else f"1/{1 / x:g}"


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
    colours = _colours(machine)
    present = [[peer for peer in peers if peer in timed[name]] for name in shown]
    height = 0.84 / max(1, *(len(some) for some in present))
    for peer in peers:
        rows = [(y, name) for y, name in enumerate(shown) if peer in timed[name]]
        gains = [_milliseconds(timed[name][baseline]) / _milliseconds(timed[name][peer]) - 1 for _, name in rows]
        places = [y + (present[y].index(peer) - (len(present[y]) - 1) / 2) * height for y, _ in rows]
        axes.barh(places, gains, height, left=1, color=colours[peer], label=peer)
    axes.set_yticks(range(len(shown)), shown)
    axes.invert_yaxis()
    axes.axvline(1, color=WEFT, linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(_times)
    axes.set_xlabel(f"speed relative to {baseline}")
    axes.set_title(f"{machine.name}: {'forward' if direction == 'fwd' else 'backward'}", parse_math=False)
    if peers:
        axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))


def _number(axis: Any) -> None:
    """A logarithmic axis in plain numbers: 1, 2 and 5 times powers of ten."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def _milliseconds(row: Row) -> float:
    return float(row["median_ms"])


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
    _number(axes.yaxis)
    axes.set_xlabel("useful operations per byte of q, k, v and out, each moved once")
    axes.set_ylabel("useful TFLOP/s")
    axes.set_title(f"{machine.name}: roofline", parse_math=False)
    axes.legend()


def _series(machine: Machine, of_plans: bool) -> dict[str, list[tuple[int, float]]]:
    """(tokens, milliseconds) of the scaling set: of planners, or of calls by peer and direction."""
    found: dict[str, list[tuple[int, float]]] = {}
    for name, timed in machine.scaling():
        for label, row in timed.items():
            if (label in PLANNERS) == of_plans:
                found.setdefault(label, []).append((WORKLOADS[name].n, _milliseconds(row)))
    return found


def _growth(axes: Any, series: dict[str, list[tuple[int, float]]], title: str, colours: dict[str, str]) -> None:
    for label, points in series.items():
        backward = label.endswith(" bwd")
        colour = colours[label.split()[0]]
        axes.plot(
            *zip(*points, strict=True), marker="o", linestyle="--" if backward else "-", color=colour, label=label
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    _number(axes.yaxis)
    tokens = sorted({n for points in series.values() for n, _ in points})
    axes.set_xticks(tokens, [f"{n >> 20}M" if n >= 1 << 20 else f"{n >> 10}k" for n in tokens])
    axes.set_xlabel("tokens")
    axes.set_ylabel("milliseconds")
    what = "time of a call" if title == "scaling" else "making the mask or the plan, once compiled"
    axes.set_title(f"causal window of 1024: {what}")
    axes.legend(fontsize=8)
