"""Evaluation at a size has a price: said before, bound by `limit`, refused where nobody sees it, ended by Ctrl-C."""

import io
import sys
import threading
import time

import numpy as np
import pytest
from tests.tiers import every, sample

import weft
from weft.errors import InputError
from weft.pattern import crossing
from weft.recognition import grouped, pace, recognize
from weft.recognition.evaluate import Manner
from weft.recognition.pace import TooSlowError
from weft.recognition.watchdog import GRACE

torch = pytest.importorskip("torch")


def opaque(rule):
    """The rule behind an operation that is not traced."""
    return lambda b, h, q, k: rule(b, h, q ^ 0, k ^ 0)


def slow(seconds):
    """A function that sleeps whenever it is asked for many pairs."""

    def mask(q, k):
        if q.numel() * k.numel() > 10_000:
            time.sleep(seconds)
        return (q * k * k) % 7 <= (q ^ 1)

    return mask


class Terminal(io.StringIO):
    def isatty(self):
        return True


# ---- the price -------------------------------------------------------------------------------------------------------
def test_a_limit_refuses_before_the_time_is_spent():
    begin = time.perf_counter()
    with pytest.raises(InputError) as raised:
        recognize(slow(0.05), size=(4096, 4096), limit=1)
    assert time.perf_counter() - begin < 1
    text = str(raised.value)
    assert "pairs take about" in text and "larger limit=" in text and "MB" in text


def test_a_limit_stops_what_turns_out_slow():
    calls = []

    def mask(q, k):
        calls.append(1)
        if len(calls) > 30:
            time.sleep(0.2)
        return (q * k) % 7 <= (q ^ 1)

    with pytest.raises(InputError, match=r"it has taken|take about"):
        recognize(mask, size=(4096, 4096), limit=0.5)


def test_what_is_short_needs_no_limit():
    found = recognize(slow(0), size=(200, 200), limit=20)
    assert found.proof == "evaluated at (200, 200)" and found.exact


@pytest.mark.parametrize("limit", [0, -1, True, "3", float("nan")])
def test_a_limit_is_seconds(limit):
    with pytest.raises(InputError, match="number of seconds"):
        recognize(slow(0), size=(20, 20), limit=limit)
    with pytest.raises(InputError, match="or limit="):
        recognize(np.ones((3, 3), np.bool_), limit=limit)


def test_a_thread_that_nobody_watches_is_refused_long_work():
    found = []

    def work(limit):
        try:
            found.append(recognize(slow(0.2), size=(2048, 2048), limit=limit).proof)
        except InputError as error:
            found.append(str(error))

    for limit in (None, 60):
        thread = threading.Thread(target=work, args=(limit,))
        thread.start()
        thread.join()
    assert "limit=SECONDS" in found[0] and found[1].startswith("evaluated")


def test_a_compiled_function_is_told_what_to_write(monkeypatch):
    monkeypatch.setattr(crossing, "tracing", lambda: True)
    wanted = r"pattern = weft.recognize\(...\).pattern"
    with pytest.raises(InputError, match=wanted), pace.evaluating("recognize(f)", 100, None):
        raise AssertionError("it was let in")


# ---- the bar ---------------------------------------------------------------------------------------------------------
def test_a_terminal_shows_how_far_it_is(monkeypatch):
    seen = Terminal()
    monkeypatch.setattr(sys, "stderr", seen)
    recognize(slow(0.02), size=(4096, 4096))
    text = seen.getvalue()
    assert "recognize(slow" in text or "recognize(mask)" in text
    assert "s left of" in text and "#" in text and text.endswith("\r")


@pytest.mark.more
def test_nothing_is_said_elsewhere(monkeypatch):
    plain = io.StringIO()
    monkeypatch.setattr(sys, "stderr", plain)
    recognize(slow(0.02), size=(4096, 4096))
    assert not plain.getvalue()


@pytest.mark.parametrize("call", [1, 3, 9, 40])
def test_an_interrupt_leaves_nothing_half_made(monkeypatch, call):
    seen = Terminal()
    monkeypatch.setattr(sys, "stderr", seen)
    calls = []

    def mask(q, k):
        calls.append(1)
        if len(calls) == call:
            raise KeyboardInterrupt
        return ((q // 7) ^ (k // 9)) % 5 <= (q - k) % 3

    with pytest.raises(KeyboardInterrupt):
        recognize(mask, size=(1500, 1500))
    assert pace._pace.get() is None and not torch.overrides._get_current_function_mode_stack()
    found = recognize(mask, size=(90, 90))
    q, k = torch.arange(90)[:, None], torch.arange(90)[None]
    assert (found.pattern.to_dense(90) == mask(q, k).numpy()).all()


# ---- queries that are alike are looked at once -----------------------------------------------------------------------
TABLE = torch.from_numpy(np.random.default_rng(0).random((50, 40)) < 0.4)
IDS = torch.from_numpy(np.random.default_rng(1).integers(0, 12, 2000))
NUMPY = IDS.numpy()
ALIKE = {
    "blocks by bits": lambda b, h, q, k: ((q // 32) ^ (k // 64)) % 5 < 2,
    "a table of blocks": lambda b, h, q, k: TABLE[q // 40, (k // 50) ^ 0],
    "labels": lambda b, h, q, k: (IDS[q] * IDS[k]) % 3 == 0,
    "labels of numpy": lambda b, h, q, k: (NUMPY[q] ^ NUMPY[k]) < 5,
    "floats": lambda b, h, q, k: torch.sqrt((q // 100).double()) <= (k // 90).double() * 0.7,
    "where": lambda b, h, q, k: torch.where(q >= 1000, (q - 1000) // 50, q // 50) ^ 0 >= k // 50,
    "queries alone": lambda b, h, q, k: ((q // 100) ^ 3) % 2 == 0,
}


@pytest.mark.parametrize("name", every(3, ALIKE))
def test_few_kinds_tell_the_whole(name):
    rule, n = ALIKE[name], 2000
    looked = []

    def counted(b, h, q, k):
        if isinstance(q, (torch.Tensor, np.ndarray)):
            looked.append(np.broadcast_shapes(tuple(q.shape), tuple(k.shape)))
        return rule(b, h, q, k)

    found = recognize(counted, size=(n, n))
    q, k = torch.arange(n)[:, None], torch.arange(n)[None]
    assert (found.pattern.acsr(n).to_dense() == np.broadcast_to(np.asarray(rule(0, 0, q, k)), (n, n))).all()
    assert found.proof == "symbolic" or sum(int(np.prod(shape)) for shape in looked) < n * n // 4


UNLIKE = {
    "sums": lambda q, k: (q ^ 0).cumsum(0) % 3 >= k % 5,
    "shapes": lambda q, k: ((q // 64) ^ (k // 64)) % 3 < (1 if q.ndim else 2),
    "branches": lambda q, k: ((q // 64) ^ (k // 64)) % 3 < (1 if q.shape[0] else 2),
    "in place": lambda q, k: (q // 64).bitwise_xor_(k[:, :1] // 64) % 3 < 1,
    "all of them": lambda q, k: ((q ^ 0).max() - q) // 100 >= k // 64,
}


@pytest.mark.parametrize("name", UNLIKE)
def test_what_need_not_go_pair_by_pair_is_not_grouped(name):
    made = Manner(torch=True, single=False).values
    assert grouped.kinds(UNLIKE[name], made, 2000, 2000) is None


def test_many_kinds_are_evaluated_as_pairs():
    made = Manner(torch=True, single=False).values
    assert grouped.kinds(lambda q, k: (q * k) % 7 < 3, made, 2000, 2000) is None
    kinds = grouped.kinds(lambda q, k: (q % 7) * (k % 5) % 3 < 2, made, 2000, 2000)
    assert [int(kind.max()) + 1 for kind in kinds] == [7, 5]


# ---- at a size -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("n", sample([4096, 15_830], 4096))
def test_large_masks_in_little_time(n):
    """Times are printed: they depend on the machine."""
    lengths = np.random.default_rng(0).integers(100, 900, 100)
    lengths = lengths[np.cumsum(lengths) < n]
    lengths = np.append(lengths, n - lengths.sum())
    ids = torch.from_numpy(np.repeat(np.arange(lengths.size), lengths))
    begin = time.process_time()
    found = recognize(opaque(lambda b, h, q, k: (k <= q) & (ids[q] == ids[k])), size=(n, n))
    print(f"{n} tokens: {time.process_time() - begin:.2f} s of processor time")
    assert found.pattern == weft.sized(weft.causal() & weft.documents(lengths), n, n)


# ---- functions without end -------------------------------------------------------------------------------------------
def endless(q, k):
    while True:
        q = q + 0


def endless_for_numbers(q, k):
    int(q)  # ends the trace
    while True:
        pass


@pytest.mark.parametrize("function", [endless, endless_for_numbers])
def test_a_function_without_end_is_bounded_by_the_limit(function):
    began = time.perf_counter()
    with pytest.raises(TooSlowError, match=r"did not return within limit=0\.2 seconds"):
        weft.recognize(function, size=(16, 16), limit=0.2)
    assert time.perf_counter() - began < 10


def test_it_is_bounded_in_other_threads_too():
    found = []

    def call():
        try:
            weft.recognize(endless, size=(16, 16), limit=0.1)
        except TooSlowError as error:
            found.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join(10)
    assert len(found) == 1 and not thread.is_alive()


def test_nothing_is_raised_afterwards():
    for _ in range(20):
        assert weft.recognize(lambda q, k: k <= q, size=(16, 16), limit=0.001 + GRACE).exact
    time.sleep(0.05)
