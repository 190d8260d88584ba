"""How a plan is walked and counted, and the library as functions of a length."""

import os

import numpy as np
from hypothesis import HealthCheck, settings
from tests.tiers import examples

import weft
from weft.planning.attention_plan import plan_attention
from weft.planning.heads import count_heads
from weft.planning.problem import Problem
from weft.planning.tiles import walk
from weft.planning.tiling.cpu import plan_tiles
from weft.target import CPU, Target

# Under CI the examples are always the same; elsewhere every run draws new ones.
laws = settings(
    max_examples=examples(100),
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

# Where a tile costs nothing the smallest box wins; where it costs a second the largest.
SMALL_BOXES = Target("small boxes", 1e11, 1e-10, 1e-10, 1e-10, 0.0)
LARGE_BOXES = Target("large boxes", 1e11, 1e-10, 1e-10, 1e-10, 1.0)
TARGETS = {"cpu": CPU, "small boxes": SMALL_BOXES, "large boxes": LARGE_BOXES}


def problem(tokens=8192, d=64, heads=8, dtype="bfloat16"):
    """Of one batch row on a GPU, every head with keys of its own."""
    return Problem(1, heads, heads, tokens, tokens, d, d, dtype, "cuda")


def rows_of(plan, direction):
    """What is chosen a tiling for: (ACSR, heads) of every share of a plan."""
    return [(share.plan.acsr, count_heads(share.heads)) for share in plan.towards(direction)]


def planned(pattern, m, n=None, target=CPU):
    """The AttentionPlan of one head."""
    return plan_attention(pattern, Problem(1, 1, 1, m, m if n is None else n, 16, 16), target)


def tile_plan(pattern, m, n=None, target=CPU):
    """The forward TilePlan of one head."""
    return planned(pattern, m, n, target).forward[0].plan


def replanned(acsr):
    """The TilePlan of an Acsr that need not be what any pattern says."""
    return plan_tiles(acsr, Problem(1, 1, 1, acsr.m, acsr.n, 16, 16), SMALL_BOXES)


def coverage(plan):
    """How often the walk computes each pair: (M, N). A pair of a full tile counts, live or not."""
    count = np.zeros((plan.acsr.m, plan.acsr.n), int)
    for visits in walk(plan):
        for visit in visits:
            count[np.ix_(visit.queries, visit.keys)] += 1 if visit.mask is None else visit.mask
    return count


def check_coverage(plan, dense, what):
    """Every live pair once, no other, and as much work in every query tile as was foretold."""
    count = coverage(plan)
    if not np.array_equal(count, dense):
        pair = tuple(int(x) for x in np.argwhere(count != dense)[0])
        raise AssertionError(
            f"{what}: pair {pair} is computed {count[pair]} times, expected {int(dense[pair])}\n{plan}"
        )
    seen = [sum(visit.queries.size * visit.keys.size for visit in visits) for visits in walk(plan)]
    foretold = [int(work) for nest in plan.nests for work in nest.work()]
    assert seen[: len(foretold)] == foretold, f"{what}: work per query tile"
    assert sum(foretold) == sum(part.visited for nest in plan.nests for part in nest.parts)
    rest = sum(seen) - sum(foretold)  # the last blocks of the remainder may be cut, and are counted as whole
    assert len(seen) == plan.tiles and sum(foretold) + rest <= plan.visited, what
    assert plan.blocks is not None or (rest == 0 and plan.visited == sum(foretold)), what


def check_both_ways(plan, dense, what):
    """`check_coverage` of a one-head AttentionPlan and of its transposed plan."""
    (forward,), (transposed,) = plan.forward, plan.transposed
    check_coverage(forward.plan, dense, what)
    check_coverage(transposed.plan, dense.T, f"{what}, transposed")


# --- the library ----------------------------------------------------------------------------------------------------


ALL = [True, True, True]


def thirds(n):
    """Three lengths, one of them 0 where n is small, that add up to n."""
    return [n // 3, n // 2, n - n // 3 - n // 2]


# Every function of the library at small parameters, as a pattern for n tokens; those of FITTED know their length.
ANY_LENGTH = {
    "full": weft.full(),
    "nothing": weft.nothing(),
    "causal": weft.causal(),
    "causal before": weft.causal(offset=-40),
    "causal after": weft.causal(offset=40),
    "window": weft.window(left=20, right=5),
    "window left": weft.window(left=70),
    "window right": weft.window(right=3),
    "sliding": weft.causal() & weft.window(left=17),
    "dilated": weft.dilated(4, 3, 5),
    "strided": weft.strided(7),
    "fixed": weft.fixed(7),
    "fixed summary": weft.fixed(9, summary=3),
    "chunks": weft.chunks(24),
    "periodic_keys": weft.periodic_keys(6, phase=2),
    "blocks": weft.blocks((16, 24), [(0, 0), (1, 3), (2, 0), (9, 1)]),
    "prefix": weft.causal() | weft.prefix(21),
    "padding": weft.padding(50, rows=True),
    "padding keys": weft.padding(50),
    "global_tokens": weft.global_tokens(3),
    "global_tokens listed": weft.global_tokens([0, 40], rows=False) | weft.global_tokens([33, 66], columns=False),
    "global_tokens scattered": weft.window(9, 9) | weft.global_tokens([0, 17, 40, 41, 77]),
    "global_tokens left out": weft.dilated(4, 4, 3) & ~weft.global_tokens([5, 30, 64], columns=False),
    "random_blocks": weft.random_blocks(16, 2, seed=5),
    "longformer": weft.longformer(16, 2),
    "longformer dilated": weft.longformer(8, 2, dilation=3),
    "bigbird": weft.bigbird(8, 3, 1, 1),
    # a nest of two parts, with lanes that are dead in one of them; on the second, in the transposed plan
    "dead lanes of queries": (weft.periodic_keys(4) & weft.dilated(9, 9, 2)) | weft.dilated(2, 1, 2),
    "dead lanes of keys": weft.periodic_keys(3, phase=0) | (weft.periodic_keys(3, phase=1) & weft.causal()),
    "shift": weft.window(9, 2).shift(q=5, k=-3),
    "complement": ~weft.dilated(3, 3, 4),
    "streaming_chunks": weft.streaming_chunks(12, 2),
    "svg_spatial": weft.svg_spatial(9, 2, prompt=5, sink=True),
    "rotating_anchors": weft.rotating_anchors(8, 1, 3, turn=1),
    "keys": weft.keys(7, 60, step=9, width=2),
    "queries": weft.queries(10, 50),
    "diagonals": weft.diagonals(-40, -3, step=6, width=2),
    "staircase": weft.staircase("before", (8, 5), (2, 3), clip=(6, 60)),
    "steps": weft.steps("from", [20, 33], [0, 9, 40]),
    "coarse": weft.coarse(weft.causal(), 12),
    "folded": weft.folded(weft.causal(), weft.window(1, 1), 1),
}
FITTED = {
    "excerpt": lambda n: weft.excerpt(weft.longformer(8, 3), n + 20, (3, 3 + n), (11, 11 + n)),
    "documents": lambda n: weft.documents(thirds(n)),
    "documents causal": lambda n: weft.causal() & weft.documents(thirds(n)),
    "documents ids": lambda n: weft.documents(ids=np.arange(n) * 7 % 3),
    "segments": lambda n: weft.segments(
        thirds(n), [[weft.causal(), None, None], [True, weft.chunks(9), None], [True] * 3]
    ),
    "neighborhood 1": lambda n: weft.neighborhood(n, min(9, n)) if n else weft.nothing(),
    "neighborhood 1 dilated": lambda n: weft.neighborhood(n, 9, dilation=3, stride=2) if n >= 27 else weft.nothing(),
    "block_diffusion": lambda n: weft.block_diffusion(n // 2, 7) if n % 2 == 0 else weft.full(),
    "shared_prefix": lambda n: weft.shared_prefix(thirds(n)),
    "block_table": lambda n: weft.block_table(thirds(n), [n], [[True], [False], [True]]),
    "tree": lambda n: weft.tree([-1, 0, 0], thirds(n)),
    "sized": lambda n: weft.sized(weft.causal(), n, n),
    "bits": lambda n: weft.bits(np.arange(n * -(-n // 64)) % (1 << n % 31), n, n),
    "product": lambda n: weft.product([weft.causal(), weft.window(1, 1)], (n // 4, 4)) if n % 4 == 0 else weft.full(),
}
# (pattern, length): grids, with axes one less than, as long as and one more than a box of 4 or 8
GRIDS = {
    "neighborhood 2": (weft.neighborhood((9, 7), (3, 5)), 63),
    "neighborhood 2 strided": (weft.neighborhood((8, 17), (4, 6), stride=(2, 3)), 136),
    "neighborhood 2 dilated": (weft.neighborhood((9, 15), (3, 4), dilation=(2, 3)), 135),
    "neighborhood 2 causal": (weft.neighborhood((16, 9), (5, 3), causal=(True, False)), 144),
    "neighborhood 3": (weft.neighborhood((3, 4, 5), (3, 2, 3), causal=(True, False, False)), 60),
    "neighborhood 3 dilated": (weft.neighborhood((4, 5, 6), (2, 2, 3), dilation=2), 120),
    "neighborhood & causal": (weft.neighborhood((8, 9), (3, 3)) & weft.causal(), 72),
    "neighborhood | global_tokens": (weft.neighborhood((7, 8), (3, 3)) | weft.global_tokens(3), 56),
    "neighborhood | scattered": (weft.neighborhood((7, 8), (3, 3)) | weft.global_tokens([0, 9, 30, 31, 55]), 56),
    "neighborhood, complement": (~weft.neighborhood((7, 8), (3, 3)), 56),
    "sliding_tile": (weft.sliding_tile((8, 6), (2, 3), (3, 1), text=9), 57),
    "svg_temporal": (weft.svg_temporal(9, 6, 2, prompt=4), 58),
    "radial": (weft.radial(9, 8, sink=True), 72),
    "product 3": (weft.product([weft.causal(), weft.dilated(1, 1, 2), weft.full()], (5, 5, 3)), 75),
    "text and image": (weft.segments([9, 48], [[weft.causal(), None], [True, weft.neighborhood((6, 8), 3)]]), 57),
}
PER_HEAD = ("per_head", "per_batch", "sparse_transformer")  # test_coverage gives them several heads
