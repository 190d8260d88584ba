"""Layouts: tables of blocks, read by q // rows and k // columns."""

from __future__ import annotations

import numpy as np

from weft.pattern import library as lib
from weft.pattern.algebra import Pattern
from weft.recognition.bitrows import BitRows
from weft.recognition.forms import Cell
from weft.recognition.lines import Line
from weft.recognition.parts import Known
from weft.recognition.periodic import BeyondTableError, NoFormError
from weft.recognition.search import lifted, search


def of_layout(cell: Cell) -> Pattern:
    """table[q // rows, k // columns]: the pattern of the table, of blocks instead of pairs; else the list of blocks."""
    block = _block(cell.f), _block(cell.g)
    size = cell.f.hi, cell.g.hi
    blocks = -(-size[0] // block[0]), -(-size[1] // block[1])
    if blocks[0] > cell.table.shape[0] or blocks[1] > cell.table.shape[1]:
        raise BeyondTableError(f"a table of {cell.table.shape} blocks is read at {blocks}")
    table = cell.table[: blocks[0], : blocks[1]]
    rows = BitRows.pack(np.ascontiguousarray(table))
    found = search(Known(rows, rows.inverted()))
    if found.loose is not None:
        return lib.blocks(block, [tuple(pair) for pair in np.argwhere(table).tolist()])
    pattern = found.pattern if rows.m == rows.n else found.pattern.aligned("top-left")
    return lifted(pattern, block, size)


def _block(line: Line) -> int:
    """The b of a function x // b of x = 0, 1, ..."""
    by = line.hi if line.is_constant else line.pieces[0].run
    if not line.bounded or not line.same(Line.floor(by).of(Line.index(0, line.hi))):
        raise NoFormError("a table of blocks that is read by something else than q // rows and k // columns")
    return by
