"""Values that a mask function changes in place: every name of one object sees the change, copies do not."""

import numpy as np
import pytest

import weft
from weft.errors import InputError
from weft.recognition import recognize

torch = pytest.importorskip("torch")

M, N = 40, 53


def on_torch(function):
    """What torch answers on every pair; whole matrices, which any change in place fits into."""
    q, k = (x.contiguous() for x in torch.broadcast_tensors(torch.arange(M)[:, None], torch.arange(N)[None]))
    return function(q, k).numpy()


def on_numpy(function):
    q, k = (np.array(x) for x in np.broadcast_arrays(*np.ogrid[:M, :N]))
    return function(q, k)


def then(made, *changes, answer=lambda x, y: x):
    """A function that makes a value, gives it a second name, changes it and answers from both names."""

    def function(q, k):
        x = y = made(q, k)
        for change in changes:
            x = change(x, q, k)
        return answer(x, y)

    return function


def method(name, *given, **options):
    """x.name(...), and x as it is then: not what the method hands back."""

    def change(x, q, k):
        getattr(x, name)(*(g(q, k) if callable(g) else g for g in given), **options)
        return x

    return change


def augmented(text):
    """An augmented assignment: "+= q"."""
    scope = {}
    exec(f"def change(x, q, k):\n    x {text}\n    return x", scope)
    return scope["change"]


def gap(q, k):
    return q - k


def causal(q, k):
    return q >= k


def near(q, k):
    return q - k < 5


def within(x, y):
    return (y >= -2) & (x <= 4)


METHODS = [
    then(gap, method("abs_"), answer=within), then(gap, method("absolute_"), answer=within),
    then(gap, method("clamp_", min=0), answer=within),
    then(gap, method("clamp_", -3, 3), answer=lambda x, y: y == 3), then(gap, method("clip_", max=4), answer=within),
    then(gap, method("clamp_min_", 3), answer=within), then(gap, method("clamp_max_", 3), answer=within),
    then(gap, method("add_", 3), answer=within), then(gap, method("sub_", gap), answer=within),
    then(gap, method("subtract_", 7), answer=within), then(gap, method("mul_", 2), answer=within),
    then(gap, method("remainder_", 3), answer=lambda x, y: y == 1), then(gap, method("neg_"), answer=within),
    then(gap, method("floor_divide_", 4), answer=within), then(gap, method("bitwise_not_"), answer=within),
    then(gap, method("div_", 4, rounding_mode="floor"), answer=within),
    then(gap, method("bitwise_and_", 7), answer=within), then(gap, method("__ilshift__", 1), answer=within),
    then(gap, method("lt_", 3), answer=lambda x, y: y == 1), then(gap, method("eq_", 3), answer=lambda x, y: y > 0),
    then(gap, method("logical_not_"), answer=lambda x, y: y + x == 2), then(gap, method("add_", near), answer=within),
    then(causal, method("logical_and_", near)), then(causal, method("logical_or_", near)),
    then(causal, method("logical_xor_", near)), then(causal, method("logical_not_")),
    then(causal, method("bitwise_and_", near), answer=lambda x, y: y), then(causal, method("bitwise_or_", near)),
    then(causal, method("bitwise_xor_", near)), then(causal, method("mul_", near)), then(causal, method("add_", near)),
    then(causal, method("eq_", near)), then(causal, method("ne_", near)),
    then(lambda q, k: torch.ones_like(q - k, dtype=torch.bool), method("logical_and_", near)),
    then(gap, lambda x, q, k: torch.abs_(x), answer=within), then(gap, lambda x, q, k: torch.neg_(x), answer=within),
    then(gap, lambda x, q, k: torch.clamp_(x, 0, 4), answer=lambda x, y: y == 4),
    then(gap, lambda x, q, k: x.add_(3).mul_(2), answer=within),
]  # fmt: skip

AUGMENTED = [
    *(then(gap, augmented(text), answer=within) for text in (
        "+= 3", "-= q", "*= 2", "//= 3", "%= 5", "&= 7", "<<= 1", ">>= 2", "+= (q < 9)")),
    *(then(causal, augmented(text), answer=lambda x, y: y) for text in (
        "&= (q - k < 5)", "|= (k < 5)", "^= (q < 5)", "*= (q - k < 5)", "+= (k < 5)", "&= True")),
    then(gap, augmented("+= 3"), augmented("//= 2"), answer=lambda x, y: (y >= 0) & (x < 9)),
]  # fmt: skip

SECOND = [
    then(lambda q, k: q.clone(), augmented("-= k"), answer=within),
    then(causal, lambda x, q, k: x.clone(), augmented("&= (k < 5)"), answer=lambda x, y: y ^ x),
    then(gap, lambda x, q, k: x.detach(), augmented("+= 3"), answer=within),
    then(gap, lambda x, q, k: x.contiguous(), augmented("+= 3"), answer=within),
    then(gap, lambda x, q, k: x.long(), augmented("+= 3"), answer=within),
    then(gap, lambda x, q, k: x.to(torch.int64), augmented("+= 3"), answer=within),
    then(gap, lambda x, q, k: x.to(torch.int64, copy=True), augmented("+= 3"), answer=within),
    then(gap, lambda x, q, k: x.type_as(q), augmented("+= 3"), answer=within),
    then(causal, lambda x, q, k: x.bool(), augmented("&= (k < 5)"), answer=lambda x, y: y),
    then(causal, lambda x, q, k: x.long(), augmented("+= 3"), answer=lambda x, y: y & (x == 4)),
    then(gap, lambda x, q, k: x[...], augmented("+= 3"), answer=within),
]


@pytest.mark.parametrize("function", METHODS + AUGMENTED + SECOND)
def test_every_name_sees_the_change(function):
    found = recognize(function, size=(M, N))
    assert found.proof == "symbolic"
    assert (found.pattern.to_dense(M, N) == on_torch(function)).all()


COPIED_BY_NUMPY = [
    then(gap, lambda x, q, k: x.copy(), augmented("+= 3"), answer=within),
    then(gap, lambda x, q, k: x.astype(np.int64), augmented("+= 3"), answer=within),
    then(gap, lambda x, q, k: x.astype(q.dtype), augmented("+= 3"), answer=within),
]


@pytest.mark.parametrize("function", [*AUGMENTED, *COPIED_BY_NUMPY, SECOND[-1]])
def test_numpy_has_the_same_names(function):
    found = recognize(function)
    assert found.proof == "symbolic"
    assert (found.pattern.to_dense(M, N) == on_numpy(function)).all()


IDS = torch.arange(60, dtype=torch.int32) // 7


def assigned(q, k):
    m = q >= k
    m[...] = q - k < 5
    return m


def filled(q, k):
    d = q - k
    d.fill_(3)
    return (d == 3) & (q >= k)


def into(function, name="out"):
    """Written into a value that the function answers from."""

    def write(q, k):
        m = q >= k
        function(m, q - k < 5, **{name: m})
        return m

    return write


def real(q, k):
    acc = torch.zeros((), dtype=torch.bool).clone().expand((q >= k).shape).clone()
    other = acc
    acc |= q >= k
    return other


def real_by_method(q, k):
    acc = torch.zeros((q >= k).shape, dtype=torch.bool)
    acc.logical_or_(q >= k)
    return acc


def copied_into(q, k):
    acc = torch.zeros((q >= k).shape, dtype=torch.bool)
    acc.copy_(q >= k)
    return acc


def positive(q, k):
    """torch's +x is x, numpy's a copy: nobody knows what d is then."""
    d = q - k
    e = +d
    e += 3
    return (d >= 0) & (e < 9)


def narrow(q, k):
    """x.int() is x where x is of int32, as the trace need not know."""
    d = IDS[q] * 1
    e = d.int()
    e += 3
    return (d >= 3) & (e <= k)


@pytest.mark.parametrize(
    "function",
    [assigned, filled, into(torch.logical_and), into(torch.bitwise_and), real, real_by_method, copied_into, narrow,
     then(causal, method("masked_fill_", near, False)), then(causal, method("copy_", near)),
     then(gap, method("zero_"), answer=lambda x, y: y == 0), then(causal, method("fill_", True))],
)  # fmt: skip
def test_evaluated_where_a_change_cannot_be_traced(function):
    with pytest.raises(InputError, match="tracing ended"):
        recognize(function)
    found = recognize(function, size=(M, N))
    assert found.proof == f"evaluated at ({M}, {N})"
    assert (found.pattern.to_dense(M, N) == on_torch(function)).all()


@pytest.mark.parametrize("function", [into(np.logical_and), into(np.bitwise_and)])
def test_evaluated_where_numpy_writes_into_a_value(function):
    with pytest.raises(InputError, match="out="):
        recognize(function)
    assert (recognize(function, size=(M, N)).pattern.to_dense(M, N) == on_numpy(function)).all()


def test_what_torch_and_numpy_make_differently_is_refused():
    for size in (None, (M, N)):
        with pytest.raises(InputError, match=r"under another name|arrays of"):
            recognize(positive, size=size)


@pytest.mark.parametrize(
    "change",
    [method("add_", 1), method("mul_", 2), augmented("+= 1"), augmented("-= 1"),
     lambda x, q, k: x.logical_not_()],
)  # fmt: skip
def test_numbers_are_not_written_into_a_condition(change):
    """torch raises there as well, except for a condition that stays one."""
    function = then(causal, change)
    try:
        expected = on_torch(function)
    except RuntimeError:
        with pytest.raises(InputError):
            recognize(function, size=(M, N))
    else:
        assert (recognize(function).pattern.to_dense(M, N) == expected).all()


@pytest.mark.parametrize(
    "change",
    [method("abs_"), augmented("<<= 1"), lambda x, q, k: torch.abs_(x), lambda x, q, k: x.detach().add_(1),
     lambda x, q, k: x.long().add_(1)],
)  # fmt: skip
def test_arguments_are_left_alone(change):
    with pytest.raises(InputError, match="changes its argument q"):
        recognize(then(lambda q, k: q, change, answer=lambda x, y: x >= 0))


def test_a_copy_of_an_argument_may_be_changed():
    def function(q, k):
        q = q.clone()
        q += 1
        return q >= k

    assert recognize(function).pattern == weft.causal(1, align="top-left")
