"""In which order a forward by warp groups has its blocks, of which programs take every so-manyth.

Longest first, programs at the right distance meet long blocks alone: of a window beside every 128th key over 16,384
queries every 132nd block lies within the same half of them, and the busiest program does 1.09 of the mean. So orders
that mix long and short are tried, and the one taken whose busiest program is done first. Heads stay one after the
other, since blocks of a head have keys in common.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from weft.kernels.triton.waves import Wave
from weft.pattern.bounds import Ints

GOLDEN = (5**0.5 - 1) / 2
TRIED = 24  # multiples of it
MOST = 1 << 14  # blocks, with more of which no program has few
BESIDE = 1.5  # tiles in whose time a block begins and ends, a guess; with 0.5 or 3.4 strided's blocks stand as they do
GAIN = 0.98  # of the busiest program's time


def in_turns(wave: Wave, programs: int) -> Wave:
    """A wave whose items stand so that programs, each of which takes every `programs`th block, have equal shares."""
    blocks = wave.items * wave.members
    if (
        wave.reach is None
        or wave.place is None
        or wave.work is None
        or wave.skewed
        or not 0 < programs < blocks <= MOST
    ):
        return wave
    time = wave.work + BESIDE
    best = min(_orders(wave.items), key=lambda order: _busiest(time[order], wave.members, programs))
    if _busiest(time[best], wave.members, programs) > GAIN * _busiest(time, wave.members, programs):
        return wave
    begin, record = wave.place.items_at, wave.place.record
    end = begin + wave.items * record
    items = wave.words[begin:end].reshape(wave.items, record)[best]
    words = np.concatenate([wave.words[:begin], items.reshape(-1), wave.words[end:]])
    return replace(wave, words=words, work=wave.work[best])


def _orders(count: int) -> list[Ints]:
    """Orders in which neighbours at any distance lie far apart before, most often."""
    places = np.arange(count)
    turns = (places * (GOLDEN * k % 1.0) % 1.0 for k in range(1, TRIED + 1))
    return [np.argsort(np.argsort(turn, kind="stable"), kind="stable") for turn in turns]


def _busiest(time: Ints, members: int, programs: int) -> float:
    """The time of the program that has most to do."""
    blocks = np.tile(time, members)
    return float(np.bincount(np.arange(blocks.size) % programs, blocks).max())
