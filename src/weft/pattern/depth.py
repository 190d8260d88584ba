"""How deep a pattern is nested: refused by name beyond a bound, and up to it Python follows.

What walks a pattern calls itself for each level. Python ends that at 1000 calls unless it is told otherwise. So a deep
pattern raises that limit when it is made, for this process and for good.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from weft.errors import PatternError

DEEPEST = 1000  # operators within each other
SHALLOW = 50  # for which Python's own limit is enough
CALLS = 8  # of one level, at the most: those of a lowering
ABOVE = 1000  # whatever calls weft


def settled(asked: str, parts: Iterable[Any]) -> int:
    """The depth of a pattern of such parts, which may be lists of patterns. Raises PatternError beyond DEEPEST."""
    depth = 1 + max((_of(part) for part in parts), default=0)
    if depth > DEEPEST:
        raise PatternError(
            f"{asked} of patterns within patterns", f"it is nested {depth} deep, and {DEEPEST} is the most",
            "join many parts at one level (a | b | c), or write the result of `weft.recognize` instead",
        )  # fmt: skip
    if depth > SHALLOW:
        sys.setrecursionlimit(max(sys.getrecursionlimit(), CALLS * depth + ABOVE))
    return depth


def _of(part: Any) -> int:
    if isinstance(part, (tuple, list)):
        return max((part_depth for one in part if (part_depth := _of(one))), default=0)
    return int(getattr(part, "depth", 0)) if hasattr(part, "holds") else 0
