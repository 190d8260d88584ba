"""Mask functions that read tables, as packed documents and images in text do: tables on the host become runs.

Recognition would find the same, from less and in longer: what the table means is known here.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from weft.caching import cached
from weft.integrations.transformers.graphs import Place, by_row, live_keys, place
from weft.integrations.transformers.reading import Seen, leaves
from weft.pattern.algebra import Pattern
from weft.pattern.composites import per_batch
from weft.pattern.grouped import grouped
from weft.pattern.library import chunks, prefix


class OnHost(Place):
    """Tables are read now."""

    def _labels(self, ids: Tensor, key_ids: Tensor) -> Any:
        queries = ids[self.q_offset : self.q_offset + self.m].cpu().numpy()
        return grouped(queries, key_ids[self.k_offset : self.k_offset + self.n].cpu().numpy())

    def _chunks(self, seen: Seen, row: int) -> Any:
        size, first, (positions, _) = seen.parts
        if positions is not None:
            return super()._chunks(seen, row)
        by = 0 if first is None else int(first[row])
        if self.k_offset == 0 and by % size == 0:
            return chunks(size, align=self.align)
        if self.m > 1:
            return super()._chunks(seen, row)
        start = self.q_offset - (self.q_offset - by) % size - self.k_offset  # of the query's chunk
        return ~prefix(max(start, 0)) & prefix(min(start + size, self.n))


def from_tables(sizes: tuple[int, int, int], offsets: tuple[int, int], seen: Seen) -> tuple[Pattern, int] | None:
    """(the pattern, how many keys it is about); None where it reads no table, or no alignment says where it is."""
    if not by_row(seen):
        return None
    batch, m, n = sizes
    live = live_keys(leaves(seen), (m, n), offsets)
    at = place((m, live), offsets, OnHost)
    if at is None:
        return None
    alike = _alike(seen, batch)
    made = {row: at.written(seen, row) for row in dict.fromkeys(alike)}
    rows = [made[row] for row in alike]
    return _known(rows[0] if all(row == rows[0] for row in rows) else per_batch(rows)), live


def _alike(seen: Seen, batch: int) -> list[int]:
    """Of each batch row the first one that reads the same, where only chunks tell rows apart."""
    tables = [leaf for leaf in leaves(seen) if by_row(leaf)]
    if any(leaf.kind != "chunks" or leaf.parts[2][0] is not None for leaf in tables):
        return list(range(batch))
    read = list(zip(*(leaf.parts[1].tolist() for leaf in tables), strict=True))
    return [read.index(one) for one in read]


@cached(256)
def _known(pattern: Pattern) -> Pattern:
    """One object for equal patterns, whose plans are found by its identity."""
    return pattern
