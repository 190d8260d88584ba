"""The programs of a grid, and the tile that each of them has: head by head, from packed tables."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from weft.kernels.gpu.oracle.laws import law
from weft.kernels.gpu.oracle.memory import Call
from weft.kernels.gpu.oracle.tables import Form, Member, Owner, Tables, Tile, member_of
from weft.kernels.gpu.tables.pack import HEAD, Place


def form_of(call: Call) -> Form:
    """What the code of a launch's kernel says of its tables."""
    s = call.spec
    return Form(
        s.rank, s.rows, s.cols, s.formula, s.lines, s.listed, s.several, s.more, s.terms, s.packed, s.paged, s.ordered
    )


def place_of(call: Call) -> Place:
    """Where a launch's tables are, where the kernel is told."""
    return Place(*(call.integer(name) for name in ("record", "parts", "parts_at", "items_at")))


def member_at(call: Call, number: int) -> Member:
    """A member, as the kernel reads it or is told."""
    words, heads_at = call.table(), call.integer("heads_at")
    at = heads_at + HEAD * number
    law(0 <= at <= words.size - HEAD, f"member {number} lies beyond the tables")
    if call.spec.packed:
        return member_of(words, at)
    place = place_of(call)
    items = (heads_at - place.items_at) // place.record
    return Member(Owner(*(int(x) for x in words[at : at + 4])), words, items, place)


def tiles(call: Call) -> Iterator[tuple[Owner, Tile]]:
    """What each program of a launch has: one item of one head."""
    together, items, after = call.grid
    form, first = form_of(call), call.integer("first_item")
    lengths = call.integer("my_length"), call.integer("their_length")
    for x, y, z in product(range(together), range(items), range(after)):
        member, item = member_at(call, x + z * together), first + y
        if item >= member.items:
            law(call.spec.packed, f"item {item} of {member.items} is launched")
            continue
        yield member.owner, Tables(member.words, form, member.place).tile(item, lengths)
