"""Which program takes which block of a kernel by warp groups.

A program lives as long as the launch and takes a block a round. A round is as many blocks as there are programs, one
after the other: heads stay one after the other, since blocks of a head have keys in common. Of a round's blocks the
longest goes to who has done least, where that helps. Without it programs at the right distance meet long blocks alone:
of a window beside every 128th key over 16,384 queries every 132nd block lies within the same half of them, and the
busiest program does 1.09 of the mean.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from weft.kernels.gpu.tables.batches import Wave
from weft.pattern.bounds import Ints

MOST = 1 << 14  # blocks, with more of which no program has few
GAIN = 0.98  # of the busiest program's time; blocks that are alike stay in order


def in_turns(wave: Wave, programs: int) -> Wave:
    """A wave of warp groups with the list of its blocks, (item, member) each, of which a program takes every
    `programs`th.
    """
    if not wave.kind.tiling.groups or wave.work is None or not programs:
        return wave
    found = np.indices((wave.items, wave.members))
    blocks = (found if wave.skewed else found.swapaxes(1, 2)).reshape(2, -1).T
    if programs < len(blocks) <= MOST:
        time = wave.work[blocks[:, 0]]
        turns = _shared_out(time, programs)
        if _busiest(time[turns], programs) < GAIN * _busiest(time, programs):
            blocks = blocks[turns]
    words = np.concatenate([wave.words, blocks.reshape(-1).astype(np.int32)])
    return replace(wave, words=words, blocks_at=int(wave.words.size))


def _shared_out(time: Ints, programs: int) -> Ints:
    """The numbers of blocks that take so long, in the order in which programs take them."""
    blocks, done = np.arange(time.size), time[:programs].copy()
    begins = list(range(programs, time.size, programs))
    for begin in begins[-1:] + begins[:-1]:  # first the last round, in which only some programs have a block
        end = min(begin + programs, time.size)
        longest = begin + np.argsort(-time[begin:end], kind="stable")
        least = np.argsort(done[: end - begin], kind="stable")
        blocks[begin + least] = longest
        done[least] += time[longest]
    return blocks


def _busiest(time: Ints, programs: int) -> float:
    """The time of the program that has most to do."""
    return float(np.bincount(np.arange(time.size) % programs, time).max())
