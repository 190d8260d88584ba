"""Steps of decoding on a CPU: values against dense attention, one plan for all lengths, and who goes elsewhere."""

from unittest import mock

import pytest
import torch
from tests.tiers import every

import weft
from weft.settings import interpreted
from weft.testing.tolerance import assert_close
from weft.torch import decode, eager

from ..kernels import dense
from ..kernels.compare import generator, normal
from .helpers import check_unseen_keys_are_not_read, qkv
from .test_decode import END, PATTERNS

pytestmark = pytest.mark.skipif(interpreted(), reason="of the CPU's own kernels")


@pytest.fixture(autouse=True)
def _alone():
    """No test finds what another one prepared."""
    with mock.patch.dict(decode._found, clear=True), mock.patch.dict(eager._calls, clear=True):
        yield


def attend(tensors, pattern, **options):
    """(out, lse) of a call that must be a prepared step."""
    with mock.patch.object(eager, "prepare", side_effect=AssertionError("it went the ordinary way")):
        return weft.attention(*tensors, pattern, return_lse=True, backend="cpu", **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("n", [5, 70, 300])
@pytest.mark.parametrize("m", [1, 3, 16])
@pytest.mark.parametrize("name", every(4, PATTERNS))
def test_values(name, m, n, dtype):
    if m > n:
        return
    random, pattern = generator(f"{name} {m} {n}"), PATTERNS[name].aligned(END)
    batch = 2 if name == "batch rows" else 1
    q, k, v = (normal((batch, heads, rows, 16), random, dtype) for heads, rows in ((4, m), (2, n), (2, n)))
    sinks = normal((4,), random)
    out, lse = attend((q, k, v), pattern, sinks=sinks, scale=0.3)
    assert out.dtype == dtype
    live = torch.from_numpy(pattern.to_dense(m, n)).expand(batch, 4, m, n)
    truth, plain = (
        dense.attention(*(x.to(t) for x in (q, k, v)), live, {"sinks": sinks.to(t), "scale": 0.3}, n - m)
        for t in (torch.float64, dtype)
    )
    for what, got, a, b in zip(("out", "lse"), (out, lse), truth, plain, strict=True):
        assert_close(what, got, a, b)
    assert (out[~live.any(-1)] == 0).all()


def test_one_plan_serves_all_lengths_and_heads_that_differ():
    q, keys, values = qkv(1, 400, batch=2, dims=(16, 16))
    pattern = weft.causal(align=END) & weft.window(left=99, align=END)
    with mock.patch.object(decode, "decode_plan", side_effect=decode.decode_plan) as planned:
        for n in range(100, 400):
            out, _ = attend((q, keys[:, :, :n], values[:, :, :n]), pattern)
            near = [x[:, :, max(0, n - 100) : n].double() for x in (keys, values)]
            assert_close("out", out, dense.attention(q.double(), *near, torch.tensor(True), {})[0], out)
    assert planned.call_count == 1


def test_keys_that_no_query_sees_are_not_read():
    check_unseen_keys_are_not_read(attend)


@pytest.mark.parametrize(
    ("options", "dims"),
    [
        ({"softcap": 2.0}, (16, 16)),
        ({"alibi_slopes": torch.ones(4)}, (16, 16)),
        ({"scale": -1.0}, (16, 16)),
        ({}, (16, 8)),
    ],
    ids=["softcap", "slopes", "scale below 0", "narrow values"],
)
def test_what_torch_has_no_kernel_for_goes_the_ordinary_way(options, dims):
    q, k, v = qkv(1, 90, batch=1, dims=dims)
    out, _ = weft.attention(q, k, v, weft.causal(align=END), return_lse=True, **options)
    given = {name: x.double() if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    truth = dense.attention(*(x.double() for x in (q, k, v)), torch.tensor(True), given, 89)[0]
    assert_close("out", out, truth, out)
    assert [found.step for found in decode._found.values()] == [None]
