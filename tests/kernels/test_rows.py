"""Kernels that move rows by lists of places and merge results into rows, beside torch's own operations."""

from unittest import mock

import numpy as np
import pytest
import torch

from weft.testing.tolerance import assert_close
from weft.torch.distributed import on_gpu, rows
from weft.torch.distributed.rows import Places

from .compare import BACKENDS, generator, normal

pytestmark = pytest.mark.skipif("triton" not in BACKENDS, reason="other backends take torch's operations")
DEVICE = torch.device(BACKENDS.get("triton", "cpu"))
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def tensors(name, dtype, *shapes):
    """Of each shape (B, H, S, D) one that is dense, and the second as rows that travel."""
    random = generator(name)
    made = [normal(shape, random).to(DEVICE, dtype) for shape in shapes]
    return [x.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3) if i == 1 else x for i, x in enumerate(made)]


def by_torch():
    return mock.patch.object(rows, "_kernels", lambda *_: None)


def by_kernels():
    return mock.patch.object(rows, "_kernels", lambda *_: on_gpu)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("several", [1, 3])
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("d", [64, 24, 20])
def test_rows_are_taken(dtype, several, adds, d):
    """From two sources, some places being nothing; rows that are not named stay as they are."""
    name = f"{dtype} {several} {adds} {d}"
    first, second, out = tensors(name, dtype, (2, 3, 50, d), (2, 3, 20, d), (2, 3, 90, d))
    drawn = np.random.default_rng(d)
    places = drawn.integers(-1, 70, (77, several))
    lists = Places.of(places, DEVICE, drawn.permutation(90)[:77])
    wanted = out.clone()
    with by_torch():
        rows.take(wanted, (first, second), lists, adds)
    with by_kernels():
        rows.take(out, (first, second), lists, adds)
    if several == 1 and not adds:
        assert torch.equal(out, wanted)
    bound = 2.0 * torch.finfo(dtype).eps * wanted.float().abs().max()
    assert (out.float() - wanted.float()).abs().max() <= bound


@pytest.mark.parametrize("d", [64, 24])
@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_results_are_merged(dtype, listed, d):
    """Rows without keys on one side, on the other or on both."""
    out, more = tensors(f"{dtype} {d} {listed}", dtype, (2, 3, 50, d), (2, 3, 30, d))
    lse, low = (x.float()[..., 0].contiguous() for x in tensors("lse", torch.float32, (2, 3, 50, 1), (2, 3, 30, 1)))
    lse[:, :, 10:20], low[:, :, ::3] = float("-inf"), float("-inf")
    out[lse == float("-inf")], more[low == float("-inf")] = float("nan"), float("nan")  # which nobody reads
    where = rows.rows_at(np.random.default_rng(1).permutation(50)[:30] if listed else np.arange(5, 35), DEVICE)
    truth = [out.double().nan_to_num(0.0), lse.double()]
    with by_torch():
        rows.merged_into((truth[0], truth[1]), where, (more.double().nan_to_num(0.0), low.double()))
    plain = truth[0].to(dtype)
    with by_kernels():
        rows.merged_into((out, lse), where, (more, low))
    touched = torch.zeros(50, dtype=torch.bool)
    touched[where if isinstance(where, slice) else where.places[:, 0].long().cpu()] = True
    found, wanted = (x[:, :, touched.to(DEVICE)] for x in (out, truth[0]))
    assert_close("merged: out", found, wanted, plain[:, :, touched.to(DEVICE)])
    assert torch.equal(torch.isinf(lse), torch.isinf(truth[1]))
    seen = ~torch.isinf(lse)
    assert (lse[seen] - truth[1][seen]).abs().max() < 1e-5
