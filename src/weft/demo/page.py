"""One self-contained page: every pattern of the library drawn, counted, planned, proven, run and timed."""

from __future__ import annotations

import base64
import inspect
import io
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from html import escape
from time import perf_counter
from typing import Any

import numpy as np
import torch

import weft
from weft.bench.origin import machine
from weft.outside import shown
from weft.pattern.algebra import Pattern
from weft.plot import pattern_figure

TOKENS, D = 256, 32
DPI = 80
ROUNDS = 3
CODE = re.compile(r"`([^`]+)`")
ALLOWED = 1e-5  # float32 against float64; outputs are means of numbers near 1
# Name of a library function -> what is drawn, as one would write it at the command line.
SHOWN: dict[str, str] = {
    "full": "full()",
    "nothing": "nothing()",
    "causal": "causal()",
    "window": "causal() & window(left=31)",
    "dilated": "dilated(left=12, right=12, step=4)",
    "periodic_keys": "causal() & periodic_keys(step=8)",
    "strided": "strided(stride=16)",
    "fixed": "fixed(stride=16, summary=2)",
    "sparse_transformer": "sparse_transformer(stride=16, heads=2)",
    "chunks": "causal() & chunks(size=48)",
    "blocks": "blocks(64, [(0, 0), (1, 3), (2, 1), (3, 3)])",
    "documents": "causal() & documents([100, 28, 80, 48])",
    "padding": "padding([256, 150])",
    "prefix": "causal() | prefix(60)",
    "global_tokens": "window(left=12, right=12) | global_tokens(10)",
    "random_blocks": "random_blocks(block=32, count=2)",
    "segments": "segments([96, 160], [[causal(), None], [True, neighborhood((10, 16), (5, 5))]])",
    "longformer": "longformer(window=48, global_tokens=8)",
    "bigbird": "bigbird(block=16)",
    "neighborhood": "neighborhood((16, 16), (5, 5))",
    "per_head": "per_head([causal(), window(left=20, right=20)])",
    "per_batch": "per_batch([chunks(64), full()])",
    "product": "product([causal(), window(left=3, right=3)], (16, 16))",
    "block_diffusion": "block_diffusion(128, 16)",
    "shared_prefix": "shared_prefix([96, 60, 40, 60])",
    "streaming_chunks": "streaming_chunks(16, left=3)",
    "sliding_tile": "sliding_tile((16, 16), (4, 4), (3, 1))",
    "svg_spatial": "svg_spatial(frame=30, width=1, prompt=16)",
    "svg_temporal": "svg_temporal(frame=30, frames=8, width=1, prompt=16)",
    "radial": "radial(frames=16, frame=16)",
    "rotating_anchors": "rotating_anchors(frame=16, window=1, every=5, turn=2)",
    "block_table": "block_table([100, 156], [100, 60, 96], [[True, False, True], [False, True, True]])",
    "tree": "tree([-1, 0, 1, 1, 0, 4, 4], [80, 30, 26, 20, 40, 30, 30])",
    "keys": "keys(40, 200, step=32, width=8)",
    "queries": "queries(40, 200, step=32, width=8)",
    "diagonals": "diagonals(-120, -20, step=25, width=5)",
    "staircase": 'staircase("before", (24, 16), (0, 8))',
    "steps": 'steps("before", [40, 90, 200], [32, 120, 150, 256])',
    "coarse": "coarse(window(left=1, right=1), 24)",
    "folded": "folded(window(left=1, right=1), window(left=2, right=2), 16)",
    "bits": "bits(range(7, 1031), 256, 256)",
    "sized": "sized(causal() & window(left=31), 256, 256)",
    "excerpt": "excerpt(longformer(64, 16), 1024, (512, 768), (480, 736))",
}


@dataclass(frozen=True)
class Entry:
    """One pattern of the page. seconds: one call of attention, best of ROUNDS. error: largest, against float64."""

    name: str
    text: str
    meaning: str
    share: float
    nbytes: int
    table_bytes: int
    plan: str
    seconds: float
    error: float
    picture: str = ""

    @property
    def holds(self) -> bool:
        """Whether the check passed; written so that NaN fails."""
        return self.error <= ALLOWED


def entries(parse: Callable[[str], Pattern], pictures: bool) -> Iterator[Entry]:
    """Every entry, one after the other; raises what planning, verify() and attention() raise."""
    for name, text in SHOWN.items():
        pattern = parse(text)
        q, k, v = _inputs(pattern)
        plan = weft.plan(pattern, q, k, v)
        plan.verify()
        out = weft.attention(q, k, v, pattern)
        call = partial(weft.attention, q, k, v, pattern)
        seconds = min(_seconds(call) for _ in range(ROUNDS))
        acsr = plan.forward[0].plan.acsr
        yield Entry(
            name, text, _meaning(name), plan.nnz / (q.shape[0] * q.shape[1] * TOKENS**2), acsr.nbytes, plan.nbytes,
            str(plan), seconds, float(np.abs(out.numpy() - plan.interpret(q, k, v)[0]).max()),
            _picture(pattern) if pictures else "",
        )  # fmt: skip


def _inputs(pattern: Pattern) -> tuple[torch.Tensor, ...]:
    """q, k, v (B, H, TOKENS, D) for the batch rows and heads that a pattern tells apart."""
    batches, heads = pattern.extent()
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(batches or 1, heads or 1, TOKENS, D, generator=generator) for _ in range(3))


def _seconds(call: Callable[[], Any]) -> float:
    start = perf_counter()
    call()
    return perf_counter() - start


def _meaning(name: str) -> str:
    """The docstring of the library function."""
    return inspect.getdoc(getattr(weft, name)) or ""


def _picture(pattern: Pattern) -> str:
    """A PNG as base64."""
    buffer = io.BytesIO()
    pattern_figure(pattern, TOKENS).savefig(buffer, format="png", dpi=DPI)
    return base64.b64encode(buffer.getvalue()).decode()


# ---- the page --------------------------------------------------------------------------------------------------------
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #22303c; max-width: 68rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.6rem } h2 { font: 600 1.1rem ui-monospace, monospace; margin-top: 3rem }
nav { margin: 1rem 0 } nav a { margin-right: .8rem; white-space: nowrap } a { color: #0072b2 }
img { max-width: 100%; border: 1px solid #e3e5e8; border-radius: 4px }
pre { background: #f3f3f1; padding: .7rem; overflow-x: auto; font-size: .85rem; white-space: pre-wrap }
table { border-collapse: collapse; font-variant-numeric: tabular-nums } td, th { padding: .2rem .9rem .2rem 0 }
th { text-align: left; border-bottom: 1px solid #c3c7cc } td.n, th.n { text-align: right }
.wrong { color: #d55e00; font-weight: 600 } .wide { overflow-x: auto } h2 { overflow-wrap: anywhere }
@media (prefers-color-scheme: dark) {
  :root { color-scheme: dark } body { color: #d5dae0; background: #15181c } pre { background: #22272d }
  a { color: #6cb6ff } th { border-color: #4a525b } img { border-color: #4a525b } .wrong { color: #ff9a56 }
}
"""


def page(found: list[Entry]) -> str:
    """The page as HTML; it loads nothing."""
    here = machine("cpu")
    threads = "1 thread" if here["threads"] == "1" else f"{here['threads']} threads"
    links = " ".join(f'<a href="#{e.name}">{e.name}</a>' for e in found)
    columns = ("live", "format", "tables", "one call", "error")
    heads = "<th>pattern" + "".join(f'<th class="n">{name}' for name in columns) + "<th>check"
    rows = "\n".join(_row(e) for e in found)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>weft: the library of patterns</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">
<style>{STYLE}</style></head><body>
<h1>weft {weft.__version__}: every pattern of the library</h1>
<p>{TOKENS} tokens, D = {D}, float32 on a CPU: {escape(shown(here["machine"]))}, {threads}, torch
{escape(shown(here["torch"]))}.
Every plan is proven by <code>verify()</code>; every output is compared with the plan's own meaning in float64
(allowed: {ALLOWED:g}). Times are the best of {ROUNDS} calls, at a length where they are mostly overhead.</p>
<p><b>format</b>: bytes of the pattern's affine rows (ACSR). <b>tables</b>: bytes of the plan, forward and transposed.
Pictures show the plan for 8 batch rows of 8 heads, whose tiles are smaller; below each is the plan that was run.</p>
<nav>{links}</nav>
<div class="wide"><table><tr>{heads}</tr>
{rows}
</table></div>
{"".join(_section(e) for e in found)}
</body></html>
"""


def _row(entry: Entry) -> str:
    check = "holds" if entry.holds else '<span class="wrong">FAILED</span>'
    cells = (f"{entry.share:.1%}", f"{entry.nbytes:,} B", f"{entry.table_bytes:,} B", f"{entry.seconds * 1e3:.2f} ms",
             f"{entry.error:.1e}")  # fmt: skip
    numbers = "".join(f'<td class="n">{cell}' for cell in cells)
    return f'<tr><td><a href="#{entry.name}">{entry.name}</a>{numbers}<td>{check}</tr>'


def _section(entry: Entry) -> str:
    picture = f'<img alt="{escape(entry.text)}" src="data:image/png;base64,{entry.picture}">' if entry.picture else ""
    meaning = CODE.sub(r"<code>\1</code>", escape(entry.meaning))
    return f"""
<section id="{entry.name}"><h2>{escape(entry.text)}</h2>
<p>{meaning}</p>
{picture}
<pre>{escape(entry.plan)}</pre>
<pre>weft show "{escape(entry.text)}" --size {TOKENS} --tiles</pre></section>
"""
