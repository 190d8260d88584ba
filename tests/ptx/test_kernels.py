"""Weft's kernels as Triton compiled them for a GPU, run on the CPU: right, and the same bits whatever is done early.

What runs here went through LLVM, which Triton's own interpreter, of sources, does not meet; ptxas and what comes after
it are met by GPUs alone (and by `weft.kernels.gpu.compile.miscompiles`).
"""

from unittest import mock

import pytest
import torch
from tests.kernels.compare import Case, generator, qkv
from tests.kernels.planned import planned, results
from tests.triton.specs import card

import weft
from weft.planning.families import fused_backward
from weft.settings import interpreted
from weft.torch import gpu

from .problems import ORDERS, Call, check, check_in_every_order
from .run import Way, emulated
from .threads import EAGER

pytestmark = pytest.mark.skipif(interpreted(), reason="Triton interprets, and compiles nothing")

BAND = weft.causal() & weft.window(left=50)
CALLS = {
    "causal window": Call(BAND),
    "grid and a token": Call(weft.neighborhood((15, 22), (5, 7)) | weft.global_tokens([99]), 330, heads=(2, 1)),
    "documents": Call(weft.documents([40, 0, 70, 40]) & weft.causal(), dims=(128, 128)),
    "random blocks": Call(weft.random_blocks(64, 2, seed=1), 256),
    "listed tokens": Call(weft.window(8, 8) | weft.global_tokens([0, 77, 140, 141])),
    "options": Call(BAND, dims=(80, 80), options=("softcap", "sinks", "alibi_slopes")),
    "float16": Call(BAND, dims=(64, 48), dtype=torch.float16),
    "float32": Call(BAND, 100, (32, 32), torch.float32),
    "one kernel": Call(BAND, more={"deterministic": False}),
    "two terms": Call(weft.longformer(20, global_tokens=9)),
    "dilated by head": Call(weft.per_head([weft.dilated(5, 5, step) for step in (1, 2, 3, 3)])),
    "dense": Call(weft.full(), dims=(128, 128)),
    "grid, D=128": Call(weft.neighborhood((14, 16), (7, 9)), 224, (128, 128), heads=(2, 2)),
    "256 channels": Call(BAND, 100, (256, 256), heads=(2, 1)),
}
QUICK = "causal window", 90
# The grid with one listed token was once computed wrongly on an H200. Others are wide.
CHOSEN = {
    90: ("causal window", "grid and a token", "random blocks", "options", "one kernel"),
    80: ("causal window",),
}


@pytest.fixture(autouse=True)
def _two_kernels(monkeypatch):
    """Gradients are of two kernels, or of the one that walks keys: see test_fused."""
    monkeypatch.setattr(fused_backward, "has_kernel", lambda *_: False)


def cases():
    for arch, chosen in CHOSEN.items():
        for name in CALLS:
            longer = pytest.mark.more if name in chosen else pytest.mark.wide
            yield pytest.param(name, arch, id=f"{name}-sm_{arch}", marks=() if (name, arch) == QUICK else longer)


@pytest.mark.parametrize(("name", "arch"), cases())
def test_right_in_every_order(name, arch):
    case = CALLS[name].case()
    names = check_in_every_order(case, Way(arch))
    assert {one.partition("_")[0] for one in names} >= {"forward", "dkdv", "dq" if case.deterministic else "delta"}


@pytest.mark.parametrize("arch", CHOSEN)
def test_a_row_of_one_key_has_its_value(arch):
    """Exactly, though no maximum is taken off its score: it is divided by its weight as that was rounded."""
    case = Call(weft.window(left=0, right=0), heads=(2, 2)).case()
    with emulated(Way(arch)):
        assert torch.equal(results(case, card(f"sm_{arch}"), backward=False)["out"], case.tensors[2])


@pytest.mark.wide
@pytest.mark.parametrize("arch", CHOSEN)
def test_tf32(arch):
    with mock.patch.object(gpu, "tf32_wanted", lambda: True):
        check_in_every_order(Call(BAND, 100, (32, 32), torch.float32).case(), Way(arch), tf32=True)


def by_rows(target, device="cpu"):
    """What few queries against many keys have, checked."""
    pattern, random = (weft.causal() & weft.window(left=200)).aligned("bottom-right"), generator("rows")
    case = Case(pattern, qkv(random, (3, 300), torch.bfloat16, (4, 2), (64, 64), 1), backend="triton")
    plan, how, sinks = planned(case, target)
    out, lse = gpu.by_rows(tuple(x.to(device) for x in case.tensors), plan, how, sinks)
    made = {"out": out.cpu(), "lse": lse.cpu()}
    check(case, made)
    return made


@pytest.mark.parametrize("arch", [90, pytest.param(80, marks=pytest.mark.wide)])
def test_few_queries_by_rows(arch):
    """Equal shares of many keys, and their merge."""
    found = {}
    for order in (EAGER, *ORDERS.values()):
        with emulated(Way(arch, order)) as names:
            made = by_rows(card(f"sm_{arch}"))
        assert len(names) == 2
        assert all(torch.equal(found.setdefault(name, x), x) for name, x in made.items())
