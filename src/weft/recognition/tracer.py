"""What stands for q, k, b and h while a mask function is traced: an object that answers every operation with a form.

It works under Python's operators, under numpy's functions and, through `__torch_function__`, under torch's, of which
nothing is imported. What it does not know ends the trace by an error that names the operation; it never guesses.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, cast

import numpy as np

from weft.errors import InputError
from weft.pattern.bounds import INF, Ints
from weft.recognition import forms, runs
from weft.recognition.forms import TRUE, Always, Formula, Number, Term
from weft.recognition.lines import Line
from weft.recognition.periodic import NoFormError
from weft.recognition.runs import Runs
from weft.tracing.answering import Answering

NOT_COMMON = "a number that several rows, traced together, have not in common"
ROOTS = {"q": "q (a query index)", "k": "k (a key index)", "b": "b (a batch row)", "h": "h (a head)"}


class UntraceableError(NoFormError):
    """Internal: the trace ends here; the text names the operation."""


class NeedLengthError(Exception):
    """Internal: a table is read by an index whose length is not known; `limits`: {axis: largest length that fits}."""

    def __init__(self, limits: dict[str, int | None]) -> None:
        super().__init__(str(limits))
        self.limits = limits


class ReadByRowError(Exception):
    """Internal: a table is read by batch row or head (`root`, of so many), which one trace could do for all of them."""

    def __init__(self, root: str, count: int) -> None:
        super().__init__(root, count)
        self.root, self.count = root, count


@dataclass
class Trace:
    """One run of a function: the lengths that q and k have (None: any), and the batch row and head it is run for. Also
    what it turned out to use: "b" and "h", each with the lengths of the tables that it indexes.

    reads: the tables that a batch row or a head indexed, and how. only_reads: whether nothing else was made of them, so
    that the run is the same wherever the reads are. lines: tables by their place in memory or their rows, with the
    functions that they are. They are held, so that no other table comes to lie there.

    rows: batch rows and heads that one run is for, all of them at once. Then q and k run over the indices of the first
    one, of the second one, and so on. All of them have the lengths m and n. alone: whether a run for one of them stays
    one where a table is read by them.
    """

    m: int | None = None
    n: int | None = None
    at: dict[str, int] = field(default_factory=lambda: {"b": 0, "h": 0})
    used: dict[str, list[int]] = field(default_factory=dict)
    reads: list[tuple[Any, tuple[Any, ...]]] = field(default_factory=list)
    only_reads: bool = True
    lines: dict[tuple[Any, ...], tuple[Any, Line]] = field(default_factory=dict)
    rows: tuple[dict[str, int], ...] = ()
    alone: bool = False

    def run_for(self, at: dict[str, int]) -> Trace:
        """The trace of another batch row and head."""
        return Trace(self.m, self.n, at, lines=self.lines, alone=True)

    def stacked(self, rows: tuple[dict[str, int], ...]) -> Trace:
        """The trace of several batch rows and heads, where both lengths are known."""
        assert self.m is not None and self.n is not None
        return Trace(self.m * len(rows), self.n * len(rows), rows[0], lines=self.lines, rows=rows)

    def varies(self, name: str) -> bool:
        """Whether b or h is another number in some of its rows."""
        return any(row[name] != self.at[name] for row in self.rows)

    def each(self, values: Any, dtype: str, root: str = "") -> Traced:
        """A number that each of its rows has."""
        found = Traced(self, cast(Any, None), dtype, root)  # None: a form that no rule takes
        found.in_rows = np.asarray(values, np.int64)
        return found

    def row_numbers(self, axis: str, whole: int) -> Line:
        """x -> the place in `rows` of the row that x is in, as a part of `whole`, which is that of all rows."""
        count = len(self.rows)
        return self.by_row(axis, np.arange(count, dtype=np.int64) * (whole // count))

    def by_row(self, axis: str, values: Ints) -> Line:
        """x -> the number of the row that x is in."""
        length = self._length(axis)
        begin = np.arange(values.size, dtype=np.int64) * (length // values.size)
        return Line(tuple(runs.pieces_of(Runs.steps(begin, values, length))))

    def constant(self, value: int) -> Number:
        return ((TRUE, Term(self._line("q", value), self._line("k", 0))),)

    def index(self, axis: str) -> Number:
        found = Line.index(0, self._length(axis))
        return self.on_axis(axis, found - self.row_numbers(axis, found.hi) if self.rows else found)

    def on_axis(self, axis: str, line: Line) -> Number:
        """A function of one index as a number."""
        lines = {"q": self._line("q", 0), "k": self._line("k", 0), axis: line}
        return ((TRUE, Term(lines["q"], lines["k"])),)

    def argument(self, name: str) -> Traced:
        """What the function is called with for q, k, b or h."""
        if name not in ("q", "k") and self.varies(name):
            return self.each([row[name] for row in self.rows], "int64", name)
        form = self.index(name) if name in ("q", "k") else self.constant(self.at[name])
        return Traced(self, form, "int64", name)

    def _line(self, axis: str, value: int) -> Line:
        return Line.constant(value, 0, self._length(axis))

    def _length(self, axis: str) -> int:
        length = self.m if axis == "q" else self.n
        return INF if length is None else length


class Dtype(str):
    """What a function sees as x.dtype: equal to the dtypes, of torch and of numpy, that `kind` is the name of. A value
    said to have a narrow one may have a wider one, so that nobody knows.
    """

    @property
    def kind(self) -> str:
        return self[:]

    def __eq__(self, other: object) -> bool:
        if self.kind not in ("int64", "bool"):
            raise UntraceableError("a comparison of dtypes")
        if str(other).startswith("torch."):
            return str(other) == f"torch.{self.kind}"
        try:
            return bool(np.dtype(self.kind) == other)
        except TypeError:  # what numpy takes for no dtype
            return False

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        raise UntraceableError("a dtype as a key")


class Traced(Answering):
    """A number or a condition over pairs. kind: the name of its dtype, "" for an int of Python. root: "q", "k", "b" or
    "h" for an argument of the function itself.

    in_rows: in a trace of several rows a number that each of them has; it becomes a function of an index beside one.
    twins: values that are one object with it in one library and copies of it in another. lost: whether a twin was
    changed, so that nobody knows what this is.
    """

    __slots__ = ("form", "in_rows", "kind", "lost", "root", "trace", "twins")

    def __init__(self, trace: Trace, form: Number | Formula, kind: str, root: str = "") -> None:
        self.trace, self.form, self.kind, self.root = trace, form, kind, root
        self.in_rows: Ints | None = None
        self.twins: list[Traced] = []
        self.lost = False

    @property
    def is_condition(self) -> bool:
        return self.kind == "bool"

    @property
    def dtype(self) -> Dtype:
        return Dtype(self.kind)

    @property
    def device(self) -> Any:
        torch = sys.modules.get("torch")
        return torch.device("cpu") if torch else "cpu"

    def operate(self, name: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """One operation, whoever asked for it."""
        from weft.recognition.operations import perform

        return perform(self.trace, name, args, options)

    def knows(self, name: str) -> bool:
        from weft.recognition.operations import function_of

        return function_of(name) is not None

    def end(self, what: str) -> NoReturn:
        raise UntraceableError(what)

    def miss(self, name: str) -> NoReturn:
        note(self)
        self.end(f"`{name}`")

    def forbid_change(self) -> None:
        """Raise if this is an argument of the function, or may be one, or is a plain number to each of several rows."""
        if self.root:
            raise InputError(
                "recognize(function)", f"the function changes its argument {ROOTS[self.root]} in place",
                "write `x = x + 1`, not `x += 1`: whoever calls the function still needs its arguments",
            )  # fmt: skip
        if any(twin.root for twin in self.twins):
            raise UntraceableError("a change in place of what may be an argument")
        if self.in_rows is not None:
            raise UntraceableError(NOT_COMMON)

    def become(self, found: Traced) -> Traced:
        """Have another value from now on, as every other name of this object has."""
        for twin in self.twins:
            twin.lost = twin is not self
        self.form, self.in_rows = found.form, found.in_rows
        return self

    def __bool__(self) -> bool:
        return bool(self._plain("a branch on its value (`if`, `and`, `or`, `not`, or a chained comparison)"))

    def __index__(self) -> int:
        return self._plain("its value as a plain number (int(), range(), a list index)")

    __int__ = __index__

    def item(self) -> int:
        return self._plain("its value as a plain number (item())")

    def _plain(self, use: str) -> int:
        """Its value, which a batch row or a head has in every trace, and what depends on q or k has not."""
        note(self)
        value = known(self)
        if value is None:
            raise UntraceableError(use)
        return value

    def __getitem__(self, index: Any) -> Any:
        if index is ... or index == ():
            return self
        raise UntraceableError("an index into it")

    def __setitem__(self, index: Any, value: Any) -> None:
        self.forbid_change()
        raise UntraceableError("an assignment to a part of it")


def number(x: Traced) -> Number:
    """Its value; 1 and 0 for a condition."""
    if isinstance(x.form, tuple):
        return x.form
    return forms.where(x.form, x.trace.constant(1), x.trace.constant(0))


def condition(x: Traced) -> Formula:
    """Its truth; a number is true where it is not 0."""
    if not isinstance(x.form, tuple):
        return x.form
    return forms.negated(forms.compared(x.form, x.trace.constant(0), forms.ZERO))


def known(x: Traced) -> int | None:
    """Its value if it is the same for all pairs."""
    if isinstance(x.form, Always):
        return int(x.form.holds)
    if isinstance(x.form, tuple) and len(x.form) == 1 and not x.form[0][1].axis:
        return x.form[0][1].f.value + x.form[0][1].g.value
    return None


def beside(values: Sequence[Any]) -> list[Any]:
    """Operands, numbers of each row as functions of the index that the others are functions of: q if of both."""
    traced = [x for x in values if isinstance(x, Traced)]
    if all(x.in_rows is None for x in traced):
        return list(values)
    axes = {a for x in traced if isinstance(x.form, tuple) for _, term in x.form for a in term.axis}
    if not axes or any(x.kind != "int64" for x in traced):
        raise UntraceableError(NOT_COMMON)
    return [_on_axis(x, max(axes)) if isinstance(x, Traced) and x.in_rows is not None else x for x in values]


def _on_axis(x: Traced, axis: str) -> Traced:
    """A number of each row as a function of one index."""
    assert x.in_rows is not None  # the caller has seen to that
    x.trace.only_reads &= not x.root
    return Traced(x.trace, x.trace.on_axis(axis, x.trace.by_row(axis, x.in_rows)), x.kind)


def note(x: Traced, length: int | None = None) -> None:
    """Remember that the batch row or the head matters, and the length of a table that it indexes."""
    if x.lost:
        raise UntraceableError("a value that was changed in place under another name, or was not")
    if x.in_rows is not None:
        raise UntraceableError(NOT_COMMON)
    if x.root in ("b", "h"):
        x.trace.used.setdefault(x.root, []).extend([] if length is None else [length])
        x.trace.only_reads &= length is not None
