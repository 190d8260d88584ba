"""Layouts: tables of blocks, read by q // rows and k // columns."""

from __future__ import annotations

import numpy as np

from weft.pattern import library as lib
from weft.pattern import pieces
from weft.pattern.algebra import Pattern
from weft.pattern.tables import block_table
from weft.recognition.bitrows import BitRows
from weft.recognition.forms import Cell
from weft.recognition.lines import Line
from weft.recognition.parts import Known
from weft.recognition.periodic import BeyondTableError, NoFormError
from weft.recognition.raster import raster
from weft.recognition.search import MAX_CUTS, Budget, Found, Level, as_bits, lifted, search, unlikeness

MAX_CELLS = 1 << 18  # blocks of a table that is read through runs of tokens
LARGE = 1 << 16  # blocks from which on a table is guessed from its corner
LONG = 5 << 15  # and up to which it is searched where the guess is wrong
CORNER = 128  # blocks on a side of it
LIKE = 2.5  # blocks in which a row of a table that follows a rule differs from the one before, on average


def of_layout(cell: Cell) -> Pattern:
    """table[q // rows, k // columns]: the pattern of the table, of blocks instead of pairs; else its bits. A table that
    is read through unequal blocks is a table of blocks.
    """
    try:
        block = _block(cell.f), _block(cell.g)
    except NoFormError:
        return _of_nodes(cell)
    size = cell.f.hi, cell.g.hi
    blocks = -(-size[0] // block[0]), -(-size[1] // block[1])
    if blocks[0] > cell.table.shape[0] or blocks[1] > cell.table.shape[1]:
        raise BeyondTableError(f"a table of {cell.table.shape} blocks is read at {blocks}")
    table = np.ascontiguousarray(cell.table[: blocks[0], : blocks[1]])
    rows = BitRows.pack(table)
    found = _guessed(table, rows) if table.size > LARGE else _searched(rows)
    if found is None and LARGE < table.size <= LONG and _ruled(rows):
        found = _searched(rows)
    if found is None:
        return pieces.coarse(as_bits(rows).pattern, block if block[0] != block[1] else block[0])
    return lifted(found, block, size)


def _of_nodes(cell: Cell) -> Pattern:
    """table[node of q, node of k], the nodes in any order but each mostly in one piece."""
    if not (cell.f.bounded and cell.g.bounded):
        raise NoFormError("a table of pairs that is read at any length")
    rows, cols = cell.f.steps, cell.g.steps
    if rows.begin.size * cols.begin.size > MAX_CELLS:
        raise NoFormError(f"a table of pairs read through {rows.begin.size} x {cols.begin.size} runs of tokens")
    _within_table(cell.table, rows.extent, cols.extent)
    table = cell.table[rows.value][:, cols.value]
    if table.all() or not table.any():
        return lib.full() if table.any() else lib.nothing()
    return block_table(rows.lengths, cols.lengths, table)


def _within_table(table: np.ndarray, *extents: tuple[int, int]) -> None:
    for (low, high), length in zip(extents, table.shape, strict=True):
        if low < -length or high >= length:
            raise BeyondTableError(f"a table of {table.shape} entries is read at {low} to {high}")


def _searched(rows: BitRows) -> Pattern | None:
    """What a short search makes of a table; None where it lists pairs. A layout that follows no rule has no better form
    than its bits. A longer search would only take time to find that out.
    """
    budget = Budget(rows.m * rows.n, 2 if _ruled(rows) else 1)
    found: Found = search(Known(rows, rows.inverted()), Level(budget, cuts=MAX_CUTS, listing=False))
    if found.loose is not None:
        return None
    return found.pattern if rows.m == rows.n else found.pattern.filled("top-left")


def _ruled(rows: BitRows) -> bool:
    """Whether most rows are like the ones before them, or come again elsewhere."""
    return bool(unlikeness(rows).sum() <= LIKE * rows.m) or 2 * len({row.tobytes() for row in rows.words}) <= rows.m


def _guessed(table: np.ndarray, rows: BitRows) -> Pattern | None:
    """What the corner of a long table is, if it holds on every block."""
    found = _searched(BitRows.pack(np.ascontiguousarray(table[:CORNER, :CORNER])))
    if found is None:
        return None
    found = found if rows.m == rows.n else found.filled("top-left")
    try:
        found.check(rows.m, rows.n, str(found))
    except ValueError:  # it has a meaning at the size of the corner only
        return None
    return found if raster(found, rows.m, rows.n).same(rows) else None


def _block(line: Line) -> int:
    """The b of a function x // b of x = 0, 1, ..."""
    by = line.hi if line.is_constant else line.pieces[0].run
    if not line.bounded or not line.same(Line.floor(by).of(Line.index(0, line.hi))):
        raise NoFormError("a table of blocks that is read by something else than q // rows and k // columns")
    return by
