"""docs/prediction.md and its plots, from rows alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from prediction.problems import core
from prediction.rows import Judged
from weft.bench.plots import COLOURS, STYLE
from weft.target import Gpu

TEMPLATE = Path(__file__).with_suffix(".md")
BARS = {"median": 0.12, "p90": 0.25, "rank": 0.9, "choice": 1.07, "worst": 1.20}
PLACES = 40  # in a factor of ten, of which each has one dot at most: the picture is text, a line for each dot
WAYS = {"forward": "forward", "dq": "dQ", "dkdv": "dK and dV", "backward": "backward, both kernels"}


def page(found: Sequence[Judged], gpu: Gpu, facts: dict[str, Any], folder: Path) -> str:
    """The text; the plots are drawn into `folder`, as the page names them. facts: the file and the device of the rows,
    and for each of the `kernels` the seed and the versions.
    """
    _draw(found, folder / f"prediction-{gpu.name}.svg")
    _roofline(found, gpu, folder / f"prediction-{gpu.name}-roofline.svg")
    drawn = max(len({one.case for one in found if one.direction == way} - set(core())) for way in WAYS)
    candidates = [len(one.measured) for one in found if one.direction != "backward"]
    bar = f"{BARS['median']:.0%} | {BARS['p90']:.0%} | {BARS['rank']} | {BARS['choice']} ({BARS['worst']})"
    table = [*(_line(way, [one for one in found if one.direction == way]) for way in WAYS), f"| bar | | {bar} |"]
    kernels = [(way, facts["kernels"][way]) for way in WAYS if way in facts["kernels"]]
    seeds = [f"| {WAYS[way]} | `{said['seed']}` | {said['versions']} |" for way, said in kernels]
    return TEMPLATE.read_text().format(
        **facts, drawn=drawn, seeds="\n".join(seeds), name=gpu.name, fewest=min(candidates), most=max(candidates),
        table="\n".join(table), core="\n".join(_core(found)), worst="\n".join(_worst(found)),
    )  # fmt: skip


def _line(way: str, some: Sequence[Judged]) -> str:
    errors = np.concatenate([one.errors for one in some])
    ranks, regrets = [one.correlation for one in some], [one.regret for one in some]
    cells = [
        WAYS[way], str(len(some)), f"{np.median(errors):.1%}", f"{np.quantile(errors, 0.9):.1%}",
        f"{np.median(ranks):.3f} ({min(ranks):.2f})", f"{np.median(regrets):.3f} ({max(regrets):.2f})",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _core(found: Sequence[Judged]) -> Iterator[str]:
    for case in core():
        cells = []
        for way in ("forward", "backward"):
            one = next((x for x in found if x.case == case and x.direction == way), None)
            if one is None:
                cells.append("-")
                continue
            at = one.chosen
            cells.append(f"{one.predicted[at] * 1e6:.0f}, {one.measured[at] * 1e6:.0f}")
        yield f"| {case.pattern} | {' | '.join(cells)} |"


def _worst(found: Sequence[Judged]) -> Iterator[str]:
    def off(one: Judged) -> float:
        return float(np.median(one.predicted / one.measured))

    ordered = sorted((x for x in found if x.direction != "backward"), key=lambda one: -abs(np.log(off(one))))
    for one in ordered[:10]:
        name = one.case.text if len(one.case.text) < 90 else one.case.text[:60] + " ... " + one.case.text[-24:]
        yield f"| `{name}` | {WAYS[one.direction]} | {off(one):.2f} | {one.correlation:.2f} |"


def _draw(found: Sequence[Judged], path: Path) -> None:
    with rc_context(STYLE):
        figure = Figure((8, 5), layout="constrained")
        axes = figure.add_subplot()
        kernels = [way for way in WAYS if way != "backward"]
        for colour, way in zip(COLOURS, kernels, strict=False):
            some = [one for one in found if one.direction == way]
            x, y = (np.concatenate([getattr(one, name) for one in some]) * 1e6 for name in ("measured", "predicted"))
            _, first = np.unique(np.round(np.log10([x, y]) * PLACES), axis=1, return_index=True)
            axes.plot(x[first], y[first], ".", color=colour, markersize=3, alpha=0.5, label=WAYS[way])
        low, high = axes.get_xlim()
        axes.plot([low, high], [low, high], color="#22303c", linewidth=1, label="equal")
        axes.set(xscale="log", yscale="log", xlabel="measured, microseconds", ylabel="predicted, microseconds",
                 title="Candidates of every problem, near ones as one dot")  # fmt: skip
        axes.legend(markerscale=4)
        _save(figure, path)


def _roofline(found: Sequence[Judged], gpu: Gpu, path: Path) -> None:
    """Operations of the tiles computed over the bytes that must move, and the rate reached by the untuned choice."""
    peak, every = dict(gpu.flops)["fp16"], []
    with rc_context(STYLE):
        figure = Figure((8, 5), layout="constrained")
        axes = figure.add_subplot()
        for colour, way in zip(COLOURS, ("forward", "dq", "dkdv"), strict=False):
            points = np.array([_point(one, peak, gpu) for one in found if one.direction == way])
            every += points[:, 0].tolist()
            axes.plot(*points.T, "o", color=colour, markersize=4, alpha=0.7, label=WAYS[way])
        reach = np.geomspace(min(every), max(every), 100)
        roof = np.minimum(peak, reach * gpu.bandwidth) / 1e12
        axes.plot(reach, roof, color="#22303c", linewidth=1, label=f"{gpu.name}, its vendor's figures")
        axes.set(xscale="log", yscale="log", xlabel="operations on the tiles computed, for a byte that must move",
                 ylabel="TFLOP/s on the tiles computed", title="Each problem, as it is computed untuned")  # fmt: skip
        axes.legend()
        _save(figure, path)


def _point(one: Judged, peak: float, gpu: Gpu) -> tuple[float, float]:
    at = one.chosen
    operations = one.costs[at].products * peak
    return operations / (one.costs[at].loads * gpu.bandwidth), operations / one.measured[at] / 1e12


def _save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None}, dpi=150)
