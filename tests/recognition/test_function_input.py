"""Mask functions: what they may be and hold, what is refused of them, and which options they take."""

from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
from tests.recognition.generators import Given, causal, in_documents
from tests.recognition.test_function import dense

import weft
from weft import sized
from weft.errors import InputError, LengthError, PatternError
from weft.recognition import executed, recognize, recognize_function

torch = pytest.importorskip("torch")


def changes_in_place(q, k):
    q += 1
    return q > k


def changes_by_method(q, k):
    q.add_(1)
    return q > k


def changes_an_item(q, k):
    q[...] = 0
    return q > k


def changes_untraced(q, k):
    if q.sum() > -1:
        k.add_(1)
    return k <= q


def boom(q, k):
    raise RuntimeError("boom")


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (changes_in_place, "changes its argument q"), (changes_by_method, "changes its argument q"),
        (changes_an_item, "changes its argument q"), (changes_untraced, "changes its argument k"),
        (lambda q, k: (q * k % 3 == 0) & (k < k.max()), "arrays of torch and .* single numbers"),
        (lambda q, k: (q * k % 3 == 0) & (k > (3 if isinstance(q, torch.Tensor) else 4)), "arrays of numpy"),
        (lambda q, k: (q * k % 3 == 0) & (q == [1, 2]), "tensor is compared with a list"),
        (lambda q, k: torch.arange(40)[q] != np.where(q * k % 2 == 0, q, 2), "compared with a ndarray"),
        (boom, "RuntimeError: boom"), (lambda q, k: q - k, "not booleans"), (lambda q, k: None, "NoneType"),
        (lambda q, k: torch.sin(q), "not booleans"), (lambda q, k: "yes", "a str"),
        (lambda q: q, "it takes q"), (lambda a, b, c: a, "it takes a, b, c"), (lambda: 1, "it takes nothing"),
        (lambda q, k: torch.ones(3, dtype=torch.bool), "not booleans"),
        (lambda b, h, q, k: k <= q + h, "depends on h"), (lambda b, h, q, k: k <= q * torch.sin(b), "depends on b"),
    ],
)  # fmt: skip
def test_refused(function, says):
    with pytest.raises(InputError, match=says) as refusal:
        recognize(function, size=(8, 8))
    assert refusal.value.wrong and refusal.value.cure


UNSIGNED = np.array([3, 1, 7, 2, 9] * 8, dtype=np.uint64)


@pytest.mark.parametrize(
    "function",
    [
        lambda q, k: ((q >= k) // 1 + (q - k < 5)) == 2, lambda q, k: ((q >= k) % 2 + (q - k < 5)) == 2,
        lambda q, k: (q >= k) // -1 * 5 == -5, lambda q, k: (((q >= k) >> 0) + (q - k < 5)) == 2,
        lambda q, k: np.abs(q >= k), lambda q, k: UNSIGNED[q] - UNSIGNED[k] < 5,
    ],
)  # fmt: skip
def test_numbers_of_conditions_and_unsigned_numbers(function):
    q, k = np.ix_(np.arange(40), np.arange(40))
    assert (recognize(function, size=40).pattern.to_dense(40) == function(q, k)).all()


@pytest.mark.parametrize(
    "function",
    [
        lambda q, k: q < k if q.is_cuda else q >= k, lambda q, k: q < k if q.requires_grad else q >= k,
        lambda q, k: q >= k if q.numel() > 0 else q < k, lambda q, k: q < k if hasattr(q, "foo") else q >= k,
        lambda q, k: q >= k if q.device == torch.device("cpu") else q < k,
    ],
)  # fmt: skip
def test_what_an_index_has_is_no_method_of_a_trace(function):
    """What stands for an index has no attributes of its own, which would be true whatever they are of an array."""
    assert (recognize(function, size=20).pattern.to_dense(20) == np.tri(20, dtype=np.bool_)).all()


@pytest.mark.parametrize(
    "function",
    [
        lambda q, k: q >= k if q.dtype == torch.int64 else q < k, lambda q, k: q >= k if q.dtype == np.int64 else q < k,
        lambda q, k: q >= k if isinstance(q, torch.Tensor) else q < k,
    ],
)  # fmt: skip
@pytest.mark.parametrize("size", [None, 20])
def test_functions_that_answer_each_library_otherwise_are_refused(function, size):
    with pytest.raises(InputError, match=r"arrays of (torch|numpy)"):
        recognize(function, size=size)


def test_a_row_that_only_few_heads_answer_otherwise_is_found():
    """The last of them is executed beside the first."""
    with pytest.raises(InputError, match="arrays of torch"):
        recognize(lambda b, h, q, k: q >= k if h < 7 or isinstance(q, torch.Tensor) else q < k, heads=8)


@pytest.mark.parametrize("distance", [1, 2, 3])
def test_pairs_near_each_other_are_executed_where_lengths_differ(distance):
    function = lambda q, k: (abs(q - k) == distance) & (q > 99) & (q < 4900)  # noqa: E731
    for size in ((5000, 9000), (9000, 5000)):
        assert executed.otherwise(function, ("q", "k"), weft.nothing(), size, (1, 1))
        assert not executed.otherwise(function, ("q", "k"), recognize(function).pattern, size, (1, 1))


@pytest.mark.parametrize(
    "function",
    [
        lambda b, h, q, k: (q - k) % (2**h) == 0, lambda b, h, q, k: (q - k) % (1 << h) == 0,
        lambda b, h, q, k: q - k < [3, 5, 9][h.item()], lambda b, h, q, k: abs(q - k) < (64 >> h),
    ],
)  # fmt: skip
def test_numbers_of_a_head(function):
    found = recognize(function, heads=3)
    assert found.proof == "symbolic"
    assert (found.pattern.to_dense(40) == dense(Given(function, heads=3), (40, 40))).all()


@dataclass
class Packed:
    ids: np.ndarray

    def same(self, q, k):
        return self.ids[q] == self.ids[k]

    def __call__(self, q, k):
        return self.same(q, k)


class Made(Packed):
    """What only its own `__new__` makes."""

    def __new__(cls, ids):
        return super().__new__(cls)


@pytest.mark.parametrize("kind", [Packed, Made])
def test_methods_of_what_holds_arrays(kind):
    ids = np.arange(40) // 7
    for function in (kind(ids), kind(ids).same):
        assert (recognize(function, size=40).pattern.to_dense(40) == (ids[:, None] == ids)).all()


@pytest.mark.parametrize("kind", [np.array, torch.tensor])
@pytest.mark.parametrize(
    "function",
    [lambda t, q, k: t[q] == t[k], lambda t, q, k: t[k] <= q, lambda t, q, k: (q * k % 5 == 0) | (t[q] == t[k])],
)
def test_a_pattern_keeps_what_tables_said(function, kind):
    table = kind([0, 0, 1, 1, 1, 2, 2, 5])
    found = recognize(partial(function, table), size=8).pattern
    before, numbers = found.to_dense(8).copy(), found.numbers.copy()
    table[:] = 3
    assert (found.to_dense(8) == before).all() and (found.acsr(8, 8).to_dense() == before).all()
    assert np.array_equal(found.numbers, numbers)


def test_searchsorted_in_unsigned_numbers_that_are_not_sorted():
    """Their differences are large ones."""
    table = np.array([3, 1, 7], np.uint8)
    with pytest.raises(InputError, match="not a sorted row"):
        recognize(lambda q, k: np.searchsorted(table, q) >= k)


@pytest.mark.parametrize(
    "function", [lambda q, k: abs(q % 16 - k % 16) < 3, lambda q, k: (abs(q % 16 - k % 16) < 3) & (k // 16 < 1)]
)
def test_a_grid_of_one_row_is_known_at_its_own_length(function):
    found = recognize(function, size=16).pattern
    for size in (16, 20, 33):
        q, k = np.ix_(np.arange(size), np.arange(size))
        with suppress(LengthError):
            assert (found.to_dense(size) == function(q, k)).all()
    assert found.to_dense(16).any()


def test_many_rows_and_heads_are_found_by_what_they_read(monkeypatch):
    """Each is compared with runs that read the same, not with all."""
    from weft.recognition import function as module

    asked, real = [], module.reads
    monkeypatch.setattr(module, "reads", lambda *args: asked.append(1) or real(*args))
    lengths, widths = torch.arange(1, 25), torch.arange(1, 9)
    found = recognize(lambda b, h, q, k: (k < lengths[b]) & (q - k < widths[h]) & (q >= k))
    assert found.pattern.extent() == (24, 8)
    assert len(asked) < 4 * 24 * 8


def test_options_are_checked():
    for size in ((3,), (3, -1), "ab", (2.0, 3), (True, 2)):
        with pytest.raises(InputError, match="pair of lengths"):
            recognize_function(lambda q, k: k <= q, size=size)
    for options in ({"batch": 0}, {"heads": True}, {"heads": 1.5}):
        with pytest.raises(InputError, match="no number of them"):
            recognize_function(lambda q, k: k <= q, **options)
    with pytest.raises(InputError, match="rows"):
        recognize(lambda b, h, q, k: k >= torch.tensor([3, 1])[b], batch=3)
    with pytest.raises(InputError, match="a mask has its own sizes"):
        recognize(np.ones((4, 4), np.bool_), size=(4, 4))


def test_the_front_door():
    assert weft.recognize is recognize
    assert weft.recognize(np.tri(5, dtype=np.bool_)).pattern == sized(weft.causal(), 5, 5)


def test_one_document_function_many_ways():
    offsets = torch.tensor([0, 7, 20, 32])
    found = recognize(in_documents(causal, offsets))
    assert found.pattern == sized(weft.causal() & weft.documents([7, 13, 12]), 32, 32)


def test_empty_sizes():
    for size in ((0, 0), (0, 5), (5, 0)):
        assert recognize(causal, size=size).pattern.to_dense(*size).shape == size
        assert recognize(lambda q, k: k <= q * 0.5, size=size).pattern.to_dense(*size).shape == size


def test_errors_are_pattern_errors_where_they_should_be():
    assert issubclass(LengthError, PatternError)
    assert Given(causal).size == (64, 64)
