"""Queries and keys that have numbers: those with one number see each other. Runs of tokens become documents."""

from __future__ import annotations

import numpy as np

from weft.pattern.algebra import Pattern
from weft.pattern.bounds import Ints
from weft.pattern.library import documents

Runs = tuple[Ints, Ints]  # the number of each run of tokens, and how many tokens it has


def grouped(ids: Ints, key_ids: Ints) -> Pattern:
    """ids (M,) == key_ids (N,), as documents where the tokens of every number are one run, in one order on both sides.

    Tokens whose number the other side has not see nothing, and are seen by nothing.
    """
    queries, keys = _runs(ids), _runs(key_ids)
    both = np.intersect1d(queries[0], keys[0])
    live, live_keys = (side[0][np.isin(side[0], both)] for side in (queries, keys))
    if not both.size or live.size != both.size or not np.array_equal(live, live_keys):
        return documents(ids=ids, key_ids=key_ids)
    if np.array_equal(queries[1], keys[1]) and queries[1].size == keys[1].size == both.size:
        return documents(queries[1])
    lengths, key_lengths = _paired(queries, keys, set(both.tolist()))
    return documents(lengths, key_lengths=key_lengths)


def _runs(ids: Ints) -> Runs:
    if not ids.size:
        return ids, ids
    first = np.append(0, np.flatnonzero(np.diff(ids)) + 1)
    return ids[first], np.diff(np.append(first, ids.size))


def _paired(queries: Runs, keys: Runs, both: set[int]) -> tuple[list[int], list[int]]:
    """Lengths of documents: a run that the other side has not is one without queries, or without keys."""
    lengths, key_lengths, at = [], [], 0
    of_keys = list(zip(keys[0].tolist(), keys[1].tolist(), strict=True))
    for number, length in zip(queries[0].tolist(), queries[1].tolist(), strict=True):
        if number not in both:
            lengths.append(length)
            key_lengths.append(0)
            continue
        while of_keys[at][0] != number:
            lengths.append(0)
            key_lengths.append(of_keys[at][1])
            at += 1
        lengths.append(length)
        key_lengths.append(of_keys[at][1])
        at += 1
    for _, length in of_keys[at:]:
        lengths.append(0)
        key_lengths.append(length)
    return lengths, key_lengths
