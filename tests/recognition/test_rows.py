"""Batch rows that differ by what tables hold are traced together: each is what it is alone, pair by pair."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.recognition.test_forms import OPTIONS, conditions
from tests.recognition.test_runs import INNER, documents, packed, tables
from tests.tiers import examples

from weft.errors import InputError
from weft.recognition import lines, recognize, recognize_function, runs
from weft.recognition.lines import Line
from weft.recognition.periodic import NoFormError
from weft.recognition.rows import cut
from weft.recognition.tracer import Trace, Traced

torch = pytest.importorskip("torch")


@pytest.fixture
def kept(monkeypatch):
    """Every table is kept as runs, however short it is."""
    for name, value in (("LEAST", 0), ("SHARE", 1), ("FEW", 1)):
        monkeypatch.setattr(runs, name, value)


class OfRow:
    """A table with batch rows, read by an index of a row."""

    def __init__(self, values):
        self.values, self.row = values, 0

    def __getitem__(self, index):
        return self.values[self.row, index]


class Shifted(OfRow):
    """An index less a number of the row."""

    def __getitem__(self, index):
        return index - self.values[self.row]


@st.composite
def functions(draw):
    """(condition of (q, k), its tables, rows, m, n)."""
    count, m = draw(st.integers(2, 5)), draw(st.integers(1, 24))
    n = m if draw(st.booleans()) else draw(st.integers(1, 24))
    made = []
    for length in (m, n):
        whole = np.stack([draw(tables(length)) for _ in range(count)])
        shifts = np.array(draw(st.lists(st.integers(-3, 9), min_size=count, max_size=count)))
        made.append(draw(st.sampled_from([OfRow(whole), Shifted(shifts)])))
    if m == n and draw(st.booleans()):
        made[1] = made[0]
    return draw(conditions(made)), made, count, m, n


def in_row(condition, made, row, q, k):
    for table in made:
        table.row = row
    return condition(q, k)


@settings(max_examples=examples(150, 8), **OPTIONS)
@given(functions())
def test_rows_equal_the_mask(kept, case):
    condition, made, count, m, n = case
    mask = [np.broadcast_to(in_row(condition, made, row, *np.ogrid[:m, :n]), (m, n)) for row in range(count)]
    for table in {id(table): table for table in made}.values():
        table.values = torch.from_numpy(table.values)
    try:
        found = recognize_function(lambda b, h, q, k: in_row(condition, made, b, q, k), size=(m, n), batch=count)
    except InputError:  # not traceable, and numpy's functions do not know tensors
        return
    assert (found.pattern.to_dense(m, n) == np.stack(mask)[:, None]).all()


def alone(monkeypatch, function, **options):
    """The pattern where each row is traced by itself."""

    def refused(*_):
        raise NoFormError("rows apart")

    with monkeypatch.context() as patch:
        patch.setattr(Trace, "stacked", refused)
        return recognize(function, **options).pattern


@pytest.mark.parametrize("name", INNER)
def test_packed_rows_read_as_they_do_alone(name, monkeypatch):
    rows = [documents(2048, np.random.default_rng(seed)) for seed in range(5)]
    ids, places = (torch.from_numpy(np.stack(x)) for x in zip(*rows, strict=True))
    calls = []

    def function(b, h, q, k):
        calls.append(isinstance(q, Traced))
        return packed(INNER[name], ids, places)(b, h, q, k)

    found = recognize(function, size=2048)
    assert sum(calls) == 3  # for the lengths, up to the first read by row, then for all rows
    assert found.pattern == alone(monkeypatch, function, size=2048)


def test_a_table_is_looked_through_once(monkeypatch):
    """A pass over tables of a million entries takes milliseconds: one for all rows."""
    rows = [documents(2048, np.random.default_rng(seed)) for seed in range(5)]
    ids, places = (torch.from_numpy(np.stack(x)) for x in zip(*rows, strict=True))
    seen, of_table = [], runs.of_table
    monkeypatch.setattr(runs, "of_table", lambda values, lo: seen.append(values.size) or of_table(values, lo))
    assert recognize(packed(INNER["window"], ids, places), size=2048).proof == "symbolic"
    assert seen == [5 * 2048, 5 * 2048]


@pytest.mark.parametrize("rows", [3, 17])
def test_rows_together_may_be_longer_than_a_list(rows, monkeypatch):
    """Only what is listed value by value has to be short; runs are not."""
    monkeypatch.setattr(lines, "LONGEST", 3000)
    ids = torch.from_numpy(np.stack([documents(2048, np.random.default_rng(seed))[0] for seed in range(rows)]))
    calls = []
    found = recognize(lambda b, h, q, k: calls.append(isinstance(q, Traced)) or ids[b, q] == ids[b, k], size=2048)
    assert sum(calls) == 3 and found.pattern.extent()[0] == rows


def test_a_changed_tensor_is_seen():
    ids = torch.tensor([[0, 0, 1, 1], [0, 1, 1, 1]])

    def function(b, h, q, k):
        return ids[b, q] == ids[b, k]

    for row in ([0, 0, 0, 1], [0, 1, 2, 2]):
        ids[1] = torch.tensor(row)
        dense = recognize(function, size=4).pattern.to_dense(4)
        assert (dense[1, 0] == (ids[1][:, None] == ids[1]).numpy()).all()


LEFT = torch.tensor([3, 0, 5, 1])
IDS = torch.tensor([[0] * 9 + [1] * 7, [0] * 4 + [1] * 12, [2] * 16, [0, 1] * 8])
PLACES = torch.arange(16).expand(4, 16) % torch.tensor([[5], [7], [16], [3]])
ZERO, BRANCH = torch.zeros_like(IDS), torch.tensor([0, 1, 1, 1])
BY_HEAD = torch.stack([IDS, IDS.flip(0)])


@pytest.mark.parametrize("function", [
    lambda b, h, q, k: (IDS[b, q] == IDS[b, k]) & (k >= LEFT[b]), lambda b, h, q, k: IDS[b, k] < LEFT[b] - 1,
    lambda b, h, q, k: (PLACES[b, q] - LEFT[b]) // 3 == (PLACES[b, k] - LEFT[b]) // 3,
    lambda b, h, q, k: IDS[b, PLACES[b, q]] == IDS[b, k], lambda b, h, q, k: BY_HEAD[h, b, q] == BY_HEAD[h, b, k],
    lambda b, h, q, k: (IDS[b, q] == IDS[b, k]) & (k >= (LEFT[b] if b > 1 else 4)),
    lambda b, h, q, k: (IDS[b, q] == IDS[b, k]) & (k // 4 <= q // 4) & (q % 5 != k % 3),
    lambda b, h, q, k: (IDS[b, q] > 0) & (IDS[b, k] > 0) & (abs(q - k) < 6), lambda b, h, q, k: IDS[b, 15 - q] < k,
    lambda b, h, q, k: (IDS.T[q, b] == IDS[b, k]) | (k < (LEFT > 2)[b]),
    lambda b, h, q, k: (IDS if BRANCH[b] else ZERO)[b, q] == ZERO[b, k],
    lambda b, h, q, k: (ZERO[b, q] == ZERO[b, k]) & (k <= (q + b if BRANCH[b] else q)),
])  # fmt: skip
def test_ways_to_read_tables(function):
    found = recognize(function, size=16, batch=4, heads=2)
    q, k = (torch.from_numpy(x) for x in np.ogrid[:16, :16])
    for row, head in np.ndindex(4, 2):
        mask = np.broadcast_to(function(row, head, q, k).numpy(), (16, 16))
        dense = found.pattern.to_dense(16)
        dense = dense if dense.ndim == 4 else dense[None, None]
        assert (dense[row % dense.shape[0], head % dense.shape[1]] == mask).all()


@settings(max_examples=examples(100), **OPTIONS)
@given(st.data())
def test_cut(kept, data):
    count, length = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 20))
    size = count * length
    line = Line.floor(data.draw(st.integers(1, 6))).of(Line.index(0, size))
    if data.draw(st.booleans()):
        line = Line.table(data.draw(tables(size))) + line
    parts = cut(line, count)
    assert [(part.lo, part.hi) for part in parts] == [(0, length)] * count
    assert np.array_equal(np.concatenate([part.all() for part in parts]), line.all())


def test_a_number_of_each_row_changes_under_one_name():
    """numpy's numbers are never changed in place."""
    shifts, starts = np.array([4, 0, 9]), np.array([0, 3, 1])

    def function(b, h, q, k):
        shift = before = shifts[b]
        shift += k
        return (shift <= q) & (k >= starts[b]) & (k >= before)

    found = recognize(function, size=(20, 20))
    q, k = np.ogrid[:20, :20]
    mask = [(shifts[b] + k <= q) & (k >= max(starts[b], shifts[b])) for b in range(3)]
    assert found.proof == "symbolic"
    assert (found.pattern.to_dense(20) == np.stack(mask)[:, None]).all()
