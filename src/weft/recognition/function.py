"""Mask functions: traced into formulas and proven by what they say; evaluated where the trace ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from weft import memory
from weft.errors import InputError, WeftError
from weft.pattern import pieces
from weft.pattern.algebra import Pattern
from weft.pattern.integers import scalar
from weft.recognition import conversions, extremes, names, novalue, tables
from weft.recognition.bitrows import BitRows
from weft.recognition.choose import best, looked_at
from weft.recognition.evaluate import not_boolean, rows_of, used_by
from weft.recognition.executed import otherwise
from weft.recognition.forms import Always, Formula
from weft.recognition.hosted import hosted
from weft.recognition.mask import described, spread
from weft.recognition.operations import as_table
from weft.recognition.pace import TooSlowError, evaluating
from weft.recognition.periodic import NoFormError
from weft.recognition.remember import remembering
from weft.recognition.result import Recognized
from weft.recognition.rows import in_rows
from weft.recognition.spans import Size
from weft.recognition.tables import Reads, reads, same_kind, watched
from weft.recognition.terms import without_idle_bounds
from weft.recognition.tracer import NeedLengthError, ReadByRowError, Trace, Traced, note
from weft.recognition.watchdog import ended
from weft.recognition.words import reworded
from weft.tracing.capture import indices, name_of
from weft.tracing.place import place_of

KNOWN = (conversions, extremes, tables)  # imported for the operations that they enter
MAX_TERMS = 4096  # conjunctions that a closed form may fall into
RETRIES = 8  # tables of different lengths that are met one after the other
LEAST = 2  # matrices of bits that an evaluation holds at the least
KINDS = 16  # kinds of reads that rows and heads are found again by


@dataclass(frozen=True)
class Asked:
    """A function and where it is asked for; None: not said."""

    function: Callable[..., Any]
    names: tuple[str, ...]
    size: tuple[int, int] | None
    batch: int | None
    heads: int | None

    @property
    def text(self) -> str:
        return f"recognize({name_of(self.function)})"


def recognize_function(
    function: Any,
    *,
    size: Any = None,
    batch: int | None = None,
    heads: int | None = None,
    generalize: bool = False,
    limit: float | None = None,
) -> Recognized:
    """The pattern of a mask function of (q, k) or (b, h, q, k), True = may attend.

    The function is called with objects that stand for int64 indices. What it makes of them is rewritten by identities,
    which proves the pattern at every length. A function that reads a table proves the lengths of the table only. Its
    pattern raises LengthError at others unless generalize=True. The function is also executed at some pairs, and what
    it answers otherwise there is no closed form. The pattern keeps what tables say now; recognize again what changes.
    batch, heads: how many batch rows and heads there are, if the function tells them apart. q counts from the first
    query on, also where M != N: the pattern declares "top-left" (at M == N it may leave it open).

    Where the trace ends it is evaluated at size=(M, N), for at most `limit` seconds. On a terminal a bar says what that
    takes. A thread that is not the main one is refused what takes more than a second, unless it passes a limit. In a
    function that is being compiled it is refused. A function that does not return is ended at the limit. Raises
    InputError; also where the function has no value at some pair (a division by 0, a logarithm of 0, an index out of
    range). An index below 0 counts from the end of its table.
    """
    batch, heads = scalar(batch), scalar(heads)
    asked = Asked(hosted(function), indices(function), _checked_size(function, size), batch, heads)
    for name, count in (("batch", batch), ("heads", heads)):
        if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
            raise InputError(asked.text, f"{name}={count!r} is no number of them", f"pass {name} as an int from 1 on")
    with ended(asked.text, _seconds(asked, limit)):
        return _recognized(asked, generalize, limit)


def _recognized(asked: Asked, generalize: bool, limit: float | None) -> Recognized:
    """By what it says, or where that ends pair by pair."""
    try:
        with remembering():
            return _symbolic(asked, generalize)
    except novalue.NoValue as error:
        raise novalue.refusal(asked.text, error, None) from None
    except NoFormError as ended:
        where = place_of(ended)
        reason = f"tracing ended {where}at {ended}" if where else f"no closed form was found: {ended}"
    if asked.size is None:
        raise InputError(
            asked.text, reason, "pass size=(M, N), and it is evaluated there, or write it with what can be traced"
        )
    pairs = asked.size[0] * asked.size[1]
    memory.check(
        f"{asked.text} at {asked.size[0]} x {asked.size[1]}, pair by pair, since {reason}", LEAST * pairs // 8,
        "write it with what can be traced, which evaluates no pair, or pass a smaller size", InputError,
    )  # fmt: skip
    with evaluating(asked.text, pairs * (asked.batch or 1) * (asked.heads or 1), limit):
        return _evaluated(asked, reason, generalize)


def _seconds(asked: Asked, limit: Any) -> float | None:
    if limit is None:
        return None
    if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not limit > 0:
        raise InputError(asked.text, f"limit={limit!r} is no number of seconds", "pass limit as seconds above 0")
    return float(limit)


def _checked_size(function: Any, size: Any) -> tuple[int, int] | None:
    if size is None:
        return None
    lengths = tuple(size) if isinstance(size, (tuple, list)) else (size, size)
    good = len(lengths) == 2 and all(isinstance(x, (int, np.integer)) and not isinstance(x, bool) for x in lengths)
    if not good or min(lengths) < 0:
        raise InputError(f"recognize({name_of(function)}, size={size!r})", "it is no pair of lengths", "pass (M, N)")
    return int(lengths[0]), int(lengths[1])


# ---- by what it says ------------------------------------------------------------------------------------------------
def _symbolic(asked: Asked, generalize: bool) -> Recognized:
    """Traced once for each batch row and head that matters, and again where a table turns out to bound a length."""
    traced = watched(asked.function)
    trace = Trace()
    for _ in range(RETRIES):
        try:
            formulas = _formulas(asked, traced, trace)
            break
        except NeedLengthError as need:
            trace = _bounded(asked, trace, need.limits)
    else:
        raise NoFormError("its tables leave no length that fits all of them")
    size = _lengths(asked, trace)
    patterns: dict[Pattern, int] = {}
    which = np.empty(formulas.shape, np.int64)
    lowered: dict[int, Pattern] = {}
    for at, formula in np.ndenumerate(formulas):
        if id(formula) not in lowered:  # rows that read alike share their formula
            lowered[id(formula)] = best(formula, size)
        which[at] = patterns.setdefault(lowered[id(formula)], len(patterns))
    if len(patterns) == 1:
        other = looked_at(formulas.flat[0], next(iter(patterns)), size)
        if other is not None and size.m is not None and size.n is not None:
            why = f"a shorter form than what {name_of(asked.function)} computes, among all its pairs"
            at = (size.m, size.n)
            return Recognized(pieces.sized(reworded(other, at[1]), *at), True, f"evaluated at {at}", why, *at)
    most = max(map(names.terms, patterns))
    if most > MAX_TERMS:
        raise NoFormError(f"it falls into up to {most} terms")
    pattern = spread(list(patterns), which)
    if not size.square or "top-left" in pattern.alignments():  # as grids do: no part is left to be aligned otherwise
        pattern = pattern.filled("top-left")
    batch, heads = (which.shape[i] if name in asked.names else 1 for i, name in enumerate("bh"))
    pattern = reworded(pattern, size.n)
    unlike = otherwise(asked.function, asked.names, pattern, (size.m, size.n), (batch, heads))
    if unlike:
        raise NoFormError(f"{unlike}, and traced otherwise")
    why = f"closed form, by rewriting what {name_of(asked.function)} computes"
    if trace.m is not None or trace.n is not None:
        pattern, why = _bound_to(pattern, size, why, generalize)
    return Recognized(pattern, True, "symbolic", why, size.m, size.n, asked.size)


def _bound_to(pattern: Pattern, size: Size, why: str, generalize: bool) -> tuple[Pattern, str]:
    """What a function with tables proves: these lengths."""
    assert size.m is not None and size.n is not None  # tables have lengths
    if generalize:
        return pattern, f"{why}; used at other lengths on your word: its tables hold {size.m} x {size.n}"
    pattern = reworded(without_idle_bounds(pattern, size.m, size.n), size.n)
    return pieces.sized(pattern, size.m, size.n), f"{why}; its tables hold for {size.m} x {size.n} only"


def _formulas(asked: Asked, function: Callable[..., Any], trace: Trace) -> np.ndarray:
    """(batch rows, heads) of formulas; one where no run looked at either."""
    try:
        first = _formula(asked, function, trace)
    except ReadByRowError as several:
        together = _together(asked, function, trace, several)
        if together is not None:
            return together
        trace = Trace(trace.m, trace.n, lines=trace.lines, alone=True)
        first = _formula(asked, function, trace)
    return _each(asked, function, trace, first)


class Done:
    """The formulas of finished runs, found again by batch row and head, or by what a run for them would read.

    Runs that read the same tables at the same places are of one kind. Only some kinds are looked through: a function
    that makes its tables anew has one for each run.
    """

    def __init__(self) -> None:
        self.runs: list[Trace] = []
        self.at: dict[tuple[int, ...], Formula] = {}
        self.kinds: list[tuple[Trace, dict[bytes, list[tuple[Reads, Formula]]]]] = []

    def add(self, run: Trace, formula: Formula) -> Formula:
        self.runs.append(run)
        self.at[tuple(run.at.values())] = formula
        read = reads(run, run.at)
        if read is not None:
            known = next((known for first, known in self.kinds if same_kind(first, run)), None)
            if known is None:
                known = {}
                self.kinds += [(run, known)] if len(self.kinds) < KINDS else []
            known.setdefault(read.some, []).append((read, formula))
        return formula

    def find(self, at: dict[str, int]) -> Formula | None:
        """The formula of a batch row and head; None if nothing done is known to be the same."""
        found = self.at.get(tuple(at.values()))
        for first, known in self.kinds if found is None else ():
            read = reads(first, at)
            alike = () if read is None else known.get(read.some, ())
            found = next((formula for other, formula in alike if other.same(read)), None)
            if found is not None:
                self.at[tuple(at.values())] = found
                break
        return found


def _each(asked: Asked, function: Callable[..., Any], first: Trace, formula: Formula) -> np.ndarray:
    """The formulas of all batch rows and heads, after a first run. Any later run may be the first to look at h."""
    used: dict[str, list[int]] = {}
    _enter(used, first.used)
    done = Done()
    done.add(first, formula)
    while True:
        formulas, before = np.empty(_counts(asked, used), object), len(done.runs)
        for index in np.ndindex(*formulas.shape):
            at = dict(zip("bh", index, strict=True))
            found = done.find(at)
            if found is None:
                run = first.run_for(at)
                found = done.add(run, _formula(asked, function, run))
            formulas[index] = found
        new = [_enter(used, run.used) for run in done.runs[before:]]
        if not any(new):
            return formulas


def _enter(used: dict[str, list[int]], more: dict[str, list[int]]) -> bool:
    """Add what else was looked at; whether any of it is new."""
    fresh = {name: set(lengths).difference(used.get(name, ())) for name, lengths in more.items()}
    new = any(lengths or name not in used for name, lengths in fresh.items())
    for name, lengths in fresh.items():
        used.setdefault(name, []).extend(lengths)
    return new


def _together(asked: Asked, function: Callable[..., Any], trace: Trace, several: ReadByRowError) -> np.ndarray | None:
    """The formulas of all batch rows, or heads, in one run; None where not only tables tell them apart."""
    count = _count(asked, {several.root: [several.count]}, several.root)
    rows = [{"b": 0, "h": 0} | {several.root: i} for i in range(count)]
    with suppress(NoFormError, NeedLengthError, WeftError):
        run = trace.stacked(tuple(rows))
        found = list(_once_each(run, rows, in_rows(_formula(asked, function, run), count)))
        counts = _counts(asked, run.used)
        formulas = np.empty(count, object)
        formulas[:] = found
        return formulas.reshape(counts) if counts == [count if name == several.root else 1 for name in "bh"] else None
    return None


def _once_each(run: Trace, rows: list[dict[str, int]], found: list[Formula]) -> Iterator[Formula]:
    """The formulas of rows that were traced together, one for all that read the same."""
    done: list[tuple[Reads, Formula]] = []
    for at, formula in zip(rows, found, strict=True):
        read = reads(run, at)
        same = next((old for other, old in done if other.same(read)), None)
        if same is None and read is not None:
            done.append((read, formula))
        yield formula if same is None else same


def _formula(asked: Asked, function: Callable[..., Any], trace: Trace) -> Formula:
    """What the function returns for objects that stand for its indices."""
    try:
        with novalue.strictly():
            found = function(*(trace.argument(name) for name in asked.names))
    except (NoFormError, NeedLengthError, ReadByRowError, WeftError, novalue.NoValue, MemoryError):
        raise
    except ArithmeticError as error:
        raise novalue.NoValue(str(error)).with_traceback(error.__traceback__) from error
    except Exception as error:  # whatever the function raises, or Python and the libraries where they meet a tracer
        raise NoFormError(f"{type(error).__name__}: {error}").with_traceback(error.__traceback__) from error
    if isinstance(found, Traced):
        note(found)
        if isinstance(found.form, tuple):
            raise InputError(*not_boolean(asked.function, "numbers"))
        return found.form
    table = as_table(np.asarray(found) if isinstance(found, bool) else found)
    if table is None or table.size != 1 or table.dtype != np.bool_:
        raise InputError(*not_boolean(asked.function, f"a {type(found).__name__}"))
    return Always(bool(table.reshape(-1)[0]))


def _bounded(asked: Asked, trace: Trace, limits: dict[str, int | None]) -> Trace:
    """The trace again, with the lengths that tables demand; both of a size that was asked, which binds the pattern."""
    if asked.size is not None:
        return Trace(*asked.size, lines=trace.lines)
    lengths = {"q": trace.m, "k": trace.n}
    for axis, limit in limits.items():
        if limit is None:
            raise NoFormError("a table is read by an expression that does not tell its length")
        lengths[axis] = min(x for x in (limit, lengths[axis]) if x is not None)
    return Trace(lengths["q"], lengths["k"], lines=trace.lines)


def _lengths(asked: Asked, trace: Trace) -> Size:
    """Where the pattern holds: the size that was asked, or the lengths of the tables; one for both if one has none."""
    if asked.size is not None:
        return Size(*asked.size)
    m, n = trace.m, trace.n
    return Size(n if m is None else m, m if n is None else n)


def _counts(asked: Asked, used: dict[str, list[int]]) -> list[int]:
    return [_count(asked, used, name) for name in ("b", "h")]


def _count(asked: Asked, used: dict[str, list[int]], name: str) -> int:
    """How many batch rows or heads there are to tell apart."""
    if name not in used:
        return 1
    option, given = ("batch", asked.batch) if name == "b" else ("heads", asked.heads)
    lengths = [length for length in used[name] if length > 1] or used[name]
    if given is None and not lengths:
        raise InputError(asked.text, f"its mask depends on {name}", f"pass {option}=, how many there are")
    if given is not None and lengths and given > min(lengths):
        raise InputError(
            asked.text, f"{option}={given}, but a table that {name} indexes has {min(lengths)} rows",
            f"pass {option}={min(lengths)} or less",
        )  # fmt: skip
    return given if given is not None else min(lengths)


# ---- pair by pair ---------------------------------------------------------------------------------------------------
def _evaluated(asked: Asked, reason: str, generalize: bool) -> Recognized:
    """The function at the size asked for, as packed bits, described as masks are."""
    assert asked.size is not None  # the caller has seen to that
    used = used_by(watched(asked.function), asked.names)
    while True:
        counts = _counts(asked, used)
        try:
            found = described(_slices(asked, used, counts), (*counts, *asked.size), generalize=generalize)
        except LookedAtError as late:
            _enter(used, late.used)
        else:
            return replace(found, why=f"{reason}\n         {found.why}")


class LookedAtError(Exception):
    """Internal: a batch row or a head matters after all; `used` as in Trace."""

    def __init__(self, used: dict[str, list[int]]) -> None:
        super().__init__(str(used))
        self.used = used


def _needed(asked: Asked, at: dict[str, Any], unseen: dict[str, Traced]) -> dict[str, list[int]]:
    """Which of b and h the function needs as numbers, where it fails without and does not tell."""
    assert asked.size is not None  # the caller has seen to that
    rows_of(asked.function, asked.names, at, *asked.size)  # says what is wrong, if something else is
    found: dict[str, list[int]] = {}
    for name, value in unseen.items():
        try:
            rows_of(asked.function, asked.names, {**at, name: value}, *asked.size)
        except InputError:
            found[name] = []
    return found or {name: [] for name in unseen}


def _slices(asked: Asked, used: dict[str, list[int]], counts: list[int]) -> Iterator[BitRows]:
    """Every batch row and head. What no pair looked at so far is a traced value, which tells when one does."""
    assert asked.size is not None  # the caller has seen to that
    for index in np.ndindex(*counts):
        at: dict[str, Any] = dict(zip("bh", index, strict=True))
        trace = Trace()
        unseen = {name: trace.argument(name) for name in asked.names if name in at and name not in used}
        try:
            rows = rows_of(asked.function, asked.names, {**at, **unseen}, *asked.size)
        except TooSlowError:
            raise
        except InputError:
            if not unseen:
                raise
            raise LookedAtError(trace.used or _needed(asked, at, unseen)) from None
        if trace.used:
            raise LookedAtError(trace.used)
        yield rows
