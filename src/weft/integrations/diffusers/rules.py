"""Rules: which pattern the video tokens have, in which layers and at which steps of denoising."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import weft
from weft.caching import cached
from weft.errors import OptionError

AXES = 3
BORDERS = ("pushed", "cut")
Axes = tuple[int, ...]


@dataclass(frozen=True)
class Tiles:
    """A sliding tile: lengths of a tile and of a window in tiles, and what becomes of windows at a border."""

    tile: Axes
    window: Axes
    border: str = "pushed"


@dataclass(frozen=True)
class Rule:
    """A pattern of the video tokens, or none for all; layers and steps that it holds for, None for all of them."""

    neighborhood: Axes | None = None
    stride: Axes = (1, 1, 1)
    dilation: Axes = (1, 1, 1)
    tiles: Tiles | None = None
    layers: frozenset[int] | None = None
    steps: range | frozenset[int] | None = None

    @property
    def is_dense(self) -> bool:
        """Whether every token sees every other one."""
        return self.neighborhood is None and self.tiles is None

    def holds(self, layer: int, step: int) -> bool:
        """Whether it is for that layer at that step."""
        return (self.layers is None or layer in self.layers) and (self.steps is None or step in self.steps)

    def video(self, grid: Axes) -> Any:
        """The pattern on a grid of video tokens. A window longer than an axis is all of that axis."""
        if self.neighborhood is not None:
            size = tuple(min(k, n // d) for k, n, d in zip(self.neighborhood, grid, self.dilation, strict=True))
            stride = tuple(min(s, k) for s, k in zip(self.stride, size, strict=True))
            more = {"stride": stride, "dilation": self.dilation}
            return weft.neighborhood(grid, size, **{name: x for name, x in more.items() if set(x) != {1}})
        assert self.tiles is not None
        each = zip(grid, self.tiles.tile, self.tiles.window, strict=True)
        return weft.product([_tiled(*one, self.tiles.border) for one in each], grid)

    def pattern(self, grid: Axes, text: int, first: bool) -> Any:
        """With text tokens before (first) or after the video's, which see all and are seen by all."""
        video, tokens = self.video(grid), prod(grid)
        if not text:
            return video
        if first:
            return weft.segments([text, tokens], [[True, True], [True, video]])
        return weft.segments([tokens, text], [[video, True], [True, True]])


def _tiled(length: int, tile: int, window: int, border: str) -> Any:
    """One axis: tiles that see a window of tiles."""
    count = -(-length // tile)
    if border == "cut":
        part = weft.window(window // 2, window // 2)
    else:
        part = weft.neighborhood(count, min(window, count))
    return part if tile == 1 else weft.coarse(part, tile)


@cached(256)
def pattern_of(rule: Rule, grid: Axes, text: int, first: bool) -> Any:
    """The rule's pattern, one object for one question, since prepared calls are found by it."""
    return rule.pattern(grid, text, first)


@cached(256)
def same(pattern: Any) -> Any:
    """The first pattern that equals this one."""
    return pattern


# ---- made of keywords ------------------------------------------------------------------------------------------------
def rule_of(given: Mapping[str, Any], count: int) -> Rule:
    """A Rule of `set_pattern`'s keywords, checked. count: layers of the model."""
    near, tiles = given["neighborhood"], given["sliding_tile"]
    if near is not None and tiles is not None:
        _wrong("neighborhood=..., sliding_tile=...", "a layer has one pattern", "pass one of them")
    if near is None and (given["stride"], given["dilation"]) != (1, 1):
        _wrong(
            "stride=..., dilation=...", "they belong to a neighbourhood", "pass neighborhood=(frames, rows, columns)"
        )
    rule = Rule(
        None if near is None else _axes("neighborhood", near),
        _axes("stride", given["stride"]), _axes("dilation", given["dilation"]),
        None if tiles is None else _tiles(tiles),
        _layers(given["layers"], count), None if given["steps"] is None else _indices("steps", given["steps"], None),
    )  # fmt: skip
    if rule.neighborhood and any(s > k for s, k in zip(rule.stride, rule.neighborhood, strict=True)):
        _wrong(
            f"stride={rule.stride}", f"it is longer than the window {rule.neighborhood}", "pass stride <= neighborhood"
        )
    return rule


def _axes(name: str, value: Any) -> Axes:
    values = (value,) * AXES if isinstance(value, int) else tuple(value) if isinstance(value, Iterable) else ()
    if len(values) != AXES or not all(isinstance(n, int) and not isinstance(n, bool) and n >= 1 for n in values):
        _wrong(f"{name}={value!r}", "it is no length for each axis", f"pass {name}=(frames, rows, columns), from 1 on")
    return values


def _tiles(given: Any) -> Tiles:
    known = ("tile", "window", "border")
    if not isinstance(given, Mapping) or not {"tile", "window"} <= set(given) <= set(known):
        cure = 'pass sliding_tile={"tile": (1, 8, 8), "window": (3, 3, 3)}, and "border": "cut" where windows are cut'
        _wrong(f"sliding_tile={given!r}", f"it has not {', '.join(known)} as keys", cure)
    made = Tiles(_axes("tile", given["tile"]), _axes("window", given["window"]), given.get("border", "pushed"))
    if made.border not in BORDERS:
        _wrong(f"border={made.border!r}", "there is no such border", f"pass one of {', '.join(BORDERS)}")
    if any(n % 2 == 0 for n in made.window):
        _wrong(f"window={made.window}", "a window of tiles has a middle one", "pass odd numbers of tiles")
    return made


def _layers(given: Any, count: int) -> frozenset[int] | None:
    if given is None:
        return None
    found = [layer + count * (layer < 0) for layer in _indices("layers", given, count)]
    beyond = [layer for layer in found if not 0 <= layer < count]
    if beyond:
        _wrong(f"layers={given!r}", f"there are {count} layers", f"pass numbers below {count}")
    return frozenset(found)


def _indices(name: str, given: Any, count: int | None) -> range | frozenset[int]:
    """Numbers as given: one, several, or "first:stop" with either left out."""
    if isinstance(given, str) and ":" in given:
        first, _, stop = given.partition(":")
        ends = [end.strip() for end in (first, stop)]
        if all(not end or end.isdecimal() for end in ends):
            return range(int(ends[0] or 0), int(ends[1]) if ends[1] else count or 1 << 31)
    values = [given] if isinstance(given, int) else given
    if isinstance(values, range):
        return values
    if isinstance(values, Iterable) and not isinstance(values, str):
        values = list(values)
        if all(isinstance(n, int) and not isinstance(n, bool) for n in values):
            return frozenset(values)
    _wrong(f"{name}={given!r}", "it names no numbers", f'pass {name}=[0, 1, 2], a range, or "2:10"')
    raise AssertionError


def _wrong(asked: str, wrong: str, cure: str) -> None:
    raise OptionError(f"set_pattern(transformer, {asked})", wrong, cure)
