"""Tables kept as runs: every rule equals what the listed tables say, index by index and pair by pair."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.recognition.generators import GIVEN
from tests.recognition.test_forms import OPTIONS, on_pairs, tabled
from tests.recognition.test_function import dense, found_as
from tests.tiers import examples

from weft.recognition import recognize, recognize_function, runs
from weft.recognition.layouts import CORNER, LARGE
from weft.recognition.layouts import LONG as LONG_LAYOUT
from weft.recognition.lines import Line, chosen
from weft.recognition.names import cost
from weft.recognition.periodic import NoFormError
from weft.recognition.tracer import Traced

torch = pytest.importorskip("torch")
LONG = 1 << 17


@pytest.fixture(autouse=True)
def kept(request):
    """Every table is kept as runs, however short it is; not in tests of long ones."""
    with pytest.MonkeyPatch.context() as patch:
        if "long" not in request.node.name:
            for name, value in (("LEAST", 0), ("SHARE", 1), ("FEW", 1)):
                patch.setattr(runs, name, value)
        yield


# ---- functions of one index -----------------------------------------------------------------------------------------
@st.composite
def tables(draw, size):
    """Numbers that stay, rise or fall in stretches, or follow no rule."""
    parts = []
    while sum(map(len, parts)) < size:
        first, slope = draw(st.integers(-6, 6)), draw(st.sampled_from([0, 0, 1, 1, -1, 2]))
        parts.append(first + slope * np.arange(draw(st.integers(1, 9))))
    return np.concatenate(parts)[:size]


@st.composite
def lines(draw, size):
    kind = draw(st.integers(0, 3))
    if kind == 0:
        return Line.index(0, size, draw(st.sampled_from([-1, 1, 2])), draw(st.integers(-4, 4)))
    if kind == 1:
        return Line.floor(draw(st.integers(1, 6))).of(Line.index(0, size))
    table = draw(tables(size))
    return Line.table(table > 0 if kind == 2 else table)


def sets(draw):
    low = draw(st.integers(-6, 4))
    return Line.between(low, low + draw(st.integers(0, 8)))


@st.composite
def steps(draw):
    """(a function made of others, its values as numpy has them)."""
    size = draw(st.integers(1, 40))
    a, b = draw(lines(size)), draw(lines(size))
    x, y = (line.at(np.arange(size)) for line in (a, b))
    for _ in range(draw(st.integers(1, 4))):
        kind, c = draw(st.integers(0, 6)), draw(st.integers(1, 6))
        test = sets(draw)
        live = test.at(x) != 0
        table = draw(tables(int(np.ptp(x)) + 1)) if kind == 5 and np.ptp(x) < 400 else None
        try:
            if kind == 0:
                made = a + b, x + y
            elif kind == 1:
                made = test.of(a) * b, live * y
            elif kind == 2:
                made = Line.modulo(c).of(a), x % c
            elif kind == 3:
                made = Line.floor(c).of(a), x // c
            elif kind == 4:
                made = chosen(test.of(a), b, a), np.where(live, y, x)
            elif table is not None:
                made = Line.table(table, int(x.min())).of(a), table[x - x.min()]
            else:
                made = a.scaled(-c, 3), 3 - c * x
        except NoFormError:
            continue
        (a, x), (b, y) = made, (a, x)
    return a, x


@settings(max_examples=examples(300), **OPTIONS)
@given(steps())
def test_lines(step):
    line, values = step
    place = np.arange(values.size)
    assert (line.lo, line.hi) == (0, values.size)
    assert (line.at(place) == values).all() and (line.all() == values).all()
    assert line.extent[0] <= values.min() and line.extent[1] >= values.max()
    assert line.rises == (np.diff(values) >= 0).all() and line.falls == (np.diff(values) <= 0).all()
    assert (np.repeat(line.steps.value, line.steps.lengths) == values).all()
    assert (np.diff(line.steps.value) != 0).all()
    part = line.restricted(values.size // 3, values.size)
    assert (part.all() == values[values.size // 3 :]).all()


@given(st.integers(1, 60).flatmap(tables))
def test_the_first_index_that_reaches_a_number(table):
    table = np.maximum.accumulate(table)
    first = runs.inverse(Line.table(table).pieces)
    if first is not None:
        asked = np.arange(table.min() - 3, table.max() + 4)
        assert (Line(tuple(first)).at(asked) == np.searchsorted(table, asked)).all()


# ---- functions of pairs ---------------------------------------------------------------------------------------------
@settings(max_examples=examples(100), **OPTIONS)
@given(tabled())
def test_tables(case):
    function, m, n = case
    found = recognize_function(function, size=(m, n))
    if found.proof == "symbolic":  # what is evaluated says nothing of runs
        assert (found.pattern.to_dense(m, n) == on_pairs(function, m, n)).all()


@pytest.mark.parametrize("name", GIVEN)
def test_mask_functions(name):
    given, found = GIVEN[name], found_as(GIVEN[name])
    mask = dense(given)
    assert found.proof == "symbolic" and found.closed
    assert (np.broadcast_to(found.pattern.to_dense(*given.size), mask.shape) == mask).all()


# transformers' packed sequences, as that library writes them
def packed(inner, ids, places):
    return lambda b, h, q, k: (ids[b, q] == ids[b, k]) & inner(places[b, q], places[b, k])


INNER = {
    "causal": lambda q, k: k <= q,
    "window": lambda q, k: (k <= q) & (k > q - 100),
    "chunks": lambda q, k: (k <= q) & (k // 64 == q // 64),
}


def documents(size, generator):
    """(ids, places in the document) of a row."""
    cuts = np.sort(generator.choice(np.arange(1, size), size // 400 or 2, replace=False))
    starts = np.append(0, cuts)
    lengths = np.diff(np.append(starts, size))
    return np.repeat(np.arange(lengths.size), lengths), np.arange(size) - np.repeat(starts, lengths)


@pytest.mark.parametrize("name", INNER)
@pytest.mark.parametrize("size", [90, 1 << 11])
def test_packed(name, size):
    rows = [documents(size, np.random.default_rng(seed)) for seed in range(2)]
    ids, places = (torch.from_numpy(np.stack(x)) for x in zip(*rows, strict=True))
    function = packed(INNER[name], ids, places)
    found = recognize(function, size=size)
    assert found.proof == "symbolic"
    q, k = torch.arange(size)[:, None], torch.arange(size)[None]
    mask = np.stack([function(b, 0, q, k).numpy() for b in range(2)])[:, None]
    assert (found.pattern.to_dense(size) == mask).all()


@pytest.mark.parametrize("name", INNER)
def test_long_packed(name):
    ids, places = (torch.from_numpy(x)[None] for x in documents(LONG, np.random.default_rng(3)))
    function = packed(INNER[name], ids, places)
    found = recognize(function, size=LONG, batch=1)
    assert found.proof == "symbolic"
    generator = np.random.default_rng(4)
    q = generator.integers(0, LONG, 200_000)
    k = np.clip(q + generator.integers(-500, 500, q.size), 0, LONG - 1)
    live = function(0, 0, torch.from_numpy(q), torch.from_numpy(k)).numpy()
    assert 0 < live.sum() < live.size and (found.pattern.contains(q, k, LONG) == live).all()


def test_long_blockwise():
    """Images in text, many of them: a set of queries that is all or nothing of each document is a bound, no union."""
    ids = documents(LONG, np.random.default_rng(5))[0]
    images = torch.from_numpy(np.where(ids % 2, ids // 2, -1))
    found = recognize(lambda q, k: (q >= k) | ((images[q] == images[k]) & (images[q] >= 0)), size=LONG)
    assert found.proof == "symbolic" and cost(found.pattern) < 3 * ids[-1]
    assert not len(found.pattern.acsr(LONG, LONG).remainder)
    generator = np.random.default_rng(6)
    q = generator.integers(0, LONG, 200_000)
    k = np.clip(q + generator.integers(-500, 500, q.size), 0, LONG - 1)
    live = (q >= k) | ((images[q] == images[k]) & (images[q] >= 0)).numpy()
    assert (found.pattern.contains(q, k, LONG) == live).all()


@pytest.mark.parametrize("function", [
    lambda q, k: (IDS[q] == IDS[k]) & (q % 40 > 10), lambda q, k: (IDS[q] == IDS[k]) & (q % 40 > 10) & (k % 9 > 2),
    lambda q, k: (IDS[q] == IDS[k]) & (IDS[q] % 3 > 0), lambda q, k: (IDS[q] == IDS[k]) & (AT[q] > 4) & (k <= q),
    lambda q, k: (IDS[q] == IDS[k]) & (AT[q] < 4), lambda q, k: (IDS[q] == IDS[k]) & (AT[q] > 2) & (AT[q] < 9),
    lambda q, k: (IDS[q] == IDS[k]) & ((AT[q] < 4) | (AT[k] < 4) | (IDS[q] % 4 == 1)),
    lambda q, k: (IDS[q] == IDS[k]) & (AT[q] // 7 == AT[k] // 7) & (IDS[q] % 4 > 1),
])  # fmt: skip
def test_queries_of_documents(function):
    found = recognize(function, size=IDS.size)
    q, k = np.ogrid[: IDS.size, : IDS.size]
    assert found.proof == "symbolic" and (found.pattern.to_dense(IDS.size) == function(q, k)).all()


IDS, AT = documents(600, np.random.default_rng(7))
IDS, AT = (np.concatenate([x, y]) for x, y in ((IDS, IDS[-1] + 1 + np.arange(300) // 11), (AT, np.arange(300) % 11)))


def test_documents_inside_documents_are_named_once():
    found = recognize(lambda q, k: (IDS[q] == IDS[k]) & (AT[q] // 7 == AT[k] // 7), size=IDS.size)
    assert str(found.pattern).count("documents") == 1


def test_blocks_that_are_documents_say_nothing_of_others():
    layout = np.kron(np.eye(3, dtype=bool), np.ones((2, 2), bool))  # documents of two blocks each
    ids = np.repeat(np.arange(4), [20, 30, 25, 21])
    found = recognize(lambda q, k: layout[q // 16, k // 16] & (ids[q] == ids[k]), size=96)
    q, k = np.ogrid[:96, :96]
    assert (found.pattern.to_dense(96) == (layout[q // 16, k // 16] & (ids[q] == ids[k]))).all()


# ---- numbers that do not fit ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64"])
def test_differences_that_wrap(kept, dtype):
    """Steps that are alike only modulo the width of the numbers are no slope."""
    low, high = np.iinfo(dtype).min, min(np.iinfo(dtype).max, 1 << 40)
    values = np.array([low, high, low, high, 0, 100, *range(90, 30, -10), high, 50], dtype)
    quarter = (high - low + 1) // 4
    for table in (values, np.array([low + i * quarter for i in (0, 1, 2, 3, 0, 1, 2, 3, 0)], dtype)):
        assert (Line.table(table).all() == table.astype(np.int64)).all()


@pytest.mark.parametrize("table", [
    np.repeat([(1 << 63) - 1, -(1 << 63), 0], 3), np.repeat([1 << 62, -(1 << 62) - 1], 4),
    np.array([i << 62 for i in (-2, -1, 0, 1, -2, -1, 0, 1)]),
])  # fmt: skip
@pytest.mark.parametrize("times", [1, 512])
@pytest.mark.parametrize("function", [
    lambda a, b: a == b, lambda a, b: a != b, lambda a, b: a < b, lambda a, b: a - 1 >= b,
])  # fmt: skip
def test_numbers_beyond_any_index_are_evaluated(table, times, function):
    table = np.repeat(table, times)[:600]
    found = recognize(lambda q, k: function(table[q], table[k]), size=table.size)
    assert (found.pattern.to_dense(table.size) == function(table[:, None], table[None])).all()
    assert found.proof != "symbolic" and "beyond any index" in found.why


def test_multiples_beyond_any_index_are_evaluated():
    table = np.repeat([1 << 33, 5, 0], 5)
    found = recognize(lambda q, k: table[q] * (1 << 39) < table[k] * 3 - 2, size=table.size)
    assert found.proof != "symbolic"
    assert (found.pattern.to_dense(15) == (table[:, None] * (1 << 39) < table[None] * 3 - 2)).all()


# ---- batch rows -----------------------------------------------------------------------------------------------------
def test_rows_that_read_alike_are_traced_once():
    calls, left = [], torch.tensor([3, 0, 3, 0, 3])

    def function(b, h, q, k):
        calls.append(isinstance(q, Traced))
        return k >= left[b]

    found = recognize(function, size=(16, 16))
    assert sum(calls) == 2
    assert (found.pattern.to_dense(16)[:, 0] == (np.arange(16) >= left.numpy()[:, None, None])).all()


@pytest.mark.parametrize("function", [
    lambda b, h, q, k: k >= SAME[b] + b, lambda b, h, q, k: (k >= SAME[b]) & (q >= [1, 2, 3][b]),
    lambda b, h, q, k: (k >= SAME[b]) if b < 1 else (k > q), lambda b, h, q, k: OTHER[b][h] <= k,
])  # fmt: skip
def test_rows_that_read_alike_and_differ(function):
    found = recognize(function, size=(9, 9), batch=3, heads=2)
    for b, h in np.ndindex(3, 2):
        live = np.broadcast_to(function(b, h, *(torch.from_numpy(x) for x in np.ogrid[:9, :9])), (9, 9))
        batches, heads = found.pattern.extent()
        rows = found.pattern.acsr(9, 9, b if batches else 0, h if heads else 0)
        assert (rows.to_dense() == live).all()


SAME = torch.tensor([2, 2, 2])
OTHER = torch.tensor([[1, 2], [1, 2], [1, 5]])


# ---- layouts --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("share", [0.1, 0.5])
@pytest.mark.parametrize(("size", "block"), [((640, 640), (16, 16)), ((630, 500), (16, 20)), ((90, 90), (3, 3))])
def test_layouts_of_no_rule(share, size, block):
    layout = torch.from_numpy(np.random.default_rng(0).random((40, 40)) < share)
    found = recognize(lambda q, k: layout[q // block[0], k // block[1]], size=size)
    q, k = np.ogrid[: size[0], : size[1]]
    mask = layout.numpy()[q // block[0], k // block[1]]
    assert found.proof == "symbolic"
    assert (found.pattern.to_dense(*size) == mask).all() and (found.pattern.acsr(*size).to_dense() == mask).all()


ROW, COLUMN = np.ogrid[:128, :128]
LABELS = np.random.default_rng(5).integers(0, 5, 128)
RULED = {
    "fixed": (COLUMN <= ROW) & ((ROW // 8 == COLUMN // 8) | (COLUMN % 8 == 7)),
    "labels in any order": LABELS[:, None] == LABELS,
    "grid": (abs(ROW // 16 - COLUMN // 16) <= 1) & (abs(ROW % 16 - COLUMN % 16) <= 2),
    "prefix": (COLUMN <= ROW) | (COLUMN < 40),
}


@pytest.mark.parametrize("name", RULED)
def test_layouts_of_a_rule(name):
    layout = torch.from_numpy(RULED[name])
    found = recognize(lambda q, k: layout[q // 16, k // 16], size=(2048, 2048))
    assert found.proof == "symbolic" and "bits" not in str(found.pattern)
    assert (found.pattern.to_dense(2048)[::16, ::16] == RULED[name]).all()


def test_layouts_are_searched_where_the_guess_from_the_corner_is_wrong():
    count = 300
    assert LARGE < count**2 <= LONG_LAYOUT
    i, j = np.ogrid[:count, :count]
    band = (j <= i) & (j > i - 200)
    found = recognize(lambda q, k: torch.from_numpy(band)[q // 8, k // 8], size=8 * count)
    assert "window" in str(found.pattern)
    assert (found.pattern.to_dense(8 * count)[::8, ::8] == band).all()


def test_long_layouts_are_guessed_from_their_corner_and_held_against_every_block():
    count = 3 * CORNER + 26
    assert count**2 > LONG_LAYOUT
    i, j = np.ogrid[:count, :count]
    band = (abs(i - j) <= 2) | (j < 1)
    broken = band.copy()
    broken[count - 1, 7] = True
    found = [recognize(lambda q, k, t=t: torch.from_numpy(t)[q // 8, k // 8], size=8 * count) for t in (band, broken)]
    assert "bits" not in str(found[0]) and "bits" in str(found[1])
    for table, one in zip((band, broken), found, strict=True):
        assert (one.pattern.to_dense(8 * count)[::8, ::8] == table).all()
