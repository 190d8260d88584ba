"""Which program takes which block of a kernel by warp groups.

A program lives as long as the launch and takes a block a round. A round is the next blocks in their order, one for each
program. Heads stay one after the other, since blocks of a head have keys in common. The longest block of a round goes
to the program that has done least, where that helps. Otherwise some programs may meet long blocks alone. A window
beside every 128th key over 16,384 queries is an example: every 132nd block lies in the same half of them. The busiest
program then does 1.09 of the mean.

Blocks of causal attention differ far more. At wide heads the longest blocks of a few heads come first. Then blocks of
one round are exchanged for as long as the busiest program gains: 1.03 of the mean becomes 1.003.

Programs whose blocks add to dQ claim them (`hopper.ops.scheduler.Claims`). So all work on the same few heads at a
time, whose Q, dO and dQ are in the second-level cache. Programs that have lists of their own drift apart, and
meet many heads at a time (benchmarks/notes/warp-groups.md, W111). The last blocks are claimed longest first, so that
programs end together.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from weft.kernels.gpu.tables.batches import Wave
from weft.pattern.bounds import Ints
from weft.planning.families.hopper import SUMS, has_row_bounds, resident

MOST = 1 << 14  # blocks, with more of which no program has few
HEADS = 4  # whose blocks are sorted together: their keys and values stay in the second-level cache
EXCHANGES = 1000  # at most; some 200 are enough for 2,048 blocks
GAIN = 0.98  # of the busiest program's time; blocks that are alike stay in order
LAST = 5, 4  # what a program does of the last blocks, in the longest one: 5/4


def in_turns(wave: Wave, programs: int) -> Wave:
    """A wave of warp groups with the list of its blocks, (item, member) each, of which a program takes every
    `programs`th.
    """
    if not wave.kind.tiling.groups or wave.work is None or not programs:
        return wave
    programs *= resident(wave.kind.tiling)
    found = np.indices((wave.items, wave.members))
    blocks = (found if wave.skewed else found.swapaxes(1, 2)).reshape(2, -1).T
    apart = has_row_bounds(wave.kind.tiling, wave.kind.rank) and wave.work.min() != wave.work.max()
    claimed = wave.kind.tiling in SUMS
    if claimed and apart:
        blocks = blocks[_last_by_length(wave.work[blocks[:, 0]], programs)]
    elif apart:
        blocks = blocks[np.lexsort((blocks[:, 1], -wave.work[blocks[:, 0]], blocks[:, 1] // HEADS))]
    if programs < len(blocks) <= MOST and not claimed:
        time = wave.work[blocks[:, 0]]
        turns = _shared_out(time, programs)
        if apart:
            turns = _exchanged(turns, time, programs)
        if _busiest(time[turns], programs) < GAIN * _busiest(time, programs):
            blocks = blocks[turns]
    words = np.concatenate([wave.words, blocks.reshape(-1).astype(np.int32)])
    return replace(wave, words=words, blocks_at=int(wave.words.size))


def _last_by_length(time: Ints, programs: int) -> Ints:
    """The numbers of blocks that take so long, in their order, but the last ones longest first."""
    left = np.cumsum(time[::-1])[::-1]  # from each block on
    last = int((LAST[1] * left > LAST[0] * programs * time.max()).sum())
    late = last + np.argsort(-time[last:], kind="stable")
    return np.concatenate([np.arange(last), late])


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


def _exchanged(blocks: Ints, time: Ints, programs: int) -> Ints:
    """The same numbers, once the busiest program has exchanged blocks with others, each for one of the same round."""
    whole = blocks.size // programs * programs
    order = blocks[:whole].reshape(-1, programs).copy()
    takes = time[order]
    done = takes.sum(0)
    done[: blocks.size - whole] += time[blocks[whole:]]
    for _ in range(EXCHANGES):
        busy = int(done.argmax())
        saved = takes[:, busy, None] - takes  # by an exchange with each other program, in each round
        after = np.maximum(done[busy] - saved, done + saved)
        row, other = divmod(int(after.argmin()), programs)
        if after[row, other] >= done[busy]:
            break
        done[busy], done[other] = done[busy] - saved[row, other], done[other] + saved[row, other]
        for table in (order, takes):
            table[row, [busy, other]] = table[row, [other, busy]]
    return np.concatenate([order.reshape(-1), blocks[whole:]])


def _busiest(time: Ints, programs: int) -> float:
    """The time of the program that has most to do."""
    return float(np.bincount(np.arange(time.size) % programs, time).max())
