"""Warps that part: groups of them do different things, and tell each other by barriers in shared memory.

One block at a time, of its warps always the first that can go on. What nobody can go on from is a Fault, as are copies
by tensor descriptors of what was stored without a fence.
"""

import ctypes
import re
from collections import deque
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np

from . import matrix, moves, scalar
from .launch import FILL, number_of, paired
from .memory import CHUNK, Shared
from .parse import Fault
from .table import Table
from .threads import EAGER, WARP, Group, UnderWay

TABLE = Table(scalar.TABLE, moves.TABLE, matrix.TABLE)
MAPS = 0x7000_0000_0000  # where tensor descriptors lie, among parameters
MAP = 128  # bytes of one


@dataclass(frozen=True)
class Map:
    """A tensor descriptor: boxes of so many along each axis but the last, and of `width` bytes of that. x: the array
    itself, of float32 or of the bits of 16.
    """

    x: np.ndarray
    box: tuple[int, ...]
    width: int = 128

    @property
    def rows(self):
        return prod(self.box)

    @classmethod
    def of(cls, address, sizes, box, element):
        """Of five axes. sizes: (shape, strides). Rows of a box of more than 128 bytes are several boxes for Triton."""
        shape, strides = sizes
        size = element.itemsize
        whole = np.ndarray((1,), element, (ctypes.c_char * size).from_address(address))
        x = np.lib.stride_tricks.as_strided(whole, shape, [size * stride for stride in strides])
        return cls(x, tuple(box[:4]), min(128, size * box[4]))

    def load(self, memory, places):
        """(rows, width) bytes from (innermost, ..., outermost) on; beyond the array there are zeros."""
        found = np.zeros((self.rows, self.width // 16, 16), np.uint8)
        inside, addresses = self._addresses(places)
        found[inside] = memory.load(addresses, 16)
        return found.reshape(self.rows, self.width)

    def store(self, memory, places, values):
        inside, addresses = self._addresses(places)
        memory.store(addresses, values.reshape(self.rows, -1, 16)[inside])

    def add(self, memory, places, values):
        """Add float32 to what is there."""
        if self.x.dtype != np.float32:
            raise Fault("only float32 is known to be added to")
        inside, addresses = self._addresses(places)
        sums = memory.load(addresses, 16).view(np.float32) + values.reshape(self.rows, -1, 16)[inside].view(np.float32)
        memory.store(addresses, sums.view(np.uint8))

    def _addresses(self, places):
        """(rows, units of 16 bytes): which exist, and the addresses of those."""
        column, *places = places
        places.reverse()
        row = self.x.shape[-1] * self.x.itemsize
        if row % 16 or column * self.x.itemsize % 16 or self.width not in (32, 64, 128):
            raise Fault("only boxes of whole units of 16 bytes are known, 32 to 128 bytes wide")
        units = column * self.x.itemsize + np.arange(0, self.width, 16)
        inside = np.broadcast_to((units >= 0) & (units < row), (self.rows, units.size))
        at = self.x.ctypes.data + units
        for axis, (place, near) in enumerate(zip(places, np.indices(self.box).reshape(4, -1, 1), strict=True)):
            here = place + near
            inside, at = inside & (here >= 0) & (here < self.x.shape[axis]), at + here * self.x.strides[axis]
        return inside, at[inside].astype(np.uint64)


def swizzled(start, tensor):
    """(rows, units) addresses of a box's units of 16 bytes in shared memory: in every eight lines of 128 bytes they
    change places, as far as a row reaches.
    """
    if start % 1024:
        raise Fault("a box does not begin on 1024 bytes")
    at = np.arange(tensor.rows)[:, None] * tensor.width + np.arange(0, tensor.width, 16)
    return start + (at ^ ((at >> 7) % 8 * 16 & (tensor.width - 1)))


@dataclass
class Counter:
    """A barrier in shared memory: phase after phase, each over once all have arrived and all bytes have come."""

    count: int
    left: int
    phase: int = 0
    bytes: int = 0

    def arrive(self, times=1):
        self.left -= times
        if self.left < 0:
            raise Fault("more arrivals than the barrier counts")
        self._turn()

    def come(self, count):
        self.bytes -= count
        self._turn()

    def _turn(self):
        if self.left == 0 and self.bytes == 0:
            self.left, self.phase = self.count, self.phase + 1

    def over(self, parity):
        """Whether the phase of that parity is, before the present one."""
        return self.phase % 2 != parity


class Warp(Group):
    """One warp. waits: for what, (kind, number or address, threads or parity); None: for nothing."""

    def __init__(self, block, number):
        super().__init__(block, WARP * number, WARP)
        self.waits, self.stores, self.writes = None, UnderWay(block.order.late_copies), []

    def write(self):
        """Boxes that were read out of shared memory."""
        for change, where, data in self.writes:
            change(self.team.memory, where, data)
        self.writes = []

    def one(self, text, kind):
        """An operand that is the same in all threads."""
        found = self.get(text, kind)
        if (found != found[0]).any():
            raise Fault(f"{text} differs in a warp")
        return int(found[0])

    def counter(self, text):
        address = self.address(text, True)
        return self.team.counters[int(address[0])]

    def _stops(self, instruction):
        if instruction.parts[:2] != ("mbarrier", "try_wait"):
            return super()._stops(instruction)
        _, where, parity = instruction.operands
        return not self.counter(where).over(self.one(parity, "u32"))

    def _stop(self, instruction, active):
        if instruction.parts[0] == "mbarrier":
            self.at -= 1  # to be asked again
            self.waits = "counter", self.counter(instruction.operands[1]), self.one(instruction.operands[2], "u32")
            return True
        return super()._stop(instruction, active)

    def _meet(self, instruction):
        number, *threads = (self.one(text, "u32") for text in instruction.operands)
        self.waits = "barrier", number, threads[0] if threads else self.team.program.threads


class Block:
    """The warps of one block. maps: address -> Map."""

    def __init__(self, program, place, launched, shared):
        self.program, self.places = program, np.array([place], np.uint32)
        self.grid, self.memory, self.params, self.maps, self.order = launched
        self.shared, self.counters = Shared(1, shared, FILL), {}
        self.copies = deque()  # that come late

    def run(self):
        """Who can go on and comes first goes on, to where it stops: the last ones are as slow as they may be."""
        count = self.program.threads // WARP
        every = [Warp(self, i) for i in (self.order.warps or range(count)) if i < count]
        warps = list(every)
        while warps:
            warp = next((one for one in warps if self._can_go_on(one, warps)), None)
            if warp is None:
                self._come_late(warps)
                continue
            warp.waits = None
            stopped, parted = warp.run(TABLE)
            assert not parted
            if not stopped:
                warps.remove(warp)
        for warp in every:
            warp.write()

    def _can_go_on(self, warp, warps):
        if warp.waits is None:
            return True
        kind, what, how = warp.waits
        if kind == "counter":
            return what.over(how)
        together = [one for one in warps if one.waits == warp.waits]
        if WARP * len(together) == how:
            self.shared.barrier()
            for one in together:
                one.waits = None
        return warp.waits is None

    def _come_late(self, warps):
        """What is under way comes when nobody can go on without it."""
        if not self.copies:
            said = ", ".join(f"warp {warp.first // WARP} in {self.program.said(self._at(warp))}" for warp in warps[::4])
            raise Fault(f"nobody can go on: {said}")
        self.copies.popleft()()

    def _at(self, warp):
        return self.program.code[warp.at - (warp.waits[0] == "barrier")]


def launch(program, grid, values, given, order=EAGER):
    """Run all blocks. values: of the parameters, in order, a Map where it is a descriptor; what is left out is 0.
    given: (memory, bytes of shared memory of a block).
    """
    memory, shared = given
    params, maps = {}, {}
    for name, kind, value in paired(program, values):
        if isinstance(value, Map):
            params[name] = np.uint64(MAPS + MAP * len(maps))
            maps[int(params[name])] = value
        else:
            params[name] = number_of(kind, value)
    with np.errstate(all="ignore"):
        for x in range(grid):
            Block(program, (x, 0, 0), ((grid, 1, 1), memory, params, maps, order), shared).run()


# ---- instructions ----------------------------------------------------------------------------------------------------
def _alone(active):
    """Raise unless one thread does it."""
    if active is None or active.sum() != 1:
        raise Fault("not one thread alone")


@TABLE.does("mbarrier.init", modifiers="shared::cta")
def _init(warp, instruction, active):
    _alone(active)
    where, count = instruction.operands
    warp.team.counters[int(warp.address(where, True)[0])] = Counter(int(count), int(count))


@TABLE.does("mbarrier.arrive", modifiers="shared shared::cta")
def _arrive(warp, instruction, active):
    _alone(active)
    times = [warp.one(text, "u32") for text in instruction.operands[2:]]
    warp.counter(instruction.operands[1]).arrive(*times)


@TABLE.does("cp.async.mbarrier.arrive.noinc", modifiers="shared shared::cta")
def _arrive_with_copies(warp, instruction, active):
    """Each thread arrives once all copies that it asked for have come."""
    assert active is None or active.all()
    copies, counter, block = warp.copies.take(), warp.counter(instruction.operands[0]), warp.team

    def come():
        for copy in copies if block.order.late_copies else ():
            copy.do(warp)
        for _ in range(WARP):
            counter.arrive()

    if block.order.late_copies:
        block.copies.append(come)
    else:
        come()


@TABLE.does("mbarrier.arrive.expect_tx", modifiers="shared shared::cta")
def _expect(warp, instruction, active):
    _alone(active)
    counter = warp.counter(instruction.operands[1])
    counter.bytes += warp.one(instruction.operands[2], "u32")
    counter.arrive()


@TABLE.does("mbarrier.try_wait", modifiers="parity shared shared::cta")
def _wait(warp, instruction, active):
    """It is over: see `Warp._stops`."""
    warp.put(instruction.operands[0], np.ones(warp.size, bool))


@TABLE.does(
    "cp.async.bulk.tensor", modifiers="3d 5d shared::cluster shared::cta global bulk_group mbarrier::complete_tx::bytes"
)
def _move_box(warp, instruction, active):
    _alone(active)
    if "mbarrier::complete_tx::bytes" in instruction.parts:
        box, place, counter = instruction.operands
        _load_box(warp, _box(warp, box, place), warp.counter(counter))
    else:
        place, box = instruction.operands
        _write_box(warp, _box(warp, box, place), Map.store)


@TABLE.does("cp.reduce.async.bulk.tensor", modifiers="5d shared::cta global add tile bulk_group")
def _add_box(warp, instruction, active):
    _alone(active)
    place, box = instruction.operands
    _write_box(warp, _box(warp, box, place), Map.add)


def _box(warp, box, place):
    """(descriptor, where in the tensor, addresses in shared memory) of a box."""
    name, *places = (text.strip() for text in re.sub(r"[\[\]{}]", "", place).split(","))
    tensor = warp.team.maps[warp.one(name, "b64")]
    return tensor, [warp.one(text, "s32") for text in places], swizzled(int(warp.address(box, True)[0]), tensor)


def _write_box(warp, what, change):
    """change: what a descriptor does to memory."""
    tensor, where, units = what
    if min(where) < 0:  # an illegal instruction on an H100, where boxes that end beyond the tensor are written in part
        raise Fault("a box that is written begins before the tensor")
    warp.team.shared.check_fenced(np.zeros(1, int), units.reshape(-1) // CHUNK)
    warp.stores.ask(Written(tensor, where, units, change), warp)


def _load_box(warp, what, counter):
    (tensor, where, units), block = what, warp.team

    def come():
        data = tensor.load(block.memory, where).reshape(-1, 16)
        block.shared.store(np.zeros(units.size, int), units.reshape(-1), data)
        counter.come(data.size)

    if block.order.late_copies:
        block.copies.append(come)
    else:
        come()


@dataclass(frozen=True)
class Written:
    """A box on its way from shared to global memory."""

    tensor: Any
    where: list
    units: np.ndarray
    change: Any

    def do(self, warp):
        """Read it; it is written when that is waited for, or when all is over."""
        data = warp.team.shared.load(np.zeros(self.units.size, int), self.units.reshape(-1), 16)
        change = partial(self.change, self.tensor)
        warp.writes.append((change, self.where, data.reshape(self.tensor.rows, -1)))
        if not warp.stores.late:
            warp.write()


@TABLE.does("cp.async.bulk.commit_group")
def _commit(warp, instruction, active):
    warp.stores.commit()


@TABLE.does("cp.async.bulk.wait_group", modifiers="read")
def _wait_for_boxes(warp, instruction, active):
    warp.stores.wait(int(instruction.operands[0]), warp)
    if "read" not in instruction.parts:
        assert not int(instruction.operands[0]), "only all of them are known to be written"
        warp.write()


@TABLE.does("elect.sync")
def _elect(warp, instruction, active):
    """The first lane."""
    _, name = instruction.operands[0].split("|")
    warp.put(name, np.arange(warp.size) == 0)


@TABLE.does("brx.idx")
def _branch(warp, instruction, active):
    program = warp.team.program
    which, targets = instruction.operands
    listed = program.code[program.labels[targets]].operands
    warp.at = program.labels[listed[warp.one(which, "u32")]]


@TABLE.does(".branchtargets")
@TABLE.does("setmaxnreg", modifiers="inc dec sync aligned")
def _nothing(warp, instruction, active):
    """A list for the next branch. Who has how many registers is not counted."""
