"""Products with what follows them, interpreted in float32 against their meaning in float64."""

import numpy as np
import pytest
import torch

from weft.kernels.gpu.gemm import meaning
from weft.kernels.gpu.gemm.config import DOUBLE, SINGLE, Card, Config, configs

from .compare import BACKENDS, generator

pytestmark = pytest.mark.skipif("triton" not in BACKENDS, reason="other backends take torch's operations")
DEVICE = BACKENDS.get("triton")
SMALL = Config(32, 32, 16, 4, 2, group=2)
PERSISTENT = Config(32, 32, 16, 4, 2, group=2, persistent=True)
M, N, K = 75, 88, 40  # no multiples of a tile
BATCH, TOKENS, D = 2, 37, 16
CARD = Card(132, 227 << 10)


def normal(name, *shape):
    return torch.randn(*shape, generator=generator(name)).to(DEVICE)


def exact(x):
    return None if x is None else x.double().cpu().numpy()


def agree(found, expected):
    np.testing.assert_allclose(exact(found), expected, rtol=0, atol=2e-6 * max(1.0, np.abs(expected).max()))


@pytest.mark.parametrize("by_rows", [False, True], ids=["weights (n, k)", "weights (k, n)"])
@pytest.mark.parametrize("gated", [False, True], ids=["one", "gated"])
@pytest.mark.parametrize("activation", meaning.ACTIVATIONS)
def test_products_with_bias_activation_and_residual(activation, gated, by_rows):
    from weft.fusion import kernels

    x, residual = normal("x", 3, M // 3, K), normal("residual", 3, M // 3, N)
    weights = [normal(f"weight {i}", N, K) / K**0.5 for i in range(1 + gated)]
    biases = [normal(f"bias {i}", N) for i in range(1 + gated)]
    spec = kernels.ProductSpec(activation, gated, True, True, by_rows)
    laid_out = [w.t().contiguous() if by_rows else w for w in weights]
    config = PERSISTENT if activation in ("gelu", "silu") else SMALL
    (found,) = kernels.product(spec, config, [x, *laid_out, *biases, residual]).run()
    gate, gate_bias = (exact(weights[1]), exact(biases[1])) if gated else (None, None)
    rest = meaning.Epilogue(activation, exact(biases[0]), gate, gate_bias, exact(residual.reshape(-1, N)))
    agree(found.reshape(-1, N), meaning.product(exact(x.reshape(-1, K)), exact(weights[0]), rest))


@pytest.mark.parametrize("config", [SMALL, PERSISTENT, Config(32, 64, 16, 4, 2, persistent=True, halved=True)], ids=str)
@pytest.mark.parametrize("gated", [False, True], ids=["one", "gated"])
def test_what_gradients_need_is_kept(config, gated):
    from weft.fusion import kernels

    x, weights = normal("x", 3, M // 3, K), [normal(f"weight {i}", N, K) / K**0.5 for i in range(1 + gated)]
    biases = [normal(f"bias {i}", N) for i in range(1 + gated)]
    spec = kernels.ProductSpec("gelu", gated, True, keeps=True)
    out, kept = kernels.product(spec, config, [x, *weights, *biases]).run()
    gate, gate_bias = (exact(weights[1]), exact(biases[1])) if gated else (None, None)
    given = exact(x.reshape(-1, K)), exact(weights[0]), meaning.Epilogue("gelu", exact(biases[0]), gate, gate_bias)
    agree(out.reshape(-1, N), meaning.product(*given))
    for one, expected in zip(kept, meaning.before(*given), strict=True):
        agree(one.reshape(-1, N), expected)


def test_rows_scaled_as_a_norm_does_from_sums_of_squares_by_tile():
    """RMSNorm, its weight folded into the next one's columns: sums in the first epilogue, their root in the next."""
    from weft.kernels.gpu.gemm.product import product

    x, first, second = normal("x", M, K), normal("first", N, K) / K**0.5, normal("second", K, N) / N**0.5
    between, out = torch.empty(M, N, device=DEVICE), torch.empty(M, K, device=DEVICE)
    tiles = -(-N // SMALL.cols)
    squares = torch.empty(tiles, M, device=DEVICE)
    launch(product, x, first, between, None, squares, 0, 1)
    launch(product, between, second, out, squares, None, tiles, N)
    agree(squares, meaning.squares_of(exact(between), SMALL.cols))
    scale = 1 / np.sqrt((exact(between) ** 2).mean(-1, keepdims=True) + 1e-5)
    agree(out, (scale * exact(between)) @ exact(second).T)


def launch(product, x, weight, out, squares, new_squares, tiles, count):
    from triton.tools.tensor_descriptor import TensorDescriptor

    c, (m, k), n = SMALL, x.shape, weight.shape[0]
    of_x, of_out = (TensorDescriptor.from_tensor(y, [c.rows, n]) for y, n in ((x, c.depth), (out, c.cols)))
    of_weight = TensorDescriptor.from_tensor(weight[None], [1, c.cols, c.depth])
    product[(-(-m // c.rows) * -(-n // c.cols),)](
        of_x, of_weight, None, of_out, None, None, None, squares, new_squares, m, n, k, tiles, count, 1e-5,
        ACTIVATION="", GATE=None, BY_ROWS=False, ROWS=c.rows, COLS=c.cols, DEPTH=c.depth, STORED=c.stored,
        EVEN=False, GROUP=c.group, PERSISTENT=False,
    )  # fmt: skip


@pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "interleaved"])
@pytest.mark.parametrize("batch", [1, BATCH], ids=["one table", "a table for each batch row"])
@pytest.mark.parametrize("biased", [False, True], ids=["plain", "biased"])
def test_projections_are_rotated_by_position(interleaved, batch, biased):
    from weft.fusion import kernels

    widths = 6 * D, 2 * D, 2 * D
    x, tables = normal("x", BATCH, TOKENS, K), [normal(name, batch, TOKENS, D) for name in ("cos", "sin")]
    weights = [normal(f"weight {i}", n, K) / K**0.5 for i, n in enumerate(widths)]
    biases = [normal(f"bias {i}", n) for i, n in enumerate(widths)] if biased else []
    spec = kernels.ProjectionsSpec(D, biased, True, interleaved)
    (whole,) = kernels.projections(spec, SMALL, [x, *weights, *biases, *tables]).run()
    found = whole.split(widths, -1)
    cos, sin = (exact(t.expand(BATCH, TOKENS, D).reshape(-1, D)) for t in tables)
    for i, (y, weight) in enumerate(zip(found, weights, strict=True)):
        rest = meaning.Epilogue(bias=exact(biases[i]) if biased else None)
        expected = meaning.product(exact(x.reshape(-1, K)), exact(weight), rest)
        if i < 2:
            heads = expected.reshape(len(expected), -1, D)
            expected = meaning.rope(heads, cos, sin, interleaved).reshape(expected.shape)
        agree(y.reshape(expected.shape), expected)


def test_heads_are_normed_before_they_turn():
    from triton.tools.tensor_descriptor import TensorDescriptor

    from weft.kernels.gpu.gemm.projections import projections

    c, n, kv = SMALL, 4 * D, 2 * D
    x, weights = normal("x", M, K), normal("weights", n + 2 * kv, K) / K**0.5
    norms, tables = [normal(f"norm {i}", D) for i in range(2)], [normal(f"table {i}", M, D) for i in range(2)]
    out = torch.empty(M, n + 2 * kv, device=DEVICE)
    outs = out.split((n, kv, kv), -1)
    box = TensorDescriptor.from_tensor
    projections[(-(-M // c.rows) * (n + 2 * kv) // c.cols,)](
        box(x, [c.rows, c.depth]), TensorDescriptor(weights, [n + 2 * kv, n, K], [K, K, 1], [1, c.cols, c.depth]),
        box(out, [c.rows, c.cols]), None, None, None, *norms, *tables, 0, n, n + kv, M, n, kv, K, M, 0,
        1e-5, D=D, INTERLEAVED=False, BY_ROWS=False, ROWS=c.rows, COLS=c.cols, DEPTH=c.depth, STORED=c.stored,
        GROUP=c.group, PERSISTENT=False,
    )  # fmt: skip
    for i, norm in enumerate(norms):
        weight = weights[:n] if i == 0 else weights[n : n + kv]
        heads = (exact(x) @ exact(weight).T).reshape(M, -1, D)
        normed = meaning.head_norm(heads, exact(norm), 1e-5)
        agree(outs[i], meaning.rope(normed, *map(exact, tables)).reshape(M, -1))


def test_configurations_have_room():
    for weights, some in ((1, SINGLE), (2, DOUBLE)):
        large = set(configs(32768, 8192, weights, CARD))
        assert large < set(some) and all(one.rows * one.cols * weights >= 128 * 128 for one in large)
        assert all(one.shared(weights) <= 100 << 10 for one in configs(32768, 8192, weights, Card(132, 100 << 10)))
        few = list(configs(128, 768, weights, CARD))
        assert few and all(one.rows * one.cols <= 64 * 64 for one in few)
    assert all(one.cols % 64 == 0 for one in configs(4096, 2048, 1, CARD, multiple=64))


def test_persistent_programs_fill_the_card_once():
    assert Config(128, 128, 64, 4, 3).programs(1000, 1, CARD) == 1000
    for one in SINGLE:
        if one.persistent:
            assert one.programs(10, 1, CARD) == 10 and one.programs(10**6, 1, CARD) in (132, 2 * 132)
