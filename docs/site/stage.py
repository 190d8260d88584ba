"""Lays out what Sphinx reads: the pages of docs with their code run, and whatever they link to.

Files under docs keep their places; other files of the repository that a page links to come along under `repository/`,
and links are rewritten to where things lie now. A link to nowhere is an error here, before Sphinx sees it.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

import gallery
from pages import PageError, blocks, execute

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
SITE = DOCS / "site"
LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s]+)(\))")
# Pages about the project itself, beside docs.
PROJECT = ("DESIGN", "CONTRIBUTING", "SECURITY", "CHANGELOG")
# Records of what was measured once, and pages for developers. Their code is quoted; nothing in them is run.
QUOTED = (DOCS / "decisions", ROOT / "benchmarks", *(ROOT / f"{name}.md" for name in PROJECT))
NAVIGATION = {
    "Learn": ("start", "which", "recipes", "mistakes", "jax", "fusion", "distributed", "kernel", "patterns/index"),
    "Come from": ("coming", "coming-transformers", "coming-flash-attn", "coming-sdpa", "coming-flex", "coming-natten",
                  "coming-diffusers"),
    "Look up": ("reference/attention", "reference/patterns", "reference/recognition", "reference/plans",
                "reference/napkin", "reference/errors", "reference/commands"),
    "Kernels": ("kernels", "kernels-tile", "kernels-hopper", "kernels-split-kv", "kernels-components", "kernels-cpu"),
    "Evidence": ("performance", "honesty", "prediction", "napkin", "decisions/index"),
    "Project": tuple(f"repository/{name}" for name in PROJECT),
}  # fmt: skip


def stage(out: Path) -> list[str]:
    """Write everything below `out`; returns what is wrong with the pages, one text each."""
    shutil.rmtree(out, ignore_errors=True)
    (out / "patterns").mkdir(parents=True)
    stager = Stager(out)
    for page in sorted(DOCS.rglob("*.md")):
        stager.add(page)
    for name in PROJECT:
        stager.add(ROOT / f"{name}.md")
    stager.run(ROOT / "README.md")  # not a page of the site, but its code must work like any other
    stager.listing(DOCS / "decisions")
    without = sorted(set(gallery.SHOWN) ^ {page.stem for page in (DOCS / "patterns").glob("*.md")} - {"index"})
    stager.wrong += [
        f"docs/patterns/{name}.md: a page without a pattern, or a pattern without a page" for name in without
    ]
    return stager.wrong


class Stager:
    """Pages on their way from the repository to `out`."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.done: set[Path] = set()
        self.wrong: list[str] = []

    def place(self, path: Path) -> Path:
        """Where a file of the repository lies in the site."""
        if path.is_relative_to(DOCS):
            return self.out / path.relative_to(DOCS)
        return self.out / "repository" / path.relative_to(ROOT)

    def add(self, path: Path) -> None:
        """A page, or a file that a page links to."""
        if path in self.done:
            return
        self.done.add(path)
        place = self.place(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix != ".md":
            shutil.copyfile(path, place)
            return
        text = path.read_text(encoding="utf-8") if is_quoted(path) else self.run(path)
        if path.parent == DOCS / "patterns" and path.stem in gallery.SHOWN:
            try:
                text = gallery.finished(text, path.stem, place.parent)
            except PageError as error:
                self.wrong.append(str(error))
        place.write_text(self._linked(text, path) + self._contents(path), encoding="utf-8")

    def run(self, path: Path) -> str:
        """The page with its code run and pictures beside it."""
        text, beside = path.read_text(encoding="utf-8"), self.place(path).parent
        beside.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            try:
                text = execute(text, str(path.relative_to(ROOT)), Path(folder))
            except PageError as error:
                self.wrong.append(str(error))
            for picture in Path(folder).glob("*.svg"):
                shutil.copyfile(picture, beside / picture.name)
        return text

    def _linked(self, text: str, page: Path) -> str:
        """The page with its links to files as they lie in the site; code is left as it is."""
        parts, done = [], 0
        for block in blocks(text):
            parts += [self._relinked(text[done : block.first], page), text[block.first : block.last]]
            done = block.last
        return "".join([*parts, self._relinked(text[done:], page)])

    def _relinked(self, prose: str, page: Path) -> str:
        return LINK.sub(lambda found: found[1] + self._target(found[2], page) + found[3], prose)

    def _target(self, link: str, page: Path) -> str:
        path, mark, anchor = link.partition("#")
        if "://" in link or link.startswith("mailto:") or not path:
            return link
        place = self.place(page).parent
        target = (page.parent / path).resolve()
        if (place / path).is_file():  # drawn while the site is built
            return link
        if target.is_dir():
            target = self.listing(target)
        elif not target.is_file() or not target.is_relative_to(ROOT):
            self.wrong.append(f"{page.relative_to(ROOT)}: nothing is at {link}")
            return link
        self.add(target)
        return os.path.relpath(self.place(target), place) + mark + anchor

    def listing(self, folder: Path) -> Path:
        """A page with the files of a folder, and the name that such a page has."""
        page = folder / "index.md"
        if page in self.done or page.exists():
            return page
        self.done.add(page)
        files = [entry for entry in sorted(folder.iterdir()) if entry.suffix in (".md", ".csv")]
        lines = [f"# {folder.name.capitalize()}", "", *(f"- [{_title(entry)}]({entry.name})" for entry in files), ""]
        place = self.place(page)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(self._linked("\n".join(lines), page) + self._contents(page), encoding="utf-8")
        return page

    def _contents(self, page: Path) -> str:
        """What belongs to the menu below an index."""
        if page == DOCS / "index.md":
            return "".join(_tree(names, caption) for caption, names in NAVIGATION.items())
        if page == DOCS / "patterns" / "index.md":
            return f"\n{gallery.index()}\n" + _tree(tuple(gallery.SHOWN))
        if page == DOCS / "decisions" / "index.md":
            return _tree(tuple(sorted(path.stem for path in page.parent.glob("0*.md"))))
        return ""


def _tree(names: tuple[str, ...], caption: str = "") -> str:
    options = [":hidden:", *([f":caption: {caption}"] if caption else [])]
    return "\n".join(["", "```{toctree}", *options, "", *names, "```", ""])


def _title(path: Path) -> str:
    """The heading of a page, the name of another file."""
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("# ") if path.suffix == ".md" else path.name


def is_quoted(path: Path) -> bool:
    """Whether the code of a page is a record and not run."""
    return any(path.is_relative_to(one) for one in QUOTED)
