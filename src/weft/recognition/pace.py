"""What an evaluation will take, said before it starts, and how far it is: on a terminal, for whoever waits there."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TextIO

from weft.errors import InputError
from weft.outside import shown
from weft.pattern import crossing

SHORT = 1.0  # seconds up to which nothing is said
LEAST = 0.02  # seconds after which pairs evaluated so far tell the price of all
SEARCH = 6e-9  # seconds that a search takes for a pair, as bits, measured on one core
MATRICES = 12  # matrices of bits that it keeps at a time
BAR = 24  # characters
OFTEN = 0.1  # seconds between two drawings


class TooSlowError(InputError):
    """An evaluation would take longer than it may."""


@dataclass
class Pace:
    """An evaluation of so many pairs, which somebody asked for. limit: seconds that it may take, None for any."""

    asked: str
    pairs: int
    limit: float | None = None
    nbytes: int = 0
    done: int = 0
    begun: float = field(default_factory=time.perf_counter)
    drawn: float = 0.0
    told: bool = False

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.perf_counter() - self.begun

    def step(self, pairs: int) -> None:
        """So many more pairs are evaluated. Raises TooSlowError where all would take longer than the limit, or longer
        than a second where nobody sees it.
        """
        self.done += pairs
        spent = self.seconds
        if self.limit is not None and spent > self.limit:
            raise self._refused(f"it has taken {spent:.1f} s for {self.done / self.pairs:.0%} of its pairs")
        if spent < LEAST or not self.done:
            return
        whole = spent * self.pairs / self.done + self.pairs * SEARCH
        if not self.told:
            self.told = True
            if whole > (self.limit or (SHORT if unseen() else whole)):
                raise self._refused(f"{self.pairs:,} pairs take about {whole:.1f} s and {self._bytes} here")
        stream = terminal()
        if stream is not None and whole > SHORT and spent - self.drawn > OFTEN:
            self.drawn = spent
            share = self.done / self.pairs
            filled = "#" * int(share * BAR)
            left = max(0.0, whole - spent)
            text = f"{self.asked}: [{filled:{BAR}}] {share:4.0%}, {left:.1f} s left of {whole:.1f} s, {self._bytes}"
            stream.write(f"\r{shown(text)}")
            stream.flush()

    @property
    def _bytes(self) -> str:
        return f"{self.nbytes / 1e9:.1f} GB" if self.nbytes >= 1e8 else f"{self.nbytes / 1e6:.0f} MB"

    def _refused(self, wrong: str) -> TooSlowError:
        longer = "a larger limit=" if self.limit is not None else "limit=SECONDS, if this thread may take that long"
        return TooSlowError(
            self.asked, f"{wrong}, since it must be evaluated pair by pair",
            f"pass {longer}, or write the mask with what can be traced",
        )  # fmt: skip

    def close(self) -> None:
        """Wipes the line."""
        stream = terminal()
        if self.drawn and stream is not None:
            stream.write(f"\r{'':100}\r")
            stream.flush()


def unseen() -> bool:
    """Whether this is a thread that nobody watches."""
    return threading.current_thread() is not threading.main_thread()


def terminal() -> TextIO | None:
    """Where to draw: standard error of a terminal, in the main thread."""
    seen = sys.stderr is not None and sys.stderr.isatty() and not unseen()
    return sys.stderr if seen else None


_pace: ContextVar[Pace | None] = ContextVar("pace", default=None)


@contextmanager
def evaluating(asked: str, pairs: int, limit: float | None) -> Iterator[Pace]:
    """While it lasts, `step` counts pairs of one evaluation. Refused while a compiler traces the caller."""
    if crossing.tracing():
        raise InputError(
            asked, "a function is being compiled, and the mask must be evaluated pair by pair",
            "write `pattern = weft.recognize(...).pattern` before the compiled function, and use `pattern` in it",
        )  # fmt: skip
    pace = Pace(asked, max(1, pairs), limit, nbytes=MATRICES * pairs // 8)
    token = _pace.set(pace)
    try:
        yield pace
    finally:
        _pace.reset(token)
        pace.close()


def spare(pairs: int) -> None:
    """So many pairs need no evaluation."""
    pace = _pace.get()
    if pace is not None:
        pace.pairs = max(1, pace.pairs - pairs)


def step(pairs: int) -> None:
    """So many more pairs are evaluated; see `Pace.step`."""
    pace = _pace.get()
    if pace is not None:
        pace.step(pairs)
