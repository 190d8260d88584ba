"""Which heads are computed together: a program's places, and chunks of them whose scores stay near the cores.

Arrays here are (L, B, K, G, M, d) of queries and (L, B, K, N, d) of keys. The axes are mapped elements, batch rows,
key/value heads, heads of a group, tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias, TypeVar

import jax.numpy as jnp
from jax import Array, lax

from weft.jax.scores import Beside
from weft.jax.structure import Program, Structure

Carry = TypeVar("Carry")
Body: TypeAlias = Callable[[Program, Any, "Heads", Carry], Carry]
TOGETHER = 1 << 21  # scores computed together: 8 MB in float32
HEAD_DIMS = 4  # of queries; keys have no heads of a group


@dataclass(frozen=True)
class Heads:
    """The heads of one chunk. sizes: how many (L, B, K, G). at: the first of each, traced. variant: of the mask."""

    sizes: tuple[int, ...]
    at: tuple[Array, ...]
    variant: Array

    def of(self, x: Array, dims: int = HEAD_DIMS) -> Array:
        """Their part of x, whose first `dims` dimensions are of heads, with the first three (L, B, K) as one."""
        sizes = self.sizes[:dims] + x.shape[dims:]
        return lax.dynamic_slice(x, self._starts(x, dims), sizes).reshape(prod(sizes[:3]), *sizes[3:])

    def put(self, x: Array, part: Array, dims: int = HEAD_DIMS) -> Array:
        """x with their part put in its place."""
        part = part.reshape(self.sizes[:dims] + x.shape[dims:]).astype(x.dtype)
        return lax.dynamic_update_slice(x, part, self._starts(x, dims))

    def beside(self, given: Beside) -> Beside:
        """What score functions and dropout take: numbers of their batch rows (L * B * K,) and heads (L * B * K, G)."""
        if given.batch is None or given.heads is None:
            return given
        (many, b, k, g), (_, row, kv, group) = self.sizes, self.at
        batch = lax.dynamic_slice(given.batch, (row,), (b,))[None, :, None]
        heads = lax.dynamic_slice(given.heads, (kv, group), (k, g))
        every = many * b * k
        return given._replace(
            batch=jnp.broadcast_to(batch, (many, b, k)).reshape(every),
            heads=jnp.broadcast_to(heads, (many, b, k, g)).reshape(every, g),
        )

    def _starts(self, x: Array, dims: int) -> list[Any]:
        return [*self.at[:dims], *([jnp.int32(0)] * (x.ndim - dims))]


def over_heads(
    structure: Structure, programs: Any, shape: tuple[int, ...], body: Body[Carry], carry: Carry
) -> Carry:  # fmt: skip
    """`body` for all chunks of heads of every program, one after the other. shape: (L, B, K, G)."""
    for program, tables in zip(structure.programs, programs, strict=True):
        if program.loops and 0 not in shape:  # else its heads see nothing
            carry = _over_places(_Places(structure, program, shape), program, tables, body, carry)
    return carry


class _Places:
    """The places of a program, each in chunks of `sizes` heads: `steps` of them along (L, B, K, G)."""

    def __init__(self, structure: Structure, program: Program, shape: tuple[int, ...]) -> None:
        told = structure.unit
        self.told = any(one is not None for one in told)
        unit = [have if one is None else one for have, one in zip(shape[1:], told, strict=True)]
        self.sizes = _together((shape[0], *unit), max(1, TOGETHER // program.scores))
        self.steps = tuple(have // size for have, size in zip((shape[0], *unit), self.sizes, strict=True))

    def heads(self, table: Array, number: Array) -> Heads:
        """Those of chunk `number` of all."""
        within, at = number % prod(self.steps), []
        for count, size in zip(reversed(self.steps), reversed(self.sizes), strict=True):
            at.append(within % count * size)
            within = within // count
        place = table[number // prod(self.steps)]
        first = [jnp.int32(0), *place[1:]] if self.told else [jnp.int32(0)] * HEAD_DIMS
        return Heads(self.sizes, tuple(a + b for a, b in zip(reversed(at), first, strict=True)), place[0])


def _over_places(places: _Places, program: Program, tables: Any, body: Body[Carry], carry: Carry) -> Carry:
    def chunk(number: Array, carry: Carry) -> Carry:
        return body(program, tables, places.heads(tables["places"], number), carry)

    if prod(places.steps) == 1 and not places.told:
        return chunk(jnp.int32(0), carry)
    count = tables["count"][0] if places.told else 1
    found: Carry = lax.fori_loop(jnp.int32(0), jnp.int32(count * prod(places.steps)), chunk, carry)
    return found


def _together(unit: tuple[int, ...], most: int) -> tuple[int, ...]:
    """The largest divisors of a unit, the last first, that come to `most` heads or fewer."""
    found: list[int] = []
    for size in reversed(unit):
        here = next(x for x in range(min(size, max(1, most)), 0, -1) if size % x == 0)
        found.append(here)
        most = most // here if here == size else 1
    return tuple(reversed(found))
