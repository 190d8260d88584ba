"""Score functions in kernels, beside dense attention: functions, patterns, relayouts, types, heads, lengths."""

import pytest
import torch
from tests.tiers import sample

import weft
from weft.testing.score_functions import FUNCTIONS

from .compare import BACKENDS
from .scored import check, named

pytestmark = pytest.mark.skipif("triton" not in BACKENDS, reason="tests/torch/test_scores.py has the CPU's")
PATTERNS = {
    "window": weft.causal() & weft.window(left=30),
    "dilated": weft.dilated(3, 2, 3),  # lanes
    "documents": weft.documents([13, 1, 66]),  # steps
    "global": weft.longformer(8, 3),  # terms, merged
    "random": weft.random_blocks(8, 2),  # a remainder
    "grid": weft.neighborhood((8, 10), (5, 5)),
    "heads": weft.per_head([weft.causal(), weft.window(3, 3), weft.full(), weft.causal()]),
    "listed": weft.keys(0, 60, 7) | weft.window(2, 0),
    "scattered": weft.documents(ids=[i * 7 % 4 for i in range(80)]),  # terms in another order
    "batch": weft.padding([80, 31]) & weft.causal(),
}
MASKING = ("causal", "sliding_window", "documents", "padding")
GRADIENTS = True  # of tables
CROSSED = ("relative_table", "type_pairs", "alibi_learned", "sliding_window", "query_bias", "key_weights")


@pytest.mark.parametrize("name", sample(FUNCTIONS, "gated_table", "times", "padding", "t5_buckets"))
def test_forty_functions(name):
    check(named(name, weft.full() if name in MASKING else PATTERNS["window"], (70, 70), gradients=GRADIENTS))


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("name", sample(CROSSED, "relative_table"))
def test_indices_are_original_tokens(name, pattern):
    """After steps, lanes, lists, grids, remainders, merged launches, and with queries and keys exchanged."""
    check(named(name, PATTERNS[pattern], (80, 80), gradients=GRADIENTS))


@pytest.mark.parametrize("name", ["relative_table", "key_bias"])
@pytest.mark.parametrize("m,n", sample([(17, 130), (130, 17), (1, 9), (64, 65), (129, 63)], (17, 130)))
def test_lengths(name, m, n):
    mask = weft.causal(align="bottom-right") & weft.window(left=20, align="bottom-right")
    check(named(name, mask, (m, n), gradients=GRADIENTS))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("d,dv", sample([(16, 16), (33, 40), (64, 64), (128, 128)], (33, 40)))
def test_types_and_dims(dtype, d, dv):
    check(named("gated_table", PATTERNS["window"], (70, 70), dtype, dims=(d, dv), gradients=GRADIENTS))


@pytest.mark.parametrize("heads", [(4, 1), (3, 3)], ids=str)
def test_heads(heads):
    check(named("relative_table", PATTERNS["window"], (70, 70), heads=heads, gradients=GRADIENTS))


@pytest.mark.parametrize("pattern", ["window", "grid", "global"])
def test_beside_other_options(pattern):
    options = {"softcap": 2.0, "scale": 0.7}
    check(named("type_pairs", PATTERNS[pattern], (80, 80), gradients=GRADIENTS, options=options))


def test_rows_that_a_score_masks_have_no_keys():
    def none_for_some(score, b, h, q, k):
        return torch.where(q % 3 == 0, -float("inf"), score)

    for mask in (weft.causal(), weft.longformer(2, 1), weft.full(), weft.neighborhood((8, 10), (5, 5))):
        case = named("identity", mask, (80, 80))
        case.function = none_for_some
        found = check(case)
        assert (found["lse"][:, :, ::3] == -torch.inf).all()


def test_derivatives_that_are_infinite_at_dead_pairs():
    """NaN, and an infinite derivative, at pairs outside of the mask."""
    rate = torch.rand(4, dtype=torch.float64) + 0.1

    def odd(score, b, h, q, k):
        return score * torch.log((q - k) * rate[h])

    for mask in (weft.causal(offset=-1), weft.causal(offset=-1) & weft.longformer(8, 2)):
        case = named("identity", mask, (70, 70))
        case.function = odd
        found = case.weft()
        assert all(torch.isfinite(x).all() for name, x in found.items() if name != "lse")


LONG = {
    "window": weft.window(128, 128),
    "causal": weft.causal(),
    "plane": weft.neighborhood((32, 32), (9, 9)),
    "longformer": weft.longformer(128, 16),
    "blocks": weft.random_blocks(64, 3),
}


@pytest.mark.wide
@pytest.mark.skipif(not torch.cuda.is_available(), reason="tilings of a card, at sizes that interpreters are slow for")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("d", [64, 128, 256])
@pytest.mark.parametrize("pattern", LONG)
@pytest.mark.parametrize("name", ["relative_table", "key_bias", "type_pairs"])
def test_tilings_of_a_card(name, pattern, d, dtype):
    if (pattern, d, dtype) == ("blocks", 256, torch.float32):
        pytest.skip("refused: gradients of blocks have no room")
    check(named(name, LONG[pattern], (1024, 1024), dtype, dims=(d, d), dropout=0.2 if d == 64 else 0.0))
