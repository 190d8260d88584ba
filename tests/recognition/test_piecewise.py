"""Functions that rise in pieces, `where` on indices, labels of windows and tables of unlike lengths.

Each has a closed form, from the function alone where a table tells its length, and the function's form is as good as
that of the same mask as a tensor.
"""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tiers import examples

import weft
from weft.recognition import recognize
from weft.recognition.cells import prolonged, turns
from weft.recognition.lines import Line

torch = pytest.importorskip("torch")
laws = settings(max_examples=examples(40), deadline=None)


def dense(function, m, n):
    return np.broadcast_to(np.asarray(function(0, 0, torch.arange(m)[:, None], torch.arange(n)[None])), (m, n))


def check(function, m, n, most, **options):
    """Exact, symbolic, without a remainder and of at most so many terms; and no worse as a mask."""
    found = recognize(function, **options)
    acsr = found.pattern.acsr(m, n)
    mask = dense(function, m, n)
    assert found.proof == "symbolic" and found.closed and found.exact
    assert (acsr.to_dense() == mask).all()
    assert len(acsr.terms) <= most and not len(acsr.remainder)
    as_mask = recognize(mask.copy()).pattern.acsr(m, n)
    assert not len(as_mask.remainder) and abs(len(as_mask.terms) - len(acsr.terms)) <= 1
    return acsr


# ---- labels ----------------------------------------------------------------------------------------------------------
def windows(shape, size):
    """The number of the window that each token of an image, or a video, is in."""
    at = np.indices(shape)
    counts = [-(-length // w) for length, w in zip(shape, size, strict=True)]
    number = np.zeros(shape, np.int64)
    for axis, w, count in zip(at, size, counts, strict=True):
        number = number * count + axis // w
    return torch.from_numpy(number.reshape(-1))


@pytest.mark.parametrize(
    ("shape", "size"), [((32, 32), (8, 8)), ((12, 20), (3, 4)), ((6, 8, 10), (2, 4, 5)), ((14, 18), (4, 5))]
)
def test_labels_of_windows_are_a_grid(shape, size):
    ids = windows(shape, size)
    n = len(ids)
    acsr = check(lambda b, h, q, k: ids[q] == ids[k], n, n, 1)
    assert acsr.nbytes <= 64 * len(shape) + 64 or any(x % w for x, w in zip(shape, size, strict=True))
    assert weft.documents(ids=ids).acsr(n).terms == acsr.terms


def test_labels_of_windows_of_any_length():
    ids = windows((272, 272), (8, 8))
    found = recognize(lambda b, h, q, k: ids[q] == ids[k])
    assert found.closed and found.form.terms == 1 and found.form.nbytes < 200
    assert "product" in str(found.pattern)


def test_shuffled_names_of_windows():
    ids = windows((16, 24), (4, 4))
    named = torch.randperm(1000, generator=torch.Generator().manual_seed(0))[ids]
    check(lambda b, h, q, k: named[q] == named[k], 384, 384, 1)


# ---- tables of unlike lengths ----------------------------------------------------------------------------------------
def packed(queries, keys):
    """Numbers of requests, and positions in them, of queries that are the last tokens of their keys."""
    numbers = [torch.repeat_interleave(torch.arange(len(x)), torch.tensor(x)) for x in (queries, keys)]
    at = [np.concatenate([np.arange(b - a, b) for a, b in zip(queries, keys, strict=True)])]
    at.append(np.concatenate([np.arange(b) for b in keys]))
    return *numbers, *map(torch.from_numpy, at)


@pytest.mark.parametrize(
    ("queries", "keys"), [([16, 1, 1, 40], [100, 57, 300, 40]), ([5] * 7, [9] * 7), ([1, 1, 1], [700, 800, 900])]
)
def test_chunked_prefill_by_local_positions(queries, keys):
    iq, ik, pq, pk = packed(queries, keys)
    m, n = sum(queries), sum(keys)
    check(lambda b, h, q, k: (iq[q] == ik[k]) & (pk[k] <= pq[q]), m, n, 1)
    check(lambda b, h, q, k: (iq[q] == ik[k]) & (pk[k] <= pq[q]) & (pq[q] - pk[k] < 20), m, n, 1)
    check(lambda b, h, q, k: iq[q] == ik[k], m, n, 1)


def test_requests_that_only_one_side_has():
    iq, ik, pq, pk = packed([4, 6, 3], [9, 12, 20])
    iq = torch.where(iq == 1, 7, iq)  # the second request's queries have no keys
    check(lambda b, h, q, k: (iq[q] == ik[k]) & (pk[k] <= pq[q]), 13, 41, 2)


@pytest.mark.parametrize("window", [None, 1, 3])
def test_requests_whose_sums_are_alike_at_equal_indices(window):
    """Queries at 1 and 2, keys at 0, 1 and 0, 1, 2: of token 0 and of token 1 both positions differ by 1."""
    iq, ik, pq, pk = packed([1, 1], [2, 3])

    def function(b, h, q, k):
        live = (iq[q] == ik[k]) & (pk[k] <= pq[q])
        return live if window is None else live & (pq[q] - pk[k] < window)

    assert (recognize(function).pattern.to_dense(2, 5) == dense(function, 2, 5)).all()


@laws
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 30)), min_size=1, max_size=6), st.integers(1, 40))
def test_packed_requests_of_any_lengths(requests, window):
    queries, keys = [a for a, _ in requests], [a + b for a, b in requests]
    iq, ik, pq, pk = packed(queries, keys)
    m, n = sum(queries), sum(keys)

    def function(b, h, q, k):
        return (iq[q] == ik[k]) & (pk[k] <= pq[q]) & (pq[q] - pk[k] < window)

    found = recognize(function)
    assert found.proof == "symbolic" and found.form.terms <= 1 and found.closed
    assert (found.pattern.to_dense(m, n) == dense(function, m, n)).all()


# ---- tables that rise in pieces --------------------------------------------------------------------------------------
def ring(window, queries):
    """Positions of the tokens in a ring cache after it went round, and those of the last queries."""
    begin, size = 3 * window + 77, window + queries
    held = torch.arange(begin + queries - size, begin + queries)
    places = torch.empty(size, dtype=torch.long)
    places[held % size] = held
    return places, torch.arange(begin, begin + queries)


@pytest.mark.parametrize(("window", "queries"), [(64, 16), (1024, 256), (300, 1), (5000, 700)])
def test_ring_caches_are_two_terms(window, queries):
    kp, qp = ring(window, queries)
    check(lambda b, h, q, k: (kp[k] <= qp[q]) & (kp[k] > qp[q] - window), queries, window + queries, 2)


def test_intervals_of_queries_for_each_key():
    """A key is seen from itself on and before the end of its document."""
    ends = torch.repeat_interleave(torch.tensor([30, 75, 80, 200]), torch.tensor([30, 45, 5, 120]))
    check(lambda b, h, q, k: (k <= q) & (q < ends[k]), 200, 200, 1)


def test_intervals_that_are_nested():
    """The last query that sees a key, in an order that turns often: a few chains, found among all keys."""
    rng = np.random.default_rng(2)
    ends = torch.from_numpy(np.where(rng.random(600) < 0.2, 600, np.arange(600) + 40))
    found = recognize(lambda b, h, q, k: (k <= q) & (q < ends[k]))
    assert found.proof == "symbolic" and found.closed and found.form.terms == 2
    q = torch.arange(600)
    assert (found.pattern.to_dense(600) == dense(lambda b, h, q, k: (k <= q) & (q < ends[k]), 600, 600)).all(), q


# ---- where on indices ------------------------------------------------------------------------------------------------
def block_diffusion(n, block):
    """[noisy copy | clean copy] of n tokens each."""

    def mask(b, h, q, k):
        clean_q, clean_k = q >= n, k >= n
        block_q = torch.where(clean_q, (q - n) // block, q // block)
        block_k = torch.where(clean_k, (k - n) // block, k // block)
        same = (block_q == block_k) & (clean_q == clean_k)
        earlier = (block_q > block_k) & clean_k & ~clean_q
        return same | earlier | ((block_q >= block_k) & clean_k & clean_q)

    return mask


@pytest.mark.parametrize(("n", "block"), [(256, 16), (250, 4), (300, 32), (63, 64)])
@pytest.mark.parametrize("sized", [True, False])
def test_block_diffusion_is_few_terms(n, block, sized):
    check(block_diffusion(n, block), 2 * n, 2 * n, 4, **({"size": (2 * n, 2 * n)} if sized else {}))


def test_block_diffusion_of_any_length():
    found = recognize(block_diffusion(16384, 32))
    acsr = found.pattern.acsr(32768)
    assert found.proof == "symbolic" and len(acsr.terms) <= 4 and acsr.nbytes < 600
    q = np.random.default_rng(0).integers(0, 32768, (2, 4000))
    held = found.pattern.contains(q[0], q[1], 32768)
    assert (held == np.asarray(block_diffusion(16384, 32)(0, 0, *map(torch.from_numpy, q)))).all()


# ---- the rules -------------------------------------------------------------------------------------------------------
@laws
@given(st.lists(st.integers(-5, 5), min_size=2, max_size=40))
def test_between_its_turns_a_function_goes_one_way(values):
    line = Line.table(np.array(values))
    try:
        cuts = [0, *turns(line), len(values)]
    except weft.recognition.periodic.NoFormError:
        return
    for a, b in pairwise(cuts):
        part = prolonged(line, (a, b))
        steps = np.diff(part.at(np.arange(len(values))))
        assert (part.at(np.arange(a, b)) == values[a:b]).all() and ((steps >= 0).all() or (steps <= 0).all())


@pytest.mark.parametrize("window", [None, 40])
def test_ring_caches_have_no_bound_that_says_nothing(window):
    """As many bytes as the mask comes to: what every pair obeys is left out."""
    kp, qp = ring(48, 16)
    far = 10_000 if window is None else window
    mask = (kp <= qp[:, None]) & (kp > qp[:, None] - far)
    as_function, as_mask = recognize(lambda q, k: (kp[k] <= qp[q]) & (kp[k] > qp[q] - far)), recognize(mask)
    assert as_function.proof == "symbolic"
    assert as_function.form.terms == as_mask.form.terms == 2
    assert as_function.form.nbytes <= as_mask.form.nbytes <= 128
    assert (torch.from_numpy(as_function.pattern.to_dense(*mask.shape)) == mask).all()
