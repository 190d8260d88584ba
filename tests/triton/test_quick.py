"""Triton's interpreter as it is quickened: what it refuses."""

import operator

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.errors import InterpreterError

from weft.settings import interpreted

pytestmark = pytest.mark.skipif(not interpreted(), reason="Triton compiles")
MOST = 2**31 - 1


@triton.jit
def kernel(X, Y, Out, how: tl.constexpr):
    at = tl.arange(0, 4)
    x, y = tl.load(X + at), tl.load(Y + at)
    tl.store(Out + at, x + y if how == "add" else x - y if how == "sub" else x * y)


@pytest.mark.parametrize(
    ("how", "x", "y"), [("add", MOST, 1), ("add", -MOST, -2), ("sub", -MOST, 2), ("mul", 1 << 16, 1 << 15)]
)
def test_whole_numbers_that_overflow(how, x, y):
    first, second = (torch.tensor([0, 1, 2, number], dtype=torch.int32) for number in (x, y))
    out = torch.empty_like(first)
    with pytest.raises(InterpreterError, match=f"int32 overflow detected for operation {how}"):
        kernel[(1,)](first, second, out, how)
    second[3] = 0
    kernel[(1,)](first, second, out, how)
    assert torch.equal(out, getattr(operator, how)(first, second))
