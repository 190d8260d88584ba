"""A grid of blocks, run: a team of blocks at a time, from barrier to barrier."""

from collections import deque
from dataclasses import dataclass
from itertools import product

import numpy as np

from . import matrix, moves, scalar
from .formats import type_of
from .memory import Shared
from .parse import Fault
from .table import Table
from .threads import EAGER, WARP, Group

TABLE = Table(scalar.TABLE, moves.TABLE, matrix.TABLE)
FILL = 0x3F  # makes finite numbers: a forward that meets others computes a row again, and rightly
ROWS = 16384  # threads of one team at most: enough to hide numpy's own time, few enough to stay in a CPU's caches


@dataclass(frozen=True)
class Kernel:
    """A program with the bytes of shared memory of a block, and the byte that these begin as."""

    program: object
    shared: int
    fill: int = FILL


class Team:
    """Blocks of one grid. places: (blocks, 3) numbers along its axes. params: name -> number."""

    def __init__(self, kernel, places, grid, memory, params, order):
        self.program, self.grid, self.order = kernel.program, grid, order
        self.places = np.array(places, np.uint32)
        self.memory, self.params = memory, params
        self.shared = Shared(len(places), kernel.shared, kernel.fill)

    def run(self):
        waiting = self._groups()
        while waiting:
            stopped, going = [], deque(waiting)
            while going:
                group = going.popleft()
                waits, parted = group.run(TABLE)
                going.extendleft(reversed(parted))
                stopped += [group] if waits else []
            self._check_all_wait(stopped)
            self.shared.barrier()
            waiting = stopped

    def _groups(self):
        threads = self.program.threads
        if not self.order.warps:
            return [Group(self, 0, threads)]
        return [Group(self, WARP * warp, WARP) for warp in self.order.warps if warp < threads // WARP]

    def _check_all_wait(self, groups):
        count = sum((np.bincount(x.block, minlength=len(self.places)) for x in groups), np.zeros(len(self.places), int))
        if not np.isin(count, (0, self.program.threads)).all():
            raise Fault("some warps of a block have ended, others wait at a barrier")


def launch(kernel, grid, values, memory, order=EAGER):
    """Run all blocks. values: of the kernel's parameters, in order; those that are left out are 0."""
    params = dict(_parameters(kernel.program, values))
    places = [(x, y, z) for z, y, x in product(*map(range, reversed(grid)))]
    at_once = max(1, ROWS // kernel.program.threads)
    with np.errstate(all="ignore"):
        for first in range(0, len(places), at_once):
            Team(kernel, places[first : first + at_once], grid, memory, params, order).run()


def _parameters(program, values):
    """(name, number of the declared type) of each."""
    for name, kind, value in paired(program, values):
        yield name, number_of(kind, value)


def paired(program, values):
    """(name, type, value) of each parameter; those that are left out are 0."""
    values = [*values, *[0] * (len(program.params) - len(values))]
    return [(name, kind, value) for (name, kind), value in zip(program.params, values, strict=True)]


def number_of(kind, value):
    """A value as a parameter's type has it."""
    wanted = type_of(kind)
    if kind == "f32":
        return np.float32(value)
    return np.array(int(value) % (1 << 8 * wanted.itemsize), f"u{wanted.itemsize}")
