"""Tables that kernels read along k - q, where neighbours in tiles are neighbouring tokens, beside dense attention."""

import pytest
import torch
from tests.tiers import sample

import weft
from weft.kernels.gpu.score.spec import composed
from weft.planning.attention_plan import plan_attention
from weft.score.reads import added_to_score
from weft.target import GPU
from weft.torch.along import distances_of, rewritten
from weft.torch.inputs import problem_of

from .compare import BACKENDS, generator, normal, qkv
from .scored import Scored, check

pytestmark = pytest.mark.skipif("triton" not in BACKENDS, reason="kernels of a GPU")
LINES = {
    "causal": weft.causal(align="bottom-right"),
    "window": weft.window(20, 9, align="bottom-right"),
    "documents": weft.documents([30, 0, 66], key_lengths=[50, 5, 30]),
    "full": weft.full(),
    "heads": weft.per_head([weft.causal(align="bottom-right"), weft.full()] * 2),
}
OTHERS = {
    "lanes": weft.dilated(9, 9, 3),
    "grid": weft.neighborhood((8, 10), (5, 5)),
    "blocks": weft.random_blocks(16, 2),
    "listed": weft.window(9, 9) | weft.global_tokens([0, 50]),
}
SIZES = (96, 85)


def functions(m, n):
    random = generator("tables")
    table, of_rows, kinds = (normal(shape, random).double().requires_grad_() for shape in ((4, m + n), (2, 9), (3,)))
    codes = torch.randint(3, (m + n,), generator=torch.Generator().manual_seed(0))

    def clipped(score, b, h, q, k):
        return score + of_rows[b, (k - q).clamp(-4, 4) + 4]

    return {
        "heads": ((table,), lambda score, b, h, q, k: score + table[h, k - q + m - 1]),
        "batch rows": ((of_rows,), clipped),
        "by codes": ((kinds,), lambda score, b, h, q, k: score * kinds[codes[k - q + m - 1]]),
        "two": (
            (table, of_rows),
            lambda score, b, h, q, k: clipped(torch.tanh(score) * table[h, (q - k) // 2 + n], b, h, q, k),
        ),
    }


@pytest.mark.parametrize("pattern", sample(LINES, "window"))
@pytest.mark.parametrize("name", sample(("heads", "batch rows", "by codes", "two"), "two"))
def test_tables_along_distances(name, pattern):
    tables, function = functions(*SIZES)[name]
    tensors = qkv(generator(name), SIZES, torch.float32, (4, 2))
    assert distances_of(plan_attention(LINES[pattern], problem_of(*tensors), GPU)).grid == ()
    assert rewritten(composed(weft.trace_score(function).text)) is not None
    check(Scored(LINES[pattern], tensors, function, tables))


@pytest.mark.parametrize("pattern", OTHERS)
def test_steps_lists_grids_and_blocks_read_tables_where_they_are(pattern):
    tensors = qkv(generator("others"), (80, 80), torch.float32, (4, 2))
    distances = distances_of(plan_attention(OTHERS[pattern], problem_of(*tensors), GPU))
    assert distances is None or distances.grid


def test_what_is_read_elsewhere_stays():
    table = torch.ones(4, 9)
    for function in (lambda score, b, h, q, k: score * (k - q), lambda score, b, h, q, k: score + table[h, q]):
        assert rewritten(composed(weft.trace_score(function).text)) is None


@pytest.mark.parametrize(
    ("pattern", "at", "dims"),
    sample([("window", (150, 131), (64, 64)), ("causal", (192, 192), (64, 64)), ("full", (70, 200), (128, 128))],
           ("window", (150, 131), (64, 64))),
)  # fmt: skip
def test_many_tiles(pattern, at, dims):
    """Rows beyond the last tile's end read entries of their own, and are not stored."""
    tables, function = functions(*at)["heads"]
    check(Scored(LINES[pattern], qkv(generator("many"), at, torch.bfloat16, (4, 2), dims), function, tables))


ADDING = {
    "one": (lambda score, b, h, q, k, table: score + table[h, k - q + 95], True),
    "several": (lambda score, b, h, q, k, table: 2 * h + (score - table[h, q]) + table[h, k - q + 95] * k, True),
    "scaled": (lambda score, b, h, q, k, table: score * 2.0 + table[h, q], False),
    "taken from": (lambda score, b, h, q, k, table: table[h, q] - score, False),
    "twice": (lambda score, b, h, q, k, table: score + table[h, q] + score, False),
    "capped": (lambda score, b, h, q, k, table: torch.tanh(score) + table[h, q], False),
    "nothing": (lambda score, b, h, q, k, table: score, False),
}


@pytest.mark.parametrize("name", ADDING)
def test_what_is_added_to_scores_is_told_apart(name):
    table = torch.ones(4, 200)
    function, adds = ADDING[name]
    text = weft.trace_score(lambda *place: function(*place, table)).text
    assert bool(added_to_score(composed(text))) == adds


@pytest.mark.parametrize("name", sample(("several", "scaled"), "several"))
def test_what_is_added_joins_products(name):
    table = normal((4, 200), generator(name)).double().requires_grad_()
    function = ADDING[name][0]
    for pattern in (LINES["window"], OTHERS["blocks"]):
        tensors = qkv(generator(name), (96, 96), torch.float32, (4, 2))
        check(Scored(pattern, tensors, lambda *place: function(*place, table), (table,)))
