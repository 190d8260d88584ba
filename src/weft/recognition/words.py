"""What was found, in the words that a user would choose: `causal() & window(left=63) & documents(...)`.

Every rule is an identity. Bounds of slope one are windows, and a window that ends at its query is a causal one.
Conditions come in one order, distances before chunks and documents, and these before sets of tokens.
"""

from __future__ import annotations

from typing import Any

from weft.pattern import algebra as ops
from weft.pattern import library as lib
from weft.pattern.algebra import Align, Call, Pattern
from weft.pattern.arguments import rebuild
from weft.recognition import names

ORDER = ("causal", "window", "dilated", "strided", "diagonals", "staircase", "steps", "chunks", "documents")


def reworded(pattern: Pattern, n: int | None = None) -> Pattern:
    """The same pairs in other words; n: how many keys there are, None for any number."""
    if isinstance(pattern, ops.Or):
        return names.union([reworded(part, n) for part in pattern.parts])
    if isinstance(pattern, ops.And):
        parts = [leaf for part in pattern.parts for leaf in _leaves(reworded(part, n))]
        return _conjunction(parts)
    if isinstance(pattern, ops.Not):
        inner = reworded(pattern.part, n)
        return inner.part if isinstance(inner, ops.Not) else ~inner
    if isinstance(pattern, Call):
        return _call(pattern, n)
    return pattern


def _leaves(pattern: Pattern) -> tuple[Pattern, ...]:
    return pattern.parts if isinstance(pattern, ops.And) else (pattern,)


def _call(pattern: Call, n: int | None) -> Pattern:
    args = dict(pattern.args)
    if pattern.name == "staircase":
        return _staircase(pattern, args, n)
    if pattern.name == "window":
        return _conjunction([pattern])
    if not any(isinstance(value, (Pattern, tuple)) for value in args.values()):
        return pattern
    length = args.get("n") if pattern.name == "sized" else n if pattern.name in ("per_head", "per_batch") else None
    return rebuild(pattern.name, {key: _argument(value, length) for key, value in args.items()})


def _argument(value: Any, n: int | None) -> Any:
    if isinstance(value, Pattern):
        return reworded(value, n)
    return tuple(_argument(one, n) for one in value) if isinstance(value, tuple) else value


def _staircase(pattern: Call, args: dict[str, Any], n: int | None) -> Pattern:
    """A staircase of slope one as a distance, and as a set of keys where it is clipped on the side that it bounds."""
    rise, run = args["step"].array.tolist()
    if (rise, run) != (1, 1):
        return pattern
    origin = args["origin"].array.tolist() if "origin" in args else [0, 0]
    low, high = args["clip"].array.tolist() if "clip" in args else (0, n)
    by, align = sum(origin), args.get("align")
    before = args["side"] == "before"
    if (low > 0) if before else (high is None or high != n) and "clip" in args:
        return pattern
    if before:
        ends = [] if high is None or high == n else [lib.prefix(high)]
        return _conjunction([lib.causal(by - 1, align=align), *ends])
    near = lib.window(left=-by, align=align) if by <= 0 else ~lib.causal(by - 1, align=align)
    return _conjunction([near, *([~lib.prefix(low)] if low > 0 else [])])


def _conjunction(parts: list[Pattern]) -> Pattern:
    """Conditions in order; what is said of distances, together."""
    left: dict[Align, int] = {}
    right: dict[Align, int] = {}
    others: list[Pattern] = []
    for part in dict.fromkeys(parts):
        args = dict(part.args) if isinstance(part, Call) else {}
        align: Align = args.get("align")
        if isinstance(part, Call) and part.name == "causal":
            right[align] = min(right.get(align, args.get("offset", 0)), args.get("offset", 0))
        elif isinstance(part, Call) and part.name == "window":
            for ends, name in ((left, "left"), (right, "right")):
                if name in args:
                    ends[align] = min(ends.get(align, args[name]), args[name])
        else:
            others.append(part)
    found = [part for align in dict.fromkeys([*left, *right]) for part in _distances(left, right, align)]
    return names.intersection([*found, *sorted(others, key=_place)])


def _distances(left: dict[Align, int], right: dict[Align, int], align: Align) -> list[Pattern]:
    """-left <= k - q <= right."""
    a, b = left.get(align), right.get(align)
    if a is not None and b is not None and b > 0:
        return [lib.window(a, b, align=align)]
    if a is not None and a == b == 0:
        return [lib.window(0, 0, align=align)]
    said: list[Pattern] = [] if b is None else [lib.causal(b, align=align)]
    return said if a is None else [*said, lib.window(left=a, align=align)]


def _place(pattern: Pattern) -> int:
    name = getattr(pattern, "name", "")
    return ORDER.index(name) if name in ORDER else len(ORDER)
