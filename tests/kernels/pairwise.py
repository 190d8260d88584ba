"""Pairwise selection: few rows in which every two values of two factors meet at least once; or fewer."""

from itertools import combinations, product
from random import Random


def pairwise(factors, allowed):
    """Rows, as dicts, that cover every allowed pair of values of {name: values}; the same rows every time.

    allowed(row) must hold for complete and for partial rows. Greedy: the first uncovered pair opens a row, then the
    value that covers most joins, factor by factor; ties are drawn, so that values do not keep the same company.
    """
    draw = Random(0)
    names = list(factors)
    missing = {
        ((a, x), (b, y)): None  # a dict, since its order is the same in every process
        for a, b in combinations(names, 2)
        for x, y in product(factors[a], factors[b])
        if allowed({a: x, b: y})
    }
    rows = []
    while missing:
        row = dict(next(iter(missing)))
        for name in names:
            if name not in row:
                row[name] = _best(row, name, factors[name], (missing, allowed, draw))
        row = {name: row[name] for name in names}
        for pair in combinations(row.items(), 2):
            missing.pop(pair, None)
        rows.append(row)
    return rows


def dealt(factors, name, allowed):
    """Rows as `pairwise` over all factors but `name`, whose values are dealt out to them: each joins a row at least."""
    rows = pairwise({other: values for other, values in factors.items() if other != name}, allowed)
    fits = [[value for value in factors[name] if allowed(row | {name: value})] for row in rows]
    used = dict.fromkeys(factors[name], 0)
    found = []
    for row, fit in sorted(zip(rows, fits, strict=True), key=lambda pair: len(pair[1])):  # the pickiest rows first
        value = min(fit, key=used.__getitem__)
        used[value] += 1
        found.append(row | {name: value})
    left = [value for value, count in used.items() if not count]
    return found + [next(row for row in rows if allowed(row | {name: value})) | {name: value} for value in left]


def _best(row, name, values, state):
    missing, allowed, draw = state
    fit = [value for value in draw.sample(values, len(values)) if allowed(row | {name: value})]
    return max(fit, key=lambda value: _gain(row, (name, value), missing))


def _gain(row, new, missing):
    return sum((old, new) in missing or (new, old) in missing for old in row.items())
