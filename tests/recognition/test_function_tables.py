"""Mask functions that read tables: what bounds a length, which rows and heads read what, sorted and captured ones."""

from functools import partial

import numpy as np
import pytest

import weft
from weft import sized
from weft.errors import InputError, LengthError
from weft.recognition import hosted, recognize

torch = pytest.importorskip("torch")

IDS = np.repeat([3, 1, 7], [10, 20, 30])


def test_a_table_bounds_its_own_length():
    found = recognize(lambda q, k: (IDS[q] == IDS[k]) & (k <= q))
    assert found.pattern == sized(weft.causal() & weft.documents([10, 20, 30]), 60, 60)
    assert "60 x 60 only" in found.why
    with pytest.raises(LengthError, match="60 x 60"):
        found.pattern.to_dense(61)


def test_generalize():
    table = torch.from_numpy(IDS) * 0 + torch.arange(60) // 100
    found = recognize(lambda q, k: (table[q] == table[k]) & (k <= q), generalize=True)
    assert "on your word" in found.why
    assert (found.pattern.to_dense(60) == weft.causal().to_dense(60)).all()


def test_a_table_may_be_longer_than_the_size_and_not_shorter():
    function = lambda q, k: IDS[q] == IDS[k]  # noqa: E731
    assert recognize(function, size=(25, 25)).pattern == sized(weft.documents([10, 15]), 25, 25)
    layout = torch.eye(3, dtype=torch.bool)
    blocky = lambda q, k: layout[q // 8, k // 8]  # noqa: E731
    assert recognize(blocky).pattern == sized(weft.chunks(8), 24, 24)
    for beyond, size in ((function, 61), (blocky, 25)):
        with pytest.raises(InputError, match="out of bounds"):
            recognize(beyond, size=(size, size))


def test_the_shorter_table_bounds_both():
    short, long = torch.arange(20) // 5, torch.arange(50) // 5
    found = recognize(lambda q, k: (short[q] == short[k]) & (long[q] == long[k]))
    assert (found.m, found.n) == (20, 20)


def test_tables_of_batch_rows_and_heads():
    left = torch.tensor([3, 0, 7])
    found = recognize(lambda b, h, q, k: k >= left[b])
    assert found.pattern == weft.per_batch([~weft.prefix(3), weft.full(), ~weft.prefix(7)])
    widths = np.array([2, 5])
    found = recognize(lambda b, h, q, k: (q - k <= widths[h]) & (k <= q) & (k >= left[b]), size=(16, 16))
    assert found.pattern.extent() == (3, 2) and found.proof == "symbolic"


def test_a_table_that_only_some_heads_read():
    function = lambda b, h, q, k: (torch.arange(20) // 5)[q * h] == 0  # noqa: E731
    found = recognize(function, heads=2, size=(20, 20))
    assert found.proof == "symbolic" and found.pattern.extent() == (None, 2)
    assert (found.pattern.to_dense(20)[0, 1] == (np.arange(20) < 5)[:, None]).all()


FIRST, WIDTHS = np.array([True, False]), np.array([3, 9, 27])


def window_of_some_rows(b, h, q, k):
    if FIRST[b]:
        return q >= k
    return (q - k < WIDTHS[h]) & (q >= k)


def causal_in_one_place(b, h, q, k):
    return q >= k if b == 1 and h == 2 else q == k


def late(b, h, q, k):
    """Neither of the first queries tells heads apart."""
    if q < 10:
        return k <= q
    return q - k < (5 if h == 0 else 20)


def late_in_one_row(b, h, q, k):
    if q < 10 or b != 1:
        return k <= q
    return q - k < int(WIDTHS[h])


def late_beside_arrays(b, h, q, k):
    """Strips of many queries look at h, and the first query alone does not."""
    return k <= q + (q > 0) * h if (q > 0).any() else k <= q


def late_into_a_tensor(b, h, q, k):
    """A real tensor that h is added to, which ends any trace."""
    q, k = torch.as_tensor(q), torch.as_tensor(k)
    least = torch.zeros_like(k)
    least += h
    return (k >= least) & (q * k % 3 < 3)


@pytest.mark.parametrize(
    ("function", "proof"),
    [(window_of_some_rows, "symbolic"), (causal_in_one_place, "symbolic"),
     (late_into_a_tensor, "evaluated at (32, 32)"), (late, "evaluated at (32, 32)"),
     (late_in_one_row, "evaluated at (32, 32)"), (late_beside_arrays, "evaluated at (32, 32)")],
)  # fmt: skip
def test_rows_and_heads_read_after_a_branch(function, proof):
    found = recognize(function, size=(32, 32), batch=2, heads=3)
    mask = np.array([[[[bool(function(*map(np.int64, (b, h, q, k)))) for k in range(32)] for q in range(32)]
                      for h in range(3)] for b in range(2)])  # fmt: skip
    assert found.proof == proof
    assert (np.broadcast_to(found.pattern.to_dense(32), mask.shape) == mask).all()


def test_rows_and_heads_read_after_a_branch_are_counted_by_their_tables():
    assert recognize(window_of_some_rows).pattern.extent() == (2, 3)
    for function in (causal_in_one_place, late, late_beside_arrays):
        with pytest.raises(InputError, match=r"depends on [bh][\s\S]*pass (batch|heads)="):
            recognize(function, size=(32, 32))


def test_what_is_handed_on_is_not_read():
    inner = lambda h, q, k: (q * k % 7 < 6) & (k <= q)  # noqa: E731
    found = recognize(lambda b, h, q, k: inner(h, q, k), size=(20, 20))
    assert found.proof == "evaluated at (20, 20)"
    assert (found.pattern.to_dense(20) == inner(0, *np.ogrid[:20, :20])).all()


def test_alike_heads_are_one():
    found = recognize(lambda b, h, q, k: k <= q + h // 8, heads=8, size=(16, 16))
    assert found.pattern == weft.causal()


ENDS = np.array([0, 7, 7, 20, 45])


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(("numpys", "given"), [
    (True, lambda side: {"side": side}), (False, lambda side: {"side": side}),
    (False, lambda side: {"right": side == "right"}), (False, lambda side: {"right": side == "right", "side": None}),
    (False, lambda side: {"right": side == "right", "out_int32": True}),
])  # fmt: skip
def test_searchsorted(side, numpys, given):
    search, ends = (np.searchsorted, ENDS) if numpys else (torch.searchsorted, torch.from_numpy(ENDS))
    found = recognize(lambda q, k: search(ends, q, **given(side)) == search(ends, k, **given(side)))
    q, k = (np.searchsorted(ENDS, x, side=side) for x in np.ogrid[:60, :60])
    assert found.proof == "symbolic"
    assert (found.pattern.to_dense(60) == (q == k)).all()


@pytest.mark.parametrize("function", [
    lambda q, k: np.searchsorted(ENDS, q, sorter=np.arange(5)[::-1]) <= k,
    lambda q, k: np.searchsorted(ENDS, q, "left", np.arange(5)) <= k,
    lambda q, k: torch.searchsorted(torch.from_numpy(ENDS), q, sorter=torch.arange(5)) <= k,
    lambda q, k: np.searchsorted(ENDS, q, side="between") <= k,
])  # fmt: skip
def test_searchsorted_by_another_order_ends_the_trace(function):
    with pytest.raises(InputError, match="searchsorted"):
        recognize(function)


def test_searchsorted_of_a_batch_row():
    found = recognize(lambda b, h, q, k: q >= k + np.searchsorted(ENDS, 7 * b), batch=3)
    expected = np.stack([np.tri(30, 30, -int(np.searchsorted(ENDS, 7 * b)), dtype=np.bool_) for b in range(3)])
    assert (found.pattern.to_dense(30) == expected[:, None]).all()


def test_narrow_tables_do_not_wrap_unnoticed():
    table = torch.arange(40, dtype=torch.uint8)
    wrapping = lambda q, k: table[q] - table[k] < 5  # noqa: E731
    found = recognize(wrapping, size=(40, 40))
    q, k = torch.arange(40)[:, None], torch.arange(40)[None]
    assert found.proof == "evaluated at (40, 40)" and "uint8" in found.why
    assert (found.pattern.to_dense(40) == wrapping(q, k).numpy()).all()
    fitting = recognize(lambda q, k: table.int()[q] - table.int()[k] < 5, size=(40, 40))
    assert fitting.proof == "symbolic"


@pytest.mark.parametrize("function", [
    lambda q, k: BYTES[q] < 300, lambda q, k: BYTES[q] % 300 == k, lambda q, k: -BYTES[q] <= k,
    lambda q, k: BYTES[q] * 200 > k, lambda q, k: torch.where(q > k, BYTES[q], 300) > 10,
])  # fmt: skip
def test_constants_beyond_a_narrow_dtype_end_the_trace(function):
    with pytest.raises(InputError, match="uint8"):
        recognize(function)


BYTES = torch.arange(40, dtype=torch.uint8)


class Owner:
    """Mask functions that keep their tables in other places than a closure."""

    def __init__(self):
        self.ids = IDS

    def method(self, q, k):
        return self.ids[q] == self.ids[k]

    def __call__(self, q, k):
        return self.method(q, k)


@pytest.mark.parametrize(
    "function",
    [
        Owner(), Owner().method, partial(lambda ids, q, k: ids[q] == ids[k], IDS),
        partial(lambda q, k, ids: ids[q] == ids[k], ids=IDS), lambda q, k, ids=IDS: ids[q] == ids[k],
        lambda *at: IDS[at[2]] == IDS[at[3]], lambda q, k: np.take(IDS, q) == np.take(IDS, k),
    ],
)  # fmt: skip
def test_where_arrays_may_be_captured(function):
    assert recognize(function).pattern == sized(weft.documents([10, 20, 30]), 60, 60)


def test_captured_arrays_are_left_as_they_were():
    owner = Owner()
    recognize(owner)
    assert type(owner.ids) is np.ndarray and type(IDS) is np.ndarray


@pytest.mark.parametrize("function", [
    lambda q, k: q != np.where(q % 2 == 0, q, 2), lambda q, k: (np.where(k * q % 3 == 0, q, 2) != q) & (k < 30),
])  # fmt: skip
def test_numpy_asked_without_torch_where_they_do_not_know_each_other(function):
    """A tensor that is compared with an array is another object, which is True and says nothing."""
    found = recognize(lambda q, k: function(q, k) & (q * k % 7 < 6), size=(40, 37))
    assert found.proof == "evaluated at (40, 37)"
    q, k = np.ogrid[:40, :37]
    assert (found.pattern.to_dense(40, 37) == function(q, k) & (q * k % 7 < 6)).all()


def test_tables_of_a_gpu_are_read_as_copies_on_the_host(monkeypatch):
    """Here one table is said to lie elsewhere; the next test has one that does."""
    there = torch.from_numpy(IDS)
    monkeypatch.setattr(hosted, "is_elsewhere", lambda x: x is there)
    read = set()

    def mask(q, k):
        read.add(id(there))
        return (there[q] == there[k]) & (k <= q)

    assert recognize(mask).pattern == recognize(lambda q, k: (IDS[q] == IDS[k]) & (k <= q)).pattern
    assert len(read) == 1 and id(there) not in read


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU")
@pytest.mark.parametrize("kept", [1, 3])
def test_tables_on_a_gpu(kept):
    """Traced, and evaluated at all pairs; what a function answers to arrays alone is seen there as on the host."""
    there = torch.from_numpy(IDS).cuda()
    closed = recognize(lambda q, k: (there[q] == there[k]) & (k <= q))
    assert closed.pattern == recognize(lambda q, k: (IDS[q] == IDS[k]) & (k <= q)).pattern
    evaluated = recognize(lambda q, k: (there[q] * q + there[k] * k * k) % 5 < kept, size=60)
    q, k = np.ogrid[:60, :60]
    assert (evaluated.pattern.to_dense(60) == ((IDS[q] * q + IDS[k] * k * k) % 5 < kept)).all()

    def other(q, k):
        return (there[q] == there[k]) & ((k <= q) if isinstance(q, torch.Tensor) else (k >= q))

    assert (recognize(other, size=60).pattern.to_dense(60) == (IDS[q] == IDS[k]) & (k <= q)).all()
