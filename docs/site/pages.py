"""Runs the code of a page of Markdown, in order and in one namespace, and puts below each block what it printed.

`python` blocks are executed, `sh` blocks hold commands of weft, one a line. Where a `text` block follows, it is the
output that was promised and must be the output that came. A block whose first line is `# not run here: REASON` is left
alone; the reason is there for readers. Pictures that a block writes are shown below it.

A page that begins with `<!-- needs: MODULE ... -->` is left alone where a module is not installed, and says so. So is a
block whose first line is `# needs: MODULE ...`.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from click.testing import CliRunner

from weft.cli import main

NEEDS = re.compile(r"\A(?:<!-- needs: (.*) -->|# needs: (.*))\n")
FENCE = re.compile(r"^```([\w{}-]*)[^\n]*\n(.*?)^```[ ]*$\n?", re.MULTILINE | re.DOTALL)
SKIPPED = "# not run here: "
PICTURES = (".svg", ".png")


class PageError(Exception):
    """A block failed, or printed something else than the page says."""


@dataclass(frozen=True)
class Block:
    """One fenced block. first, last: the characters it takes, fences included; line: its first line, from 1."""

    language: str
    body: str
    first: int
    last: int
    line: int

    @property
    def skipped(self) -> str:
        """Why it is not run, or an empty string."""
        head = self.body.split("\n", 1)[0]
        return head.removeprefix(SKIPPED) if head.startswith(SKIPPED) else ""

    @property
    def runs(self) -> bool:
        """Whether it is run here."""
        return not self.skipped and not missing(self.body)


def blocks(text: str) -> Iterator[Block]:
    """Every fenced block of a page."""
    for found in FENCE.finditer(text):
        line = text.count("\n", 0, found.start()) + 2
        yield Block(found[1], found[2], found.start(), found.end(), line)


def missing(text: str) -> list[str]:
    """Modules that a page, or a block, needs and that are not installed."""
    needed = NEEDS.match(text)
    names = (needed[1] or needed[2]).split() if needed else []
    return [module for module in names if find_spec(module) is None]


def execute(text: str, name: str, folder: Path) -> str:
    """The page with what its blocks print; `folder` is where they run and write."""
    absent = missing(text)
    text = NEEDS.sub("", text)  # a page's; what a block needs is shown to its readers
    if absent:
        heading, _, rest = text.partition("\n")
        why = f"*The code of this page was not run here, since {' and '.join(absent)} are not installed.*"
        return f"{heading}\n\n{why if len(absent) > 1 else why.replace(' are ', ' is ')}\n{rest}"
    # Dynamo imports it by its name, and keeps it: each page has its own
    module = ModuleType("__page_" + re.sub(r"\W", "_", name))
    sys.modules[module.__name__] = module
    namespace = vars(module)
    out, done, found = [], 0, list(blocks(text))
    for block, following in zip(found, [*found[1:], None], strict=False):
        if block.first < done or block.language not in ("python", "sh") or not block.runs:
            continue
        before = _pictures(folder)
        with contextlib.chdir(folder):
            printed = _python(block, name, namespace) if block.language == "python" else _shell(block, name)
        out.append(text[done : block.last])
        done = block.last
        if following and following.language == "text" and not text[block.last : following.first].strip():
            _compare(printed, following.body, f"{name}, line {following.line}")
            done = following.last
        out.append(_shown(printed, sorted(_pictures(folder) - before)))
    return "".join([*out, text[done:]])


def _python(block: Block, name: str, namespace: dict[str, Any]) -> str:
    printed = io.StringIO()
    code = "\n" * (block.line - 1) + block.body  # so that tracebacks count the lines of the page
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(code, name, "exec"), namespace)
    except Exception:
        raise PageError(f"{name}, line {block.line}: the block raised\n{traceback.format_exc()}") from None
    return printed.getvalue()


def _shell(block: Block, name: str) -> str:
    """One command a line; `.venv/bin/` before a command is what a reader of a clone types."""
    printed = []
    for number, line in enumerate(block.body.splitlines(), block.line):
        words = shlex.split(line, comments=True)
        if not words:
            continue
        if Path(words[0]).name != "weft":
            raise PageError(f"{name}, line {number}: {words[0]} is no command of weft; say why it is not run here")
        result = CliRunner(env={"COLUMNS": "100"}).invoke(main, words[1:], prog_name="weft")
        if result.exit_code:
            raise PageError(f"{name}, line {number}: exit code {result.exit_code}\n{result.output}{result.exception!r}")
        printed.append(result.output)
    return "\n".join(printed)


def _compare(printed: str, promised: str, where: str) -> None:
    if printed.strip() != promised.strip():
        raise PageError(f"{where}: the page promises\n{promised}\nand the code prints\n{printed}")


def _pictures(folder: Path) -> set[str]:
    return {entry.name for entry in os.scandir(folder) if entry.name.endswith(PICTURES)}


def _shown(printed: str, pictures: list[str]) -> str:
    language = "python" if printed.startswith('"""') else "text"  # the source of a kernel opens so
    text = f"\n```{language}\n{printed.strip(chr(10))}\n```\n" if printed.strip() else ""
    return text + "".join(f"\n![{Path(name).stem}]({name})\n" for name in pictures)


if __name__ == "__main__":  # the code of pages, with the weft that is installed
    for page in map(Path, sys.argv[1:]):
        with tempfile.TemporaryDirectory() as beside:
            print(execute(page.read_text(encoding="utf-8"), page.name, Path(beside)))
