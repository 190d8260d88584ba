"""Programs of calls with score functions on the oracle: what the definition says, to 1e-10."""

import pytest
from tests.tiers import sample

import weft

from .scored import Scored, check

RELATIVE = "score + real0[h, max(min(k - q - shift + size(0, 1) // 2, size(0, 1) - 1), 0)]"
LEARNED = "score - real0[h] * abs(q + shift - k)"
KEYS = "score * tanh(real0[b, k]) + real(int1[q] % 2 == int1[k] % 2)"
GRID = "score + real0[0, max(min(k // 20 - q // 20 + 4, 8), 0), k % 20 - q % 20 + 19]"
MASKS = "where(q % 3 == 0, -inf, where(bool0[k], score, -inf))"
BAND = weft.causal() & weft.window(left=40)
SMALL = {"heads": (2, 1), "batch": 1}
DENSE = "score + real0[b, h, q, k] * real1[0, 0, q, k] + real2[h, q, k]"
WINDOWS = "score + real0[h, k // 14 - q // 14 + 6, max(min(k % 14 - q % 14 + 2, 4), 0)] * real1[h]"
DENSE_ALIKE = "score + real0[0, h, q, k] - real1[q, k]"
TABLES = {WINDOWS: ((2, 13, 5), (2,)), DENSE_ALIKE: ((1, 2, 100, 100), (100, 100)),
          "": (), RELATIVE: ((2, 41),),
          LEARNED: ((2,),), KEYS: ((1, 150), (150,)), MASKS: ((150,),), GRID: ((1, 9, 39),),
          DENSE: ((2, 2, 100, 100), (1, 1, 100, 100), (2, 100, 100))}  # fmt: skip


def of(text, pattern, m=150, **more):
    return Scored(pattern, m, text=text, shapes=TABLES[text], **(SMALL | more))


CALLS = {
    "window": of(RELATIVE, BAND),
    "window, all options": of(KEYS, BAND, options={"softcap": 3.0, "alibi": True, "lse": True, "shift": 3}),
    "window, sums in one order": of(RELATIVE, BAND, options={"ordered": True}),
    "float64 tables": of(LEARNED, BAND, dtypes={0: "float64"}),
    "wide heads": of(LEARNED, BAND, dims=(192, 192)),
    "rows that are masked": of(MASKS, weft.causal()),
    "lanes": of(RELATIVE, weft.dilated(9, 9, 3)),
    "documents": of(RELATIVE, weft.documents([60, 0, 90]) & weft.causal()),
    "longformer": of(KEYS, weft.longformer(16, global_tokens=3)),
    "listed": of(LEARNED, weft.longformer(16) | weft.global_tokens([0, 77, 149])),
    "heads that differ": of(RELATIVE, weft.per_head([weft.causal(), weft.window(5, 5)]), heads=(2, 2)),
    "fewer queries": of(RELATIVE, weft.causal(align="bottom-right"), 90, n=150, options={"shift": 60}),
    "2-D": of(GRID, weft.neighborhood((16, 20), (9, 11)), 320, dims=(64, 64)),
    "2-D, softcap": of(GRID, weft.neighborhood((12, 20), (5, 5)), 240, options={"softcap": 3.0}),
    "blocks": of(RELATIVE, weft.random_blocks(16, 3, seed=1)),
    "dense tables": of(DENSE, BAND, 100, batch=2),
    "columns of listed tokens": of(KEYS, weft.longformer(16) | weft.global_tokens([0, 77, 149])),
    "dropout": of("", BAND, options={"dropout": 0.3, "lse": True}),
    "dropout, wide heads": of("", BAND, dims=(192, 192), options={"dropout": 0.3}),
    "dropout, 2-D": of("", weft.neighborhood((16, 20), (9, 11)), 320, dims=(64, 64), options={"dropout": 0.3}),
    "dropout, longformer": of(KEYS, weft.longformer(16, global_tokens=3), options={"dropout": 0.3}),
    "components, documents": of(
        RELATIVE, weft.documents([60, 0, 10, 40]) & weft.causal(), 110, heads=(2, 2), options={"lse": True}
    ),
    "components, windows": of(
        WINDOWS, weft.product([weft.documents([3, 7, 4])] * 2, (14, 14)), 196, heads=(2, 2), batch=3,
        options={"free": True},
    ),
    "components, a dense table": of(DENSE_ALIKE, weft.documents([30, 20, 50]), 100, heads=(2, 2), batch=2),
    "two functions": of(RELATIVE, BAND).then("score * 0.5 - tanh(score)"),
}  # fmt: skip


@pytest.mark.parametrize("name", sample(CALLS, "window", "window, all options", "2-D", "dropout"))
def test_programs_compute_scores(name):
    check(CALLS[name])
