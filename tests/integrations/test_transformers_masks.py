"""`mask` says what transformers' own `sdpa_mask` says, pair by pair, and says it again by the same object."""

import numpy as np
import pytest
import torch

masking = pytest.importorskip("transformers.masking_utils")

from weft.errors import WeftError
from weft.integrations.transformers.masks import mask

pytestmark = pytest.mark.more  # to import transformers takes seconds
B, S = 2, 24
IDS = torch.tensor([[-1] * 4 + [0] * 5 + [-1] * 3 + [1] * 2 + [-1] * 10, [-1] * 20 + [2] * 4])
POSITIONS = torch.tensor([[*range(9), *range(15)], [*range(24)]])
PACKED = masking.find_packed_sequence_indices(POSITIONS)
FUNCTIONS = {
    "causal": masking.causal_mask_function,
    "window": masking.sliding_window_causal_mask_function(5),
    "both sides": masking.sliding_window_bidirectional_mask_function(3),
    "all": masking.bidirectional_mask_function,
    "chunks": masking.chunked_causal_mask_function(5, torch.zeros(B, dtype=int)),
    "padded chunks": masking.chunked_causal_mask_function(5, torch.tensor([3, 0])),
    "images": masking.or_masks(masking.causal_mask_function, masking.blockwise_overlay(IDS)),
    "packed": masking.and_masks(
        masking.remap_positions_for_packed_sequence(masking.sliding_window_causal_mask_function(5), POSITIONS),
        masking.packed_sequence_mask_function(PACKED),
    ),
    "packed chunks": masking.and_masks(
        masking.remap_positions_for_packed_sequence(
            masking.chunked_causal_mask_function(5, torch.zeros(B, dtype=int)), POSITIONS
        ),
        masking.packed_sequence_mask_function(PACKED),
    ),
    "of a user": lambda b, h, q, k: ((q - k) % 3 == 0) & (k <= q),
}
PADDINGS = {
    "none": None,
    "left": torch.arange(S)[None] >= torch.tensor([[3], [0]]),
    "right": torch.arange(S)[None] < torch.tensor([[20], [24]]),
    "holes": torch.arange(S)[None] % torch.tensor([[3], [7]]) != 1,
}
# (M, N, q_offset, k_offset): all at once, steps, pieces, a sliding cache, a static one that is filled and to be filled
PLACES = [
    (24, 24, 0, 0),
    (1, 24, 23, 0),
    (4, 24, 20, 0),
    (3, 9, 21, 15),
    (1, 6, 23, 18),
    (20, 24, 0, 0),
    (5, 24, 12, 0),
]


def dense(made, heads=1):
    """(B, M, N) booleans of a mask; keys that are cut off are dead."""
    batch, m, n = made.sizes
    live = n if made.live is None else made.live
    found = np.zeros((batch, m, n), np.bool_)
    found[..., :live] = np.broadcast_to(made.pattern.to_dense(m, live), (batch, 1, m, live))[:, 0]
    return torch.from_numpy(found)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("place", PLACES, ids=str)
def test_is_what_transformers_says(function, padding, place):
    m, n, q_offset, k_offset = place
    tokens = PADDINGS[padding]
    given = {"mask_function": FUNCTIONS[function], "attention_mask": tokens}
    want = masking.sdpa_mask(B, m, n, q_offset, k_offset, allow_is_causal_skip=False, **given)
    made = mask(B, m, n, q_offset, k_offset, **given)
    assert made.shape == (B, 1, m, n)
    want = want.expand(B, 1, m, n)[:, 0]
    if made.live is not None:  # keys that have not come: a model would see them under images and on both sides alone
        want = want & (torch.arange(n) < made.live)
    assert torch.equal(dense(made), want)


@pytest.mark.parametrize("function", ["causal", "window", "chunks", "of a user"])
def test_steps_share_one_pattern(function):
    tokens = torch.ones(2, 40, dtype=torch.bool)
    tokens[0, :3] = False
    steps = [
        mask(2, 1, n, n - 1, 0, mask_function=FUNCTIONS[function], attention_mask=tokens[:, :n]) for n in (25, 26, 27)
    ]
    assert steps[0].pattern is steps[1].pattern is steps[2].pattern


def test_equal_tables_share_one_pattern():
    def packed():
        function = masking.packed_sequence_mask_function(PACKED.clone())
        return mask(B, S, S, 0, 0, mask_function=masking.and_masks(masking.causal_mask_function, function)).pattern

    assert packed() is packed()


def test_what_reads_a_mask_as_a_tensor_is_refused():
    made = mask(1, 4, 4, 0, 0)
    for read in (
        lambda: made + 1,
        lambda: torch.zeros(4, 4) + made,
        lambda: made[:, :, :2, :2],
        lambda: made[0],
        lambda: made[:, :, ::2, :],
        lambda: torch.cat([made, made], -1),
        lambda: bool(made),
        made.float,
    ):
        with pytest.raises(WeftError, match="past the attention interface"):
            read()
    assert made.to("cpu") is made
    assert made.ndim == len(made.shape) == 4


@pytest.mark.parametrize("function", ["causal", "window", "padded chunks", "packed"])
@pytest.mark.parametrize("padding", ["none", "left"])
@pytest.mark.parametrize("static", [False, True])
def test_some_of_the_queries(function, padding, static):
    """Models keep the last of them where layers have no keys of their own."""
    offset = torch.tensor(8) if static else 8
    told = {"mask_function": FUNCTIONS[function], "attention_mask": PADDINGS[padding]}
    made = mask(B, 16, S, offset, 0, **told)
    assert made[:, :, :, :] is made[:, :, -16:] is made
    want = masking.sdpa_mask(B, 16, S, 8, 0, allow_is_causal_skip=False, **told).expand(B, 1, 16, S)
    for rows in (slice(-1, None), slice(-3, None), slice(2, 7)):
        some = made[:, :, rows, :]
        assert some.shape == (B, 1, len(range(16)[rows]), S)
        found = dense(some) if some.slots is None else counted_dense(some)
        assert torch.equal(found, want[:, 0, rows])


def counted_dense(made):
    """(B, M, N) booleans of a mask by counts."""
    keys, seen = made.slots.on_host(made.sizes[1])
    found = np.zeros(made.sizes, np.bool_)
    found[..., :keys] = np.broadcast_to(seen.to_dense(made.sizes[1], keys), (made.sizes[0], 1, made.sizes[1], keys))[
        :, 0
    ]
    return torch.from_numpy(found)


def test_a_function_that_cannot_be_recognised_names_the_model():
    class Config:
        model_type = "llama"

    def odd(b, h, q, k):
        return (q * q * q + k * k) % 11 == 3

    with pytest.raises(WeftError, match="in llama"):
        mask(1, 4, 4, 0, 0, mask_function=odd, config=Config())
