"""A million tokens: small tables, little memory, and no pair is looked at to plan a formula. Nothing is timed."""

import tracemalloc

import numpy as np
import pytest
from tests.tiers import every, sample

import weft
from weft import caching
from weft.acsr.blocks import Blocks
from weft.acsr.relayout import natural_step
from weft.planning.attention_plan import plan_attention
from weft.planning.problem import Problem
from weft.planning.tiles import BLOCK
from weft.testing.mask_functions import as_function

from .helpers import SMALL_BOXES

N = 1 << 20
MB = 1_000_000


def document_lengths(count):
    """Lengths of `count` documents, from 1 token up, that add up to N."""
    cuts = np.random.default_rng(0).choice(N - 1, count - 1, replace=False) + 1
    return np.diff([0, *sorted(cuts), N]).tolist()


SCATTERED = np.sort(np.random.default_rng(1).choice(N, 300, replace=False)).tolist()
LARGE = {
    "full": weft.full(),
    "causal": weft.causal(),
    "window": weft.window(256, 256),
    "sliding": weft.causal() & weft.window(left=1023),
    "shifted": weft.window(100, 100).shift(q=50, k=-50),
    "dilated": weft.dilated(64, 64, 8),
    "strided": weft.strided(1024),
    "fixed": weft.fixed(1024),
    "fixed, 8 summaries": weft.fixed(1024, 8),
    "sparse_transformer": weft.sparse_transformer(1024, heads=2),
    "sparse_transformer, fixed": weft.sparse_transformer(1024, heads=2, kind="fixed", summary=4),
    "chunks": weft.causal() & weft.chunks(8192),
    "documents": weft.causal() & weft.documents(document_lengths(1000)),
    "padding": weft.padding(N - 77, rows=True),
    "prefix": weft.causal() | weft.prefix(3000),
    "periodic_keys": weft.periodic_keys(64),
    "global_tokens": weft.global_tokens(16),
    "longformer": weft.longformer(512, 16),
    "longformer dilated": weft.longformer(512, 16, dilation=4),
    "bigbird without random": weft.bigbird(64, 3, 1, random=0),
    "segments": weft.segments([N // 2, N // 2], [[weft.causal(), None], [True, weft.neighborhood((512, 1024), 7)]]),
    "product": weft.product([weft.window(3, 3), weft.causal()], (1024, 1024)),
    "neighborhood 1": weft.neighborhood(N, 255),
    "neighborhood 2": weft.neighborhood((1024, 1024), 13),
    "neighborhood 2 dilated": weft.neighborhood((1024, 1024), 7, dilation=(4, 2)),
    "neighborhood 2 strided": weft.neighborhood((1024, 1024), 16, stride=8),
    "neighborhood 3": weft.neighborhood((64, 128, 128), 7),
    "neighborhood 3 causal": weft.neighborhood((64, 128, 128), 8, causal=(True, False, False)),
    "neighborhood 3, raster order": weft.neighborhood((64, 128, 128), 7) & weft.causal(),
    "neighborhood 2 and tokens": weft.neighborhood((1024, 1024), 7) | weft.global_tokens(16),
    "complement": ~weft.neighborhood((1024, 1024), 7),
    "global_tokens, scattered": weft.global_tokens([0, 7, 100, 50_000]),
    "global_tokens, far apart": weft.global_tokens(range(0, N, 1 << 16)),
    "global_tokens, 300": weft.global_tokens(SCATTERED),
    "window and scattered": weft.window(256, 256) | weft.global_tokens(SCATTERED),
    "dilated and scattered": weft.dilated(64, 64, 1000) | weft.global_tokens(SCATTERED),
    "causal and scattered": weft.causal() & (weft.window(1023) | weft.global_tokens(SCATTERED)),
    "neighborhood 2 and scattered": weft.neighborhood((1024, 1024), 7) | weft.global_tokens(SCATTERED),
    "window without scattered": weft.window(256, 256) & ~weft.global_tokens(SCATTERED),
}
SOME_BLOCKS = {
    "random_blocks": weft.random_blocks(64, 3),
    "bigbird": weft.bigbird(64, 3, 1, 3),
    "blocks": weft.blocks(1000, [(0, 0), (1, 0), (5, 3), (1040, 1040)]),
}


def problem(pattern):
    return Problem(1, pattern.extent()[1] or 1, 1, N, N, 64, 64)


@pytest.fixture
def no_pairs(monkeypatch):
    """Nobody may look at pairs one by one."""

    def refuse(*_):
        raise AssertionError("blocks of pairs are looked at one by one")

    for name in ("evaluated", "scan"):
        monkeypatch.setattr(Blocks, name, staticmethod(refuse))


@pytest.fixture
def nothing_kept():
    """No Acsr and no plan is taken from a cache."""
    caching.clear()


@pytest.mark.parametrize("name", every(4, LARGE))
def test_formulas_and_tables(name, no_pairs, nothing_kept):
    pattern = LARGE[name]
    tracemalloc.start()
    plan = plan_attention(pattern, problem(pattern))
    tables = plan.nbytes  # of the transposed plans too, which this makes
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert tables < 1 * MB
    assert peak < 100 * MB
    for share in plan.forward:
        acsr = share.plan.acsr
        assert not len(acsr.remainder) and not acsr.notes
        assert acsr.nbytes < 64 << 10
        assert share.plan.visited >= acsr.nnz > 0
        (turned,) = (other.plan for other in plan.transposed if other.head == share.head)
        assert turned.acsr.nnz == acsr.nnz and turned.acsr.nbytes == pytest.approx(acsr.nbytes, abs=64)


@pytest.mark.parametrize("name", SOME_BLOCKS)
def test_blocks(name, nothing_kept):
    pattern = SOME_BLOCKS[name]
    tracemalloc.start()
    plan = plan_attention(pattern, problem(pattern))
    tables = plan.nbytes
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    acsr = plan.forward[0].plan.acsr
    blocks = sum({id(one): one.nbytes for one in (s.plan.acsr.remainder for s in plan.every_share())}.values())
    assert blocks >= acsr.remainder.nbytes
    assert tables - blocks < 1 * MB and peak < 100 * MB
    assert acsr.nbytes - acsr.remainder.nbytes < 64 << 10
    # Full blocks carry no bits, and terms own what they have: 12 bytes a block, and bits where a block is cut.
    assert acsr.remainder.nbytes <= len(acsr.remainder) * (12 + BLOCK * BLOCK // 8)
    assert 0 < len(acsr.remainder) <= 3 * N // BLOCK


NAMED = [name for name in LARGE if not name.startswith("sparse_transformer")]  # strided and fixed, head by head


@pytest.mark.parametrize("name", every(4, [*NAMED, "blocks"]))  # other blocks are drawn
def test_whole_rows_and_columns_are_those_of_the_definition(name):
    """Held against the definitions in Python's own operators, which share no arithmetic with bounds."""
    pattern = {**LARGE, **SOME_BLOCKS}[name].at(0, 0)
    acsr, said = pattern.acsr(N), as_function(pattern, N, N)
    held = Blocks.of_remainder(acsr.remainder, N, N)
    some, every = np.random.default_rng(3).integers(0, N, 1), np.arange(N)
    for q, k in ((some[:, None], every[None]), (every[:, None], some[None])):
        owned = held.contains(*np.broadcast_arrays(q, k))
        for term in acsr.terms:
            owned = owned | term.contains(q, k)
        assert (owned == said(0, 0, q, k)).all()


FLAT = ["causal", "sliding", "shifted", "dilated", "strided", "chunks", "documents", "longformer", "neighborhood 1"]


@pytest.mark.parametrize(("name", "share"), [*((name, 0.8) for name in FLAT), ("neighborhood 2", 0.5)])
def test_small_boxes_compute_little_that_is_dead(name, share):
    plan = plan_attention(LARGE[name], problem(LARGE[name]), SMALL_BOXES)
    assert plan.nnz > share * plan.visited


def test_query_steps_are_those_of_the_pattern():
    (share,) = plan_attention(LARGE["dilated"], problem(LARGE["dilated"])).forward
    (nest,) = share.plan.nests
    assert nest.lanes[0].q_step == natural_step(share.plan.acsr.terms[0].axes[0]) == 8


@pytest.mark.parametrize(
    "name",
    sample(
        [
            "sliding",
            "documents",
            "neighborhood 2",
            "longformer dilated",
            "dilated and scattered",
            "neighborhood 2 and scattered",
        ],
        "sliding",
        "neighborhood 2",
    ),
)
def test_verify(name):
    plan = plan_attention(LARGE[name], problem(LARGE[name]))
    tracemalloc.start()
    plan.verify()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 500 * MB
