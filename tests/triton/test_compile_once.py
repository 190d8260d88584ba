"""A kernel is compiled for a structure, not for a size: other lengths, windows, splits and batches find it compiled."""

from dataclasses import replace
from typing import get_args
from unittest import mock

import pytest
from tests.tiers import every, sample

import weft
from weft.kernels.gpu.compile.compiler import Source
from weft.kernels.gpu.spec import KernelSpec
from weft.planning.families.tile import Terms, menu
from weft.testing.cases import parts

from . import specs
from .specs import Call, launched, specs_of, square

LENGTHS = (1, 63, 64, 200, 1000, 4096, 5001)
SPLITS = ((1,), (1, 1), (5, 0, 3, 9), (1,) * 40, tuple(range(1, 60)))


def documents(length, split):
    return weft.documents(parts(length, *split))


# structure -> calls that should all run the same kernels
STRUCTURES = {
    "full": [Call(weft.full(), n, n) for n in LENGTHS],
    "causal": [Call(weft.causal(), n, n) for n in LENGTHS],
    "more keys than queries": [
        Call(weft.causal(align="bottom-right"), m, n) for m, n in ((1, 100), (17, 400), (100, 101), (64, 5000))
    ],
    "window": [
        Call(weft.causal() & weft.window(left=left), n, n) for n in LENGTHS for left in (0, 1, 63, 64, 127, 300, 9000)
    ],
    "window, both sides": [
        Call(weft.window(left, right), n, n) for n in LENGTHS for left, right in ((9, 4), (0, 70), (512, 512))
    ],
    "dilated": [
        Call(weft.dilated(size, size, step), n, n) for n in LENGTHS for size in (3, 40) for step in (1, 2, 3, 8, 64)
    ],
    "documents": [Call(documents(n, split), n, n) for n in LENGTHS for split in SPLITS],
    "documents, causal": [Call(documents(n, split) & weft.causal(), n, n) for n in LENGTHS for split in SPLITS],
    "chunks": [Call(weft.chunks(size) & weft.causal(), n, n) for n in LENGTHS for size in (1, 16, 100, 4096)],
    "strided": [Call(weft.strided(step), n, n) for n in LENGTHS for step in (2, 7, 64, 128)],
    "longformer": [
        Call(weft.longformer(size, global_tokens=count), n, n)
        for n in LENGTHS for size in (16, 512) for count in (1, 64, 100)
    ],
    "listed tokens": [
        Call(weft.window(size, size) | weft.global_tokens(tokens), n, n)
        for n in LENGTHS[1:] for size in (8, 100) for tokens in ([0, 7, 900], [3, 5, 64, 65, 129])
    ],
    "padding": [
        Call(weft.padding(lengths) & weft.causal(), n, n, batch=len(lengths))
        for n in LENGTHS for lengths in ([n], [n, n // 2], [1, 0, n, n // 3], [7] * 9)
    ],
    "dilation by head": [
        Call(weft.per_head([weft.dilated(9, 9, step) for step in steps]), n, n, heads=(len(steps), len(steps)))
        for n in LENGTHS for steps in ((1, 2, 4, 4), (1, 3), (8, 16))
    ],
    "random blocks": [Call(weft.random_blocks(64, count, seed=1), n, n) for n in LENGTHS for count in (1, 3)],
    "batches": [Call(weft.causal() & weft.window(left=64), batch=batch) for batch in (1, 2, 3, 8, 100)],
    "heads": [Call(weft.causal(), heads=heads) for heads in ((1, 1), (2, 1), (12, 4), (32, 32))],
    "D=128": [
        Call(weft.causal() & weft.window(left=left), n, n, dims=(128, 128)) for n in LENGTHS for left in (16, 300)
    ],
    "2-D": [
        square(weft.neighborhood(shape, size), length=shape[0] * shape[1], dims=(128, 128))
        for shape, size in (((16, 16), (3, 3)), ((40, 56), (7, 9)), ((9, 130), (5, 21)), ((96, 96), (41, 41)))
    ],
}  # fmt: skip


# One kernel for each entry of the menu; more where a size decides how many launches there are, whether they meet,
# whether a tile walks several terms, or whether all bounds are lines, as of chunks of one token; whether the window of
# a short sequence is part of the list; or whether heads share keys.
MOST = {"chunks": 2, "strided": 3, "longformer": 4, "listed tokens": 3, "heads": 2, "padding": 2, "2-D": 2}


def kernels(names, one_kernel=False):
    """The distinct KernelSpecs of all calls of some structures; one_kernel: of those whose gradients are of one."""
    calls = [replace(call, one_kernel=one_kernel) for name in names for call in STRUCTURES[name]]
    return {spec for call in calls for spec in specs_of(call)}


@pytest.mark.parametrize("name", every(6, STRUCTURES))
def test_kernels_of_one_structure(name):
    found = kernels([name])
    walks = [spec for spec in found if spec.direction == "fused"]  # of short windows, beside the two of others
    assert len(walks) <= 1
    for direction in ("forward", "dq", "dkdv"):
        here = [spec.name for spec in found if spec.direction == direction]
        assert here or (walks and direction != "forward"), f"nothing is launched for {direction}"
        whole = STRUCTURES[name][0].problem()
        choices = max(len(menu(direction, whole, terms=terms)) for terms in get_args(Terms))
        assert len(here) <= choices * MOST.get(name, 1), here


@pytest.mark.parametrize("name", every(6, STRUCTURES))
def test_kernels_of_one_structure_where_one_makes_all_gradients(name):
    found = kernels([name], one_kernel=True)
    assert len([spec for spec in found if spec.direction == "delta"]) == 1
    for split in (False, True):  # order is free, so a size may split tiles that outlast the rest
        here = [spec.name for spec in found if spec.direction == "dkdv" and spec.split == split]
        assert len(here) <= MOST.get(name, 1), here
    assert all(spec.with_dq for spec in found if spec.direction != "forward")


def test_few_queries_add_two_kernels():
    """Where many keys are split: one for shares of rows, and one that merges them, whatever the lengths."""
    names = set()
    for m, n in ((64, 5000), (64, 6001), (60, 9000), (50, 100_000)):
        with mock.patch.object(specs, "IMAGINED", 132):  # processors
            calls = launched(Call(weft.causal(align="bottom-right"), m, n))
        names |= {one.name for one in calls if isinstance(one, Source)}
    assert [name.split("_")[0] for name in sorted(names)] == ["combine", "split"]


@pytest.mark.more
def test_twelve_kernels_at_most():
    """Lengths, windows, dilations, document splits and batches together; heads that share no keys add two kernels."""
    named = ("causal", "window", "window, both sides", "dilated", "documents", "documents, causal", "batches")
    found = kernels(named)
    assert len(found) <= 12, sorted(spec.name for spec in found)
    with_heads = found | kernels(("heads",))
    assert len(with_heads) <= 14, sorted(spec.name for spec in with_heads)


WIDE_SWEEP = {
    "causal": [weft.causal()],
    "window": [weft.causal() & weft.window(left=left) for left in (20, 127, 1023)],
    "window, both sides": [weft.window(left, left) for left in (32, 64, 300)],
    "dilated": [weft.causal() & weft.dilated(200, 0, step) for step in (2, 4, 16)],
    "chunks": [weft.chunks(size) & weft.causal() for size in (100, 2048)],
    "strided": [weft.causal() & (weft.window(left=127) | weft.periodic_keys(step)) for step in (64, 128)],
    "longformer": [weft.longformer(256, global_tokens=count) for count in (1, 64)],
}


@pytest.mark.parametrize("name", sample(WIDE_SWEEP, "causal"))
def test_a_dozen_for_each_direction(name):
    """Of one structure, head dimension and type, from a thousand tokens to a million, one batch row to many, heads that
    share keys and heads that do not: sizes choose among tilings, walks and kernels by rows, and what is chosen is few.
    """
    found = {}
    for pattern in WIDE_SWEEP[name]:
        for m in (1024, 4096, 16384, 65536, 1 << 20):
            for batch, heads in ((1, (16, 16)), (8, (16, 16)), (1, (32, 4)), (64, (2, 2))):
                for one in launched(Call(pattern, m, m, heads=heads, batch=batch)):
                    kind = one.direction if isinstance(one, KernelSpec) else one.name.partition("_")[0]
                    found.setdefault(kind, set()).add(one.name)
    assert {kind: len(names) for kind, names in found.items() if len(names) > 12} == {}
