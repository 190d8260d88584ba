"""The pictures that the demo writes: one per case, and one of the photograph."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter

from weft.demo.cases import Case
from weft.demo.inputs import photograph
from weft.demo.smooth import SIZE, likeness, noisy, smoothed
from weft.plot import headline, image, panels, pattern_figure, save

NOISE = 0.07


def draw_case(case: Case, folder: Path) -> Path:
    """The small instance of a case with its tiles."""
    name = case.name.replace(" ", "-")
    return save(pattern_figure(case.small, case.drawn, note="a small instance"), folder / f"{name}.png")


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
