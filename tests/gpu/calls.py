"""Calls that reach every kernel and every fragment of them, at lengths that the oracle takes a second for."""

import numpy as np

import weft
from weft.planning import families
from weft.planning.families.hopper import BOXED, CONFIGS, LISTED, LISTED_FORWARD, SUMMED

from .checked import Call

BAND = weft.causal() & weft.window(left=100)
GROUPS = tuple(CONFIGS.items())  # tiles of warp groups, which plans choose for longer sequences
WIDE = (("forward", families.hopper.WIDE),)
BOXES = tuple(BOXED.items())
WIDEST = (("forward", families.hopper.WIDEST), ("dq", families.hopper.APART), ("dkdv", families.hopper.APART))
HALF = (("forward", CONFIGS["forward"]),)
SUMS = (("dkdv", SUMMED),)
LISTS = (("forward", LISTED_FORWARD), ("dkdv", LISTED))
OPTIONS = {"softcap": 5.0, "alibi": True, "sinks": True, "lse": True}
HOPPER = {"dims": (64, 64), "heads": (2, 2), "batch": 1}
ONE = {"heads": (2, 1), "batch": 1}


def one(pattern, m, **more):
    """A call of two heads that share one of keys, unless more says otherwise."""
    return Call(pattern, m, **(ONE | more))


def hopper(pattern, m, **more):
    """A call that kernels of warp groups take on Hopper."""
    return Call(pattern, m, **(HOPPER | more))


def grid(pattern, shape, **more):
    length = 1
    for size in shape:
        length *= size
    return one(pattern, length, **more)


TWO = weft.causal() & (weft.window(left=127) | weft.periodic_keys(128))
IMAGE = weft.segments(
    [64, 320], [[weft.full()] * 2, [weft.full(), weft.neighborhood((16, 20), (9, 11))]]
)  # fmt: skip
IDS = np.random.default_rng(3).integers(0, 5, 200)
SCATTERED = weft.documents(ids=IDS)
KERNELS = {
    # tiles on lines
    "window": one(BAND, 333, dims=(128, 128), order=(0, 2, 1, 3)),
    "window, all options": one(BAND, 200, dims=(80, 80), options=OPTIONS, batch=2),
    "window, float32": one(BAND, 200, dtype="float32", options={"lse": True, "with_delta": True}),
    "window, 192": one(BAND, 300, dims=(192, 192), heads=(2, 2)),
    "window, 192, softcap": one(BAND, 200, dims=(192, 192), dtype="float16", options={"softcap": 2.0}),
    "window, scale below 0": one(BAND, 200, dims=(16, 96), dtype="float16", options={"scale": -1.0}),
    "rows anywhere": one(BAND, 200, dims=(33, 40), dtype="float16", order=(2, 0, 1, 3)),
    "documents": one(weft.documents([60, 0, 40, 100]) & weft.causal(), 200, dims=(128, 128)),
    "two terms": one(weft.causal() | weft.prefix(100), 260, options={"with_delta": True}),
    "three terms": one(weft.causal() & (weft.window(left=80) | weft.periodic_keys(100) | weft.prefix(4)), 400),
    "longformer": one(weft.longformer(64, global_tokens=3), 300, batch=2),
    "longformer, one loop": one(weft.longformer(128, global_tokens=64), 700, dims=(64, 64), heads=(1, 1)),
    "longformer, packed": one(weft.longformer(64, global_tokens=64), 400, dims=(128, 128), dtype="float16"),
    "dilation by head": one(weft.per_head([weft.dilated(9, 9, x) for x in (1, 2, 4, 4)]), 200, heads=(4, 2)),
    "strided": one(weft.causal() & weft.strided(32), 260),
    "by groups": hopper(BAND, 700, fixed=GROUPS),
    "by groups, in another order": hopper(BAND, 300, fixed=GROUPS, order=(0, 2, 1, 3), options={"sinks": True}),
    "by groups, fewer queries": hopper(weft.causal(align="bottom-right"), 200, n=333, fixed=GROUPS),
    "by groups, results by rows": hopper(BAND, 300, fixed=GROUPS, options={"one_argument": True}),
    "by groups, two terms": hopper(TWO, 600, fixed=GROUPS, options={"lse": True, "sinks": True}),
    "by groups, two terms, prefix": hopper(BAND | (weft.causal() & weft.prefix(70)), 500, fixed=GROUPS),
    "by groups, lanes": hopper(weft.dilated(64, 64, 3), 900, fixed=GROUPS),
    "by groups, D=128": hopper(BAND, 700, fixed=WIDE, dims=(128, 128)),
    "by groups, 2-D": grid(weft.neighborhood((20, 37), (5, 9)), (20, 37), dims=(128, 128), fixed=WIDE, batch=2),
    "by groups, 2-D, in another order": grid(
        weft.neighborhood((16, 24), (7, 9), causal=(True, False)), (16, 24), dims=(128, 128), fixed=WIDE,
        order=(0, 2, 1, 3), options={"sinks": True, "one_argument": True},
    ),
    "by groups, 3-D": grid(
        weft.neighborhood((6, 9, 18), (4, 5, 8)), (6, 9, 18), dims=(128, 128), fixed=WIDE, heads=(2, 2), batch=2
    ),
    "by groups, 3-D, batch rows beside places": grid(
        weft.neighborhood((4, 10, 18), (3, 6, 8)), (4, 10, 18), dims=(128, 128), fixed=WIDE, heads=(2, 2),
        batch=2, order=(0, 2, 1, 3),
    ),
    "by groups, 3-D, strided": grid(
        weft.neighborhood((6, 8, 16), (4, 6, 8), stride=(2, 4, 8)), (6, 8, 16), dims=(128, 128), fixed=WIDE,
        heads=(2, 2), order=(0, 2, 1, 3),
    ),
    "by groups, 2-D, D=64": grid(
        weft.neighborhood((20, 37), (5, 9)), (20, 37), dims=(64, 64), fixed=BOXES, heads=(4, 2), batch=2,
        options={"lse": True, "sinks": True, "with_delta": True},
    ),
    "by groups, 3-D, D=64": grid(
        weft.neighborhood((6, 9, 18), (4, 5, 8)), (6, 9, 18), dims=(64, 64), fixed=BOXES, heads=(2, 2), batch=2
    ),
    "by groups, 2-D, all gradients": grid(
        weft.neighborhood((20, 37), (5, 9)), (20, 37), dims=(128, 128), fixed=SUMS, heads=(4, 2), options={"free": True}
    ),
    "by groups, 3-D, all gradients": grid(
        weft.neighborhood((6, 9, 18), (4, 5, 8)), (6, 9, 18), dims=(128, 128), fixed=SUMS, heads=(2, 2), batch=2,
        options={"free": True},
    ),
    "by groups, D=80, two terms": hopper(TWO, 600, fixed=WIDE, dims=(80, 96)),
    "by groups, D=128, documents": hopper(
        weft.causal() & weft.documents([60, 0, 140, 300]), 500, fixed=WIDE, dims=(128, 128)
    ),
    "all gradients by groups": hopper(BAND, 400, fixed=SUMS, dims=(128, 128), heads=(4, 2), options={"free": True}),
    "all gradients by groups, lanes": hopper(
        weft.dilated(64, 64, 3), 600, fixed=SUMS, dims=(128, 128), options={"free": True, "lse": True}
    ),
    "all gradients by groups, blocks": hopper(
        weft.random_blocks(64, 2), 320, fixed=LISTS, dims=(128, 128), heads=(4, 2), options={"free": True, "lse": True}
    ),
    "by groups, D=256": hopper(BAND, 400, fixed=WIDEST, dims=(256, 256), heads=(4, 2), options={"lse": True}),
    "by groups, D=256, documents": hopper(
        weft.causal() & weft.documents([60, 0, 140, 300]), 500, fixed=WIDEST, dims=(256, 256)
    ),
    "by groups, float16": hopper(BAND, 300, fixed=HALF, dtype="float16", options={"sinks": True}),
    "by groups, short runs": hopper(weft.causal() & weft.window(left=127), 600, fixed=GROUPS),
    # lists, grids, blocks
    "listed tokens": one(weft.longformer(32) | weft.global_tokens([0, 77, 150, 151]), 200),
    "listed tokens left out": one(weft.window(64, 64) & ~weft.global_tokens([0, 77, 150]), 200),
    "scattered": one(weft.causal() & SCATTERED, 200, dims=(128, 128)),
    "scattered, all options": one(SCATTERED & weft.window(90, 90), 200, dims=(80, 80), options=OPTIONS, batch=2),
    "scattered, keys of their own": one(
        weft.documents(ids=IDS[:150], key_ids=np.random.default_rng(4).integers(0, 6, 200)), 150, n=200,
        options={"with_delta": True},
    ),
    "scattered beside a window": one(weft.window(5, 5) | SCATTERED, 200, order=(0, 2, 1, 3)),
    "scattered, other labels": one(~SCATTERED, 200, dims=(64, 64), options={"lse": True}),
    "scattered, by heads": one(
        weft.per_head([SCATTERED, weft.causal(), SCATTERED & weft.window(9, 9), SCATTERED]), 200, heads=(4, 2)
    ),
    "scattered, rows anywhere": one(SCATTERED, 200, dims=(33, 40), dtype="float16", order=(2, 0, 1, 3)),
    "2-D": grid(weft.neighborhood((16, 20), (9, 11)), (16, 20), dims=(128, 128)),
    "2-D, ungrouped": grid(weft.neighborhood((16, 20), (9, 11)), (16, 20), dims=(64, 64), heads=(2, 2)),
    "2-D, cut": grid(weft.neighborhood((12, 14), (5, 5)), (12, 14), options={"sinks": True, "softcap": 3.0}),
    "2-D, listed": grid(weft.neighborhood((16, 16), (5, 5)) & ~weft.global_tokens([0, 77, 100]), (16, 16)),
    "3-D": grid(weft.neighborhood((4, 8, 12), (3, 3, 5), dilation=(1, 2, 1)), (4, 8, 12)),
    "sparse transformer, fixed": one(weft.sparse_transformer(32, 2, kind="fixed", summary=8), 400),
    "text and image": one(IMAGE, 384, dims=(128, 128), heads=(1, 1)),
    "random blocks": one(weft.random_blocks(16, 3, seed=1), 200, options={"lse": True}),
    "bigbird": one(weft.bigbird(16), 200, options={"sinks": True}),
    # one walk
    "short window": hopper(weft.causal() & weft.window(left=127), 500, heads=(4, 2)),
    "short window, with delta": hopper(weft.window(64, 64), 300, options={"lse": True, "sinks": True}, batch=2),
    "few keys beside it": hopper(TWO, 800, heads=(4, 2), options={"lse": True}),
    "first keys beside it": hopper(weft.causal() & (weft.window(left=127) | weft.prefix(150)), 500),
    # the order of sums is free
    "one kernel": one(BAND, 333, dims=(64, 64), one_kernel=True),
    "one kernel, listed": one(weft.longformer(32) | weft.global_tokens([0, 77, 150]), 200, one_kernel=True),
    "one kernel, scattered": one(weft.causal() & SCATTERED, 200, dims=(64, 64), one_kernel=True),
    "one kernel, 2-D": grid(weft.neighborhood((12, 14), (5, 5)), (12, 14), one_kernel=True, options={"lse": True}),
    "one kernel, blocks": one(weft.random_blocks(16, 3, seed=1), 200, one_kernel=True),
    "split": one(weft.causal() & (weft.window(left=127) | weft.prefix(200)), 2000, heads=(1, 1), dims=(64, 64),
                 options={"free": True}),
    "split, one kernel": one(weft.longformer(512, global_tokens=64), 1500, heads=(1, 1), dims=(64, 64),
                             one_kernel=True),
}  # fmt: skip
