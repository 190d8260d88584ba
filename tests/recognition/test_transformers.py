"""The mask functions of Hugging Face transformers, built by that library itself."""

import numpy as np
import pytest

import weft
from weft.recognition import recognize

torch = pytest.importorskip("torch")
masks = pytest.importorskip("transformers.masking_utils")

N = 64
CAUSAL = masks.causal_mask_function
LEFT = torch.tensor([0, 5, 3])
PADDED = torch.ones(3, N, dtype=torch.bool)
PADDED[1, :7], PADDED[2, 50:] = False, False
PACKED = torch.tensor([[0] * 20 + [1] * 30 + [2] * 14, [0] * 5 + [1] * 50 + [2] * 9])
PLACES = torch.cat([(torch.arange(N) - torch.tensor([row.tolist().index(i) for i in row]))[None] for row in PACKED])
IMAGES = torch.tensor([[-1] * 5 + [0] * 10 + [-1] * 4 + [1] * 8 + [-1] * 37, [0] * 9 + [-1] * 50 + [1] * 5])
WINDOW = masks.sliding_window_causal_mask_function(9)
PADDING = masks.padding_mask_function(PADDED)


def packed(function):
    """`function` of the places in each document, as transformers builds it for packed rows."""
    places = masks.remap_positions_for_packed_sequence(function, PLACES)
    return masks.and_masks(places, masks.packed_sequence_mask_function(PACKED))


# name -> (function, batch rows, queries)
GIVEN = {
    "causal": (CAUSAL, 1, N),
    "bidirectional": (masks.bidirectional_mask_function, 1, N),
    "sliding window": (WINDOW, 1, N),
    "sliding overlay": (masks.sliding_window_overlay(9), 1, N),
    "bidirectional window": (masks.sliding_window_bidirectional_mask_function(9), 1, N),
    "chunked": (masks.chunked_causal_mask_function(8, torch.zeros(3, dtype=int)), 3, N),
    "chunked, padded on the left": (masks.chunked_causal_mask_function(8, LEFT), 3, N),
    "chunked overlay": (masks.chunked_overlay(8, LEFT), 3, N),
    "padding": (PADDING, 3, N),
    "causal and padding": (masks.and_masks(CAUSAL, PADDING), 3, N),
    "packed": (masks.packed_sequence_mask_function(PACKED), 2, N),
    "packed and causal": (masks.and_masks(CAUSAL, masks.packed_sequence_mask_function(PACKED)), 2, N),
    "packed positions": (packed(CAUSAL), 2, N),
    "packed window": (packed(WINDOW), 2, N),
    "packed chunks": (packed(masks.chunked_causal_mask_function(6, torch.tensor([0, 0]))), 2, N),
    "blockwise": (masks.or_masks(CAUSAL, masks.blockwise_overlay(IMAGES)), 2, N),
    "blockwise and padding": (
        masks.and_masks(masks.or_masks(CAUSAL, masks.blockwise_overlay(IMAGES)), PADDING), 2, N
    ),
    "prefix": (masks.or_masks(CAUSAL, lambda b, h, q, k: k < 10), 1, N),
    "with a cache": (masks.add_offsets_to_mask_function(WINDOW, 40, 0), 1, 24),
    "with a cache and padding": (
        masks.add_offsets_to_mask_function(masks.and_masks(CAUSAL, masks.padding_mask_function(
            torch.cat([PADDED, PADDED], 1))), 60, 20), 3, 24,
    ),
    "one query": (masks.add_offsets_to_mask_function(CAUSAL, 63, 0), 1, 1),
}  # fmt: skip


def dense(function, batch, m):
    b, h, q, k = (torch.from_numpy(x) for x in np.ix_(*map(np.arange, (batch, 1, m, N))))
    return function(b, h, q, k).expand(batch, 1, m, N).numpy()


@pytest.mark.parametrize("name", GIVEN)
def test_closed_and_proven(name):
    function, batch, m = GIVEN[name]
    found = recognize(function, size=(m, N), batch=batch)
    mask = dense(function, batch, m)
    assert found.proof == "symbolic" and found.closed
    assert (np.broadcast_to(found.pattern.to_dense(m, N), mask.shape) == mask).all()
    for row in range(batch):
        rows = found.pattern.acsr(m, N, row if found.pattern.extent()[0] else 0)
        assert not len(rows.remainder) and (rows.to_dense() == mask[row, 0]).all()


def test_names():
    found = {name: recognize(GIVEN[name][0], size=(N, N)).pattern for name in ("causal", "sliding window", "prefix")}
    assert found["causal"] == weft.causal()
    assert found["sliding window"] == weft.causal() & weft.window(left=8)
    assert found["prefix"] == weft.causal() | weft.prefix(10)
