"""The library, fourth part: small tables read through unequal blocks of tokens, and trees of tokens.

As in `weft.pattern.library`, one function each; see there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.errors import LengthError, PatternError
from weft.pattern.algebra import Pattern, Where, text
from weft.pattern.arguments import integer, integers, library
from weft.pattern.bounds import Ints, IntTable
from weft.pattern.leaves import Leaf
from weft.pattern.library import affine, diagonal
from weft.pattern.relation import NDBool, Relation

MAX_CELLS = 1 << 24  # of a table


@dataclass(frozen=True)
class BlockTable(Leaf):
    """Live where (block of q, block of k) is in a table. rows, cols: the token after the last of each block; cells: the
    places row * columns + column that are live, sorted.
    """

    rows: IntTable
    cols: IntTable
    cells: IntTable

    @property
    def size(self) -> tuple[int, int]:
        """Queries and keys."""
        m, n = (int(ends.array[-1]) if len(ends) else 0 for ends in (self.rows, self.cols))
        return m, n

    @property
    def table(self) -> NDBool:
        """(row blocks, column blocks) booleans."""
        live = np.zeros(len(self.rows) * len(self.cols), np.bool_)
        live[self.cells.array] = True
        return live.reshape(len(self.rows), len(self.cols))

    def check(self, m: int, n: int, asked: str) -> None:
        if (m, n) != self.size:
            raise LengthError(
                asked, f"its blocks have {self.size[0]} queries and {self.size[1]} keys together",
                "make the lengths of the blocks add up to M and N",
            )  # fmt: skip

    def holds(self, q: Ints, k: Ints, at: Where) -> NDBool:
        row, col = (np.searchsorted(ends.array, x, side="right") for ends, x in ((self.rows, q), (self.cols, k)))
        return np.asarray(self.table[row, col])


@library
def block_table(rows: Any, cols: Any, allowed: Any) -> Pattern:
    """Query blocks of unequal lengths see the key blocks that a table says: allowed[block of q][block of k].

    rows, cols: tokens of each block of queries and of keys; M == sum(rows), N == sum(cols). allowed: booleans, a row
    for each block of queries. A mask `allowed[node[q], node[k]]` of contiguous nodes is this pattern.
    """
    high, wide = (integers("block_table", name, x).array for name, x in (("rows", rows), ("cols", cols)))
    table = _booleans(allowed)
    if table is None or table.shape != (high.size, wide.size):
        shape = "no table of booleans" if table is None else f"a table of {table.shape[0]} x {table.shape[1]}"
        raise PatternError(
            f"block_table({text(rows)}, {text(cols)}, allowed)",
            f"allowed is {shape}, for {high.size} x {wide.size} blocks",
            "pass one row of True and False for each block of queries, one of them for each block of keys",
        )  # fmt: skip
    return of_blocks(high, wide, table)


def of_blocks(rows: Ints, cols: Ints, table: NDBool) -> BlockTable:
    """The leaf: blocks without tokens left out, neighbours that are alike as one block."""
    table = table[rows > 0][:, cols > 0]
    sides = []
    for lengths, same in (
        (rows[rows > 0], (table[1:] == table[:-1]).all(axis=1)),
        (cols[cols > 0], (table[:, 1:] == table[:, :-1]).all(axis=0)),
    ):
        last = np.append(~same, True)[: lengths.size]
        sides.append((np.cumsum(lengths)[last], last))
    cells = np.flatnonzero(table[sides[0][1]][:, sides[1][1]])
    return BlockTable(IntTable(sides[0][0]), IntTable(sides[1][0]), IntTable(cells))


def _booleans(allowed: Any) -> NDBool | None:
    """A table of booleans, given as a tuple of rows; None if it is something else."""
    if not isinstance(allowed, tuple) or not all(isinstance(row, tuple) for row in allowed):
        return None
    if not allowed:
        return np.zeros((0, 0), np.bool_)
    if len({len(row) for row in allowed}) != 1 or {type(x) for row in allowed for x in row} - {bool}:
        return None
    return np.array(allowed, np.bool_).reshape(len(allowed), -1)


@library
def tree(parents: Any, lengths: Any = None, past: int = 0) -> Pattern:
    """Tokens of a tree of nodes see the `past` keys before it, and the nodes on the way to its root. Of their own node
    they see the tokens up to themselves. M == the tree's tokens, N == past + M.

    parents[i] is the node above node i, an earlier one, or -1. lengths[i] is the number of its tokens, 1 where none are
    given. Drafted tokens are a tree of single tokens; requests that share prefixes are a tree of long nodes. Sources:
    Miao et al. 2023, arXiv 2305.09781; Cai et al. 2024, arXiv 2401.10774.
    """
    above = integers("tree", "parents", parents, -1).array
    sizes = np.ones(above.size, np.int64) if lengths is None else integers("tree", "lengths", lengths).array
    past = integer("tree", "past", past, 0)
    if sizes.size != above.size:
        raise PatternError(
            f"tree({text(parents)}, lengths=...)", f"{sizes.size} lengths are given for {above.size} nodes",
            "give one length for each node",
        )  # fmt: skip
    late = np.flatnonzero(above >= np.arange(above.size))
    if late.size:
        raise PatternError(
            f"tree({text(parents)})", f"node {late[0]} hangs on node {above[late[0]]}, which does not come before it",
            "number the nodes so that parents come first",
        )  # fmt: skip
    if above.size * above.size > MAX_CELLS:
        raise PatternError(
            f"tree of {above.size} nodes", f"more than {int(MAX_CELLS**0.5)} nodes make too large a table",
            "join chains of nodes, with lengths=",
        )  # fmt: skip
    seen = np.eye(above.size, dtype=np.bool_)
    for node, parent in enumerate(above.tolist()):
        if parent >= 0:
            seen[node] |= seen[parent]
    table = np.concatenate([np.ones((above.size, 1), np.bool_), seen], axis=1)
    found = of_blocks(sizes, np.append(past, sizes), table)
    own = affine("tree", "top-left", Relation(upper=(diagonal(past + 1),)))
    return found & own
