"""Kernels of sinks alone, beside their formulas in float64: they join finished rows, and have a gradient."""

from unittest import mock

import pytest
import torch

from weft.kernels import options
from weft.kernels.gpu import sinks
from weft.kernels.gpu.program import LaunchProgram, Slot
from weft.kernels.gpu.programs import sinks as programs
from weft.kernels.gpu.programs.sinks import join_sinks
from weft.planning.problem import Problem
from weft.torch import gpu
from weft.torch.bind import Bound

from .compare import BACKENDS, generator, normal
from .planned import bound

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
    first, again = (gpu.sink_gradient(*given).cpu() for _ in range(2))
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
    with mock.patch.object(programs, "PROGRAMS", 12), bound() as found:
        check(rows_of((3, 4, 2 * TILE - 7), "three programs a head"))
    (program,) = found
    assert [launch.grid for launch in program.launches] == [(4, 3, 1), (4, 1, 1)]


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
    found = gpu.sink_gradient(*(x.to(DEVICE, torch.float32) for x in rows_of(shape, "none")))
    assert found.shape == shape[1:2] and (found == 0).all()


def test_sinks_and_lse_that_lie_apart():
    logits, lse, delta = rows_of((2, 4, 100), "apart")
    wide = [torch.stack([x, x], -1).to(DEVICE, torch.float32)[..., 0] for x in (logits, lse)]
    assert not any(x.is_contiguous() for x in wide)
    found = gpu.sink_gradient(*wide, delta.to(DEVICE, torch.float32))
    plain = gpu.sink_gradient(*(x.to(DEVICE, torch.float32) for x in (logits, lse, delta)))
    assert torch.equal(found, plain)


# ---- rows that several launches made ---------------------------------------------------------------------------------
def joined(out, lse, logits):
    """out and lse by the kernel, which writes them in place."""
    batch, heads, m, dv = out.shape
    problem = Problem(batch, heads, heads, m, m, dv, dv, str(out.dtype).removeprefix("torch."), "cuda")
    slots = (
        Slot("out", "input", problem.dtype, tuple(out.shape), out.stride()),
        Slot.dense("lse", "input", "float32", tuple(lse.shape)),
        Slot.dense("sinks", "input", "float32", (heads,)),
    )
    program = LaunchProgram("join", slots, (join_sinks(problem, out.stride(), "sinks"),))
    Bound(program, out.device)((out, lse, logits))
    return out.cpu(), lse.cpu()


def check_joined(out, lse, logits):
    """out: as its memory is to lie, in its dtype; lse and logits in float64."""
    meant = out.cpu().double()
    meant_lse = options.join_sinks(meant, lse, logits)
    found, found_lse = joined(out.to(DEVICE), *(x.to(DEVICE, torch.float32) for x in (lse, logits)))
    torch.testing.assert_close(found_lse.double(), meant_lse, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(found.double(), meant, atol=1e-6, rtol=2 * torch.finfo(out.dtype).eps, equal_nan=True)
    return found, found_lse


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(1, 1, 1, 16), (2, 3, 37, 40), (2, 4, 32, 128), (1, 2, 5, 33)], ids=str)
def test_rows_are_joined(shape, dtype):
    logits, lse, _ = rows_of(shape[:3], f"joined {shape}")
    check_joined(normal(shape, generator("rows"), dtype), lse - 1, logits)


def test_rows_that_lie_anywhere_are_joined():
    """Tokens before heads, and every second dimension."""
    logits, lse, _ = rows_of((2, 3, 50), "joined anywhere")
    rows = normal((2, 50, 3, 64), generator("rows"), torch.float32)
    check_joined(rows.transpose(1, 2), lse, logits)
    check_joined(rows.transpose(1, 2)[..., ::2], lse, logits)


def test_rows_without_keys_keep_their_sink_exactly():
    """And stay nothing where there is no sink; a sink that says nothing changes no bit."""
    logits, lse, _ = rows_of((2, 4, 100), "joined empty rows")
    logits[1], lse[:, :, 7:20] = -torch.inf, -torch.inf
    out = normal((2, 4, 100, 16), generator("rows"), torch.float32)
    out[:, :, 7:20] = 0
    before = out.clone()
    found, found_lse = check_joined(out, lse, logits)
    assert (found[:, :, 7:20] == 0).all()
    assert torch.equal(found_lse[:, :, 7:20], logits.float()[None, :, None].expand(2, 4, 13))
    assert torch.equal(found[:, 1], before[:, 1])
    assert torch.equal(found_lse[:, 1], lse[:, 1].float())


@pytest.mark.parametrize("lse", [1e30, -1e30, 3e38, torch.inf])
def test_rows_of_large_scores_are_joined(lse):
    """Sums of weights leave no number behind that is none."""
    logits = torch.tensor([-1e30, 0.0, 1e30], dtype=torch.float64)
    out = normal((1, 3, 4, 16), generator("rows"), torch.float32)
    check_joined(out, torch.full((1, 3, 4), lse, dtype=torch.float64), logits)
