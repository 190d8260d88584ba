"""Draws the pictures of docs/kernels.md and of its families: what each program reads, does and leaves.

python docs/plots/kernel_families.py
"""

from pathlib import Path

from hopper_kernels import BOLD, arrow, box, text

READ, TABLE, WORK, MADE, NONE = "#dbe9f6", "#fdf3d8", "#dff0dc", "#f3dfe8", "#f4f4f4"
GREY = 'fill="#666"'


def labelled(at, size, fill, lines):
    """A box with its first line in bold and the others below it."""
    (x, y), (w, h) = at, size
    yield box(at, size, fill)
    top = y + h / 2 - 7 * (len(lines) - 1) + 4
    for n, said in enumerate(lines):
        yield text(x + w / 2, top + 14 * n, said, 12 if n == 0 else 11, "middle", BOLD if n == 0 else GREY)


def chain(y, boxes, width=150, height=56, gap=24, x=10):
    """Boxes from left to right with arrows between them; each is (fill, lines)."""
    for n, (fill, lines) in enumerate(boxes):
        at = x + n * (width + gap)
        yield from labelled((at, y), (width, height), fill, lines)
        if n:
            yield arrow(at - gap, y + height / 2, at - 2)


def path():
    """From a plan to machine code."""
    yield from chain(
        34,
        [
            (READ, ("AttentionPlan", "tiles, alternatives", "planning/")),
            (WORK, ("select, configure", "strides, options", "KernelSpec")),
            (WORK, ("programs/", "waves, grids, slots", "LaunchProgram")),
            (WORK, ("entry + Config", "calls jit fragments", "Source")),
            (WORK, ("compile/", "Triton, ptxas, checks", "machine code")),
        ],
    )
    yield from chain(
        118,
        [
            (TABLE, ("tables/", "pack, batches", "int32 vector")),
            (MADE, ("torch/bind, jax/gpu/bind", "tensors, a stream", "launches")),
        ],
        width=324,
        gap=24,
        x=184,
    )  # fmt: skip
    yield '<line x1="781" y1="92" x2="781" y2="116" stroke="#555" marker-end="url(#head)"/>'
    yield '<line x1="433" y1="92" x2="433" y2="116" stroke="#555" marker-end="url(#head)"/>'
    yield text(
        10, 22, "a plan is made once; a program once for its strides and options; a kernel once for its content", 12
    )


def grid_of_tiles(x, y, rows, size=22):
    """Tiles that rows of tiles visit: e for an edge, f for a full one, a point for an empty one."""
    for r, line in enumerate(rows):
        for c, kind in enumerate(line):
            fill = {"e": "#f0b96b", "f": "#7fb37a", ".": NONE}[kind]
            yield box((x + c * size, y + r * size), (size - 2, size - 2), fill)


def tile():
    """A program of tiles, and the launches of a backward."""
    yield text(10, 22, "one program: a tile of queries stays, key tiles are walked", 13, style=BOLD)
    yield from grid_of_tiles(10, 40, ("ee......", "effe....", ".effe...", "..effe..", "...effe."))
    yield text(10, 168, "orange: a tile with an edge, masked;", 11, style=GREY)
    yield text(10, 184, "green: full; grey: empty, never visited", 11, style=GREY)
    steps = [
        (TABLE, ("member, item", "which head, which tile", "places")),
        (READ, ("rows that stay", "Q in registers", "bounds of rows")),
        (WORK, ("each tile", "load, product, mask,", "weights, product")),
        (MADE, ("epilogue", "divide, merge by lse", "out, lse")),
    ]
    yield from chain(64, steps, width=168, height=70, gap=20, x=226)
    yield text(602, 152, "for each key tile of each part", 11, style=GREY)
    yield text(
        10,
        224,
        "a backward: launches in turn; on sm_90 and later each begins while the one before ends",
        13,
        style=BOLD,
    )
    yield from chain(
        238,
        [
            (READ, ("bwd_dq", "tiles of queries", "walks keys")),
            (TABLE, ("Stats, Delta", "-lse / scale, -delta", "of each query")),
            (READ, ("bwd_dkdv", "tiles of keys", "walks queries by head")),
            (TABLE, ("float32 sums", "only where waves", "share rows")),
            (MADE, ("convert", "times scale,", "to the dtype")),
        ],
        width=166,
        height=62,
        gap=24,
    )  # fmt: skip


def split_kv():
    """Shares of the keys of a row, and the kernel that combines them."""
    yield text(10, 22, "one row, or the query heads that share its keys", 13, style=BOLD)
    yield from labelled((10, 36), (110, 178), READ, ("q", "rows of a program", "stay in registers"))
    for n in range(4):
        y = 36 + 46 * n
        yield arrow(122, y + 20, 168)
        yield from labelled(
            (170, y), (250, 40), WORK, (f"program {n}: share {n} of the keys", "tiles of k, v; online softmax")
        )
        yield arrow(422, y + 20, 468)
        yield from labelled((470, y), (190, 40), TABLE, (f"Work[{n}]", "lse, mean of values"))
        yield arrow(662, y + 20, 708)
    yield from labelled(
        (710, 36), (140, 178), MADE, ("combine", "one program a row", "weights by lse", "sink, out, lse")
    )
    yield text(170, 236, "shares are equal to one tile; a share without keys has lse -inf and weight 0", 11, style=GREY)


def cpu():
    """What a launch becomes on a CPU."""
    yield from labelled((10, 26), (130, 172), READ, ("a launch", "of the plan"))
    ways = (
        ("rectangles, triangles", "flash: torch's fused attention over strided views"),
        ("a run that slides along a line", "lines: one batch over overlapping views"),
        ("grids, other lines, blocks", "boxes: equal tiles, staged, one batch"),
    )
    for n, (what, how) in enumerate(ways):
        y = 26 + 62 * n
        yield arrow(142, y + 24, 188)
        yield from labelled((190, y), (210, 48), TABLE, (what,))
        yield arrow(402, y + 24, 438)
        yield from labelled((440, y), (310, 48), WORK, (how,))
        yield arrow(752, y + 24, 798)
    yield from labelled((800, 26), (150, 172), MADE, ("merge by lse", "where rows are", "visited again"))


def drawn(parts, width, height):
    """A picture."""
    marker = (
        '<defs><marker id="head" markerWidth="8" markerHeight="8" refX="7" refY="3" orient="auto">'
        '<path d="M0,0 L7,3 L0,6 z" fill="#555"/></marker></defs>'
    )
    lines = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif">\n<rect width="100%" height="100%" fill="#fff"/>\n{marker}\n{lines}\n</svg>\n'
    )


PICTURES = {
    "kernels-path": (path, 880, 190), "kernels-tile": (tile, 980, 312), "kernels-split-kv": (split_kv, 870, 250),
    "kernels-cpu": (cpu, 970, 216),
}  # fmt: skip

if __name__ == "__main__":
    for name, (parts, width, height) in PICTURES.items():
        Path(__file__).with_name(f"{name}.svg").write_text(drawn(parts(), width, height))
