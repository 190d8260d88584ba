"""Bits of blocks, handled as bytes and words, beside the same unpacked."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from weft.acsr.bits import BACKWARDS, bit_count, transposed
from weft.acsr.blocks import Blocks
from weft.pattern import pieces
from weft.pattern.algebra import Where


@given(st.data(), st.integers(0, 5), st.sampled_from([1, 2, 8]))
def test_transposed_blocks(data, blocks, n):
    bits = data.draw(arrays.arrays(np.uint8, (blocks, 8 * n, n)))
    pairs = np.unpackbits(bits, axis=2).reshape(blocks, 8 * n, 8 * n)
    np.testing.assert_array_equal(transposed(bits), np.packbits(pairs.transpose(0, 2, 1), axis=2))
    np.testing.assert_array_equal(transposed(transposed(bits)), bits)


def test_bytes_turned_round():
    assert BACKWARDS.tolist() == [int(f"{byte:08b}"[::-1], 2) for byte in range(256)]


@pytest.mark.parametrize("known", [True, False])
@given(data=st.data())
def test_bits_are_counted(known, data):
    """With and without numpy's function, which numpy 1 lacks."""
    words = data.draw(arrays.arrays(data.draw(st.sampled_from([np.uint8, np.uint64])), (3, 4)))
    with pytest.MonkeyPatch.context() as patch:
        if not known:
            patch.delattr(np, "bitwise_count", raising=False)
        found = bit_count(words.T)
    assert found.tolist() == [[int(x).bit_count() for x in row] for row in words.T]


@given(st.data(), st.integers(1, 200), st.integers(1, 200), st.sampled_from([0.0, 0.01, 0.5, 0.99, 1.0]))
def test_blocks_of_words(data, m, n, density):
    """What a mask lists bit by bit is what its predicate says, pair by pair; bits beyond the last key are nothing."""
    random = np.random.default_rng(data.draw(st.integers(0, 1000)))
    mask = random.random((m, n)) < density
    beyond = random.random((m, -n % 64)) < 0.5
    words = np.packbits(np.concatenate([mask, beyond], axis=1), axis=1, bitorder="little").view("<i8")
    listed = pieces.Bits(pieces.IntTable(words.reshape(-1)), m, n)
    found = Blocks.of_words(listed.rows, m, n)
    looked = Blocks.scan(lambda q, k: listed.holds(q, k, Where(m, n)), m, n, "a mask")
    for name in ("full", "partial", "bits"):
        x, y = getattr(found, name), getattr(looked, name)
        np.testing.assert_array_equal(x, y)
        assert x.dtype == y.dtype


@pytest.mark.parametrize("m,n", [(0, 0), (0, 70), (70, 0)])
def test_a_mask_of_nothing(m, n):
    pattern = pieces.bits([0] * (m * -(-n // 64)), m, n)
    assert pattern.acsr(m, n).nnz == 0
