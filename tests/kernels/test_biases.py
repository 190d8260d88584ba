"""Ready biases in kernels, with gradients for their tables, beside dense attention."""

import pytest
import torch
from tests.tiers import sample

import weft
from weft.errors import UnsupportedError

from .compare import BACKENDS, generator, normal, qkv
from .planned import launching_nothing
from .scored import HEADS, Scored, check

pytestmark = pytest.mark.skipif("triton" not in BACKENDS, reason="tests/torch/test_bias.py has the CPU's")
M = 80
WINDOW = weft.window(20, 20)


def relative(table):
    most = table.shape[1] // 2

    def f(score, b, h, q, k):
        return score + table[h if table.shape[0] > 1 else h * 0, (k - q).clamp(-most, most) + most]

    return f


def buckets(table):
    def f(score, b, h, q, k):
        (own,) = weft.bias.buckets(table).tables  # by distances
        most = own.shape[0] // 2
        return score + own[(k - q).clamp(-most, most) + most, h]

    return f


def grid(table):
    ry, rx = (n // 2 for n in table.shape[1:])

    def f(score, b, h, q, k):
        dy, dx = k // 10 - q // 10, k % 10 - q % 10
        return score + table[h, dy.clamp(-ry, ry) + ry, dx.clamp(-rx, rx) + rx]

    return f


def dense(table):
    def f(score, b, h, q, k):
        at = [i * (n > 1) for i, n in zip((b, h, q, k)[4 - table.dim() :], table.shape, strict=True)]
        return score + table[tuple(at)]

    return f


def alibi(slopes):
    return lambda score, b, h, q, k: score - slopes[h] * (q - k).abs()


BIASES = {
    "relative": (relative, weft.bias.relative, (4, 25)),
    "relative, all heads": (relative, weft.bias.relative, (1, 25)),
    "buckets": (buckets, weft.bias.buckets, (16, 4)),
    "grid": (grid, lambda table: weft.bias.grid(table, (8, 10)), (4, 5, 7)),
    "dense": (dense, weft.bias.dense, (2, 4, M, M)),
    "dense of heads": (dense, weft.bias.dense, (4, M, M)),
    "dense of all": (dense, weft.bias.dense, (M, M)),
    "dense of rows": (dense, weft.bias.dense, (2, 1, M, M)),
    "dense of keys": (dense, weft.bias.dense, (2, 1, 1, M)),
    "alibi": (alibi, weft.bias.alibi, (4,)),
}
PATTERNS = {"window": WINDOW, "neighborhood": weft.neighborhood((8, 10), (5, 5)), "dilated": weft.dilated(9, 9, 2)}


def case(name, pattern=WINDOW, dtype=torch.float32, table_dtype=None):
    function, bias, shape = BIASES[name]
    random = generator(name)
    table = normal(shape, random).to(dtype if table_dtype is None else table_dtype).double().requires_grad_()
    tensors = qkv(random, (M, M), dtype, HEADS)
    given = bias if table_dtype is None else lambda x: bias(x.to(table_dtype))
    return Scored(pattern, tensors, function(table), (table,), given)


@pytest.mark.parametrize("name", sample(BIASES, "relative", "grid", "dense of rows", "alibi"))
def test_biases(name):
    check(case(name))


@pytest.mark.parametrize("pattern", sample(PATTERNS, "dilated"))
@pytest.mark.parametrize("name", ["relative", "grid", "dense"])
def test_relayouts(name, pattern):
    if name == "relative" and pattern == "neighborhood":
        with pytest.raises(UnsupportedError, match="has no meaning on a grid"):
            case(name, PATTERNS[pattern]).weft()
    else:
        check(case(name, PATTERNS[pattern]))


@pytest.mark.parametrize("table_dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_types_of_tables(table_dtype):
    one = case("relative", dtype=torch.float16, table_dtype=table_dtype)
    check(one)


def test_the_same_bits_where_the_order_of_sums_is_asked_for():
    for name in ("alibi", "dense", "relative", "buckets"):
        one = case(name)
        one.options = {"deterministic": True}
        first, again = one.weft(), one.weft()
        assert all(torch.equal(first[x], again[x]) for x in first)
        check(one)
    one = case("relative", PATTERNS["dilated"])  # rows in steps
    one.options = {"deterministic": True}
    with pytest.raises(UnsupportedError, match="in no fixed order"):
        one.weft()
    one = case("grid")
    one.options = {"deterministic": True}
    with pytest.raises(UnsupportedError, match="in no fixed order"), launching_nothing() as launched:
        one.weft()
    assert not launched  # it is refused before the forward
