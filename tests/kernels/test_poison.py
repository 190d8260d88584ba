"""NaN in memory that attention has no business with never reaches a result.

Promised: bits around q, k and v (before, after, between heads, beyond D), bits in the memory that outputs and
workspaces are made in, and keys that no query of the call sees, where they lie apart from the seen ones: beyond a
padded length or a prefix, before a window, in another block or residue class. Not promised: a key that some query of a
tile sees, or that lies between such keys, or that a list leaves out, or on a grid or in a block of single pairs in one
box with seen ones, or beside queries of the tile whose two bounds cross, so that they see nothing, unless a list names
them. The tile's other queries compute a score with it and mask that by adding -inf, which NaN survives, as it does in
dense attention; so on a GPU NaN in one document may reach its neighbours. On a CPU documents and padding are promised
too (test_isolation.py).
"""

from unittest import mock

import pytest
import torch
from tests.tiers import every

import weft
from weft.testing.cases import CASES, HEADS, At

from .compare import BACKENDS, WIDEST, Case, check, generator, normal, qkv
from .layouts import every_other, interior

on_every_backend = pytest.mark.parametrize("backend", BACKENDS)


def case_at(name, at, dtype=WIDEST, backend="cpu"):
    tensors = qkv(generator(name), at, dtype, dims=(17, 9))
    return Case(CASES[name].make(at), tensors, backend=backend)


def same_results(first, second):
    for name, x in first.items():
        assert not x.isnan().any(), name
        assert torch.equal(x, second[name]), name


@on_every_backend
@pytest.mark.parametrize("place", [interior, every_other])
@pytest.mark.parametrize("name", every(4, CASES))
def test_around_the_inputs(name, place, backend):
    case = case_at(name, At(75, 75), backend=backend)
    case.tensors = [place(x) for x in case.tensors]
    check(case)


@on_every_backend
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["window", "strided", "neighborhood_2d", "random_blocks", "per_head"])
def test_around_the_inputs_in_other_dtypes(name, dtype, backend):
    case = case_at(name, At(130, 130), dtype, backend)
    case.options = {"softcap": 2.0, "sinks": normal((HEADS,), generator("sinks"), dtype)}
    case.tensors = [interior(x) for x in case.tensors]
    check(case)


@pytest.fixture
def poisoned_allocations():
    """Every torch.empty comes filled with NaN."""
    before = torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(before[0])
    torch.utils.deterministic.fill_uninitialized_memory = before[1]


PLACES = (At(130, 130), At(65, 130, "bottom-right"), At(130, 40, "bottom-right"))


@on_every_backend
@pytest.mark.parametrize("name,at", every(5, [(x, at) for x in CASES for at in PLACES if CASES[x].fits(at.m, at.n)]))
def test_in_the_memory_of_outputs_and_workspaces(name, at, backend, poisoned_allocations):
    case = case_at(name, at, backend=backend)
    got = case.weft()
    torch.use_deterministic_algorithms(False)
    same_results(got, case.weft())


@on_every_backend
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_in_the_memory_of_16_bit_outputs(dtype, backend, poisoned_allocations):
    case = case_at("longformer_global", At(130, 130), dtype, backend)
    case.options = {"softcap": 2.0, "alibi_slopes": torch.rand(HEADS), "sinks": torch.randn(HEADS, dtype=dtype)}
    got = case.weft()
    torch.use_deterministic_algorithms(False)
    same_results(got, case.weft())


# name -> (pattern, m, n, the keys that no query sees); lengths that are no multiples of a block, and more than one tile
UNSEEN = {
    "padding": (weft.padding([37, 90]), 90, 90, [(0, slice(37, None))]),
    "padding, causal": (weft.padding([37, 90]) & weft.causal(), 90, 90, [(0, slice(37, None))]),
    "padding of all": (weft.padding([0, 200]), 90, 200, [(0, slice(None))]),
    "padding of rows": (weft.padding([37, 90], rows=True), 90, 90, [(0, slice(37, None))]),
    "prefix": (weft.prefix(19), 90, 90, [(slice(None), slice(19, None))]),
    "prefix of each row": (weft.prefix([5, 0]), 90, 90, [(0, slice(5, None)), (1, slice(None))]),
    "causal, fewer queries": (weft.causal(align="top-left"), 50, 131, [(slice(None), slice(50, None))]),
    "before a window": (
        weft.causal(align="bottom-right") & weft.window(left=30, align="bottom-right"), 50, 131,
        [(slice(None), slice(None, 51))],
    ),
    "before queries that have no window": (
        (weft.window(20, 0) & ~weft.global_tokens(40, columns=False)) | weft.periodic_keys(100), 127, 127,
        [(slice(None), slice(None, 20))],
    ),
    "before a window of the last queries": (
        (weft.window(20, 0) & ~weft.global_tokens(100, columns=False)) | weft.periodic_keys(110), 140, 140,
        [(slice(None), slice(None, 80))],
    ),
    "beside classes of queries without a term": (
        (weft.dilated(10, 0, 32) & weft.prefix(64))
        | (weft.dilated(3, 5, 32).shift(k=128)
           & weft.global_tokens(131, columns=False) & ~weft.global_tokens(100, columns=False)), 256, 256,
        [(slice(None), slice(131, 196, 32))],
    ),
    "residue classes": (
        weft.periodic_keys(4), 90, 90,
        [(slice(None), slice(0, None, 4)), (slice(None), slice(1, None, 4)), (slice(None), slice(2, None, 4))],
    ),
    "empty blocks": (
        weft.blocks(64, [(0, 2), (1, 2), (2, 0)]), 190, 190, [(slice(None), slice(64, 128))],
    ),
    "beyond a padded length, in a block of single pairs": (
        weft.bigbird(8) & weft.padding([37, 90]), 90, 90, [(0, slice(37, None))],
    ),
    "around those of blocks of single pairs": (
        weft.random_blocks(8, 3, seed=0) & ~weft.prefix(9) & weft.prefix(87), 190, 190,
        [(slice(None), slice(None, 9)), (slice(None), slice(87, None))],
    ),
    "of a listed query that sees nothing": (
        weft.window(0, 0).shift(k=-20) & weft.global_tokens([0, 30, 37], columns=False), 64, 64,
        [(slice(None), slice(None, 10))],
    ),
    "of listed queries that see nothing, and of some between": (
        weft.window(0, 0).shift(k=-20) & weft.global_tokens([0, 3, 30, 37, 84, 90, 97], columns=False)
        & weft.prefix(65), 98, 98, [(slice(None), slice(None, 10)), (slice(None), slice(65, None))],
    ),
    "of queries that a list leaves out": (
        weft.window(20, 0) & ~weft.global_tokens([*range(40), 62], columns=False), 64, 64,
        [(slice(None), slice(None, 20))],
    ),
    "of queries modulo two, the last of which a list leaves out": (
        weft.dilated(0, 3, 2) & ~weft.global_tokens([*range(70, 89, 2), *range(90, 128)], columns=False), 128, 128,
        [(slice(None), slice(96, None)), (slice(None), slice(76, None, 2))],
    ),
    "rows of a grid": (weft.neighborhood([10, 9], [5, 5]) & weft.prefix(45), 90, 90, [(slice(None), slice(45, None))]),
    "columns of a grid": (
        weft.neighborhood([16, 16], [5, 5]) & weft.prefix(96), 256, 256, [(slice(None), slice(96, None))],
    ),
    "nothing": (weft.nothing(), 70, 70, [(slice(None), slice(None))]),
}  # fmt: skip


@on_every_backend
@pytest.mark.parametrize("dtype", [WIDEST, torch.bfloat16])
@pytest.mark.parametrize("name", UNSEEN)
def test_in_keys_that_no_query_sees(name, dtype, backend):
    _check_unseen_keys(name, dtype, backend, {})


@on_every_backend
@pytest.mark.parametrize("options", [{"softcap": 2.0}, {"alibi_slopes": torch.ones(4)}], ids=["softcap", "alibi"])
@pytest.mark.parametrize("name", ["padding", "before a window", "residue classes", "empty blocks"])
def test_in_keys_that_no_query_sees_with_options(name, options, backend):
    _check_unseen_keys(name, torch.float32, backend, options)


def _check_unseen_keys(name, dtype, backend, options):
    pattern, m, n, unseen = UNSEEN[name]
    clean = Case(pattern, qkv(generator(name), (m, n), dtype), options=options, backend=backend)
    q, k, v = (x.clone() for x in clean.tensors)
    for batch, keys in unseen:
        assert not clean.live[batch][..., keys].any()
        k[batch][..., keys, :] = torch.nan
        v[batch][..., keys, :] = torch.nan
    poisoned = Case(pattern, [q, k, v], live=clean.live, options=options, backend=backend)
    same_results(poisoned.weft(), clean.weft())


ROWS = weft.padding([37, 90], rows=True)
PADDED = {
    "alone": ROWS, "causal": ROWS & weft.causal(), "in blocks of single pairs": ROWS & weft.random_blocks(8, 3),
    "in such blocks beside lines": ROWS & weft.bigbird(8),
}  # fmt: skip


@on_every_backend
@pytest.mark.parametrize("name", PADDED)
def test_in_everything_that_is_padding(name, backend):
    """Beyond the length of a batch row q, k, v and the gradient of out may hold anything."""
    clean, poisoned = padded(name, backend=backend)
    same_results(poisoned, clean.weft())


def padded(name, dtype=WIDEST, **more):
    """A case of that name, and its results where all beyond the length of 37 is NaN."""
    more["options"] = {"sinks": normal((4,), generator("sinks"), dtype)}
    clean = Case(PADDED[name], qkv(generator("padding"), (90, 90), dtype), with_lse=False, **more)
    poisoned = Case(PADDED[name], [x.clone() for x in clean.tensors], with_lse=False, **more)
    (seed,) = clean.seeds()
    for x in (*poisoned.tensors, seed):
        x[0, :, 37:] = torch.nan
    with mock.patch.object(poisoned, "seeds", lambda: [seed]):
        return clean, poisoned.weft()


@on_every_backend
def test_in_queries_of_other_rows(backend):
    """A row of NaN stays a row: out, lse and dq of the others are what they were."""
    pattern = weft.causal() | weft.prefix(5)
    q, k, v = qkv(generator("rows"), (75, 75))
    clean, poisoned = (Case(pattern, [x, k, v], backend=backend) for x in (q, q.clone()))
    poisoned.tensors[0][:, :, 40] = torch.nan
    others = torch.arange(75) != 40
    first, second = clean.weft(), poisoned.weft()
    for name in ("out", "lse", "dq"):
        assert torch.equal(first[name][:, :, others], second[name][:, :, others]), name
        assert second[name][:, :, 40].isnan().all(), name
