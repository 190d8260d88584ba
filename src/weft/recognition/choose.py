"""Which of the forms of a formula is taken: the one that runs as the fewest terms, without a remainder where it can."""

from __future__ import annotations

import numpy as np

from weft.errors import IrregularError
from weft.pattern.algebra import Pattern
from weft.recognition import documents, forms
from weft.recognition.bitrows import BitRows, strips, width
from weft.recognition.breadth import FEW, breadth
from weft.recognition.cells import in_cells
from weft.recognition.forms import Formula
from weft.recognition.lower import lower
from weft.recognition.periodic import NoFormError
from weft.recognition.result import TOLD_AT, Form
from weft.recognition.spans import Size

SMALL = 1 << 18  # pairs up to which a formula without a good form is looked at pair by pair

Quality = tuple[bool, int, int]  # whether there is a remainder, terms, bytes


def best(formula: Formula, size: Size) -> Pattern:
    """The pattern of a formula. NoFormError if no rule gives one."""
    unlike = documents.unlike(formula)
    if unlike is not None:
        return unlike
    reason: NoFormError | None = None
    found: list[Pattern] = []
    for attempt in (lower, in_cells):
        try:
            found.append(attempt(formula, size))
        except NoFormError as error:
            reason = reason or error
        if found and (len(found) > 1 or breadth(found[0]) <= FEW):
            break
    if not found:
        assert reason is not None  # both attempts failed
        raise reason
    return found[0] if len(found) == 1 else min(found, key=lambda pattern: quality(pattern, size))


def looked_at(formula: Formula, pattern: Pattern, size: Size) -> Pattern | None:
    """What a search over all pairs finds where a form has a remainder or many terms, and the size is known and small.
    None where it finds nothing better.
    """
    from weft.recognition.mask import proven

    if size.m is None or size.n is None or not 0 < size.m * size.n <= SMALL or breadth(pattern) <= FEW:
        return None
    known = quality(pattern, size)
    if known[:2] <= (False, FEW):
        return None
    found = proven(bits(formula, size.m, size.n)).pattern
    return found if quality(found, size) < known else None


def bits(formula: Formula, m: int, n: int) -> BitRows:
    """A formula on every pair."""
    words = np.zeros((m, width(n)), np.uint64)
    keys = np.arange(n, dtype=np.int64)[None]
    for a, b in strips(m, 8 * n):
        live = forms.truth(formula, np.arange(a, b, dtype=np.int64)[:, None], keys)
        words[a:b] = BitRows.pack(np.broadcast_to(live, (b - a, n))).words
    return BitRows(words, n)


def quality(pattern: Pattern, size: Size) -> Quality:
    """How a pattern runs, the least being the best: at its size, or at a length where all that it says shows."""
    m, n = (TOLD_AT if length is None else length for length in (size.m, size.n))
    try:
        form = Form.of(pattern.filled("top-left") if m != n else pattern, m, n)
    except IrregularError:
        return True, 1 << 30, 1 << 30
    return form.remainder > 0, form.terms, form.nbytes
