"""Threads that go together: registers as rows of arrays, what is under way, and the walk from barrier to barrier.

A group are the same threads (all, or one warp) of several blocks; every instruction is done for all of them at once.
Where blocks part at a branch, the group is split; where threads of one block would part, that is a Fault.
"""

from copy import copy
from dataclasses import dataclass, field

import numpy as np

from .formats import TYPES, bits_of, type_of, unsigned
from .memory import BASE
from .parse import Fault
from .scalar import TABLE as ALONE
from .straight import stretch_at

WARP = 32


@dataclass(frozen=True)
class Order:
    """What is done when, of what hardware may do early or late. late_copies, late_products: copies to shared memory,
    and products of a warp group, are done when they are waited for, else when they are asked for. warps: between
    barriers a block's warps run one after the other, in this order (those that it lacks are left out); empty: all
    together.
    """

    late_copies: bool = False
    late_products: bool = False
    warps: tuple[int, ...] = ()


EAGER = Order()
LATE = Order(late_copies=True, late_products=True)
REVERSED = Order(warps=tuple(reversed(range(32))))


@dataclass
class UnderWay:
    """Copies or products that nobody has waited for: in groups, as they were committed, and those that are not yet.

    Each has do(group), and part(threads): of a part of a group, whose threads these are (a mask).
    """

    late: bool
    asked: list = field(default_factory=list)
    committed: list = field(default_factory=list)

    def ask(self, work, group):
        self.asked.append(work)
        if not self.late:
            work.do(group)

    def commit(self):
        self.committed.append(self.asked)
        self.asked = []

    def wait(self, left, group):
        """All committed ones but the last `left` groups are done afterwards."""
        count = max(0, len(self.committed) - left)
        found = [work for some in self.committed[:count] for work in some]
        self.committed = self.committed[count:]
        for work in found if self.late else ():
            work.do(group)

    def take(self):
        """All that nobody has waited for; somebody else will see to it."""
        found, self.asked, self.committed = self.all(), [], []
        return found

    def all(self):
        return [work for some in (*self.committed, self.asked) for work in some]

    def part(self, threads):
        asked, *committed = ([work.part(threads) for work in some] for some in (self.asked, *self.committed))
        return UnderWay(self.late, asked, committed)


class Group:
    """`count` threads, from `first` on, of each of some blocks of a team (numbers of these)."""

    def __init__(self, team, first, count):
        self.team, self.first, self.count, self.at = team, first, count, 0
        self.registers = {}
        self.copies, self.products = UnderWay(team.order.late_copies), UnderWay(team.order.late_products)
        self.sums = {}  # as products made them: names -> ((warps, 16, N), values of registers)
        self.held = {}  # registers of products under way: name -> "sum" or "factor"
        self._place(np.arange(len(team.places)))

    def _place(self, blocks):
        self.blocks, self.size = blocks, blocks.size * self.count
        self.block = np.repeat(blocks, self.count)  # of each thread
        self.thread = np.tile(np.arange(self.first, self.first + self.count, dtype=np.uint32), blocks.size)
        self.warps = np.unique(self.thread // WARP)
        self.constants = {}

    # ---- operands ----------------------------------------------------------------------------------------------------
    def get(self, text, kind):
        """(threads,) of an operand, in the type of an instruction such as f32, b64 or pred; never to be written to."""
        found, wanted = self.raw(text, kind), TYPES.get(kind)
        if found.dtype is wanted:
            return found
        if wanted is None or found.itemsize != wanted.itemsize or (wanted.kind == "b") != (found.dtype.kind == "b"):
            raise Fault(f"{text} is of {8 * found.itemsize} bits, and is wanted as {kind}")
        return found.view(wanted)

    def raw(self, text, kind):
        """As `get`, of the type that it was last written as; a number is as `kind` says."""
        if self.held and self.held.get(text) == "sum":
            raise Fault(f"{text} is read before the product that adds to it is waited for")
        found = self.registers.get(text)
        return self._constant(text, kind) if found is None else found

    def _constant(self, text, kind):
        if (text, kind) not in self.constants:
            self.constants[text, kind] = np.ascontiguousarray(np.broadcast_to(self._number(text, kind), self.size))
        return self.constants[text, kind]

    def _number(self, text, kind):
        """A special register, the address of shared memory or of a parameter, a number; all bits set for what is not
        written yet, which LLVM may read where it does not matter.
        """
        if text in self.team.program.registers:
            return ~type_of(self.team.program.registers[text]).type(0)
        known = {"%tid.x": self.thread, "%laneid": self.thread % WARP, "global_smem": np.uint32(BASE)}
        if text in known:
            return known[text]
        if text in self.team.params:  # where it lies, of one that is no number
            return self.team.params[text]
        name, _, axis = text.partition(".")
        if axis in ("x", "y", "z") and name in ("%tid", "%ntid", "%ctaid", "%nctaid"):
            return self._special(name, "xyz".index(axis))
        if text[:2] in ("0f", "0d"):
            return np.array(int(text[2:], 16), "u4" if text[1] == "f" else "u8")
        try:
            number = int(text.removesuffix("U"), 0)
        except ValueError:
            raise Fault(f"the operand {text} is not known") from None
        return np.bool_(number) if kind == "pred" else np.array(number % (1 << bits_of(kind)), f"u{bits_of(kind) // 8}")

    def _special(self, name, axis):
        team = self.team
        if name == "%ctaid":
            return team.places[self.block, axis]
        return np.uint32({"%tid": (0, 0, 0), "%ntid": (team.program.threads, 1, 1), "%nctaid": team.grid}[name][axis])

    def constants_of(self, place, operands):
        """What does not change of a stretch that begins there, found once."""
        self.constants[place] = tuple(self.get(text, kind) for text, kind in operands)
        return self.constants[place]

    def fill(self, names):
        """Registers that nobody wrote yet."""
        for name in names:
            if name not in self.registers:
                self.registers[name] = self._constant(name, "")

    def last(self, name):
        """The bits of a register, whoever is at work on it."""
        found = self.registers.get(name)
        return unsigned(self._constant(name, "b32") if found is None else found)

    def put(self, name, value, active=None):
        """Write a register, of all threads or the active ones; value: (threads,), which the register may keep."""
        if name == "_":
            return
        if name in self.held:
            raise Fault(f"{name} is written before the product that has it as a {self.held[name]} is waited for")
        self.set(name, value, active)

    def set(self, name, value, active=None):
        """As `put`, for products themselves."""
        wanted = type_of(self.team.program.registers[name])
        if value.itemsize != wanted.itemsize:
            raise Fault(f"{name} is of {8 * wanted.itemsize} bits, and {8 * value.itemsize} are written")
        if active is not None:
            old = self.registers.get(name)
            old = np.full(self.size, ~wanted.type(0), wanted) if old is None else old
            value, old = (value, old) if value.dtype == old.dtype else (unsigned(value), unsigned(old))
            value = np.where(active, value, old)
        self.registers[name] = value

    def address(self, text, shared):
        """(threads,) of `[register + number]`: int64 in shared memory, uint64 in global memory."""
        name, _, more = text.strip("[] ").partition("+")
        base, more = self.get(name.strip(), "b32" if shared else "b64"), int(more or 0)
        return base.astype(np.int64) + more if shared else base + np.uint64(more % (1 << 64))

    # ---- the walk ----------------------------------------------------------------------------------------------------
    def run(self, table):
        """To the next barrier (True) or the end (False), and the groups that were split off meanwhile."""
        program, parted, slow = self.team.program, [], -1  # up to there one by one
        while True:
            stretch = stretch_at(program, self.at) if self.at >= slow else None
            if stretch:
                if self._goes(stretch):
                    continue
                slow = stretch.end
            instruction = program.code[self.at]
            self.at += 1
            try:
                active = self._active(instruction)
                if active is not None and not active.any():
                    continue
                how = instruction.parts[0]
                if how == "bra":
                    parted += self._branch(program.labels[instruction.operands[0]], active)
                elif self._stops(instruction):
                    return self._stop(instruction, active), parted
                else:
                    (table.get(instruction.opcode) or table.of(instruction.opcode))(self, instruction, active)
            except Fault as fault:
                raise Fault(f"{program.said(instruction)}: {fault}") from fault

    def _goes(self, stretch):
        """To the end of a stretch, if nothing is in its way."""
        if not stretch.may(self.held):
            return False
        try:
            stretch.does(self)
        except Fault:  # which instruction it is will be seen
            return False
        self.at = stretch.end
        return True

    def _active(self, instruction):
        """(threads,) of bool, None where all are."""
        if not instruction.guard:
            return None
        active = self.get(instruction.guard, "pred") != instruction.negated
        return None if active.all() else active

    def _stops(self, instruction):
        """Whether the walk stops here."""
        return instruction.parts[0] in ("ret", "exit", "bar", "barrier") and "warp" not in instruction.parts

    def _stop(self, instruction, active):
        """Whether at a barrier, of all threads of a block."""
        if active is not None:
            raise Fault("some threads stop here, others do not")
        if instruction.parts[0] in ("ret", "exit"):
            return False
        self._meet(instruction)
        return True

    def _meet(self, instruction):
        """At a barrier."""
        if instruction.operands != ("0",) or "sync" not in instruction.parts:
            raise Fault("only barrier 0, of all threads, is known")

    def _branch(self, to, active):
        """Go there; blocks that do not are left where they are, as another group. Where threads of a block part, those
        that stay first do what they are alone with.
        """
        if active is not None:
            taken = active.reshape(-1, self.count)
            if (taken.any(1) != taken.all(1)).any():
                self._skip(to, active)
                return []
            taken = taken[:, 0]
            rest = self._part(~taken)
            vars(self).update(vars(self._part(taken)))
        self.at = to
        return [] if active is None else [rest]

    def _skip(self, to, skipped):
        """Go there, a few lines on; the other threads do what lies between, which must be arithmetic of their own, as
        in logarithms of libdevice for what is infinite.
        """
        if to < self.at:
            raise Fault("threads of one block part")
        for instruction in self.team.program.code[self.at : to]:
            active = self._active(instruction)
            try:
                does = ALONE.of(instruction.opcode)
            except Fault:
                raise Fault(f"threads of one block part before {instruction.opcode}") from None
            does(self, instruction, ~skipped if active is None else active & ~skipped)
        self.at = to

    def _part(self, kept):
        """The group of some of its blocks; kept: (blocks,) of bool."""
        part, threads = copy(self), np.repeat(kept, self.count)
        part._place(self.blocks[kept])
        part.sums = {}
        part.registers = {name: value[threads] for name, value in self.registers.items()}
        part.copies, part.products = (x.part(threads) for x in (self.copies, self.products))
        return part
