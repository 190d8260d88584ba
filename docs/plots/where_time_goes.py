"""Draws docs/plots/time-*.svg: what kernels of a forward take, before fusion and after it, a picture a model.

python docs/plots/where_time_goes.py [benchmarks/results/fused-models-parts.csv]

Rows are those that `benchmarks/fused_models.py --profile` writes; of a model and a way the last one counts.
"""

import csv
import sys
from pathlib import Path

COLOURS = {
    "products": "#1f5fbf", "attention": "#8a3ab9", "activations alone": "#e07b00", "norms, sums, the rest": "#2e8b3d",
}  # fmt: skip
# (way, what is said of it) from top to bottom; a model has bars of those that were profiled.
WAYS = (
    ("compile, SDPA", "before: torch.compile, SDPA"),
    ("compile, FlexAttention", "torch.compile, FlexAttention"),
    ("weft.fuse", "after: weft.fuse"),
    ("compile, SDPA, training", "before: torch.compile, SDPA"),
    ("weft.fuse, training", "after: weft.fuse"),
)
LARGE = ("16", "2048")  # batch and tokens
WIDTH, LEFT, RIGHT, TOP, BAR, GAP = 900, 200, 90, 74, 26, 16


def text(x, y, said, size=12, anchor="start", colour="#222"):
    """A line of text."""
    return f'<text x="{x:.1f}" y="{y}" font-size="{size}" text-anchor="{anchor}" fill="{colour}">{said}</text>'


def drawn(title, bars):
    """The picture of bars (what is said, {part: us})."""
    height, longest = TOP + len(bars) * (BAR + GAP) + 10, max(sum(parts.values()) for _, parts in bars)
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif">'
    yield f'<rect width="{WIDTH}" height="{height}" fill="white"/>'
    yield text(12, 24, title, 15)
    for i, (part, colour) in enumerate(COLOURS.items()):
        x = LEFT + 160 * i
        yield f'<rect x="{x}" y="42" width="12" height="12" fill="{colour}"/>'
        yield text(x + 18, 53, part)
    for i, (said, parts) in enumerate(bars):
        yield from bar(said, parts, TOP + i * (BAR + GAP), (WIDTH - LEFT - RIGHT) / longest)
    yield "</svg>"


def bar(said, parts, y, pixels):
    """One way: its parts one after the other, each with its ms where there is room. pixels: of a microsecond."""
    yield text(LEFT - 10, y + 17, said, 12, "end")
    x = LEFT
    for part, colour in COLOURS.items():
        wide = parts[part] * pixels
        yield f'<rect x="{x:.1f}" y="{y}" width="{wide:.1f}" height="{BAR}" fill="{colour}"/>'
        if wide > 34:
            yield text(x + wide / 2, y + 17, f"{parts[part] / 1e3:.1f}", 12, "middle", "white")
        x += wide
    yield text(x + 8, y + 17, f"{sum(parts.values()) / 1e3:.1f} ms")


def bars_of(rows):
    """{model: bars}, of rows at the large size."""
    found = {}
    for row in rows:
        if (row["batch"], row["tokens"]) == LARGE and "," not in row["model"]:  # other masks are in a table
            found.setdefault(row["model"], {})[row["how"]] = {part: float(row[part]) for part in COLOURS}
    for model, ways in found.items():
        for what, own in (("", WAYS[:3]), (" in training", WAYS[3:])):
            bars = [(said, ways[way]) for way, said in own if way in ways]
            if len(bars) > 1:
                yield model + what, bars


def main():
    root = Path(__file__).parents[2]
    source = root / "benchmarks" / "results" / "fused-models-parts.csv"
    with (Path(sys.argv[1]) if len(sys.argv) > 1 else source).open(newline="") as file:
        rows = list(csv.DictReader(file))
    for model, bars in bars_of(rows):
        unit = "a step" if model.endswith("training") else "a forward"
        title = f"{model}, ({', '.join(LARGE)}): what the kernels of {unit} take on an H200"
        name = model.replace(", ", "-").replace(" ", "-").lower()
        Path(__file__).with_name(f"time-{name}.svg").write_text("\n".join(drawn(title, bars)) + "\n")


if __name__ == "__main__":
    main()
