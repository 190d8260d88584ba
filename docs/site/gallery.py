"""The pages of patterns: to their prose and formula it adds the picture, the counts and the link to the reference.

What is drawn is `weft.demo.page.SHOWN`, so the page that `weft demo --html` writes shows the same; every pattern there
must have a page, and the other way round.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

from pages import PageError, blocks

import weft
from weft import plot
from weft.acsr.format import Acsr
from weft.acsr.picture import owned
from weft.cli.show import own_size
from weft.demo.page import SHOWN
from weft.pattern.algebra import Pattern
from weft.pattern.parse import parse

TOKENS = 256
LENGTHS = (TOKENS, 1 << 14, 1 << 20)
COLUMNS = 4  # of the index
CALL = re.compile(r"(?=\b(?!range[(])[a-z_]+[(])")  # where the name of a called function begins


def finished(page: str, name: str, folder: Path) -> str:
    """The page of a pattern, whose first block makes it, with its counts and with pictures, drawn into the folder."""
    pattern = parse(SHOWN[name])
    at = sparsest(pattern)
    plot.save(plot.pattern_figure(pattern, TOKENS, at=at), folder / f"{name}-tiles.svg")
    _thumbnail(pattern.acsr(TOKENS, None, *at), folder / f"{name}-small.png")
    first, *_ = blocks(page)
    if f"pattern = {CALL.sub('weft.', SHOWN[name])}\n" not in first.body:
        raise PageError(f"docs/patterns/{name}.md: its pattern is not the one that is drawn, {SHOWN[name]}")
    return page[: first.last] + _picture(name, pattern, at) + page[first.last :] + _counts(pattern, at)


def sparsest(pattern: Pattern) -> tuple[int, int]:
    """The batch row and head with the fewest live pairs: of those that differ, the one worth a picture."""
    dense = pattern.to_dense(TOKENS)
    pairs = dense.reshape(-1, *dense.shape[-2:]).sum(axis=(1, 2))
    return divmod(int(pairs.argmin()), pattern.extent()[1] or 1)


def _thumbnail(acsr: Acsr, path: Path) -> None:
    """The terms alone, without axes."""
    figure, (axes,) = plot.panels(1)
    plot.draw_terms(axes, owned(acsr, TOKENS, TOKENS))
    axes.set_axis_off()
    axes.set_title("")
    axes.set_position((0, 0, 1, 1))
    figure.set_size_inches(1, 1)
    figure.savefig(path, dpi=TOKENS)


def _picture(name: str, pattern: Pattern, at: tuple[int, int]) -> str:
    text, which = SHOWN[name], plot.which(pattern, at)
    drawn = f"Picture and counts are of {which}, counted from 0. " if which else ""
    return f"""
![{text}, at {TOKENS} tokens: its terms, and the tiles of its plan]({name}-tiles.svg)

{drawn}Draw it at sizes of your own: `weft show "{text}" --tiles`.
{_reference(name)}
"""


def _counts(pattern: Pattern, at: tuple[int, int]) -> str:
    return f"""
## What weft makes of it

```text
{pattern.acsr(TOKENS, None, *at)}
```

{_table(pattern, at)}"""


def _table(pattern: Pattern, at: tuple[int, int]) -> str:
    """What the format takes, at lengths that the pattern has a meaning for."""
    lengths = LENGTHS if own_size(pattern) is None else LENGTHS[:1]
    if len(pattern.acsr(TOKENS, None, *at).remainder):
        lengths = lengths[:2]  # a list of blocks grows with the length
    rows = ["| tokens | live pairs | of all | terms | bytes | of them the remainder |",
            "| ---: | ---: | ---: | ---: | ---: | ---: |"]  # fmt: skip
    for length in lengths:
        acsr = pattern.acsr(length, None, *at)
        numbers = f"{acsr.nnz:,} | {acsr.nnz / length**2:.3%} | {len(acsr.terms)} | {acsr.nbytes:,}"
        rows.append(f"| {length:,} | {numbers} | {acsr.remainder.nbytes:,} |")
    return "\n".join(rows) + "\n"


def _reference(name: str) -> str:
    """The arguments, and where they are described."""
    parameters: Any = inspect.signature(getattr(weft, name)).parameters.values()
    arguments = ", ".join(str(parameter.replace(annotation=parameter.empty)) for parameter in parameters)
    return f"The contract of `{name}({arguments})` is in the reference: {{py:func}}`weft.{name}`."


def index() -> str:
    """The pictures of all patterns, each a link to its page."""
    lines = ["````{list-table}", ":class: gallery", ""]
    names = list(SHOWN) + [""] * (-len(SHOWN) % COLUMNS)
    for number, name in enumerate(names):
        cell = f"[![{name}]({name}-small.png)]({name}.md) [`{name}`]({name}.md)" if name else ""
        lines.append(f"{'  -' if number % COLUMNS else '* -'} {cell}".rstrip())
    return "\n".join([*lines, "````"])
