"""Draws docs/plots/overlap-h200.svg: kernels and exchanges of each rank, side by side in time.

python docs/plots/overlap.py [benchmarks/results/overlap-h200.csv]

The intervals are those that `benchmarks/scale_out.py --profile` writes.
"""

import csv
import sys
from pathlib import Path

WIDTH, LEFT, LANE, GAP, TOP = 1000, 150, 16, 14, 40
COLOURS = {"exchange": "#d95f02", "attention": "#1b6ca8", "copies, merging": "#9ecae1"}


def kind_of(name):
    """What a kernel is for."""
    if "nccl" in name.lower():
        return "exchange"
    return "attention" if name.startswith("weft_") else "copies, merging"


def text(x, y, said, size=12, anchor="start"):
    """A line of text."""
    return f'<text x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}" fill="#222">{said}</text>'


def scale_bar(last, y):
    """The time axis, in milliseconds."""
    yield f'<line x1="{LEFT}" y1="{y}" x2="{WIDTH - 20}" y2="{y}" stroke="#555"/>'
    step = next(x for x in (0.5, 1, 2, 5, 10, 20, 50, 100) if last / 1e3 / x <= 12)
    for i in range(int(last / 1e3 / step) + 1):
        x = LEFT + (WIDTH - 20 - LEFT) * i * step * 1e3 / last
        yield f'<line x1="{x:.1f}" y1="{y}" x2="{x:.1f}" y2="{y + 5}" stroke="#555"/>'
        yield text(f"{x:.1f}", y + 18, f"{i * step:g} ms", 11, "middle")


def drawn(rows):
    """The picture of intervals (rank, name, begin, end), microseconds."""
    ranks, last = sorted({rank for rank, *_ in rows}), max(end for *_, end in rows)
    height = TOP + len(ranks) * (2 * LANE + GAP) + 40
    style = 'font-family="sans-serif"'
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" {style}>'
    yield f'<rect width="{WIDTH}" height="{height}" fill="white"/>'
    for i, (kind, colour) in enumerate(COLOURS.items()):
        yield f'<rect x="{LEFT + 160 * i}" y="10" width="12" height="12" fill="{colour}"/>'
        yield text(LEFT + 160 * i + 18, 21, kind)
    for i, rank in enumerate(ranks):
        y = TOP + i * (2 * LANE + GAP)
        yield text(12, y + 12, f"GPU {rank}: kernels")
        yield text(12, y + LANE + 12, "exchange")
        for of, name, begin, end in rows:
            kind = kind_of(name)
            if of == rank:
                x, wide = LEFT + (WIDTH - 20 - LEFT) * begin / last, (WIDTH - 20 - LEFT) * (end - begin) / last
                lane = y + LANE * (kind == "exchange")
                yield (
                    f'<rect x="{x:.2f}" y="{lane}" width="{max(wide, 0.3):.2f}" height="{LANE - 3}" '
                    f'fill="{COLOURS[kind]}"/>'
                )
    yield from scale_bar(last, height - 32)
    yield "</svg>"


def main():
    root = Path(__file__).parents[2]
    source = Path(sys.argv[1]) if len(sys.argv) > 1 else root / "benchmarks" / "results" / "overlap-h200.csv"
    with source.open() as file:
        found = list(csv.DictReader(file))
    rows = [(int(x["rank"]), x["name"], float(x["begin_us"]), float(x["end_us"])) for x in found]
    Path(__file__).with_name("overlap-h200.svg").write_text("\n".join(drawn(rows)) + "\n")


if __name__ == "__main__":
    main()
