"""The loops of a program, as both directions walk them: tiles of queries, and for each the chunks of its keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import jax.numpy as jnp
from jax import Array, lax

from weft.acsr.format import BLOCK
from weft.jax.scores import Chunk
from weft.jax.structure import BLOCKS_AT_ONCE, BlockLoop, Program, TileLoop
from weft.jax.views import Places, View

Q_LEAD, K_LEAD = 2, 1  # dimensions before the tokens: of queries (P, G, M, d), of keys (P, N, d)


@dataclass(frozen=True, eq=False)
class Tile:
    """A tile of queries: where it lies, how many chunks of keys it visits, and what finds them."""

    at: Places
    chunks: Array
    found: Any


class TileWalk:
    """A `TileLoop` and its tables of one mask."""

    def __init__(self, loop: TileLoop, tables: dict[str, Array]) -> None:
        self.loop, self.tables = loop, tables
        rows, q_steps, keys, k_steps = zip(*((a.rows, a.q_step, a.keys, a.k_step) for a in loop.axes), strict=True)
        self.q_view = View(loop.q_origin, rows, q_steps, listed=loop.q_listed)
        self.k_view = View(loop.k_origin, keys, k_steps, listed=loop.k_listed)
        self.q_tokens, self.k_tokens = tables.get("queries"), tables.get("keys")
        self.box = tuple(axis.box for axis in loop.axes)
        self.width = tuple(axis.width for axis in loop.axes)
        views = (("queries_live", self.q_view), ("keys_live", self.k_view))
        self.cuts = {name: view.of(tables[name], 0) for name, view in views if name in tables}
        self.count = jnp.prod(tables["counts"], dtype=jnp.int32)

    def tile(self, index: Array) -> Tile:
        """The tile of that number: the last axis runs fastest."""
        found = []
        for axis in reversed(range(len(self.box))):
            count = self.tables["counts"][axis]
            here = index % count if axis else index
            found.append((self.tables[f"tiles{axis}"][here], self.tables[f"bounds{axis}"][here]))
            index = index // count
        found.reverse()
        at = tuple((place[0], place[1]) for place, _ in found)
        return Tile(at, -(-found[0][0][4] // self.width[0]), found)

    def chunk(self, tile: Tile, number: Array) -> tuple[Places, Chunk]:
        """Where the keys of one chunk of a tile lie, and which pairs are live."""
        at, live = [], jnp.ones((1, 1), jnp.bool_)
        for axis, (place, bounds) in enumerate(tile.found):
            positions, width = self.loop.axes[axis].k_positions, self.width[axis]
            begin = place[3] + number * width if axis == 0 else place[3]
            first = jnp.minimum(begin, positions - width)
            key = first + jnp.arange(width, dtype=jnp.int32)
            # a chunk that begins earlier than asked meets keys of the one before
            here = (key >= jnp.maximum(bounds[:, :1], begin)) & (key < bounds[:, 1:])
            live = live[:, None, :, None] & here[None, :, None, :]
            live = live.reshape(live.shape[0] * live.shape[1], -1)
            at.append((place[2], first))
        where = tuple(at)
        if "queries_live" in self.cuts:
            live = live & self.q_view.tile(self.cuts["queries_live"], 0, tile.at, self.box)[:, None]
        if "keys_live" in self.cuts:
            live = live & self.k_view.tile(self.cuts["keys_live"], 0, where, self.width)[None, :]
        rows = self.q_view.indices(tile.at, self.box, self.q_tokens)
        keys = self.k_view.indices(where, self.width, self.k_tokens)
        return where, Chunk(live, rows, keys)

    def queries(self, view: Array, tile: Tile) -> Array:
        """The rows of a view of queries (P, G, ..., d) that a tile holds: (P, G, rows, d)."""
        return self.q_view.tile(view, Q_LEAD, tile.at, self.box)

    def put_queries(self, view: Array, tile: Tile, rows: Array) -> Array:
        """A view of queries with the rows of a tile."""
        return self.q_view.put_tile(view, rows, Q_LEAD, tile.at, self.box)

    def keys(self, view: Array, at: Places) -> Array:
        """The rows of a view of keys (P, ..., d) that a chunk holds: (P, keys, d)."""
        return self.k_view.tile(view, K_LEAD, at, self.width)

    def add_keys(self, view: Array, at: Places, more: Array) -> Array:
        """A view of keys with `more` added to the rows of a chunk."""
        return self.k_view.put_tile(view, self.keys(view, at) + more, K_LEAD, at, self.width)


class BlockWalk:
    """A `BlockLoop` and its tables of one mask: a tile is a row of blocks, a chunk some of its blocks."""

    def __init__(self, lengths: tuple[int, int], tables: dict[str, Array]) -> None:
        self.tables, self.n = tables, lengths[1]
        # a row of blocks is a position, whose tokens are the phases
        self.q_view, self.k_view = (View(0, (length,), (BLOCK,)) for length in lengths)
        self.q_tokens = self.k_tokens = None
        self.count = tables["counts"][0]

    def tile(self, index: Array) -> Tile:
        """The row of blocks of that number."""
        row = self.tables["rows"][index]
        return Tile(((jnp.int32(0), row[0]),), -(-row[2] // BLOCKS_AT_ONCE), row)

    def chunk(self, tile: Tile, number: Array) -> tuple[Array, Chunk]:
        """The columns of some blocks, and which of their pairs are live."""
        before = number * BLOCKS_AT_ONCE
        blocks = lax.dynamic_slice_in_dim(self.tables["blocks"], tile.found[1] + before, BLOCKS_AT_ONCE)
        there = before + jnp.arange(BLOCKS_AT_ONCE, dtype=jnp.int32) < tile.found[2]
        columns = jnp.where(there, blocks[:, 0], 0)
        keys = (columns[:, None] * BLOCK + jnp.arange(BLOCK, dtype=jnp.int32)).reshape(-1)
        bits = self.tables["bits"][blocks[:, 1]]  # (blocks, rows, bytes), the first key in the highest bit
        live = (bits[..., None] >> jnp.arange(7, -1, -1, dtype=jnp.uint8)) & 1 == 1
        live = live.reshape(BLOCKS_AT_ONCE, BLOCK, BLOCK) & there[:, None, None]
        live = live.swapaxes(0, 1).reshape(BLOCK, -1) & (keys < self.n)
        rows = tile.at[0][1] * BLOCK + jnp.arange(BLOCK, dtype=jnp.int32)
        return columns, Chunk(live, rows, keys)

    def queries(self, view: Array, tile: Tile) -> Array:
        """The queries of a row of blocks, (P, G, BLOCK, d)."""
        return lax.dynamic_index_in_dim(view, tile.at[0][1], Q_LEAD, keepdims=False)

    def put_queries(self, view: Array, tile: Tile, rows: Array) -> Array:
        """A view of queries with those of a row of blocks."""
        return lax.dynamic_update_index_in_dim(view, rows, tile.at[0][1], Q_LEAD)

    def keys(self, view: Array, columns: Array) -> Array:
        """The keys of some blocks, (P, BLOCKS_AT_ONCE * BLOCK, d)."""
        return jnp.concatenate([self._block(view, column) for column in columns], axis=K_LEAD)

    def add_keys(self, view: Array, columns: Array, more: Array) -> Array:
        """A view of keys with `more` added to some blocks; one may be there more than once."""
        parts = more.reshape(more.shape[0], BLOCKS_AT_ONCE, BLOCK, more.shape[2])

        def add(number: Array, view: Array) -> Array:  # one after the other in a loop: several at once copy the view
            column, part = columns[number], lax.dynamic_index_in_dim(parts, number, K_LEAD, keepdims=False)
            return lax.dynamic_update_index_in_dim(view, self._block(view, column) + part, column, K_LEAD)

        return lax.fori_loop(jnp.int32(0), jnp.int32(BLOCKS_AT_ONCE), add, view)

    @staticmethod
    def _block(view: Array, column: Array) -> Array:
        return lax.dynamic_index_in_dim(view, column, K_LEAD, keepdims=False)


Walk: TypeAlias = TileWalk | BlockWalk


def walks_of(program: Program, tables: Any, lengths: tuple[int, int]) -> list[Walk]:
    """The loops of a program with the tables of one mask. lengths: of queries and keys."""
    return [
        BlockWalk(lengths, own) if isinstance(loop, BlockLoop) else TileWalk(loop, own)
        for loop, own in zip(program.loops, tables, strict=True)
    ]
