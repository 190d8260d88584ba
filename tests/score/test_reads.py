"""What the index of a read depends on, of texts."""

import pytest

from weft.kernels.gpu.score.spec import composed
from weft.score.reads import reads_of

KINDS = {
    "score + real0[h, q]": "rows",
    "score + real0[b, k // 3]": "columns",
    "score + real0[h, k - q + 7]": "diagonals",
    "score + real0[h, max(2 * q - 2 * k, 0) // 3]": "diagonals",
    "score + real0[k // 8 - q // 8]": "offsets",
    "score + real0[h, max(min(k // 8 - q // 8, 3), -3) + 3, k % 8 - q % 8 + 7]": "offsets",
    "score + real0[h, (k // 8 - q // 8) // 2 + 3]": "offsets",
    "score + real0[k // 8 - q // 4]": "pairs",
    "score + real0[k // 8 + q // 8]": "pairs",
    "score + real0[(k + 1) // 8 - (q + 1) // 8]": "pairs",
    "score + real0[k - q, k // 8 - q // 8]": "pairs",
    "score + real0[h, q // 8, k // 8]": "pairs",
    "score + real0[b, h, q, k]": "dense",
    "score + real0[0]": "rows",
}


@pytest.mark.parametrize("text", KINDS)
def test_kinds(text):
    assert [read.kind for read in reads_of(composed(text))] == [KINDS[text]]


@pytest.mark.parametrize(
    "text, grids, others",
    [
        ("real0[k // 8 - q // 8, k % 8 - q % 8]", [(5, 8), (8, 8)], [(8, 5), (64,), (2, 4, 8)]),
        ("real0[k // 40 - q // 40, k // 8 % 5 - q // 8 % 5, k % 8 - q % 8]", [(3, 5, 8)], [(5, 3, 8), (15, 8)]),
        ("real0[k % 40 // 8 - q % 40 // 8]", [(3, 5, 8)], [(5, 8)]),
        ("real0[k % 8 - q % 8]", [(3, 8), (3, 5, 8)], [(8, 3)]),
        ("real0[k - q]", [], [(5, 8)]),
    ],
)
def test_grids_of_offsets(text, grids, others):
    (read,) = reads_of(composed(f"score + {text}"))
    assert all(read.is_on(grid) for grid in grids)
    assert not any(read.is_on(grid) for grid in others)
