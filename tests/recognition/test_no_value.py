"""A function that has no value at some pair is refused: by name, with the place, the pair and what to write."""

import math
import warnings

import numpy as np
import pytest
import torch

import weft
from weft.errors import InputError
from weft.recognition.novalue import NoValueError

TABLE, NUMBERS = torch.arange(10), np.arange(10)
SIZE = (16, 16)

# name: (function, what is said, a pair that has no value, or None where none has one)
NONE = {
    "% of a constant": (lambda q, k: q % (k - k) == 0, "divides by 0", None),
    "// of a constant": (lambda q, k: q // (k * 0) == 0, "divides by 0", None),
    "//": (lambda q, k: q // (k // 8) <= 2, "divides by 0", (0, 0)),
    "%": (lambda q, k: q % (k - 3) == 0, "divides by 0", (0, 3)),
    "/": (lambda q, k: q / (k - 5) <= 2, "no finite value", (0, 5)),
    "0 / 0": (lambda q, k: (q - k) / (q - k) <= 2, "no finite value", (0, 0)),
    "divmod of Python": (lambda q, k: int(q) % int(k) == 0, "divides by 0", (0, 0)),
    "log": (lambda q, k: torch.log(k + 1 - q) > 0, "log has no finite value", (1, 0)),
    "log of numpy": (lambda q, k: np.log(k + 1 - q) > 0, "divides by 0|no finite", (1, 0)),
    "log of math": (lambda q, k: math.log(int(k) - int(q) + 1) > 0, "math domain error", (1, 0)),
    "sqrt": (lambda q, k: torch.sqrt(k - q) > 0, "sqrt has no finite value", (1, 0)),
    "a guard that computes both": (lambda q, k: torch.where(k == 0, True, q % k == 0), "divides by 0", (0, 0)),
    "a conjunction": (lambda q, k: (k != 0) & (q % k == 0), "divides by 0", (0, 0)),
    "beyond a table": (lambda q, k: TABLE[k] <= q, "out of its range", (0, 10)),
    "beyond a table of numpy": (lambda q, k: NUMBERS[q] <= k, "out of its range", (10, 0)),
    "beyond it by both": (lambda q, k: NUMBERS[q * k % 17] <= 2, "out of its range", (2, 5)),
    "below a table": (lambda q, k: TABLE[k - 11] <= q, "out of its range", (0, 0)),
    "a number of Python": (lambda q, k: (1 // 0) <= k, "divides by 0", None),
    "a captured table": (lambda q, k: (NUMBERS // (NUMBERS - 3))[k % 10] <= q, "divides by 0", None),
}  # fmt: skip

VALUED = {
    "a branch": lambda q, k: int(k) != 0 and int(q) % int(k) == 0,
    "a divisor kept away from 0": lambda q, k: torch.where(k == 0, False, q % torch.clamp(k, min=1) == 0),
    "infinities": lambda q, k: torch.where(k <= q, 0.0, float("-inf")) / 2 == 0,
    "an index from the end": lambda q, k: TABLE.repeat(2)[k - 8] <= q,
    "an index from the end, of numpy": lambda q, k: np.tile(NUMBERS, 2)[k - 8] <= q,
}


@pytest.mark.parametrize(("function", "said", "pair"), NONE.values(), ids=NONE)
def test_refused_by_name_with_the_place_and_the_pair(function, said, pair):
    with pytest.raises(NoValueError, match=said) as raised:
        weft.recognize(function, size=SIZE)
    error = raised.value
    assert isinstance(error, InputError) and error.cure and "in <lambda>, line " in error.wrong
    if pair is not None:
        assert f"at q={pair[0]}, k={pair[1]}, in" in error.wrong
        fails(function, *pair)


def fails(function, q, k):
    """The function has no value at this pair, by torch or by numpy."""
    for made in (torch.tensor, np.array):
        try:
            with np.errstate(all="raise"):
                found = function(made([q]), made([k]))
                found = None if found is None else np.asarray(found)
        except Exception:  # as it should
            return
    # torch's floats say nothing: the operation itself is not finite
    assert found is not None


@pytest.mark.parametrize("name", ["% of a constant", "// of a constant", "a number of Python"])
def test_where_no_pair_has_a_value_no_size_is_needed(name):
    with pytest.raises(NoValueError, match="divides by 0"):
        weft.recognize(NONE[name][0])


@pytest.mark.parametrize("function", VALUED.values(), ids=VALUED)
def test_what_has_a_value_everywhere_is_recognised(function):
    found = weft.recognize(function, size=SIZE).pattern
    expected = [[bool(function(torch.tensor(q), torch.tensor(k))) for k in range(SIZE[1])] for q in range(SIZE[0])]
    assert (found.to_dense(*SIZE) == np.array(expected)).all()


def test_an_index_below_zero_counts_from_the_end_in_symbols_too():
    mask = weft.recognize(lambda q, k: TABLE[k - 5] <= q, size=(10, 10))
    assert mask.proof == "symbolic"
    wanted = np.arange(10)[np.arange(10) - 5][None] <= np.arange(10)[:, None]
    assert (mask.pattern.to_dense(10, 10) == wanted).all()


def test_attention_refuses_it_too():
    q = torch.zeros(1, 1, 16, 8)
    with pytest.raises(NoValueError, match="divides by 0"):
        weft.attention(q, q, q, mask=NONE["% of a constant"][0])


def test_nothing_is_warned_of():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for function, _, _ in NONE.values():
            with pytest.raises(NoValueError):
                weft.recognize(function, size=SIZE)


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_the_machine_s_errors_are_not_the_function_s(error):
    def function(q, k):
        raise error

    with pytest.raises(error):
        weft.recognize(function, size=SIZE)
