"""Where other sparse attention went wrong. Each mask is a formula written here, not what the pattern says of itself."""

import pytest
import torch

import weft

from .compare import BACKENDS, Case, check, generator, qkv, wide


def mask(formula, m, n):
    q, k = torch.arange(m)[:, None], torch.arange(n)[None, :]
    return formula(q, k).expand(m, n)


def check_formula(pattern, formula, sizes, backend, **options):
    m, n = sizes
    tensors = qkv(generator(f"{pattern}"), sizes, heads=(2, 1), dims=(16, 12))
    check(Case(pattern, tensors, live=mask(formula, m, n), backend=backend, **options))


on_every_backend = pytest.mark.parametrize("backend", BACKENDS)


# A residue class is a view with a step; a transposed walk that forgets the step gives right outputs and wrong dK, dV.
MODULAR = {
    "every fourth": (weft.dilated(1 << 30, 1 << 30, 4), lambda q, k: (q - k) % 4 == 0),
    "every fourth, causal": (
        weft.causal() & weft.dilated(1 << 30, 1 << 30, 4),
        lambda q, k: (k <= q) & ((q - k) % 4 == 0),
    ),
    "all but every fourth": (~weft.dilated(1 << 30, 1 << 30, 4), lambda q, k: (q - k) % 4 != 0),
    "strided": (weft.strided(7), lambda q, k: (k <= q) & ((q - k < 7) | ((q - k) % 7 == 0))),
    "two moduli": (
        weft.dilated(1 << 30, 1 << 30, 4) & weft.periodic_keys(6, phase=1),
        lambda q, k: ((q - k) % 4 == 0) & (k % 6 == 1),
    ),
    "fixed": (weft.fixed(7, summary=2), lambda q, k: (k <= q) & ((q // 7 == k // 7) | (k % 7 >= 5))),
    "first column not 0": (weft.periodic_keys(9, phase=5), lambda q, k: (k % 9 == 5) & (q >= 0)),
}


@on_every_backend
@pytest.mark.parametrize("length", [5, 63, 131, 300])
@pytest.mark.parametrize("name", MODULAR)
def test_gradients_of_modular_arithmetic(name, length, backend):
    check_formula(*MODULAR[name], (length, length), backend)


BEYOND = {
    "window": (weft.window(left=1023, right=511), lambda q, k: (k - q <= 511) & (q - k <= 1023)),
    "dilated": (weft.dilated(100, 100, 100), lambda q, k: (q - k) % 100 == 0),
    "stride": (weft.strided(500), lambda q, k: k <= q),
    "fixed": (weft.fixed(500, summary=20), lambda q, k: k <= q),
    "chunk": (weft.chunks(4096), lambda q, k: (q >= 0) & (k >= 0)),
    "blocks": (weft.blocks(512, [(0, 0), (7, 7)]), lambda q, k: (q >= 0) & (k >= 0)),
    "prefix": (weft.prefix(10_000), lambda q, k: (q >= 0) & (k >= 0)),
    "padding": (
        weft.padding([10_000, 1]),
        lambda q, k: (q >= 0) & (k < torch.tensor([10_000, 1])[:, None, None, None]),
    ),
    "global tokens": (weft.global_tokens([0, 999], rows=False), lambda q, k: (k == 0) & (q >= 0)),
    "bigbird": (weft.bigbird(block=512), lambda q, k: (q >= 0) & (k >= 0)),
    "longformer": (weft.longformer(2048, global_tokens=300), lambda q, k: (q >= 0) & (k >= 0)),
    "offset beyond": (weft.causal(offset=-1000), lambda q, k: k <= q - 1000),
    "shifted out": (weft.full().shift(q=1000), lambda q, k: (q < 0) & (k < 0)),
}


@on_every_backend
@pytest.mark.parametrize("length", [1, 3, 65])
@pytest.mark.parametrize("name", BEYOND)
def test_a_mask_larger_than_the_sequence(name, length, backend):
    pattern, formula = BEYOND[name]
    q, k = torch.arange(length)[:, None], torch.arange(length)[None, :]
    tensors = qkv(generator(name), (length, length), heads=(2, 1), dims=(16, 12))
    check(Case(pattern, tensors, live=formula(q, k), backend=backend))


@on_every_backend
@pytest.mark.parametrize("m", [1, 31, 33, 127, 129, 255, 257, 383])
def test_rows_that_fill_no_block(m, backend):
    for align, shift in (("top-left", 0), ("bottom-right", 200 - m)):
        pattern = weft.causal(align=align) & weft.window(left=20, align=align)

        def formula(q, k, shift=shift):
            return (k <= q + shift) & (q + shift - k <= 20)

        check_formula(pattern, formula, (m, 200), backend, shift=shift)


@on_every_backend
def test_one_element_rows(backend):
    check_formula(weft.window(left=0, right=0), lambda q, k: q == k, (130, 130), backend)
    check_formula(weft.dilated(0, 0, 5).shift(k=40), lambda q, k: k == q + 40, (130, 130), backend)


@on_every_backend
def test_overlapping_terms_count_a_pair_once(backend):
    """Twice the same key would weigh twice in the soft maximum."""
    band, first = weft.window(left=30, right=30), weft.global_tokens(20)
    twice = band | first | weft.causal() | weft.strided(3) | band.shift(q=2)
    check_formula(band | band, lambda q, k: (q - k).abs() <= 30, (150, 150), backend)
    check_formula(
        twice,
        lambda q, k: ((q - k).abs() <= 30) | (q < 20) | (k < 20) | (k <= q) | ((q >= 2) & ((q - 2 - k).abs() <= 30)),
        (150, 150),
        backend,
    )


@on_every_backend
@pytest.mark.parametrize("sinks", [False, True])
def test_rows_with_no_live_key(sinks, backend):
    """Out 0, lse -inf or the sink, zero gradients: between live rows, at the ends, and everywhere."""
    for pattern, formula in (
        (weft.blocks((10, 7), [(1, 2), (3, 0), (3, 9)]), lambda q, k: ((q // 10 == 1) & (k // 7 == 2))
         | ((q // 10 == 3) & ((k // 7 == 0) | (k // 7 == 9)))),
        (weft.causal(offset=-50), lambda q, k: k <= q - 50),
        (weft.nothing(), lambda q, k: (q < 0) & (k < 0)),
    ):  # fmt: skip
        options = {"sinks": torch.tensor([1.5, -40.0], dtype=torch.float64)} if sinks else {}
        check_formula(pattern, formula, (75, 75), backend, options=options)


@on_every_backend
@pytest.mark.parametrize("pattern", [weft.causal(offset=-5), weft.causal(offset=-5) & weft.dilated(99, 99, 3)], ids=str)
def test_rows_with_no_live_key_take_no_gradient_of_lse(pattern, backend):
    """Not even what torch.logaddexp sends back where both of its terms are -inf: NaN."""
    device = BACKENDS[backend]
    leaves = [x.to(device).requires_grad_() for x in qkv(generator("merged"), (70, 70), heads=(2, 1))]
    sinks = torch.tensor([-torch.inf, 0.5], device=device, dtype=wide(leaves[0].dtype)).requires_grad_()
    found = []
    for seed in (0.0, torch.nan):
        out, lse = weft.attention(*leaves, pattern, sinks=sinks, backend=backend, return_lse=True)
        seeds = torch.ones_like(lse).masked_fill(lse == -torch.inf, seed)
        found.append(torch.autograd.grad((out, lse), (*leaves, sinks), (torch.ones_like(out), seeds)))
        assert seeds[:, 0].isnan().any() == (seed != 0)
    for without, nan in zip(*found, strict=True):
        assert without.isfinite().all()
        assert torch.equal(without, nan)


@on_every_backend
@pytest.mark.parametrize("slopes", [None, torch.tensor([0.5, 0.03])], ids=["plain", "alibi"])
def test_a_sink_that_says_nothing(slopes, backend):
    """A sink of -inf joins no sum, and beside no key the row is empty."""
    device, options = BACKENDS[backend], {"backend": backend, "return_lse": True}
    if slopes is not None:
        options["alibi_slopes"] = slopes.to(device)
    leaves = [x.to(device).requires_grad_() for x in qkv(generator("nothing"), (70, 70), heads=(2, 2))]
    sinks = torch.tensor([-torch.inf, 0.5], device=device, dtype=wide(leaves[0].dtype)).requires_grad_()
    found = {}
    for name, some in (("with", {"sinks": sinks}), ("without", {})):
        out, lse = weft.attention(*leaves, weft.causal(offset=-5), **options, **some)
        found[name] = [x[:, 0] for x in (out, lse, *torch.autograd.grad(out.square().sum(), leaves, retain_graph=True))]
        if some:
            dsinks = torch.autograd.grad(out.square().sum(), sinks)[0]
            assert dsinks[0] == 0 > dsinks[1]
            assert (lse[:, 1, :5] == 0.5).all()
    for mine, other in zip(*found.values(), strict=True):
        torch.testing.assert_close(mine, other)


@on_every_backend
@pytest.mark.parametrize("places", [lambda x: torch.stack([x, -x], 1)[:, 0], lambda x: x[:1].expand(2)])
def test_sinks_and_slopes_lie_anywhere(places, backend):
    """As a column of a table, or one number for all heads."""
    one = torch.tensor([1.5, -0.5], dtype=torch.float32)
    options = {"sinks": places(one), "alibi_slopes": places(one.abs())}
    tensors = qkv(generator("places"), (70, 70), heads=(2, 1))
    pattern = weft.window(left=20, right=3)
    device = BACKENDS[backend]
    with torch.no_grad():
        found = [
            weft.attention(
                *(x.to(device) for x in tensors), pattern, backend=backend, return_lse=True,
                **{name: make(x.to(device)) for name, x in options.items()},
            )
            for make in (torch.Tensor.contiguous, lambda x: x)
        ]  # fmt: skip
    for mine, other in zip(*found, strict=True):
        assert torch.equal(mine, other)


FOUR_AXES = (weft.causal(), weft.full(), weft.window(left=1, right=1), weft.window(left=0, right=2))


@on_every_backend
def test_a_grid_of_four_axes(backend):
    """Of which other libraries have three at most."""
    check(Case(weft.product(FOUR_AXES, (3, 4, 5, 2)), qkv(generator("axes"), (120, 120)), backend=backend))


@on_every_backend
def test_stairs_beyond_32_bits(backend):
    """A row's bound is computed in 32 bits on a GPU; what lies beyond the keys is all keys, or none."""
    steep = weft.recognize(lambda q, k: k < (1 << 24) * (q + 1)).pattern
    check_formula(steep, lambda q, k: (q >= 0) & (k >= 0), (200, 70), backend)
    wide_chunk = weft.chunks(1 << 31, align="bottom-right")
    check_formula(wide_chunk, lambda q, k: (q >= 67) & (k >= 0), (130, 63), backend)


@on_every_backend
@pytest.mark.parametrize("alignment,shift", [("top-left", 0), ("bottom-right", 61)])
def test_alibi_measures_from_the_aligned_query(alignment, shift, backend):
    slopes = torch.tensor([0.5, 0.03])
    check_formula(
        weft.window(left=25, right=9, align=alignment),
        lambda q, k: (k - q - shift <= 9) & (q + shift - k <= 25),
        (70, 131),
        backend,
        options={"alibi_slopes": slopes},
        shift=shift,
    )
