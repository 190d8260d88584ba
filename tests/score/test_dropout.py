"""The law of dropout: known words of Philox, shares within five standard deviations, and eight pairs a call."""

import math

import numpy as np
import pytest

from weft.score import dropout
from weft.score.dropout import Dropout

SIDE = 4096  # 2^24 pairs


def pairs(rate, seed=12345, b=0, h=0, first=(0, 0), side=SIDE):
    q, k = (np.arange(side, dtype=np.int64) + at for at in first)
    return np.concatenate([Dropout(rate, seed).kept(b, h, rows[:, None], k) for rows in np.array_split(q, 16)])


def within(count, total, share):
    """Whether a count of successes lies within five standard deviations of its mean."""
    return abs(count - total * share) <= 5 * math.sqrt(total * share * (1 - share))


def test_known_words():
    """Random123's vectors of Philox4x32 with 7 rounds, of all zeros and of all ones."""
    ones = 0xFFFFFFFF
    assert [int(x) for x in dropout.philox((0, 0, 0, 0), (0, 0))] == [0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48]
    assert [int(x) for x in dropout.philox((ones,) * 4, (ones, ones))] == [
        0x5207DDC2,
        0x45165E59,
        0x4D8EE751,
        0x8C52F662,
    ]


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_shares(rate):
    kept = pairs(rate)
    share = 1 - dropout.threshold(rate) / dropout.STEPS
    assert within(kept.sum(), kept.size, share)
    for axis in (0, 1):
        counts = kept.sum(axis=axis)
        deviations = (counts - SIDE * share) / math.sqrt(SIDE * share * (1 - share))
        assert abs(deviations).max() < 6  # the largest of 4096 deviates beyond 5 about once in 400 runs
        assert abs((deviations**2).mean() - 1) < 5 * math.sqrt(2 / SIDE)


def test_neighbours_are_independent():
    """Of each kind of 2x2 square, and of pairs at the distances that share a call of Philox."""
    kept = pairs(0.5)
    for dq, dk in [(0, 1), (1, 0), (1, 1), (0, 8), (8, 0), (8, 8), (0, 9), (8, 1), (16, 0), (0, 16)]:
        a, b = kept[: SIDE - dq, : SIDE - dk], kept[dq:, dk:]
        assert within((a == b).sum(), a.size, 0.5), (dq, dk)
    square = kept[:-1:2, :-1:2] * 8 + kept[:-1:2, 1::2] * 4 + kept[1::2, :-1:2] * 2 + kept[1::2, 1::2]
    counts = np.bincount(square.reshape(-1), minlength=16)
    assert all(within(count, square.size, 1 / 16) for count in counts)


def test_heads_batch_rows_and_seeds_are_independent():
    kept = pairs(0.5, side=1024)
    for other in ({"h": 1}, {"b": 1}, {"seed": 12346}, {"seed": 12345 + (1 << 32)}, {"first": (0, 1024)}):
        same = (kept == pairs(0.5, **{"side": 1024, **other})).sum()
        assert within(same, kept.size, 0.5), other


def test_a_pair_depends_on_itself_alone():
    whole = pairs(0.3, side=64)
    part = Dropout(0.3, 12345).kept(0, 0, np.array([5, 40, 17])[:, None], np.array([63, 0, 9, 33]))
    np.testing.assert_array_equal(part, whole[[5, 40, 17]][:, [63, 0, 9, 33]])


def test_one_call_serves_eight_pairs():
    q, k = np.indices((32, 32))
    groups = dropout.group(q.astype(np.uint32), 0), dropout.group(k.astype(np.uint32), 1)
    _, counts = np.unique(np.stack(groups).reshape(2, -1), axis=1, return_counts=True)
    assert set(counts) == {8}


def test_rates():
    assert dropout.threshold(0.0) == 0
    assert dropout.threshold(0.25) == 1 << 14
    assert dropout.threshold(1 - 1e-9) == dropout.STEPS - 1  # something is kept
    assert dropout.scale(0.25) == 4 / 3
    kept = pairs(0.25, side=512)
    np.testing.assert_array_equal(
        Dropout(0.25, 12345).factors(0, 0, np.arange(512)[:, None], np.arange(512)), kept * (4 / 3)
    )
