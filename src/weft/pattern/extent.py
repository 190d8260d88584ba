"""How many batch rows and heads patterns tell apart that are used together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.errors import PatternError

if TYPE_CHECKING:
    from weft.pattern.algebra import Pattern


def common_extent(
    parts: tuple[Pattern, ...], asked: object, own: tuple[int | None, int | None] = (None, None)
) -> tuple[int | None, int | None]:
    """(batch rows, heads) of patterns used together, and of what holds them (`own`); they must agree where they tell
    rows or heads apart.
    """
    found: list[int | None] = []
    extents = [own, *(part.extent() for part in parts)]
    for which, name in enumerate(("batch rows", "heads")):
        sizes = {size for extent in extents if (size := extent[which]) is not None}
        if len(sizes) > 1:
            raise PatternError(
                str(asked),
                f"its parts tell {' and '.join(map(str, sorted(sizes)))} {name} apart",
                "use lists of one length",
            )
        found.append(sizes.pop() if sizes else None)
    return found[0], found[1]
