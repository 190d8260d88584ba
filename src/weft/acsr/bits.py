"""Pairs as bits of bytes, the first in the highest bit: counted, turned round and transposed as they are.

A bit unpacked is a byte, and a mask of 16,384 tokens then 268 MB.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Bits: TypeAlias = NDArray[np.uint8]
_BYTES = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1)
_COUNTS = _BYTES.sum(axis=1, dtype=np.uint8)
BACKWARDS: Bits = np.packbits(_BYTES, axis=1, bitorder="little")[:, 0]  # a byte whose first bit is in the lowest one
# Of 8 x 8 bits in a word, row by row from the highest one. Pairs of bits, of 2 x 2 and of 4 x 4 of them change places.
# The numbers are those nearer to the lowest bit, and how far apart they are (Warren, Hacker's Delight, section 7-3).
_SWAPS = ((0x00AA00AA00AA00AA, 7), (0x0000CCCC0000CCCC, 14), (0x00000000F0F0F0F0, 28))


def bit_count(words: NDArray[Any]) -> NDArray[np.uint8]:
    """Bits set in each unsigned integer; numpy 1 has no function for it, so bytes are looked up there."""
    if hasattr(np, "bitwise_count"):
        return np.asarray(np.bitwise_count(words))
    each = np.ascontiguousarray(words).view(np.uint8).reshape(*words.shape, words.itemsize)
    return np.asarray(_COUNTS[each].sum(axis=-1, dtype=np.uint8))


def transposed(bits: Bits) -> Bits:
    """Blocks of 8n rows of n bytes, (blocks, 8n, n), with rows and columns exchanged."""
    blocks, _, n = bits.shape
    tiles = bits.reshape(blocks, n, 8, n).transpose(0, 3, 1, 2)  # (block, byte of a row, eighth of the rows, row)
    words = np.ascontiguousarray(tiles).view(">u8").astype(np.uint64)
    for mask, apart in _SWAPS:
        moved = (words ^ (words >> np.uint64(apart))) & np.uint64(mask)
        words ^= moved ^ (moved << np.uint64(apart))
    found = words.astype(">u8").view(np.uint8)  # (block, eighth of the new rows, byte of one, row)
    return np.ascontiguousarray(found.reshape(blocks, n, n, 8).transpose(0, 1, 3, 2)).reshape(blocks, 8 * n, n)
