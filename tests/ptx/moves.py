"""Loads and stores, atomics, copies that nobody waits for at once, and what the threads of a warp tell each other."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .formats import bits_of, type_of, unsigned
from .memory import check_aligned
from .parse import Fault
from .table import Table
from .threads import WARP

TABLE = Table()
CACHES = "L1::evict_last L1::evict_first L1::no_allocate L1::evict_normal L2::128B L2::256B L2::64B"
ATOMIC = {"add": np.add, "max": np.maximum, "min": np.minimum, "or": np.bitwise_or, "and": np.bitwise_and,
          "exch": lambda old, new: new}  # fmt: skip
REDUCE = {"add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
          "xor": np.bitwise_xor}  # fmt: skip


def of_active(group, active):
    """Numbers of the threads that do something."""
    return np.arange(group.size) if active is None else np.flatnonzero(active)


def some(x, active):
    """What belongs to the threads that do something."""
    return x if active is None else x[active]


def listed(operand):
    return operand if isinstance(operand, list) else [operand]


# ---- loads and stores ------------------------------------------------------------------------------------------------
@TABLE.does("ld.param")
def _load_param(group, instruction, active):
    name = instruction.operands[1].strip("[]")
    x = np.full(group.size, group.team.params[name])
    _put_loaded(group, instruction.operands[0], x, (instruction.kind, active))


@TABLE.does("ld.global", "ld.shared", modifiers=f"v2 v4 nc relaxed gpu acquire volatile {CACHES}")
def _load(group, instruction, active):
    shared, names = "shared" in instruction.parts, listed(instruction.operands[0])
    width = bits_of(instruction.kind) // 8
    address = some(group.address(instruction.operands[1], shared), active)
    if shared:
        found = group.team.shared.load(some(group.block, active), address, len(names) * width)
    else:
        found = group.team.memory.load(address, len(names) * width)
    whole = np.zeros((len(names), group.size), f"u{width}")
    whole[:, slice(None) if active is None else active] = found.view(whole.dtype).T
    for name, x in zip(names, whole, strict=True):
        _put_loaded(group, name, x, (instruction.kind, active))


def _put_loaded(group, name, x, how):
    """A wider register is filled with zeros or, for a signed type, with the sign. how: (type, active)."""
    kind, active = how
    wide = type_of(group.team.program.registers[name]).itemsize
    if x.itemsize < wide:
        x = x.view(type_of(kind)).astype(f"{'i' if kind[0] == 's' else 'u'}{wide}")
    group.put(name, x, active)


@TABLE.does("st.global", "st.shared", modifiers=f"v2 v4 relaxed gpu release volatile {CACHES}")
def _store(group, instruction, active):
    shared, (to, what) = "shared" in instruction.parts, instruction.operands
    width = bits_of(instruction.kind) // 8
    values = [unsigned(group.raw(name, instruction.kind)).astype(f"u{width}") for name in listed(what)]
    data = some(np.stack(values, 1), active).view(np.uint8)
    address = some(group.address(to, shared), active)
    if shared:
        writers = 1 + some(group.thread, active) // WARP
        group.team.shared.store(some(group.block, active), address, data, writers)
    else:
        group.team.memory.store(address, data)


@TABLE.does("atom.global", "red.global", "atom.shared", modifiers=f"{' '.join(ATOMIC)} v2 v4 gpu cta relaxed acq_rel")
def _atomic(group, instruction, active):
    """Threads that meet the same address go one after the other."""
    shared, kind, operands = "shared" in instruction.parts, instruction.kind, instruction.operands
    results, (where, what) = ([], operands) if instruction.parts[0] == "red" else (listed(operands[0]), operands[1:])
    change, threads = ATOMIC[next(part for part in instruction.parts if part in ATOMIC)], of_active(group, active)
    values = np.stack([group.get(name, kind) for name in listed(what)], 1)[threads]
    address, old = group.address(where, shared)[threads], np.zeros_like(values)
    places = np.stack([group.block[threads].astype(np.uint64) * shared, address.astype(np.uint64)], 1)
    left = np.arange(threads.size)
    while left.size:
        _, first = np.unique(places[left], axis=0, return_index=True)
        old[left[first]] = _changed(
            group, shared, (threads[left[first]], address[left[first]]), (values[left[first]], change)
        )
        left = np.delete(left, first)
    for name, column in zip(results, old.T if results else (), strict=True):
        x = np.zeros(group.size, values.dtype)
        x[threads] = column
        if name in group.team.program.registers:
            group.put(name, x, active)


def _changed(group, shared, where, how):
    """What stood at different addresses before. where: threads, addresses. how: values (threads, each), function."""
    (threads, address), (values, change) = where, how
    width = values.shape[1] * values.itemsize
    space, first = (group.team.shared, (group.block[threads],)) if shared else (group.team.memory, ())
    old = space.load(*first, address, width).view(values.dtype)
    space.store(*first, address, change(old, values).astype(values.dtype).view(np.uint8))
    return old


# ---- copies that nobody waits for at once ----------------------------------------------------------------------------
@dataclass(frozen=True)
class Copy:
    """From global to shared memory: `count` bytes of each thread, filled up with zeros to `width`. team: whose memory;
    threads: who asks, in the group.
    """

    team: Any
    threads: np.ndarray
    blocks: np.ndarray
    to: np.ndarray
    origin: np.ndarray
    count: np.ndarray
    width: int

    def do(self, group):
        data = np.zeros((self.to.size, self.width), np.uint8)
        for count in np.unique(self.count[self.count > 0]):
            some = self.count == count
            data[some, :count] = self.team.memory.load(self.origin[some], int(count))
        self.team.shared.store(self.blocks, self.to, data)

    def part(self, threads):
        """Of a part of the group; threads: which of them it keeps."""
        kept = threads[self.threads]
        numbers = np.cumsum(threads) - 1
        return replace(
            self, threads=numbers[self.threads[kept]], blocks=self.blocks[kept], to=self.to[kept],
            origin=self.origin[kept], count=self.count[kept],
        )  # fmt: skip


@TABLE.does("cp.async.cg.shared.global", "cp.async.ca.shared.global", modifiers=CACHES)
def _copy(group, instruction, active):
    to, origin, width, *count = instruction.operands
    threads, width = of_active(group, active), int(width, 0)
    count = group.get(count[0], "u32")[threads] if count else np.full(threads.size, width)
    to, origin = group.address(to, True)[threads], group.address(origin, False)[threads]
    check_aligned(to, width)
    check_aligned(origin, width)
    if (count > width).any():
        raise Fault("a copy of more bytes than it has room for")
    group.copies.ask(Copy(group.team, threads, group.block[threads], to, origin, count, width), group)


@TABLE.does("cp.async.commit_group")
def _commit(group, instruction, active):
    group.copies.commit()


@TABLE.does("cp.async.wait_group")
def _wait(group, instruction, active):
    group.copies.wait(int(instruction.operands[0], 0), group)


@TABLE.does("cp.async.wait_all")
def _wait_all(group, instruction, active):
    group.copies.commit()
    group.copies.wait(0, group)


@TABLE.does("fence.proxy.async", modifiers="shared::cta global")
def _fence(group, instruction, active):
    if active is not None:
        raise Fault("some threads fence, others do not")
    group.team.shared.fence(np.unique(group.blocks), group.warps)


@TABLE.does("bar.warp.sync", "griddepcontrol.wait", "griddepcontrol.launch_dependents", "membar.gl", "membar.cta",
            "fence.acq_rel.gpu", "fence.acq_rel.cta", "fence.sc.gpu")  # fmt: skip
def _nothing(group, instruction, active):
    """The threads of a warp go together, kernels one after the other, and what is stored is seen."""


# ---- within a warp ---------------------------------------------------------------------------------------------------
@TABLE.does("shfl.sync", modifiers="bfly idx up down")
def _shuffle(group, instruction, active):
    """Each lane reads another one of its segment, or itself where that lies outside, and whether it did not."""
    names, what, by, inside, _ = instruction.operands
    name, *whether = names.split("|")
    origin, good = _lanes(group, instruction.parts[2], group.get(by, "u32"), group.get(inside, "u32"))
    group.put(name, group.get(what, "b32")[origin], active)
    if whether:
        group.put(whether[0], good, active)


def _lanes(group, how, by, inside):
    """(thread that each one reads, whether it lies inside)"""
    key = how, int(by[0]), int(inside[0])
    alike = (by == by[0]).all() and (inside == inside[0]).all()
    if alike and key in group.constants:
        return group.constants[key]
    b, c = by.astype(np.int64) & 31, inside.astype(np.int64)
    lane, segment, limit = np.arange(group.size) % WARP, c >> 8 & 31, c & 31
    low, high = lane & segment, (lane & segment) | (limit & ~segment)
    at = {"bfly": lane ^ b, "idx": low | (b & ~segment), "up": lane - b, "down": lane + b}[how]
    good = at >= high if how == "up" else at <= high
    found = np.arange(group.size) - lane + np.where(good, at, lane), good
    return group.constants.setdefault(key, found) if alike else found


@TABLE.does("redux.sync", modifiers=" ".join(REDUCE))
def _reduce(group, instruction, active):
    name, what, _ = instruction.operands
    values = group.get(what, instruction.kind).reshape(-1, WARP)
    if active is not None:
        raise Fault("some threads of a warp reduce, others do not")
    found = REDUCE[instruction.parts[2]].reduce(values, 1, dtype=values.dtype)
    group.put(name, np.repeat(found, WARP))


@TABLE.does("vote.sync", modifiers="all any ballot")
def _vote(group, instruction, active):
    values = group.get(instruction.operands[1], "pred").reshape(-1, WARP)
    if active is not None:
        raise Fault("some threads of a warp vote, others do not")
    if "ballot" in instruction.parts:
        found = (values.astype(np.uint32) << np.arange(WARP, dtype=np.uint32)).sum(1, dtype=np.uint32)
    else:
        found = values.all(1) if "all" in instruction.parts else values.any(1)
    group.put(instruction.operands[0], np.repeat(found, WARP))
