"""Pictures of patterns and of the tiles that a plan visits.

`pattern_figure` draws one pattern. On the left is which query sees which key, by terms. Then come the tiles of its
plan, in token order and in every other order in which a nest takes queries and keys. For patterns on a grid one query
follows, with what its box reads. Meant for small instances: a picture of a million tokens shows no tile. `term_figure`
draws the terms alone, at any length: of a large pattern it shows how dense each place is.

matplotlib is loaded when the first figure is made, never before.
"""

from __future__ import annotations

import textwrap
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.acsr.picture import Owned, owned
from weft.errors import OptionError, UnsupportedError, install_line
from weft.outside import shown
from weft.pattern.algebra import Pattern
from weft.pattern.relation import NDBool
from weft.planning.attention_plan import plan_attention
from weft.planning.problem import Problem
from weft.planning.tiles import TilePlan
from weft.plot.tiles import MEANING, SKIPPED, View, views

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LIMIT = 1 << 22  # pairs in one picture
MOST = 10_000  # characters of a title, before it is shortened to its room
FORMATS = (".png", ".svg")
# Inches: side of a panel where they are two a row, where they are three, space between two, above and below them. A
# page of text is two large panels wide, so letters stay legible there.
PANEL, SMALL, GAP, TOP, BOTTOM = 4.6, 3.4, 0.75, 1.25, 0.95
THIN = 0.12  # of a box's narrower side: the line around it, so that narrow boxes keep their colour

# Okabe and Ito's blue and orange, told apart by every kind of colour vision; a light orange for computed in vain.
COLOURS = ("#f3f3f1", "#c3c7cc", "#fbe0ae", "#e69f00", "#0072b2")
INK, EDGE, POINT = "#22303c", "#9aa3ab", "#d55e00"
# Terms: ink for a single one, else the colours of Okabe and Ito that stand for no tile; the remainder is grey.
TERMS = ("#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b8a400", "#5a3d8c")
REMAINDER = "#8a8f94"
SHOWN = 6  # entries of the legend of terms
DENSE = 230  # cells a side of a picture that cannot show every pair: two pixels and more each, so that one cell is seen


# ---- figures -----------------------------------------------------------------------------------------------------
def pattern_figure(
    pattern: Pattern, m: int, n: int | None = None, note: str = "", at: tuple[int, int] = (0, 0)
) -> Figure:
    """The pattern at (m, n) tokens and the forward plan of one batch row and head, `at`, in one figure.

    The plan is the one for 8 batch rows of 8 heads with D = 64 in float32. note: a few words that follow the sizes.
    """
    m, n = _sizes(pattern, m, n, at)
    if m * n > LIMIT:
        raise OptionError(
            f"a picture of {m} x {n} tokens",
            f"it has more than {LIMIT} pairs",
            "draw a smaller instance of the pattern",
        )
    one = pattern.at(*at)
    plan = planned(one, m, n)
    seen = views(plan)
    gridded = [view for view in seen if view.grid]
    count = 1 + len(seen) + len(gridded[:1])
    figure, axes = (
        panels(count, 2, BOTTOM + 0.4) if count == 4 else panels(count)
    )  # two a row: a narrower, higher legend
    terms = owned(plan.acsr, m, n)
    draw_terms(axes[0], terms)
    for axis, view in zip(axes[1:], seen, strict=False):
        draw_view(axis, view)
    if gridded:
        draw_map(axes[-1], gridded[0])
    headline(figure, str(pattern), _facts(plan, note, which(pattern, at)))
    _legend(figure, terms, seen)
    return figure


def _sizes(pattern: Pattern, m: int, n: int | None, at: tuple[int, int]) -> tuple[int, int]:
    """The lengths of a picture, n defaulting to m, that has something to show of the batch row and the head, `at`."""
    m, n = pattern._sizes(m, n, *at)
    if m * n == 0:
        raise OptionError(f"a picture of {m} x {n} tokens", "it has no pair", "pass lengths of 1 or more")
    return m, n


def which(pattern: Pattern, at: tuple[int, int]) -> str:
    """The batch row and the head, `at`, in words; of those that the pattern does not tell apart, nothing."""
    named = zip(("batch row", "head"), at, pattern.extent(), strict=True)
    return ", ".join(f"{name} {index} of {count}" for name, index, count in named if count is not None)


def planned(one: Pattern, m: int, n: int) -> TilePlan:
    """The plan that pictures show."""
    return plan_attention(one, Problem(8, 8, 8, m, n, 64, 64)).forward[0].plan


def term_figure(pattern: Pattern, m: int, n: int | None = None, at: tuple[int, int] = (0, 0)) -> Figure:
    """The pattern at (m, n) tokens by the terms of one batch row and head, `at`; by density beyond LIMIT pairs."""
    m, n = _sizes(pattern, m, n, at)
    acsr = pattern.acsr(m, n, *at)
    cells = (m, n) if m * n <= LIMIT else (DENSE, DENSE)
    terms = owned(acsr, *cells)
    figure, (axes,) = panels(1)
    draw_terms(axes, terms)
    share = f"{acsr.nnz / max(1, m * n):.2%} live"
    facts = [f"{m:,} × {n:,} tokens", which(pattern, at), share, f"{acsr.nbytes:,} bytes"]
    headline(figure, str(pattern), "    ".join(filter(None, facts)))
    _legend(figure, terms, [])
    return figure


def _facts(plan: TilePlan, *notes: str) -> str:
    m, n = plan.acsr.m, plan.acsr.n
    facts = [
        ", ".join(filter(None, [f"{m} × {n} tokens", *notes])),
        f"{plan.acsr.nnz / max(1, m * n):.1%} of all pairs live, {plan.visited / max(1, m * n):.1%} computed",
        f"{plan.tiles} query tile{'' if plan.tiles == 1 else 's'} for 8 × 8 heads",
        f"{plan.nbytes} bytes of tables",
    ]
    return "    ".join(facts)


def panels(count: int, across: int = 3, bottom: float = BOTTOM) -> tuple[Figure, list[Axes]]:
    """A figure with `count` square panels, `across` a row, a headline above and `bottom` inches for a legend below."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as missing:
        raise UnsupportedError("draw a picture", f"matplotlib: {missing}", install_line("plot")) from missing

    columns, rows = min(count, across), ceil(count / across)
    side = PANEL if columns < 3 else SMALL
    # A figure of its own, not pyplot's: nothing global is touched and no display is needed.
    width, height = columns * (side + GAP) + 0.25, TOP + rows * (side + GAP) - GAP + bottom
    figure = Figure(figsize=(width, height), dpi=110, facecolor="white")
    FigureCanvasAgg(figure)
    places = [(GAP + i % columns * (side + GAP), bottom + (rows - 1 - i // columns) * (side + GAP))
              for i in range(count)]  # fmt: skip
    return figure, [figure.add_axes((x / width, y / height, side / width, side / height)) for x, y in places]


def headline(figure: Figure, title: str, below: str) -> None:
    """A title in bold, shortened to two lines if need be, and one line below it."""
    width, height = figure.get_size_inches()
    text = "\n".join(textwrap.wrap(shown(title, MOST), int(width * 9), max_lines=2, placeholder=" …"))
    middle = 1 - 0.4 / height if "\n" not in text else 1 - 0.34 / height
    style: dict[str, Any] = {"ha": "center", "va": "center", "color": INK}
    figure.text(0.5, middle, text, fontsize=12, fontweight="bold", family="monospace", parse_math=False, **style)
    figure.text(0.5, 1 - 0.74 / height, below, fontsize=10, **style)


def save(figure: Figure, path: Path) -> Path:
    """Writes the figure as what its name ends in, aside first, so that a file with this name is always whole."""
    kind = path.suffix.lower()
    if kind not in FORMATS:
        wrong = f"its name ends in none of {', '.join(FORMATS)}"
        raise OptionError(f"a picture in {path}", wrong, f"end its name in {' or '.join(FORMATS)}")
    from matplotlib import rc_context

    aside = path.with_name(path.name + ".part")
    dated: dict[str, Any] = {"metadata": {"Date": None}} if kind == ".svg" else {}
    with rc_context({"svg.hashsalt": "weft"}):  # the same picture is the same file
        figure.savefig(aside, format=kind[1:], **dated)
    return aside.replace(path)


def _root(axes: Axes) -> Figure:
    """The figure that a panel is of."""
    from matplotlib.figure import Figure

    found = axes.figure
    assert isinstance(found, Figure)
    return found


# ---- panels ------------------------------------------------------------------------------------------------------
def draw_terms(axes: Axes, terms: Owned) -> None:
    """Live pairs in the colour of their term; paler where only a share of a cell is live."""
    palette = np.stack([_rgb(colour) for colour in (COLOURS[SKIPPED], *term_colours(terms))])
    strength = np.where(terms.share > 0, 0.4 + 0.6 * terms.share, 0)[..., None]
    mixed = palette[0] + strength * (palette[terms.owners].astype(np.float64) - palette[0])
    m, n = terms.acsr.m, terms.acsr.n
    image(axes, mixed.round().astype(np.uint8), "the pattern" if terms.exact else "the pattern, by density", (m, n))
    for axis, name in ((axes.yaxis, "query"), (axes.xaxis, "key")):
        axis.set_label_text(name)
        axis.set_major_formatter("{x:,.0f}")


def draw_view(axes: Axes, view: View) -> None:
    """Pairs by class, and what each query tile visits outlined."""
    image(axes, _palette()[view.classes], view.title)
    for axis, one, order in zip((axes.yaxis, axes.xaxis), ("query", "key"), view.orders, strict=True):
        axis.set_label_text(f"{'queries' if one == 'query' else 'keys'}, {order}" if order else one)
        if order:
            axis.set_ticks([])  # tokens are not in their own order
    edges = [[(c, a), (d, a), (d, b), (c, b), (c, a)] for a, b, c, d in view.boxes]
    scale = axes.get_position().width * _root(axes).get_size_inches()[0] * 72 * THIN
    m, n = view.classes.shape
    widths = [min(0.7, scale * (b - a) / m, scale * (d - c) / n) for a, b, c, d in view.boxes]
    _lines(axes, np.array(edges) - 0.5, widths)


def draw_map(axes: Axes, view: View) -> None:
    """The query in the middle of the view's grid: its keys, and what its box reads for it; in its plane of a volume."""
    middle = tuple(length // 2 for length in view.grid)
    row = int(np.flatnonzero(view.queries == np.ravel_multi_index(middle, view.grid))[0])
    classes = np.empty(view.keys.size, np.int64)
    classes[view.keys] = view.classes[row]
    first, last = next((a, b) for a, b, _, _ in view.boxes if a <= row < b)
    box = np.zeros(view.queries.size, np.bool_)
    box[view.queries[first:last]] = True
    plane = middle[:-2]
    where = f"one query and what its box reads{f', plane {plane[0]}' if plane else ''}"
    image(axes, _palette()[classes.reshape(view.grid)[plane]], where)
    _lines(axes, _borders(box.reshape(view.grid)[plane]), 1.6)
    axes.plot([], [], color=INK, linewidth=1.6, label="its box of queries")
    axes.plot([middle[-1]], [middle[-2]], "o", color=POINT, markersize=8, markeredgecolor="white", label="the query")
    axes.set_ylabel("row")
    axes.set_xlabel("column")


def _borders(inside: NDBool) -> np.ndarray:
    """Lines (some, 2, 2) around the cells that are True."""
    padded = np.pad(inside, 1)
    below = np.argwhere(padded[1:, 1:-1] != padded[:-1, 1:-1])  # (y, x): between rows y - 1 and y
    right = np.argwhere(padded[1:-1, 1:] != padded[1:-1, :-1])
    lines = [[(x, y), (x + 1, y)] for y, x in below] + [[(x, y), (x, y + 1)] for y, x in right]
    return np.array(lines).reshape(-1, 2, 2) - 0.5


def _lines(axes: Axes, lines: np.ndarray, widths: float | list[float]) -> None:
    """Whole also along the edges of the panel."""
    from matplotlib.collections import LineCollection

    found = LineCollection(list(lines), colors=INK, linewidths=widths, capstyle="projecting", clip_on=False)
    axes.add_collection(found)


def image(axes: Axes, colours: np.ndarray, title: str, size: tuple[int, int] | None = None) -> None:
    """Colours (height, width, 3), stretched over a square panel. size: what the axes count, (height, width) if None."""
    height, width = size or colours.shape[:2]
    axes.imshow(colours, interpolation="nearest", aspect="auto", extent=(-0.5, width - 0.5, height - 0.5, -0.5))
    axes.set_title(shown(title), fontsize=11, color=INK, parse_math=False)
    axes.tick_params(labelsize=8, colors=INK, length=2)
    axes.locator_params(integer=True, min_n_ticks=1)  # tokens are counted, also where there is one
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set(fontsize=10, color=INK)
    for spine in axes.spines.values():
        spine.set(color=EDGE, linewidth=0.6)


def _legend(figure: Figure, terms: Owned, seen: list[View]) -> None:
    """Terms below the first panel, unless it is plain that there is one; classes of tiles below the others."""
    labels = [f"{name}: {_short(pairs)}" for name, pairs in terms.pairs.items()]
    named = list(zip(term_colours(terms), labels, strict=True))
    several = len(named) != len(terms.acsr.terms) or len(named) > 1 or not seen
    side = figure.axes[0].get_position().width * figure.get_size_inches()[0]
    if several:
        if len(named) > SHOWN:
            named = [*named[: SHOWN - 1], ("none", f"and {len(named) - SHOWN + 1} more")]
        _entries(figure, [_patch(*pair) for pair in named], GAP + side / 2, 3)
    there = sorted({int(x) for view in seen for x in np.unique(view.classes)}, reverse=True)
    handles = [_patch(COLOURS[i], MEANING[i]) for i in there]
    marks = [handle for axes in figure.axes for handle in axes.get_legend_handles_labels()[0]]
    if handles or marks:
        left = side + GAP if several else 0.0
        width = figure.get_size_inches()[0]
        rows = ceil(len(handles + marks) / ((width - left) // 2.3))  # inches that an entry takes
        _entries(figure, handles + marks, (left + width) / 2, ceil(len(handles + marks) / rows))


def _short(count: int) -> str:
    """A number as a legend has room for it."""
    for unit, letter in ((10**12, "T"), (10**9, "G"), (10**6, "M")):
        if count >= unit:
            return f"{count / unit:,.1f} {letter}"
    return f"{count:,}"


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
