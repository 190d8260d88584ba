"""Pictures of patterns and of the tiles that a plan visits.

`pattern_figure` draws one pattern: on the left which query sees which key, then one panel for each launch of its plan,
with queries and keys in the order in which that launch takes them, and for patterns on a map the boxes of queries and
what one of them reads. Meant for small instances: a picture of a million tokens shows no tile.

matplotlib is loaded when the first figure is made, never before.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.errors import OptionError, UnsupportedError
from weft.pattern.algebra import Pattern
from weft.pattern.bounds import Ints
from weft.pattern.relation import NDBool
from weft.plan.attention_plan import plan_attention
from weft.plan.problem import Problem
from weft.plan.tiles import Launch, TilePlan, Visit, walk

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LIMIT = 1 << 22  # pairs in one picture
PANEL = 4.6  # inches

SKIPPED, ELSEWHERE, MASKED, PARTIAL, FULL = range(5)
# Okabe and Ito's blue and orange, told apart by every kind of colour vision; a light orange for computed in vain.
COLOURS = ("#f3f3f1", "#c3c7cc", "#fbe0ae", "#e69f00", "#0072b2")
MEANING = ("skipped", "live, in another launch", "masked in a partial tile", "live in a partial tile", "full tile, no mask")
INK, PAPER = "#22303c", "#ffffff"


# ---- what is seen ------------------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class View:
    """One launch as a picture.

    queries (rows,) and keys (n,): tokens in the order of the launch. classes (rows, n): SKIPPED ... FULL of each pair.
    bands: the first row of every query tile, and the end. q_steps, k_steps: the residue classes of the order, per axis.
    """

    title: str
    queries: Ints
    keys: Ints
    classes: np.ndarray
    bands: Ints
    q_steps: tuple[int, ...]
    k_steps: tuple[int, ...]


def launch_views(plan: TilePlan) -> list[View]:
    """The launches of a plan as its kernels walk them; the blocks of the remainder come last."""
    live = _live(plan)
    tiles = walk(plan)
    views = [_view(islice(tiles, launch.tiles), _launch_title(launch), live, launch) for launch in plan.launches]
    if plan.blocks is not None:
        views.append(_view(tiles, f"remainder: {plan.blocks.tiles} rows of blocks", live, None))
    return views


def _live(plan: TilePlan) -> NDBool:
    """The mask (M, N), from the plan itself."""
    live = np.zeros((plan.acsr.m, plan.acsr.n), np.bool_)
    for visit in (visit for visits in walk(plan) for visit in visits):
        live[np.ix_(visit.queries, visit.keys)] |= True if visit.mask is None else visit.mask
    return live


def _view(tiles: Iterator[list[Visit]], title: str, live: NDBool, launch: Launch | None) -> View:
    n = live.shape[1]
    q_steps = tuple(lanes.q_step for lanes in launch.lanes) if launch else (1,)
    keys, k_steps = _key_order(launch, n) if launch else (np.arange(n), (1,))
    place = np.argsort(keys)
    queries, classes = [], []
    for visits in tiles:
        if not visits:
            continue
        mine = visits[0].queries
        found = np.where(live[mine], ELSEWHERE, SKIPPED)[:, keys]
        for visit in visits:
            mask = np.where(visit.mask, PARTIAL, MASKED) if visit.mask is not None else FULL
            found[:, place[visit.keys]] = mask
        queries.append(mine)
        classes.append(found)
    bands = np.cumsum([0, *(mine.size for mine in queries)])
    rows = np.concatenate([np.zeros(0, np.int64), *queries])
    return View(title, rows, keys, np.concatenate([np.zeros((0, n), int), *classes]), bands, q_steps, k_steps)


def _key_order(launch: Launch, n: int) -> tuple[Ints, tuple[int, ...]]:
    """(all keys, by residue class if the launch takes them so, else as they are; the steps)."""
    part = launch.parts[0]
    steps = tuple(axis.lanes.k_step for axis in part.axes)
    alike = all(
        other.k == part.k and tuple(axis.lanes.k_step for axis in other.axes) == steps for other in launch.parts
    )
    if not alike or part.k.size != n or max(steps) == 1:
        return np.arange(n), (1,) * len(steps)
    coordinates = part.k.coordinates(np.arange(n))[1]
    residues = [x % step for x, step in zip(coordinates, steps, strict=True)]
    return np.lexsort([np.arange(n), *residues[::-1]]), steps


def _launch_title(launch: Launch) -> str:
    plural = "" if launch.tiles == 1 else "s"
    return f"{launch.tiles} tile{plural} of {'×'.join(map(str, launch.box))} queries"


# ---- the figure --------------------------------------------------------------------------------------------------
def pattern_figure(pattern: Pattern, m: int, n: int | None = None, note: str = "") -> Figure:
    """The pattern at (m, n) tokens and the forward plan of its first head and batch row, in one figure.

    The plan is the one for 64 heads of D = 64 in float32. note: a few words that follow the sizes.
    """
    n = m if n is None else n
    if m * n > LIMIT:
        raise OptionError(
            f"a picture of {m} x {n} tokens", f"it has more than {LIMIT} pairs", "draw a smaller instance of the pattern"
        )
    one = pattern.at(0, 0)
    plan = plan_attention(one, Problem(8, 8, 8, m, n, 64, 64)).forward[0].plan
    views = launch_views(plan)
    mapped = [launch for launch in plan.launches if len(launch.q.shape) == 2 and launch.q == launch.parts[0].k]
    figure, axes = panels(1 + len(views) + len(mapped[:1]))
    draw_mask(axes[0], one.to_dense(m, n))
    for number, (axis, view) in enumerate(zip(axes[1:], views, strict=False)):
        draw_view(axis, view, f"launch {number + 1} of {len(views)}: " if len(views) > 1 else "plan: ")
    if mapped:
        draw_map(axes[-1], plan, mapped[0])
    title(figure, pattern, [_facts(plan, note)])
    _legend(figure, views)
    return figure


def _facts(plan: TilePlan, note: str) -> str:
    m, n = plan.acsr.m, plan.acsr.n
    tiles = "1 query tile" if plan.tiles == 1 else f"{plan.tiles} query tiles"
    facts = [
        f"{m} × {n} tokens{' ' + note if note else ''}",
        f"{plan.acsr.nnz / max(1, m * n):.1%} of all pairs are live",
        f"{plan.visited / max(1, m * n):.1%} computed",
        tiles,
        f"{plan.nbytes} bytes of tables",
    ]
    return "   ·   ".join(facts)


def panels(count: int, height: float = PANEL) -> tuple[Figure, list[Axes]]:
    """A figure with `count` square panels in a row, and room for a title and a legend."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as missing:
        raise UnsupportedError("draw a picture", f"matplotlib: {missing}", "pip install 'weft[plot]'") from missing

    # A figure of its own, not pyplot's: nothing global is touched and no display is needed.
    figure = Figure(figsize=(count * height + 0.4, height + 1.6), dpi=110, layout="constrained", facecolor=PAPER)
    FigureCanvasAgg(figure)
    figure.get_layout_engine().set(w_pad=0.08, h_pad=0.08, wspace=0.03)
    return figure, list(figure.subplots(1, count, squeeze=False)[0])


def title(figure: Figure, headline: object, lines: list[str]) -> None:
    """A headline in bold, and lines below it."""
    width = int(figure.get_figwidth() * 9)
    text = textwrap.wrap(str(headline), width)[:3]
    if len(" ".join(text)) < len(str(headline)):
        text[-1] += " …"
    figure.suptitle("\n".join(text), fontsize=12, fontweight="bold", color=INK, family="monospace")
    figure.get_suptitle()
    figure.supxlabel("\n".join(lines), fontsize=10, color=INK)


def save(figure: Figure, path: Path) -> Path:
    """Writes the figure as a PNG, aside first, so that a file with this name is always whole."""
    aside = path.with_name(path.name + ".part")
    figure.savefig(aside, format="png")
    aside.replace(path)
    return path


# ---- panels ------------------------------------------------------------------------------------------------------
def draw_mask(axes: Axes, mask: NDBool) -> None:
    """Live pairs dark."""
    _image(axes, np.where(mask[..., None], _rgb(INK), _rgb(COLOURS[SKIPPED])))
    axes.set_title("the pattern", fontsize=11, color=INK)
    axes.set_ylabel("query", fontsize=10)
    axes.set_xlabel("key", fontsize=10)


def draw_view(axes: Axes, view: View, prefix: str = "") -> None:
    """Pairs by class, and every box of queries by keys outlined."""
    palette = np.stack([_rgb(colour) for colour in COLOURS])
    _image(axes, palette[view.classes])
    axes.set_title(prefix + view.title, fontsize=11, color=INK)
    _order(axes.yaxis, "query", view.q_steps, view.queries)
    _order(axes.xaxis, "key", view.k_steps, view.keys)
    _outlines(axes, view)


def _order(axis: Any, name: str, steps: tuple[int, ...], tokens: Ints) -> None:
    """The label of an axis, and ticks that tell the truth when tokens are not in their own order."""
    if max(steps) > 1:
        axis.set_label_text(f"{name}s, sorted by index modulo {'×'.join(map(str, steps))}", fontsize=10)
    elif (np.diff(tokens) == 1).all():
        axis.set_label_text(name, fontsize=10)
        first = int(tokens[0]) if tokens.size else 0
        axis.set_major_formatter(lambda x, _: f"{int(x) + first}")
        return
    else:
        axis.set_label_text(f"{name}, box after box", fontsize=10)
    axis.set_ticks([])


def _outlines(axes: Axes, view: View) -> None:
    from matplotlib.collections import LineCollection

    lines = []
    for first, last in zip(view.bands, view.bands[1:], strict=False):
        visited = (view.classes[first:last] > ELSEWHERE).any(axis=0)
        edges = np.flatnonzero(np.diff(np.concatenate([[False], visited, [False]])))
        for left, right in edges.reshape(-1, 2):
            x, y = np.array([left, right]) - 0.5, np.array([first, last]) - 0.5
            lines.append([(x[0], y[0]), (x[1], y[0]), (x[1], y[1]), (x[0], y[1]), (x[0], y[0])])
    axes.add_collection(LineCollection(lines, colors=INK, linewidths=0.7))


def draw_map(axes: Axes, plan: TilePlan, launch: Launch) -> None:
    """The map of tokens: boxes of queries outlined, and the keys that the middle one reads."""
    from matplotlib.collections import LineCollection

    shape = launch.q.shape
    owner = np.full(launch.q.size, -1)
    tiles = list(launch.walk_tiles())
    for number, tile in enumerate(tiles):
        owner[launch.tile_queries(tile) - launch.q.origin] = number
    middle = int(owner.reshape(shape)[shape[0] // 2, shape[1] // 2])
    view = _view(islice(walk(plan), launch.tiles), "", _live(plan), launch)
    rows = np.flatnonzero(np.isin(view.queries - launch.q.origin, np.flatnonzero(owner == middle)))
    seen = np.zeros(view.keys.size, int)
    seen[view.keys] = np.where(view.classes[rows] > ELSEWHERE, view.classes[rows], SKIPPED).max(axis=0)
    seen[(seen == PARTIAL)] = MASKED
    grid = seen[launch.q.origin :][: launch.q.size].reshape(shape)
    _image(axes, np.stack([_rgb(colour) for colour in COLOURS])[grid])
    axes.add_collection(LineCollection(_borders(owner.reshape(shape)), colors=INK, linewidths=0.7))
    _example(axes, view, rows, shape)
    axes.set_title("the map: what one box of queries reads", fontsize=11, color=INK)
    axes.set_ylabel("row", fontsize=10)
    axes.set_xlabel("column", fontsize=10)


def _borders(owner: np.ndarray) -> list[list[tuple[float, float]]]:
    """Lines between neighbouring cells with different owners."""
    down = [[(x - 0.5, y + 0.5), (x + 0.5, y + 0.5)] for y, x in np.argwhere(owner[1:] != owner[:-1])]
    across = [[(x + 0.5, y - 0.5), (x + 0.5, y + 0.5)] for y, x in np.argwhere(owner[:, 1:] != owner[:, :-1])]
    return down + across


def _example(axes: Axes, view: View, rows: Ints, shape: tuple[int, ...]) -> None:
    """One query of the box as a ring, its live keys as dots."""
    row = rows[rows.size // 2]
    y, x = np.unravel_index(view.queries[row], shape)
    keys = view.keys[np.isin(view.classes[row], (PARTIAL, FULL))]
    ys, xs = np.unravel_index(keys, shape)
    axes.plot(xs, ys, ".", color=INK, markersize=4, label="keys of the query")
    axes.plot([x], [y], "o", color="#d55e00", markersize=9, markeredgecolor=PAPER, label="a query of the box")


def _image(axes: Axes, colours: np.ndarray) -> None:
    axes.imshow(colours, interpolation="nearest", aspect="auto")
    axes.set_box_aspect(1)
    axes.tick_params(labelsize=8, colors=INK, length=2)
    for spine in axes.spines.values():
        spine.set_color("#9aa3ab")
        spine.set_linewidth(0.6)


def _legend(figure: Figure, views: list[View]) -> None:
    from matplotlib.patches import Patch

    there = sorted({int(x) for view in views for x in np.unique(view.classes)}, reverse=True)
    handles = [Patch(facecolor=COLOURS[i], edgecolor="#9aa3ab", linewidth=0.5, label=MEANING[i]) for i in there]
    more = [axes.get_legend_handles_labels()[0] for axes in figure.axes]
    figure.legend(
        handles=handles + [handle for some in more for handle in some[::-1]],
        loc="outside lower center", ncols=8, fontsize=9, frameon=False, labelcolor=INK,
    )  # fmt: skip


def _rgb(colour: str) -> np.ndarray:
    return np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)], np.uint8)
