"""The gradient of sinks by a kernel of its own, beside its formula in float64."""

from unittest import mock

import pytest
import torch

from weft.kernels import options
from weft.kernels.triton import run, sinks

from .compare import BACKENDS, generator, normal

pytestmark = pytest.mark.skipif("triton" not in BACKENDS, reason="other backends take torch's operations")
DEVICE = BACKENDS.get("triton")
TILE = sinks.TILE


def rows_of(shape, name):
    """(sinks, lse with them, delta)"""
    random = generator(name)
    logits, lse, delta = normal(shape[1:2], random), 3 * normal(shape, random), normal(shape, random)
    return logits, torch.logaddexp(lse, logits[None, :, None].expand(shape)), delta


def check(values, dtype=torch.float32):
    """The kernel's gradient, twice with the same bits, and near the formula's. values: sinks as their dtype has them,
    lse and delta.
    """
    wanted = options.sink_gradient(*values)
    given = values[0].to(DEVICE, dtype), *(x.to(DEVICE, torch.float32) for x in values[1:])
    first, again = (run.sink_gradient(*given).cpu() for _ in range(2))
    assert (first.dtype, first.shape) == (dtype, wanted.shape)
    assert torch.equal(first, again)
    terms = (values[0][None, :, None] - values[1]).exp().nan_to_num(0.0, 0.0) * values[2].abs()
    allowed = torch.finfo(dtype).eps * wanted.abs() + 1e-6 * terms.sum((0, 2))
    assert ((first.double() - wanted).abs() <= allowed).all()


@pytest.mark.parametrize(
    "shape",
    [(1, 3, 1), (2, 4, 100), (1, 1, TILE), (2, 3, TILE + 1), (4, 2, TILE), (1, 2, 4 * TILE + 5), (3, 5, 2 * TILE)],
    ids=str,
)
def test_sizes(shape):
    """One program a head, and several."""
    check(rows_of(shape, f"sinks {shape}"))


def test_many_programs_add_all_rows():
    with mock.patch.object(sinks, "PROGRAMS", 12):
        sinks._prepared.cache_clear()
        check(rows_of((3, 4, 2 * TILE - 7), "three programs a head"))
    sinks._prepared.cache_clear()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_sinks_of_another_dtype(dtype):
    logits, lse, delta = rows_of((2, 4, 100), "other sinks")
    check((logits.to(dtype).double(), lse + 1, delta), dtype)


def test_rows_without_a_sum_have_no_share():
    """Where the sink says nothing, too."""
    logits, lse, delta = rows_of((2, 4, 100), "empty rows")
    logits[1] = -torch.inf
    lse[:, :, 7:20] = -torch.inf
    assert options.sink_gradient(logits, lse, delta)[1] == 0
    check((logits, lse, delta))


@pytest.mark.parametrize("shape", [(0, 3, 5), (2, 3, 0), (2, 0, 5), (5, 0, 5)], ids=str)
def test_nothing(shape):
    found = run.sink_gradient(*(x.to(DEVICE, torch.float32) for x in rows_of(shape, "none")))
    assert found.shape == shape[1:2] and (found == 0).all()
