"""`weft.decode_attention`: every number of keys that only the device knows, beside the call that the host slices."""

import pytest
import torch

import weft
from weft.errors import InputError, UnsupportedError

from .compare import BACKENDS, generator, normal

END = "bottom-right"
CAUSAL = weft.causal(align=END)
WINDOW = CAUSAL & weft.window(left=20, align=END)
PATTERNS = {
    "causal": CAUSAL,
    "window": WINDOW,
    "longformer": weft.longformer(16, 4).aligned(END),
    "strided": weft.strided(8).aligned(END),
    "chunks": weft.chunks(16, align=END) & CAUSAL,
    "heads": weft.per_head([CAUSAL, WINDOW, CAUSAL, weft.chunks(16, align=END) & CAUSAL]),
    "batch rows": weft.per_batch([CAUSAL, WINDOW, CAUSAL]),
}
OPTIONS = {
    "plain": (),
    "softcap": ("softcap",),
    "sinks": ("sinks",),
    "slopes": ("alibi_slopes",),
    "all": ("softcap", "sinks", "alibi_slopes"),
}
BATCH, HEADS, CAPACITY, WIDTH = 3, (4, 2), 96, 32


@pytest.fixture(params=sorted(BACKENDS))
def backend(request):
    return request.param


def problem(name, backend, tokens=CAPACITY, queries=2):
    """(q, keys, values), of so many tokens."""
    random, device = generator(name), BACKENDS[backend]
    shapes = (HEADS[0], queries), (HEADS[1], tokens), (HEADS[1], tokens)
    return [normal((BATCH, *shape, WIDTH), random, torch.float32).to(device) for shape in shapes]


def options(names, name, backend):
    random, found = generator(f"options of {name}"), {}
    if "softcap" in names:
        found["softcap"] = 1.5
    for row in ("sinks", "alibi_slopes"):
        if row in names:
            found[row] = normal(HEADS[:1], random, torch.float32).abs().to(BACKENDS[backend])
    return found


def counts(values, backend, dtype=torch.int32):
    return torch.tensor(values, dtype=dtype, device=BACKENDS[backend])


def expected(tensors, mask, keys, chosen):
    """(out, lse) of the call that the host slices, for each batch row its number of keys."""
    q, k, v = tensors
    found = [weft.attention(q, k[:, :, :n], v[:, :, :n], mask, return_lse=True, backend="auto", **chosen) for n in keys]
    return [torch.stack([pair[which][b] for b, pair in enumerate(found)]) for which in range(2)]


def same(found, wanted):
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other.to(one.dtype), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("chosen", OPTIONS)
def test_each_batch_row_has_its_number_of_keys(pattern, chosen, backend):
    name = f"{pattern}, {chosen}"
    tensors, mask, more = problem(name, backend), PATTERNS[pattern], options(OPTIONS[chosen], name, backend)
    for keys in ((2, 17, 96), (64, 33, 3)):
        found = weft.decode_attention(*tensors, mask, counts(keys, backend), return_lse=True, backend=backend, **more)
        same(found, expected(tensors, mask, keys, more))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (BATCH,)], ids=str)
def test_forms_of_the_count(dtype, shape, backend):
    tensors = problem("forms", backend)
    count = torch.full(shape, 41, dtype=dtype, device=BACKENDS[backend])
    found = weft.decode_attention(*tensors, WINDOW, count, return_lse=True, backend=backend)
    same(found, expected(tensors, WINDOW, (41,) * BATCH, {}))


def test_an_int_is_sliced_by_the_host(backend):
    tensors = problem("an int", backend)
    found = weft.decode_attention(*tensors, WINDOW, 41, return_lse=True, backend=backend)
    same(found, expected(tensors, WINDOW, (41,) * BATCH, {}))


@pytest.mark.parametrize("keys", [3, 31, 32, 33, 100, 299])
def test_ring(keys, backend):
    """Token t lies at place t % 32; what no token has been written to is not a number."""
    q, k, v = problem("ring", backend, 300)
    rings = [torch.full((*x.shape[:2], 32, WIDTH), torch.nan, device=x.device) for x in (k, v)]
    for token in range(keys):
        for ring, x in zip(rings, (k, v), strict=True):
            ring[:, :, token % 32] = x[:, :, token]
    count = counts([keys], backend)
    found = weft.decode_attention(q, *rings, WINDOW, count, ring=True, return_lse=True, backend=backend)
    same(found, expected((q, k, v), WINDOW, (keys,) * BATCH, {}))


@pytest.mark.parametrize("which", range(3))
def test_lazily_negated_views(which, backend):
    """The imaginary part of a conjugate has its sign in a bit of the tensor, and not in memory."""
    tensors = problem("negated", backend)
    x = tensors[which]
    lazy = torch.complex(x, x).conj().imag
    assert lazy.is_neg()
    asked = WINDOW, counts([41], backend)
    found, wanted = (
        weft.decode_attention(*[*tensors[:which], x, *tensors[which + 1 :]], *asked, backend=backend)
        for x in (lazy, -x)
    )
    assert torch.equal(found, wanted)


def test_window_and_offset_on_the_device(backend):
    tensors = problem("window", backend)
    keys, windows = (96, 50, 9), (7, 20, 1)
    given = {"window": counts(windows, backend), "offset": counts([n - 2 for n in keys], backend)}
    found = weft.decode_attention(*tensors, CAUSAL, counts(keys, backend), return_lse=True, backend=backend, **given)
    for b, (n, width) in enumerate(zip(keys, windows, strict=True)):
        mask = CAUSAL & weft.window(left=width - 1, align=END)
        wanted = expected(tensors, mask, (n,) * BATCH, {})
        same([x[b] for x in found], [x[b] for x in wanted])


@pytest.mark.parametrize("pattern", ["causal", "strided", "dilated"])
def test_queries_before_the_first_token_see_nothing(pattern, backend):
    """Of nine queries of which two residue classes share programs: the others are as ever."""
    mask = (PATTERNS | {"dilated": weft.dilated(2, 0, 2, align=END)})[pattern]
    q, k, v = problem("before", backend, queries=9)
    keys = 1, 3, 90
    out, lse = weft.decode_attention(q, k, v, mask, counts(keys, backend), return_lse=True, backend=backend)
    for b, n in enumerate(keys):
        before = max(0, 9 - n)
        assert (out[b, :, :before] == 0).all() and (lse[b, :, :before] == -torch.inf).all()
        wanted = expected((q[:, :, before:], k, v), mask, (n,) * BATCH, {})
        same((out[b, :, before:], lse[b, :, before:]), [x[b] for x in wanted])


def test_counts_beyond_the_cache_read_nothing_beyond_it(backend):
    tensors = problem("beyond", backend)
    more = weft.decode_attention(
        *tensors, CAUSAL, counts([200], backend), offset=counts([94], backend), backend=backend
    )
    full = weft.decode_attention(*tensors, CAUSAL, counts([96], backend), backend=backend)
    torch.testing.assert_close(more, full)


@pytest.mark.skipif("triton" not in BACKENDS or BACKENDS["triton"] == "cpu", reason="captures need a GPU")
def test_a_captured_step_serves_every_length():
    """One graph for 128 steps: no sync, equal to the eager call at each length."""
    q, k, v = problem("captured", "triton", 256, queries=1)
    count = counts([128], "triton")
    with torch.no_grad():
        weft.decode_attention(q, k, v, WINDOW, count)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            out = weft.decode_attention(q, k, v, WINDOW, count)
        found = []
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(128):
                graph.replay()
                found.append(out.clone())
                count.add_(1)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        for step, one in enumerate(found):
            n = 128 + step
            assert torch.equal(one, weft.decode_attention(q, k, v, WINDOW, counts([n], "triton")))
            torch.testing.assert_close(one, weft.attention(q, k[:, :, :n], v[:, :, :n], WINDOW), rtol=2e-5, atol=2e-5)


REFUSED = {
    "a float": (InputError, {"key_count": torch.tensor(3.0)}, "key_count is torch.float32"),
    "two numbers for three rows": (InputError, {"key_count": torch.tensor([3, 4])}, "shape"),
    "another dtype": (InputError, {"offset": torch.tensor([3], dtype=torch.int32)}, "offset and key_count differ"),
    "an int beyond": (InputError, {"key_count": 97}, "key_count is 97"),
    "an int and a ring": (InputError, {"key_count": 9, "ring": True}, "go with a key_count that is a tensor"),
    "not steady": (UnsupportedError, {"mask": weft.causal(align="top-left")}, "align"),
    "a short ring": (UnsupportedError, {"mask": CAUSAL & weft.window(left=95, align=END), "ring": True}, "97 tokens"),
    "a ring and no window": (UnsupportedError, {"mask": CAUSAL, "ring": True}, "shorter window"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case, backend):
    error, given, text = REFUSED[case]
    q, k, v = problem("refused", backend)
    count = torch.tensor([5])
    call = {"mask": WINDOW, "key_count": count, **given}
    call = {name: x.to(q.device) if isinstance(x, torch.Tensor) else x for name, x in call.items()}
    with pytest.raises(error, match=text):
        weft.decode_attention(q, k, v, backend=backend, **call)


def test_gradients_are_refused(backend):
    q, k, v = problem("gradients", backend)
    with pytest.raises(UnsupportedError, match="no_grad"):
        weft.decode_attention(q.requires_grad_(), k, v, WINDOW, counts([5], backend), backend=backend)
