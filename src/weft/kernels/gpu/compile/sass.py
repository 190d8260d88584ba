"""Machine code of sm_90 as nvdisasm prints it, as far as what ptxas is known to do wrong can be seen in it."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from struct import unpack_from
from typing import NamedTuple

FACTOR = 4  # registers of a factor
LOOKED_UP = "BRX"  # a branch whose target comes from a table
TABLE = ".nv.constant2."  # the section of that table, of a kernel
ADDRESS = re.compile(r"\s*/\*([0-9a-f]{4,})\*/")
LABEL = re.compile(r"(\.L_x_\d+):")
INSTRUCTION = re.compile(r"(?:@(!?U?P\w+) +)?([A-Z][\w.]*) *(.*?) *;")
PREDICATE = re.compile(r"!?U?PT?\d*$")
TARGET = re.compile(r"\.L_x_\d+")
WITHOUT_RESULT = ("ST", "RED", "WARPSYNC", "R2UR", "PLOP3", "BRX")
COPIES = ("MOV", "IMAD.MOV", "STL")
COPY = re.compile(r"(?:R\d+, |R\d+, RZ, RZ, |\[R1\S*\], )R(\d+)$")
SPILLED = re.compile(r"\[R1(?:\+(0x[0-9a-f]+))?\]")  # on the stack, where ptxas keeps what registers do not hold
STACK = 1 << 16  # words of the stack are numbered from here, after all registers
SPILLS = {"STL": 1, "STL.64": 2, "STL.128": 4}
WIDTHS = {".128": 4, ".64": 2, ".WIDE": 2, "CS2R": 2}
FIRST_FACTOR = re.compile(r"R\d+, R(\d+),")
UNIFORM = re.compile(r"\bUR(\d+)")
DESCRIPTORS = re.compile(r"gdesc\[UR(\d+)")  # of a product: a pair of uniform registers for either factor
MAKES_UNIFORM = ("U", "R2UR", "S2UR", "CS2UR", "LDCU", "VOTEU", "REDUX", "CREDUX")  # in their first operand


class Instruction(NamedTuple):
    """guard: its predicate or ""; to: where it may jump, indices; writes: registers, or words of the stack."""

    guard: str
    opcode: str
    operands: str
    writes: range
    to: tuple[int, ...] = ()

    @property
    def ends(self) -> bool:
        """Whether what stands below does not follow."""
        jumps = self.opcode.startswith("BRA") and self.operands.startswith("`")
        return not self.guard and (jumps or self.opcode in ("EXIT", "BRX"))

    @property
    def factor(self) -> range:
        """The registers of a product's first factor, none where it lies in shared memory."""
        found = FIRST_FACTOR.match(self.operands) if self.opcode.startswith("HGMMA") else None
        return range(int(found[1]), int(found[1]) + FACTOR) if found else range(0)

    def copied(self, register: int) -> int | None:
        """What the register or word that this writes is a copy of."""
        if self.opcode.startswith("LDL"):
            first = _word(self.operands)
        else:
            found = COPY.match(self.operands) if self.opcode.startswith(COPIES) else None
            first = int(found[1]) if found else None
        return None if first is None else first + register - self.writes.start

    @property
    def makes(self) -> range:
        """The uniform registers that it writes."""
        if not self.opcode.startswith(MAKES_UNIFORM) or "UR" not in self.operands:
            return range(0)
        first = next(iter(self._operands), "")
        if not re.fullmatch(r"UR\d+", first):
            return range(0)
        count = next((width for text, width in WIDTHS.items() if text in self.opcode), 1)
        return range(int(first[2:]), int(first[2:]) + count)

    @property
    def takes(self) -> tuple[int, ...]:
        """The uniform registers that it reads; of several that belong together the first, of products all."""
        if "UR" not in self.operands:
            return ()
        found = DESCRIPTORS.search(self.operands)
        if found:
            first = int(found[1])
            return tuple(range(first + 2 * bool(self.factor), first + 4))
        rest = self._operands[1:] if self.makes else self._operands
        return tuple(int(x) for operand in rest for x in UNIFORM.findall(operand))

    @property
    def _operands(self) -> list[str]:
        """Without the predicates before the first of them."""
        found = [one.strip() for one in self.operands.split(",")]
        while found and PREDICATE.match(found[0]):
            found.pop(0)
        return found


def parse(code: str, table: tuple[int, ...] = ()) -> list[Instruction]:
    """The instructions of a disassembly, jumps resolved. table: the addresses that the only branch which looks its
    target up may go to, where the disassembly does not say so.
    """
    labels: dict[str, int] = {}
    places: dict[int, int] = {}
    found: list[tuple[str, str, str]] = []
    for line in code.splitlines():
        text = re.sub(r"/\*.*?\*/", "", line).strip()
        label, instruction = LABEL.match(text), INSTRUCTION.match(text)
        if label:
            labels[label[1]] = len(found)
        elif instruction:
            if table and (address := ADDRESS.match(line)):
                places[int(address[1], 16)] = len(found)
            found.append((instruction[1] or "", instruction[2], instruction[3]))
    looked_up = tuple(places[one] for one in table)
    jumps = (looked_up if table and one[1] == LOOKED_UP else _jump(one, labels) for one in found)
    return [Instruction(*one, _writes(one[1], one[2]), to) for one, to in zip(found, jumps, strict=True)]


def table_of(cubin: bytes) -> tuple[int, ...]:
    """The addresses in the table of a kernel's branch, each once; none where there is no table."""
    (at,), (count, names) = unpack_from("<Q", cubin, 0x28), unpack_from("<HH", cubin, 0x3C)  # as ELF has them
    sections = [unpack_from("<IIQQQQ", cubin, at + 64 * number) for number in range(count)]
    for name, _, _, _, begin, size in sections:
        if cubin.startswith(TABLE.encode(), sections[names][4] + name):
            return tuple(dict.fromkeys(unpack_from(f"<{size // 4}I", cubin, begin)))
    return ()


def _jump(instruction: tuple[str, str, str], labels: dict[str, int]) -> tuple[int, ...]:
    _, opcode, operands = instruction
    targets = TARGET.findall(operands) if opcode.startswith("BR") else []
    return tuple(dict.fromkeys(labels[target] for target in targets))


def _word(operands: str) -> int | None:
    """The number of a word on the stack, at a known place."""
    found = SPILLED.search(operands)
    return STACK + int(found[1] or "0", 16) // 4 if found else None


def _writes(opcode: str, operands: str) -> range:
    """The registers that an instruction writes, or words of the stack."""
    word = _word(operands) if opcode in SPILLS else None
    if word is not None:
        return range(word, word + SPILLS[opcode])
    first = next((one for one in map(str.strip, operands.split(",")) if not PREDICATE.match(one)), "")
    found = re.fullmatch(r"R(\d+)(?:\.reuse)?", first)
    if not found or "SETP" in opcode or opcode.startswith(WITHOUT_RESULT):
        return range(0)
    count = next((width for text, width in WIDTHS.items() if text in opcode), 1)
    if opcode.startswith("HGMMA"):
        count = int(re.findall(r"x(\d+)", opcode)[0]) // 2
    elif opcode.startswith("LDSM"):
        count = int(opcode[-1])
    return range(int(found[1]), int(found[1]) + count)


def successors(program: list[Instruction]) -> list[list[int]]:
    """Which instructions may follow each."""
    below = [[] if one.ends or at + 1 == len(program) else [at + 1] for at, one in enumerate(program)]
    return [[*one.to, *rest] for one, rest in zip(program, below, strict=True)]


def predecessors(program: list[Instruction]) -> list[list[int]]:
    """Which instructions each may follow."""
    before: list[list[int]] = [[] for _ in program]
    for at, after in enumerate(successors(program)):
        for one in after:
            before[one].append(at)
    return before


@dataclass(frozen=True)
class Flow:
    """Where numbers in registers come from. before: which instructions each may follow; starts: of each, the first of
    those that run one after the other up to it; ends: of each such first one, where its run ends; writers: of a
    register, the instructions that write it, in order.
    """

    program: list[Instruction]
    before: list[list[int]]
    starts: list[int]
    ends: dict[int, int]
    writers: dict[int, list[int]]

    @staticmethod
    def of(program: list[Instruction]) -> Flow:
        before = predecessors(program)
        starts: list[int] = []
        writers: dict[int, list[int]] = {}
        for at, one in enumerate(program):
            starts.append(starts[-1] if at and before[at] == [at - 1] else at)
            for register in one.writes:
                writers.setdefault(register, []).append(at)
        ends = {start: at + 1 for at, start in enumerate(starts)}
        return Flow(program, before, starts, ends, writers)

    def run(self, start: int) -> range:
        """The instructions that run one after the other from the first of them on."""
        return range(start, self.ends[start])

    def leaves(self, at: int) -> tuple[int, ...]:
        """The first ones of runs that may follow an instruction."""
        one = self.program[at]
        below = () if one.ends or at + 1 == len(self.program) else (at + 1,)
        return tuple(later for later in (*one.to, *below) if self.starts[later] == later)

    def makers(self, at: int, register: int) -> Iterator[int]:
        """The instructions that a register's number may come from, through copies and the stack."""
        ahead = [(one, register) for one in self.before[at]]
        seen: set[tuple[int, int]] = set()
        while ahead:
            here, wanted = ahead.pop()
            if (here, wanted) in seen:
                continue
            seen.add((here, wanted))
            places = self.writers.get(wanted, [])
            last = bisect_right(places, here) - 1
            if last < 0 or places[last] < self.starts[here]:
                ahead += [(earlier, wanted) for earlier in self.before[self.starts[here]]]
                continue
            one, earlier_ones = self.program[places[last]], self.before[places[last]]
            source = one.copied(wanted)
            if source is None:
                yield places[last]
            else:
                ahead += [(earlier, source) for earlier in earlier_ones]
            if one.guard:
                ahead += [(earlier, wanted) for earlier in earlier_ones]
