"""Labels of tokens that are cells of a grid: window numbers of an image, told as contiguous labels of each axis."""

from __future__ import annotations

import numpy as np

from weft.pattern.bounds import Ints

MAX_AXES = 3


def axes_of_labels(ids: Ints) -> list[Ints] | None:
    """For each axis of a grid the lengths of its runs of equal labels. Two tokens have one label iff their coordinates
    have one on every axis. None if there is no grid of at most MAX_AXES axes. Fewest axes first.

    >>> [x.tolist() for x in axes_of_labels(np.array([0, 0, 1, 1, 0, 0, 1, 1]))]
    [[2], [2, 2]]
    """
    for rank in range(1, MAX_AXES + 1):
        found = _axes(np.unique(ids, return_inverse=True)[1].reshape(-1), rank)
        if found is not None:
            return found
    return None


def _axes(labels: Ints, rank: int) -> list[Ints] | None:
    """The same of labels 0, 1, ... on exactly `rank` axes."""
    changes = np.flatnonzero(labels[1:] != labels[:-1]) + 1
    distinct = int(labels.max(initial=-1)) + 1
    if rank == 1:
        whole = changes.size + (labels.size > 0) == distinct
        return [np.diff(np.concatenate([[0], changes, [labels.size]]))] if whole else None
    for width in _divisors(labels.size):
        split = _split(labels, width, distinct)
        inner = None if split is None else _axes(split[1], 1)
        outer = None if split is None or inner is None else _axes(split[0], rank - 1)
        if outer is not None and inner is not None:
            return [*outer, *inner]
    return None


def _split(labels: Ints, width: int, distinct: int) -> tuple[Ints, Ints] | None:
    """Labels of rows and of columns whose pairs are the labels, on rows of `width` tokens."""
    grid = labels.reshape(-1, width)
    rows, columns = (np.unique(side, return_inverse=True)[1].reshape(-1) for side in (grid[:, 0], grid[0]))
    wide = int(columns.max()) + 1
    if (int(rows.max()) + 1) * wide != distinct:
        return None
    named = np.empty(distinct, np.int64)
    cell = rows[:, None] * wide + columns
    named[cell] = grid
    return (rows, columns) if np.array_equal(named[cell], grid) and np.unique(named).size == distinct else None


def _divisors(n: int) -> list[int]:
    """Without 1 and n, the shortest first."""
    small = [d for d in range(2, int(n**0.5) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})
