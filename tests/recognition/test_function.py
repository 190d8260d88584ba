"""Mask functions: what they come out as, held against the functions themselves on every pair."""

import copy
import inspect
from functools import reduce
from operator import and_

import numpy as np
import pytest
from tests.recognition.generators import (
    GIVEN,
    OTHERS,
    neighborhood_2d,
    neighborhood_3d,
    strided,
)

import weft
from weft.errors import InputError, LengthError, PatternError
from weft.recognition import evaluate, recognize

torch = pytest.importorskip("torch")


def dense(given, size=None):
    """(B, H, M, N) of a function, asked on every pair."""
    m, n = size or given.size
    b, h, q, k = (torch.from_numpy(x) for x in np.ix_(*map(np.arange, (given.batch, given.heads, m, n))))
    four = len(inspect.signature(given.function).parameters) == 4
    if not four:
        return np.broadcast_to(np.asarray(given.function(q, k)), (1, 1, m, n))
    rows = [[given.function(b[i, 0, 0, 0], h[0, j, 0, 0], q[0, 0], k[0, 0]) for j in range(given.heads)]
            for i in range(given.batch)]  # fmt: skip
    return np.array([[np.broadcast_to(np.asarray(live), (m, n)) for live in row] for row in rows])


def found_as(given, **options):
    if given.batch > 1:
        options["batch"] = given.batch
    if given.heads > 1:
        options["heads"] = given.heads
    return recognize(given.function, size=given.size, **options)


@pytest.mark.parametrize("name", GIVEN)
def test_closed_and_proven(name):
    given = GIVEN[name]
    found, mask = found_as(given), dense(given)
    assert found.proof == "symbolic" and found.closed and found.exact
    assert (np.broadcast_to(found.pattern.to_dense(*given.size), mask.shape) == mask).all()
    for b, h in np.ndindex(*mask.shape[:2]):
        batches, heads = found.pattern.extent()
        rows = found.pattern.acsr(*given.size, b if batches else 0, h if heads else 0)
        assert (rows.to_dense() == mask[b, h]).all()
        assert not len(rows.remainder) or "layouts" in name  # a list of blocks is one


@pytest.mark.parametrize("name", ["causal", "sliding window", "dilated window", "global and sliding", "strided",
                                  "fixed", "2-D neighborhood, cut", "images in text", "rectangle"])  # fmt: skip
@pytest.mark.parametrize("size", [(64, 64), (1, 1), (40, 88), (97, 33), (80, 80)], ids=str)
def test_without_a_size_it_holds_at_every_length(name, size):
    given = GIVEN[name]
    found = recognize(given.function)
    assert (found.m, found.n) == (None, None)
    assert (found.pattern.to_dense(*size) == dense(given, size)[0, 0]).all()
    assert (found.pattern.acsr(*size).to_dense() == dense(given, size)[0, 0]).all()


@pytest.mark.parametrize("name", OTHERS)
def test_evaluated_where_the_trace_ends(name):
    given = OTHERS[name]
    found = found_as(given)
    assert found.proof == "evaluated at (30, 30)" and "tracing ended in <lambda>" in found.why
    mask = np.array([[bool(given.function(q, k)) for k in map(np.int64, range(30))] for q in map(np.int64, range(30))])
    assert (found.pattern.to_dense(30) == mask).all()
    with pytest.raises(LengthError):
        found.pattern.to_dense(31)
    with pytest.raises(InputError, match="pass size="):
        recognize(given.function)


IDS_OF_TORCH = torch.arange(80) // 7
SPELLED = [
    (lambda q, k: q >= k, weft.causal()),
    (lambda q, k: (q >= k) & (q - k < 1024), weft.causal() & weft.window(left=1023)),
    (lambda q, k: np.abs(q - k) <= 3, weft.window(3, 3)),
    (lambda q, k: (q - k) * (q - k >= 0) == 0, weft.window(left=0)),
    (lambda q, k: (k <= q) & (q // 8 == k // 8), weft.causal() & weft.chunks(8)),
    (lambda q, k: (k - 3) // 8 >= (q - 3) // 8, None),
    (lambda q, k: k % 7 == 3, weft.periodic_keys(7, phase=3)),
    (lambda q, k: ~((q < 4) | (k < 4)), None),
    (lambda q, k: (q < 4) | (k < 4), weft.global_tokens(4)),
    (lambda q, k: q >> 3 == k >> 3, weft.chunks(8)),
    (lambda q, k: (q & 7) == (k & 7), None),
    (lambda q, k: torch.where(q < 20, q - k, k - q) < 3, None),
    (lambda q, k: torch.maximum(q, k) < 20, None),
    (lambda q, k: torch.clamp(q - k, min=0, max=5) == 5, None),
    (lambda q, k: (3 * k) // 5 <= q, None),
    (lambda q, k: k // -4 == q // -4, None),
    (lambda q, k: (q - k) % -3 == 0, None),
    (lambda q, k: torch.remainder(q, 5) == k % 5, None),
    (lambda q, k: torch.div(q, 5, rounding_mode="floor") == k // 5, weft.chunks(5)),
    (lambda q, k: 2 * q - 2 * k <= 9, None),
    (lambda q, k: torch.logical_not(torch.logical_xor(q < 9, k < 9)), None),
    (lambda q, k: (q % 8 <= k % 8) & (q // 8 == k // 8 + 1), None),
    (lambda q, k: (q // 4 + k // 4) % 2 == 0, None),
    (lambda q, k: torch.minimum(k, torch.tensor(20)) <= q // 3, None),
    (lambda q, k: (q - k).abs() // 4 % 2 == 0, None),
    (lambda q, k: q.new_ones((), dtype=torch.bool) & (k <= q).to("cpu"), weft.causal()),
    (lambda q, k: torch.zeros_like(q, dtype=torch.bool) | (k <= q).bool(), weft.causal()),
    (lambda q, k: (~q + ~k) % 2 == 0, None),
    (lambda q, k: (q >= k).where(q < 20, k < 10), None),
    (lambda q, k: torch.tensor(True).where(q < 20, k < 10), None),
    (lambda q, k: (q - k).where(q > 9, 5) < 5, None),
    (lambda q, k: (q >= k).to(q.dtype) + (q - k < 5).to(q.dtype) == 2, weft.causal() & weft.window(left=4)),
    (
        lambda q, k: (q >= k).type_as(IDS_OF_TORCH) + (q - k < 5).to(IDS_OF_TORCH) == 2,
        weft.causal() & weft.window(left=4),
    ),
    (lambda q, k: torch.max(q, k).min(k + 3) == k, None),
    (lambda q, k: True, weft.full()),
    (lambda q, k: q < 0, weft.nothing()),
]


@pytest.mark.parametrize("place", range(len(SPELLED)))
@pytest.mark.parametrize("size", [(48, 48), (30, 71)], ids=str)
def test_operations(place, size):
    function, expected = SPELLED[place]
    found = recognize(function, size=size)
    q, k = torch.arange(size[0])[:, None], torch.arange(size[1])[None]
    mask = np.broadcast_to(np.asarray(function(q, k)), size)
    assert found.proof == "symbolic"
    assert (found.pattern.to_dense(*size) == mask).all()
    assert (found.pattern.acsr(*size).to_dense() == mask).all()
    if expected is not None:
        assert found.pattern == (expected if size[0] == size[1] else expected.aligned("top-left"))


@pytest.mark.parametrize("size", [None, 12])
@pytest.mark.parametrize("function", [
    lambda b, h, q, k: b.new_ones((), dtype=torch.bool) & (q >= k),
    lambda b, h, q, k: h.new_ones(size=(), dtype=torch.bool, device=h.device) & (q >= k),
    lambda b, h, q, k: b.new_zeros([], dtype=torch.bool) | (q >= k),
    lambda b, h, q, k: b.new_full(size=(), fill_value=True, dtype=torch.bool) & (q >= k),
    lambda b, h, q, k: torch.full_like(h, True, dtype=torch.bool) & (q >= k),
    lambda b, h, q, k: b.new_tensor(True, dtype=torch.bool) & (q >= k),
    lambda b, h, q, k: torch.zeros_like(b, dtype=torch.bool) | (q >= k),
    lambda b, h, q, k: q >= k + torch.zeros_like(h),
])  # fmt: skip
def test_a_constant_made_beside_an_index_does_not_depend_on_it(function, size):
    """As FlexAttention's own functions make theirs beside the batch row."""
    found = recognize(function, size=size)
    assert found.proof == "symbolic"
    assert found.pattern == (weft.causal() if size else weft.causal(align="top-left"))


@pytest.mark.parametrize("function", [
    lambda b, h, q, k: torch.full_like(q, h) <= k, lambda b, h, q, k: q.new_tensor(h) <= k,
])  # fmt: skip
def test_a_constant_made_of_an_index_depends_on_it(function):
    with pytest.raises(InputError, match="pass heads="):
        recognize(function)


def test_what_flex_attention_joins():
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    band, last = lambda b, h, q, k: q - k < 9, lambda b, h, q, k: q >= k
    assert recognize(flex.and_masks(band, last)).pattern == (weft.causal() & weft.window(left=8)).aligned("top-left")
    assert recognize(flex.or_masks(band, last)).pattern == weft.full()
    assert recognize(flex.noop_mask).pattern == weft.full()


@pytest.mark.parametrize("size", [None, 64])
@pytest.mark.parametrize("function", [
    lambda q, k: k % 5 == q % 5, lambda q, k: (q % 3 == 0) & (k % 5 == q % 5),
    lambda q, k: (q - k < 128) & (q >= k) & (q % 7 >= k % 7),
])  # fmt: skip
def test_functions_count_from_the_first_query(function, size):
    """On a grid of open length, too, whose rows begin there: nothing is left that could be aligned otherwise."""
    pattern = recognize(function, size=size).pattern
    assert (pattern.to_dense(30, 64) == on_arrays(function, 30, 64)).all()
    with pytest.raises(PatternError, match="declare 'top-left' already"):
        pattern.aligned("bottom-right")


def test_counts_may_be_numbers_of_numpy():
    found = recognize(lambda b, h, q, k: q >= k + b, batch=np.int64(2))
    assert found.pattern.extent() == (2, None)


def on_arrays(function, *size):
    return np.broadcast_to(function(*(np.array(x) for x in np.ogrid[tuple(map(slice, size))])), size)


@pytest.mark.parametrize("dtype", ["int64", "int32", "q", np.int64, np.dtype("int32"), int])
def test_dtypes_by_every_name(dtype):
    function = lambda q, k: (q >= k).astype(dtype) + (q - k < 5).astype(dtype=dtype) == 2  # noqa: E731
    found = recognize(function)
    assert found.pattern == (weft.causal() & weft.window(left=4)).aligned("top-left")
    assert (found.pattern.to_dense(30, 40) == on_arrays(function, 30, 40)).all()


@pytest.mark.parametrize("name", ["uint8", "float32", "S1", "cpu"])
def test_dtypes_that_may_not_hold_an_index_end_the_trace(name):
    function = lambda q, k: q.astype(name) >= k.astype(name)  # noqa: E731
    with pytest.raises(InputError, match=r"conversion|astype"):
        recognize(function)
    if name == "uint8":
        assert (recognize(function, size=300).pattern.to_dense(300) == on_arrays(function, 300, 300)).all()


@pytest.mark.parametrize("function", [
    lambda q, k: q.new_ones(size=(3,), dtype=torch.bool), lambda q, k: np.full_like(q, 1, dtype=bool, shape=(3,)),
    lambda q, k: q.to("torch.FloatTensor") >= k, lambda q, k: np.max(q, 0) >= k, lambda q, k: q.max(0)[0] >= k,
    lambda q, k: np.clip(q, None, None) >= k,
])  # fmt: skip
def test_what_would_be_read_as_something_else_ends_the_trace(function):
    with pytest.raises(InputError, match="tracing ended"):
        recognize(function)


def test_values_are_not_copied_behind_the_trace():
    with pytest.raises(InputError, match="a copy"):
        recognize(lambda b, h, q, k: q >= k + copy.deepcopy(b), batch=2)


def test_neighborhoods_have_their_name():
    found = recognize(neighborhood_2d(64, 128, 13), size=(8192, 8192))
    assert found.pattern == weft.neighborhood((64, 128), 13)


def test_coordinates_taken_modulo_every_extent():
    found = recognize(neighborhood_3d((64, 64, 64), 7), size=(64**3, 64**3))
    assert found.pattern == weft.neighborhood((64, 64, 64), 7) and found.proof == "symbolic"


def test_coordinates_of_long_rows():
    far = recognize(lambda q, k: (q // 2**14 % 4 == k // 2**14 % 4) & (q >= k))
    near = recognize(lambda q, k: (q // 16 % 4 == k // 16 % 4) & (q >= k))
    assert far.proof == near.proof == "symbolic"
    q, k = np.ogrid[:200, :170]
    assert (near.pattern.to_dense(200, 170) == ((q // 16 % 4 == k // 16 % 4) & (q >= k))).all()
    assert (far.pattern.to_dense(90) == weft.causal().to_dense(90)).all()


def test_strips_of_one_row(monkeypatch):
    """numpy makes a number of a tensor of one element, and numbers of what it compares with a tensor."""
    monkeypatch.setattr(evaluate, "PAIRS_A_STRIP", 39 * 37)
    ids = np.arange(40) // 7
    function = lambda q, k: (ids[q] == 3) & ((q * k) % 3 == 0)  # noqa: E731
    found = recognize(function, size=(40, 37))
    assert (found.pattern.to_dense(40, 37) == function(*np.ogrid[:40, :37])).all()


def test_a_form_of_too_many_terms_is_not_spelled_out():
    function = lambda q, k: reduce(and_, [(q % p == 1) | (k % p == 1) | (q < 9 * p) for p in range(2, 12)])  # noqa: E731
    assert "terms" in recognize(function, size=(40, 40)).why
    with pytest.raises(InputError, match="terms"):
        recognize(function)


def test_strided_has_its_name_at_any_length():
    assert recognize(strided(128), size=(10**6, 10**6)).pattern == weft.strided(128)
