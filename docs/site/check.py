"""Checks a built site: `python docs/site/check.py SITE`; exit code 1 and a line for each thing that is wrong.

Without a browser: every link and anchor leads somewhere, every picture has a size, nothing is loaded from elsewhere.
With Chromium, if there is one: every page is opened; its console must be silent, its pictures drawn. Windows of three
widths must hold it.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree

from chrome import Chrome, chrome, found

NO_BROWSER = "no Chromium here to open the pages with: apt-get install chromium, or set WEFT_CHROME to one"
LOADED = {"img": "src", "script": "src", "link": "href"}
WIDTHS = (390, 820, 1440)  # pixels: a phone, a tablet, a desk
OVER = "document.documentElement.scrollWidth - window.innerWidth"
UNDRAWN = """Promise.all([...document.images].map(image => image.decode().catch(() => 0))).then(() =>
    [...document.images].filter(image => !(image.naturalWidth && image.naturalHeight)).map(image => image.src))"""


@dataclass
class Page(HTMLParser):
    """What a page has to be linked to, and what it links to, (tag, address) each."""

    ids: set[str] = field(default_factory=set)
    links: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """The parser calls it."""
        given = {name: value or "" for name, value in attrs}
        if "id" in given:
            self.ids.add(given["id"])
        address = given.get("href" if tag == "a" else LOADED.get(tag, ""))
        if address is not None:
            self.links.append((tag, address))


@cache
def parsed(path: Path) -> Page:
    """A page, read once."""
    page = Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def linked(site: Path) -> list[str]:
    """What is wrong with the links and pictures of all pages."""
    wrong = []
    for path in pages_of(site):
        for tag, address in parsed(path).links:
            why = _wrong(path, tag, address, site)
            if why:
                wrong.append(f"{path.relative_to(site)}: {address} {why}")
    return wrong


def pages_of(site: Path) -> list[Path]:
    """All pages."""
    return sorted(site.rglob("*.html"))


def _wrong(page: Path, tag: str, address: str, site: Path) -> str:
    parts = urlsplit(address)
    if parts.scheme == "data":
        return ""
    if parts.scheme or parts.netloc:
        return "" if tag == "a" else "is loaded from elsewhere"
    target = (page.parent / unquote(parts.path) if parts.path else page).resolve()
    if not target.is_relative_to(site.resolve()) or not target.is_file():
        return "leads nowhere"
    if parts.fragment and target.suffix == ".html" and unquote(parts.fragment) not in parsed(target).ids:
        return "has no such anchor"
    return "is a picture without a size" if tag == "img" and not min(size_of(target)) > 0 else ""


def size_of(picture: Path) -> tuple[float, float]:
    """Width and height of a PNG, in pixels, or of an SVG, in its own units; zeros if it has none."""
    if picture.suffix == ".png":
        head = picture.read_bytes()[:24]
        return struct.unpack(">II", head[16:24]) if head.startswith(b"\x89PNG") and len(head) == 24 else (0, 0)
    try:
        root = ElementTree.parse(picture).getroot()
    except ElementTree.ParseError:
        return 0, 0
    box = (root.get("viewBox") or "0 0 0 0").split()
    return float(box[2]), float(box[3])


def browsed(site: Path, program: str) -> Iterator[str]:
    """What a browser says of every page."""
    with chrome(program) as browser:
        for path in pages_of(site):
            browser.open(path.resolve().as_uri())
            undrawn = [f"{src} is not drawn" for src in browser.value(UNDRAWN)]
            foreign = [f"{url} is loaded" for url in browser.addresses() if not url.startswith(("file:", "data:"))]
            faults = [*browser.complaints(), *undrawn, *foreign, *_too_wide(browser)]
            yield from (f"{path.relative_to(site)}: {said}" for said in faults)


def _too_wide(browser: Chrome) -> Iterator[str]:
    """Widths of windows that the open page does not fit, with what stands over."""
    for width in WIDTHS:
        browser.resize(width)
        if (over := browser.value(OVER)) > 0:
            yield f"is {over} pixels wider than a window of {width}"


def main(site: Path) -> int:
    """Says what is wrong and what was not looked at; the exit code."""
    wrong, program = linked(site), found()
    if program:
        wrong += browsed(site, program)
    else:
        print(f"not checked: {NO_BROWSER}", file=sys.stderr)
    print(*wrong, sep="\n", end="\n" if wrong else "")
    print(f"{len(pages_of(site))} pages in {site}: {f'{len(wrong)} faults' if wrong else 'no fault found'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "build/site")))
