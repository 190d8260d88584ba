"""The pictures that the demo writes: one per case, the chart of this machine, and the photograph."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter

import numpy as np

from weft.bench.chart import times
from weft.bench.origin import machine
from weft.demo.cases import Case
from weft.demo.inputs import photograph
from weft.demo.smooth import SIZE, likeness, noisy, smoothed
from weft.plot import COLOURS, headline, image, panels, pattern_figure, save

NOISE = 0.07
HEIGHT = 0.4  # of a bar; two of them and a gap are 1


def draw_case(case: Case, folder: Path) -> Path:
    """The small instance of a case with its tiles."""
    name = case.name.replace(" ", "-")
    return save(pattern_figure(case.small, case.drawn, note="a small instance"), folder / f"{name}.png")


def draw_chart(timed: list[tuple[str, float, float]], folder: Path) -> Path:
    """Bars of what each row took on this machine, by weft and without it, fastest gain first."""
    from matplotlib.figure import Figure

    rows = sorted(timed, key=lambda row: row[1] / row[2])
    names, mine, own = zip(*rows, strict=True)
    figure = Figure(figsize=(11, 2.2 + 0.42 * len(rows)), layout="constrained")
    axes = figure.subplots()
    at = np.arange(len(rows))
    axes.barh(at - HEIGHT / 2, np.array(mine) * 1e3, HEIGHT, color=COLOURS[4], label="weft")
    axes.barh(at + HEIGHT / 2, np.array(own) * 1e3, HEIGHT, color=COLOURS[3], label="dense, or the library's own")
    for y, (_, fast, slow) in enumerate(rows):
        axes.text(max(fast, slow) * 1.1e3, y, f"{times(slow / fast)}x", va="center", fontsize=9)
    axes.set_yticks(at, names)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.margins(x=0.12)
    axes.set_xlabel("milliseconds, less is better; x: how many times as fast weft is")
    where = machine("cpu")["machine"]
    axes.set_title(f"weft on this machine: {where}", loc="left", parse_math=False)
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, frameon=False)
    return save(figure, folder / "chart.png")


def draw_photograph(folder: Path, side: int) -> tuple[Path, float, float] | None:
    """(file, likeness to the photograph in dB before and after attention); None where there is no photograph."""
    truth = photograph(side)
    if truth is None:
        return None
    before = noisy(truth, NOISE)
    start = perf_counter()
    after = smoothed(before, 0.85 * NOISE)  # a little under the noise keeps the most detail
    seconds = perf_counter() - start
    gains = likeness(before, truth), likeness(after, truth)
    figure, axes = panels(3, bottom=0.3)
    titles = (
        "the photograph",
        f"with noise: {gains[0]:.1f} dB",
        f"what attention made of it: {gains[1]:.1f} dB",
    )
    for axis, colours, title in zip(axes, (truth, before, after), titles, strict=True):
        image(axis, colours.clip(0, 1), title)
        axis.set_axis_off()
    below = (
        f"{side * side} pixels as tokens; each looks, in the {SIZE} × {SIZE} around it, for pixels whose own "
        f"surroundings are alike, and takes their mean    {seconds:.1f} s"
    )
    headline(figure, f"neighborhood(shape=[{side}, {side}], size={SIZE})", below)
    return save(figure, folder / "photograph.png"), *gains
