"""Components as integers: of each tile SIZE queries, SIZE keys, and two words of bits for each query."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from weft.planning.families import components

SIZE = components.SIZE
RECORD = 4 * SIZE  # integers of a tile


def words_of(tiles: components.Components) -> NDArray[np.int32]:
    """The table of tiles, (tiles * RECORD,): bit k of a query's words says whether it sees the key at place k."""
    bits = np.packbits(tiles.live, axis=2, bitorder="little").view("<u4").astype(np.uint32).view(np.int32)
    parts = tiles.queries.astype(np.int32), tiles.keys.astype(np.int32), bits.reshape(tiles.count, -1)
    return np.ascontiguousarray(np.concatenate(parts, axis=1).reshape(-1))
