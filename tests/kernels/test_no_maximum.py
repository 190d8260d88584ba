"""The forward that takes no maximum off a row's scores: scores and values for which that would not do."""

from contextlib import ExitStack
from unittest import mock

import pytest
import torch

pytest.importorskip("triton")

import triton
import triton.language as tl

import weft
from weft.kernels.gpu.compile import keys
from weft.kernels.gpu.ops.loads import scaled
from weft.kernels.gpu.ops.softmax import Sums
from weft.kernels.gpu.tile import fwd
from weft.settings import interpreted
from weft.torch import eager

from .compare import BACKENDS, Case, check, generator, qkv
from .planned import forget, unload

pytestmark = [
    pytest.mark.skipif("triton" not in BACKENDS, reason="other backends have another soft maximum"),
    pytest.mark.filterwarnings("ignore:(overflow|invalid value)"),  # of numpy, with which kernels are interpreted
]

TOKENS = 300
PATTERNS = {
    "window": weft.causal() & weft.window(left=150),
    "documents": weft.documents([70, 0, 1, 129, 100]) & weft.causal(),
    "global tokens": weft.longformer(80, global_tokens=20),
    "plane": weft.neighborhood((15, 20), (9, 7)),
    "space": weft.neighborhood((5, 6, 10), (3, 5, 7)),
}
GRIDS = ("plane", "space")


def scores(steps, d):
    """q, k, v whose scores are about `steps`, one for each third of the keys."""
    q, k, v = qkv(generator("no maximum"), (TOKENS, TOKENS), torch.float32, (2, 2), (d, d), 1)
    q[..., 0] = d**0.5  # as much as the scale takes off
    k[..., 0] = torch.tensor(steps).repeat_interleave(TOKENS // 3)
    return [q, k, v]


def case_of(name, steps, dtype=torch.float32, values=1.0):
    q, k, v = scores(steps, 80 if name in GRIDS else 16)  # grids take none from 65 on
    return Case(PATTERNS[name], [x.to(dtype) for x in (q, k, v * values)], backend="triton")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("steps", [(0.0, 40.0, 90.0), (90.0, 0.0, -90.0), (-30.0, -40.0, -90.0), (-200.0, 0.0, 200.0)])
@pytest.mark.parametrize("name", PATTERNS)
def test_scores_that_grow_and_fall(name, steps, dtype):
    if interpreted() and name in GRIDS and dtype == torch.float32:
        pytest.skip("numpy sums products of other shapes in another order: scores of 90 are not the forward's")
    check(case_of(name, steps, dtype))


@pytest.mark.parametrize(
    ("values", "steps"), [(1e-30, (0.0, 17.0, 35.0)), (1e30, (0.0, 17.0, 35.0)), (1e-20, (-25.0,) * 3)]
)
def test_values_beside_scores(values, steps):
    """With weights of 2 ** 50 sums of large values are not finite, with small ones products are none: results are."""
    case = case_of("window", steps, values=values)
    got, truth = case.weft()["out"].double(), case.dense(torch.float64)["out"]
    torch.testing.assert_close(got / values, truth / values, atol=1e-4, rtol=1e-4)


def walks_again(case, blind=False):
    """Whether a tile of the case walks its keys a second time, by a step whose sums show it. blind: bounds are not
    asked which rows see a key.
    """

    patches = [mock.patch.object(fwd, "_online_step", shown)]
    patches += [mock.patch.object(fwd, "_if_seen", unasked)] * blind
    forget()
    unload()
    with ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        stack.enter_context(mock.patch.object(keys, "_REACHED", {}))
        got = case.weft()["out"]
    forget()
    unload()
    return not got.isfinite().all()


online_step = fwd._online_step


@triton.jit
def shown(C: tl.constexpr, KIND: tl.constexpr, held, visit, sums):
    found = online_step(C, KIND, held, visit, sums)
    return Sums(scaled(found.acc, float("nan")), found.largest, found.total, found.top, found.ahead)


@triton.jit
def unasked(C: tl.constexpr, wild, part):
    return part


def test_patched_kernels_replace_those_of_earlier_calls():
    """On a GPU a call in 16 bits keeps its program itself."""
    case = case_of("window", (0.0, 0.0, 90.0), torch.bfloat16)
    assert case.weft()["out"].isfinite().all()
    assert eager._calls
    assert walks_again(case)
    assert not eager._calls
    assert case.weft()["out"].isfinite().all()


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_usual_scores_take_the_short_way(name, dtype):
    assert not walks_again(case_of(name, (-20.0, 0.0, 60.0), dtype))
    assert walks_again(case_of(name, (0.0, 0.0, 90.0), dtype))


@pytest.mark.parametrize("name", ["window", "plane"])
def test_rows_without_keys_are_not_walked_again(name):
    """Their sums are 0, as those of rows are whose scores are far below 0: bounds tell which it is."""
    grid = weft.product([weft.causal(offset=-2), weft.window(3, 3)], (15, 20))
    pattern = weft.causal(offset=-21) if name == "window" else grid
    case = Case(pattern, case_of(name, (0.0, 1.0, 2.0)).tensors, backend="triton")
    check(case)
    assert not walks_again(case)
    assert walks_again(case, blind=True)


@pytest.mark.parametrize("name", PATTERNS)
def test_rows_beside_one_that_goes_again(name):
    """Their bits are what they were."""
    plain, one = case_of(name, (0.0, 1.0, 2.0)), case_of(name, (0.0, 1.0, 2.0))
    one.tensors[0][:, :, 140] *= 60.0
    first, second, truth = plain.weft(), one.weft(), one.dense(torch.float64)
    others = torch.arange(TOKENS) != 140
    for what in ("out", "lse"):
        assert torch.equal(first[what][:, :, others], second[what][:, :, others]), what
        torch.testing.assert_close(second[what][:, :, 140].double(), truth[what][:, :, 140], atol=1e-4, rtol=1e-5)


ALONE = {
    "itself": (weft.window(left=0, right=0), 64),
    "the first of a causal row": (weft.causal(), 128),
    "the first of a document": (weft.documents([1, 99, 1, 49]) & weft.causal(), 64),
    "a lone document": (weft.documents([1, 99, 1, 49]), 128),
    "the first of every fifth": (weft.dilated(4, 0, step=5), 64),
    "several terms": (weft.strided(30), 64),
    "a corner of a plane": (weft.neighborhood((10, 15), size=(3, 3), causal=True), 96),
}


@pytest.mark.parametrize("name", ALONE)
def test_a_row_of_one_key_has_its_value(name):
    """Exactly: what its only weight is rounded to is what its value is divided by."""
    pattern, d = ALONE[name]
    q, k, v = qkv(generator("alone"), (150, 150), torch.bfloat16, (2, 2), (d, d), 1)
    seen = torch.from_numpy(pattern.to_dense(150))
    alone = (seen.sum(1) == 1).nonzero().flatten()
    assert len(alone)
    out = Case(pattern, [q, k, v], backend="triton").weft()["out"]
    assert torch.equal(out[:, :, alone], v[:, :, seen[alone].int().argmax(1)])
