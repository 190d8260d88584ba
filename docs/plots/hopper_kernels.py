"""Draws docs/plots/hopper-kernels.svg: who produces, who consumes, and which barrier is between.

python docs/plots/hopper_kernels.py
"""

from pathlib import Path

WIDTH, TOP = 1000, 46
BOLD = 'fill="#222" font-weight="bold"'
KERNELS = (  # name, producer, channels (what, stages, full after, free after), consumers, what leaves
    (
        "fwd", "1 warp, TMA",
        (("Q", "2 a consumer", "bytes", "its consumer"), ("K, V", "8", "bytes", "4 consumers")),
        "4 groups: QK, exp2, PV", "out by TMA, lse",
    ),
    (
        "fwd_short", "4 warps, TMA",
        (("metadata", "1", "with Q", "4 consumers"), ("Q", "2 a consumer", "bytes", "its consumer"),
         ("K, V", "8", "bytes", "4 consumers")),
        "4 groups, one code", "out by TMA, lse",
    ),
    (
        "bwd_dkdv", "4 warps, cp.async",
        (("K, V", "2 a consumer", "128 threads", "its consumer"), ("Q, dO, stats", "4", "128 threads", "2 consumers")),
        "2 groups: 6 products", "dK, dV by stores",
    ),
    (
        "bwd_summed", "1 warp, TMA",
        (("K, V", "2, V: 1", "bytes", "2 consumers"), ("Q, dO, stats", "2", "bytes, 32 lanes", "2 consumers"),
         ("ds", "2", "2 consumers", "2 consumers"), ("dQ", "1", "2 consumers", "a warp that adds")),
        "2 groups: 5 products", "dK, dV by stores; dQ added",
    ),
    (
        "bwd_fused", "4 warps, TMA",
        (("Q, dO, O", "3, O: 2", "bytes", "3 consumers"), ("K, V", "5", "bytes", "dV out, last dQ"),
         ("ds", "2", "3 consumers", "the one that makes dQ")),
        "3 groups, one code", "dQ, dK, dV by TMA",
    ),
    (
        "bwd_sparse_keys", "2 warps, TMA",
        (("K, V", "1", "bytes", "2 consumers"), ("Q, dO, dQ", "2 a consumer", "bytes, 32 lanes", "its consumer")),
        "2 groups: 5 products", "dQ by TMA, partial sums",
    ),
)  # fmt: skip


def text(x, y, said, size=12, anchor="start", style='fill="#222"'):
    """A line of text."""
    return f'<text x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}" {style}>{said}</text>'


def box(at, size, fill):
    """A rectangle with rounded corners."""
    (x, y), (w, h) = at, size
    return f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="5" fill="{fill}" stroke="#888"/>'


def arrow(x, y, to):
    """From left to right."""
    return f'<line x1="{x}" y1="{y}" x2="{to}" y2="{y}" stroke="#555" marker-end="url(#head)"/>'


def kernel(y, name, producer, channels, consumers, leaves):
    """One kernel: producer, its channels, consumers, results."""
    height = 30 * len(channels) + 14
    yield text(10, y + height / 2 + 4, name, 13, style=BOLD)
    yield box((130, y), (130, height), "#dbe9f6")
    yield text(195, y + height / 2 + 4, producer, anchor="middle")
    for n, (what, stages, full, free) in enumerate(channels):
        at = y + 7 + 30 * n
        if what not in ("ds", "dQ"):  # which consumers leave for each other, and for who adds it
            yield arrow(260, at + 13, 288)
        yield box((290, at), (380, 26), "#fdf3d8")
        yield text(298, at + 17, f"{what}: {stages}", 11)
        yield text(662, at + 17, f"full: {full}; empty: {free}", 10, "end", 'fill="#666"')
        yield arrow(670, at + 13, 698)
    yield box((700, y), (150, height), "#dff0dc")
    yield text(775, y + height / 2 + 4, consumers, 11, "middle")
    yield text(856, y + height / 2 + 4, leaves, 11)


def drawn():
    """The whole picture."""
    parts, y = [], TOP
    for one in KERNELS:
        parts += kernel(y, *one)
        y += 30 * len(one[2]) + 34
    heads = ((195, "producer"), (480, "channel: stages; barriers"), (775, "consumers"), (915, "results"))
    parts += [text(x, 26, said, 13, "middle", BOLD) for x, said in heads]
    marker = (
        '<defs><marker id="head" markerWidth="8" markerHeight="8" refX="7" refY="3" orient="auto">'
        '<path d="M0,0 L7,3 L0,6 z" fill="#555"/></marker></defs>'
    )
    lines = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y}" viewBox="0 0 {WIDTH} {y}" '
        f'font-family="sans-serif">\n<rect width="100%" height="100%" fill="#fff"/>\n{marker}\n{lines}\n</svg>\n'
    )


if __name__ == "__main__":
    Path(__file__).with_name("hopper-kernels.svg").write_text(drawn())
