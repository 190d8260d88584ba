"""Pictures of patterns and of the tiles that a plan visits.

`pattern_figure` draws one pattern: on the left which query sees which key, by terms; then the tiles of its plan, in
token order and in every other order in which a launch takes queries and keys; and for patterns on a map one query with
what its box reads. Meant for small instances: a picture of a million tokens shows no tile. `term_figure` draws the
terms alone, at any length: of a large pattern it shows how dense each place is.

matplotlib is loaded when the first figure is made, never before.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from weft.acsr.picture import Owned, owned
from weft.errors import OptionError, UnsupportedError
from weft.pattern.algebra import Pattern
from weft.pattern.bounds import Ints
from weft.pattern.relation import NDBool
from weft.planning.attention_plan import plan_attention
from weft.planning.problem import Problem
from weft.planning.tiles import Launch, TilePlan, Visit, walk

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LIMIT = 1 << 22  # pairs in one picture
FORMATS = (".png", ".svg")
PANEL, GAP, TOP, BOTTOM = 4.6, 0.75, 1.25, 0.95  # inches: side of a panel, space between two, above and below them

SKIPPED, ELSEWHERE, MASKED, PARTIAL, FULL = range(5)
# Okabe and Ito's blue and orange, told apart by every kind of colour vision; a light orange for computed in vain.
COLOURS = ("#f3f3f1", "#c3c7cc", "#fbe0ae", "#e69f00", "#0072b2")
MEANING = (
    "skipped",
    "live, in another launch",
    "masked in a partial tile",
    "live in a partial tile",
    "full tile, no mask",
)
INK, EDGE, POINT = "#22303c", "#9aa3ab", "#d55e00"
# Terms: ink for a single one, else the colours of Okabe and Ito that stand for no tile; the remainder is grey.
TERMS = ("#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b8a400", "#5a3d8c")
REMAINDER = "#8a8f94"
SHOWN = 6  # entries of the legend of terms
DENSE = 320  # cells a side of a picture that cannot show every pair

Box: TypeAlias = tuple[int, int, int, int]  # first and last row, first and last column; the last ones are not in it


# ---- what is seen ------------------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class View:
    """Launches that take tokens in one order.

    queries (rows,) and keys (n,): tokens in that order; classes (rows, n): SKIPPED ... FULL of each pair; boxes: what
    each query tile visits. q_steps, k_steps: the residue classes of the order, per axis; all 1 without. map: (height,
    width) where all tokens are the points of one map; else empty.
    """

    title: str
    queries: Ints
    keys: Ints
    classes: np.ndarray
    boxes: tuple[Box, ...]
    q_steps: tuple[int, ...] = (1,)
    k_steps: tuple[int, ...] = (1,)
    map: tuple[int, ...] = ()


def views(plan: TilePlan) -> list[View]:
    """What a kernel walks: one view of all launches in token order, and one of each that has an order of its own."""
    live = _live(plan)
    walked = walk(plan)
    apart, plain, titles = [], [], []
    for launch in plan.launches:
        tiles = [visits for visits in islice(walked, launch.tiles) if visits]
        if _plain(launch):
            plain += tiles
            titles.append(_tiles(launch))
        else:
            apart.append(_view(_tiles(launch), tiles, live, launch))
    if plan.blocks is not None:
        plain += [visits for visits in walked if visits]
        titles.append(f"{plan.blocks.tiles} rows of blocks")
    title = ", ".join(titles) if len(titles) < 3 else f"{len(plain)} tiles of queries, {len(titles)} launches"
    return ([_view(title or "no tiles", plain, live, None)] if plain or not apart else []) + apart


def _live(plan: TilePlan) -> NDBool:
    """The mask (M, N), by the plan's own account."""
    live = np.zeros((plan.acsr.m, plan.acsr.n), np.bool_)
    for visit in (visit for visits in walk(plan) for visit in visits):
        live[np.ix_(visit.queries, visit.keys)] |= True if visit.mask is None else visit.mask
    return live


def _plain(launch: Launch) -> bool:
    """Whether every query tile is a run of neighbouring tokens."""
    return len(launch.box) == 1 and launch.lanes[0].q_step == 1


def _tiles(launch: Launch) -> str:
    box = "×".join(map(str, launch.box))
    return f"{launch.tiles} tile{'' if launch.tiles == 1 else 's'} of {box} queries"


def _view(title: str, tiles: list[list[Visit]], live: NDBool, launch: Launch | None) -> View:
    """The view of some query tiles: in token order without a launch, else in the launch's order, its own rows alone."""
    m, n = live.shape
    keys, k_steps = _key_order(launch, n) if launch else (np.arange(n), (1,))
    queries = np.concatenate([visits[0].queries for visits in tiles]) if launch else np.arange(m)
    row, column = np.zeros(m, np.int64), np.argsort(keys)
    row[queries] = np.arange(queries.size)
    classes = np.where(live, ELSEWHERE, SKIPPED)[np.ix_(queries, keys)]
    boxes: list[Box] = []
    for visits in tiles:
        rows, visited = row[visits[0].queries], np.zeros(n, np.bool_)
        for visit in visits:
            at = np.ix_(rows, column[visit.keys])
            found = np.full(at[0].shape[:1] + at[1].shape[1:], FULL)
            if visit.mask is not None:
                found = np.where(visit.mask, PARTIAL, MASKED)
            classes[at] = np.maximum(classes[at], found)
            visited[column[visit.keys]] = True
        boxes += [(int(rows[0]), int(rows[-1]) + 1, first, last) for first, last in _runs(visited)]
    q_steps = tuple(lanes.q_step for lanes in launch.lanes) if launch else (1,)
    return View(title, queries, keys, classes, tuple(boxes), q_steps, k_steps, _map(launch, m, n))


def _map(launch: Launch | None, m: int, n: int) -> tuple[int, ...]:
    """The shape of the map that is all of a launch's tokens, queries and keys; empty if there is none."""
    if launch is None or len(launch.q.shape) != 2 or not launch.q.size == m == n:
        return ()
    return launch.q.shape if all(part.k == launch.q for part in launch.parts) else ()


def _key_order(launch: Launch, n: int) -> tuple[Ints, tuple[int, ...]]:
    """(all keys, by residue class where all parts take them so, else as they are; the steps)."""
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


def _runs(flags: NDBool) -> Iterable[tuple[int, int]]:
    """[first, last) of every run of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]])))
    return ((int(first), int(last)) for first, last in edges.reshape(-1, 2))


# ---- figures -----------------------------------------------------------------------------------------------------
def pattern_figure(
    pattern: Pattern, m: int, n: int | None = None, note: str = "", at: tuple[int, int] = (0, 0)
) -> Figure:
    """The pattern at (m, n) tokens and the forward plan of one batch row and head, `at`, in one figure.

    The plan is the one for 8 batch rows of 8 heads with D = 64 in float32. note: a few words that follow the sizes.
    """
    n = m if n is None else n
    if m * n > LIMIT:
        raise OptionError(
            f"a picture of {m} x {n} tokens",
            f"it has more than {LIMIT} pairs",
            "draw a smaller instance of the pattern",
        )
    one = pattern.at(*at)
    plan = planned(one, m, n)
    seen = views(plan)
    mapped = [view for view in seen if view.map]
    figure, axes = panels(1 + len(seen) + len(mapped[:1]))
    terms = owned(plan.acsr, m, n)
    draw_terms(axes[0], terms)
    for axis, view in zip(axes[1:], seen, strict=False):
        draw_view(axis, view)
    if mapped:
        draw_map(axes[-1], mapped[0])
    headline(figure, str(pattern), _facts(plan, note))
    _legend(figure, terms, seen)
    return figure


def planned(one: Pattern, m: int, n: int) -> TilePlan:
    """The plan that pictures show."""
    return plan_attention(one, Problem(8, 8, 8, m, n, 64, 64)).forward[0].plan


def term_figure(pattern: Pattern, m: int, n: int | None = None, at: tuple[int, int] = (0, 0)) -> Figure:
    """The pattern at (m, n) tokens by the terms of one batch row and head, `at`; by density beyond LIMIT pairs."""
    n = m if n is None else n
    acsr = pattern.acsr(m, n, *at)
    cells = (m, n) if m * n <= LIMIT else (DENSE, DENSE)
    terms = owned(acsr, *cells)
    figure, (axes,) = panels(1)
    draw_terms(axes, terms)
    share = f"{acsr.nnz / max(1, m * n):.2%} live"
    headline(figure, str(pattern), f"{m:,} × {n:,} tokens    {share}    {acsr.nbytes:,} bytes")
    _legend(figure, terms, [])
    return figure


def _facts(plan: TilePlan, note: str) -> str:
    m, n = plan.acsr.m, plan.acsr.n
    facts = [
        f"{m} × {n} tokens{' ' + note if note else ''}",
        f"{plan.acsr.nnz / max(1, m * n):.1%} of all pairs live, {plan.visited / max(1, m * n):.1%} computed",
        f"{plan.tiles} query tile{'' if plan.tiles == 1 else 's'}",
        f"{plan.nbytes} bytes of tables",
    ]
    return "    ".join(facts)


def panels(count: int, bottom: float = BOTTOM) -> tuple[Figure, list[Axes]]:
    """A figure with `count` square panels in a row, room for a headline above, `bottom` inches for a legend below."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as missing:
        raise UnsupportedError("draw a picture", f"matplotlib: {missing}", "pip install 'weft[plot]'") from missing

    # A figure of its own, not pyplot's: nothing global is touched and no display is needed.
    width, height = count * (PANEL + GAP) + 0.25, TOP + PANEL + bottom
    figure = Figure(figsize=(width, height), dpi=110, facecolor="white")
    FigureCanvasAgg(figure)
    boxes = [(GAP + i * (PANEL + GAP), bottom, PANEL, PANEL) for i in range(count)]
    axes = [figure.add_axes((x / width, y / height, w / width, h / height)) for x, y, w, h in boxes]
    return figure, axes


def headline(figure: Figure, title: str, below: str) -> None:
    """A title in bold, shortened to two lines if need be, and one line below it."""
    width, height = figure.get_size_inches()
    text = "\n".join(textwrap.wrap(title, int(width * 9.5), max_lines=2, placeholder=" …"))
    middle = 1 - 0.4 / height if "\n" not in text else 1 - 0.34 / height
    style = {"ha": "center", "va": "center", "color": INK}
    figure.text(0.5, middle, text, fontsize=12, fontweight="bold", family="monospace", **style)
    figure.text(0.5, 1 - 0.74 / height, below, fontsize=10, **style)


def save(figure: Figure, path: Path) -> Path:
    """Writes the figure as what its name ends in, aside first, so that a file with this name is always whole."""
    kind = path.suffix.lower()
    if kind not in FORMATS:
        wrong = f"its name ends in none of {', '.join(FORMATS)}"
        raise OptionError(f"a picture in {path}", wrong, f"end its name in {' or '.join(FORMATS)}")
    from matplotlib import rc_context

    aside = path.with_name(path.name + ".part")
    dated = {"metadata": {"Date": None}} if kind == ".svg" else {}
    with rc_context({"svg.hashsalt": "weft"}):  # the same picture is the same file
        figure.savefig(aside, format=kind[1:], **dated)
    return aside.replace(path)


# ---- panels ------------------------------------------------------------------------------------------------------
def draw_terms(axes: Axes, terms: Owned) -> None:
    """Live pairs in the colour of their term; paler where only a share of a cell is live."""
    palette = np.stack([_rgb(colour) for colour in (COLOURS[SKIPPED], *term_colours(terms))])
    strength = np.where(terms.share > 0, 0.25 + 0.75 * terms.share, 0)[..., None]
    mixed = palette[0] + strength * (palette[terms.owners].astype(np.float64) - palette[0])
    m, n = terms.acsr.m, terms.acsr.n
    image(axes, mixed.round().astype(np.uint8), "the pattern" if terms.exact else "the pattern, by density", (m, n))
    for axis, name in ((axes.yaxis, "query"), (axes.xaxis, "key")):
        axis.set_label_text(name)
        axis.set_major_formatter("{x:,.0f}")


def draw_view(axes: Axes, view: View) -> None:
    """Pairs by class, and what each query tile visits outlined."""
    image(axes, _palette()[view.classes], view.title)
    _order(axes.yaxis, "query", "queries", view.q_steps, view.queries)
    _order(axes.xaxis, "key", "keys", view.k_steps, view.keys)
    edges = [[(c, a), (d, a), (d, b), (c, b), (c, a)] for a, b, c, d in view.boxes]
    _lines(axes, np.array(edges) - 0.5, 0.7)


def _order(axis: Any, one: str, many: str, steps: tuple[int, ...], tokens: Ints) -> None:
    """Label and ticks of an axis; no ticks where tokens are not in their own order."""
    if max(steps) > 1:
        axis.set_label_text(f"{many}, by index modulo {' × '.join(map(str, steps))}")
    elif np.array_equal(tokens, np.arange(tokens.size)):
        axis.set_label_text(one)
        return
    else:
        axis.set_label_text(f"{many}, box after box")
    axis.set_ticks([])


def draw_map(axes: Axes, view: View) -> None:
    """The row of the query in the middle of the view's map: its keys, and what its box reads for it."""
    height, width = view.map
    middle = (height // 2) * width + width // 2
    row = int(np.flatnonzero(view.queries == middle)[0])
    classes = np.empty(height * width, np.int64)
    classes[view.keys] = view.classes[row]
    first, last = next((a, b) for a, b, _, _ in view.boxes if a <= row < b)
    box = np.zeros(height * width, np.bool_)
    box[view.queries[first:last]] = True
    image(axes, _palette()[classes].reshape(height, width, 3), "one query on the map, and what its box reads")
    _lines(axes, _borders(box.reshape(view.map)), 1.6)
    axes.plot([], [], color=INK, linewidth=1.6, label="its box of queries")
    axes.plot([width // 2], [height // 2], "o", color=POINT, markersize=8, markeredgecolor="white", label="the query")
    axes.set_ylabel("row")
    axes.set_xlabel("column")


def _borders(inside: NDBool) -> np.ndarray:
    """Lines (some, 2, 2) around the cells that are True."""
    padded = np.pad(inside, 1)
    below = np.argwhere(padded[1:, 1:-1] != padded[:-1, 1:-1])  # (y, x): between rows y - 1 and y
    right = np.argwhere(padded[1:-1, 1:] != padded[1:-1, :-1])
    lines = [[(x, y), (x + 1, y)] for y, x in below] + [[(x, y), (x, y + 1)] for y, x in right]
    return np.array(lines).reshape(-1, 2, 2) - 0.5


def _lines(axes: Axes, lines: np.ndarray, width: float) -> None:
    from matplotlib.collections import LineCollection

    axes.add_collection(LineCollection(list(lines), colors=INK, linewidths=width, capstyle="projecting"))


def image(axes: Axes, colours: np.ndarray, title: str, size: tuple[int, int] | None = None) -> None:
    """Colours (height, width, 3), stretched over a square panel. size: what the axes count, (height, width) if None."""
    height, width = size or colours.shape[:2]
    axes.imshow(colours, interpolation="nearest", aspect="auto", extent=(-0.5, width - 0.5, height - 0.5, -0.5))
    axes.set_title(title, fontsize=11, color=INK)
    axes.tick_params(labelsize=8, colors=INK, length=2)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set(fontsize=10, color=INK)
    for spine in axes.spines.values():
        spine.set(color=EDGE, linewidth=0.6)


def _legend(figure: Figure, terms: Owned, seen: list[View]) -> None:
    """Terms below the first panel, unless it is plain that there is one; classes of tiles below the others."""
    named = list(zip(term_colours(terms), terms.names, strict=True))
    several = len(named) > 1 or not seen
    if several:
        if len(named) > SHOWN:
            named = [*named[: SHOWN - 1], ("none", f"and {len(named) - SHOWN + 1} more")]
        _entries(figure, [_patch(*pair) for pair in named], GAP + PANEL / 2, 3)
    there = sorted({int(x) for view in seen for x in np.unique(view.classes)}, reverse=True)
    handles = [_patch(COLOURS[i], MEANING[i]) for i in there]
    marks = [handle for axes in figure.axes for handle in axes.get_legend_handles_labels()[0]]
    if handles or marks:
        left = PANEL + GAP if several else 0.0
        width = figure.get_size_inches()[0]
        rows = ceil(len(handles + marks) / ((width - left) // 2.3))  # inches that an entry takes
        _entries(figure, handles + marks, (left + width) / 2, ceil(len(handles + marks) / rows))


def _patch(colour: str, label: str) -> Any:
    from matplotlib.patches import Patch

    return Patch(facecolor=colour, edgecolor="none" if colour == "none" else EDGE, linewidth=0.5, label=label)


def _entries(figure: Figure, handles: list[Any], middle: float, columns: int) -> None:
    """A legend at the bottom around `middle`, in inches."""
    place = (middle / figure.get_size_inches()[0], 0)
    legend = figure.legend(
        handles=handles, loc="lower center", bbox_to_anchor=place, ncols=columns, fontsize=9.5, frameon=False,
        labelcolor=INK, handlelength=1.2, columnspacing=1.4,
    )  # fmt: skip
    legend.set_in_layout(False)


def term_colours(terms: Owned) -> list[str]:
    """Of the kinds 1, 2, ... of `owners`; six colours take turns."""
    count = len(terms.acsr.terms)
    colours = [TERMS[i % len(TERMS)] for i in range(count)] if count > 1 else [INK] * count
    return colours + [REMAINDER] * bool(len(terms.acsr.remainder))


def _palette() -> np.ndarray:
    return np.stack([_rgb(colour) for colour in COLOURS])


def _rgb(colour: str) -> np.ndarray:
    return np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)], np.uint8)
