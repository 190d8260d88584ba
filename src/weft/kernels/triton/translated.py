"""Whether a kernel was translated wrongly, though its source is right: what LLVM and ptxas were met doing.

Both make a kernel that runs and computes something else, on a GPU alone; Triton's interpreter runs the source and never
meets them. How each was found: benchmarks/notes/triton.md, tenth and twelfth rounds.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import CompiledKernel

HOPPER = 90  # whose products run while other instructions do
FACTOR = 4  # registers of a factor
LABEL = re.compile(r"(\.L_x_\d+):")
INSTRUCTION = re.compile(r"(?:@(!?U?P\w+) +)?([A-Z][\w.]*) *(.*?) *;")
PREDICATE = re.compile(r"!?U?PT?\d*$")
WITHOUT_RESULT = ("ST", "RED", "WARPSYNC", "R2UR", "PLOP3", "BRX")
COPIES = ("MOV", "IMAD.MOV", "STL")
COPY = re.compile(r"(?:R\d+, |R\d+, RZ, RZ, |\[R1\S*\], )R(\d+)$")
SPILLED = re.compile(r"\[R1(?:\+(0x[0-9a-f]+))?\]")  # on the stack, where ptxas keeps what registers do not hold
STACK = 1 << 16  # words of the stack are numbered from here, after all registers
SPILLS = {"STL": 1, "STL.64": 2, "STL.128": 4}
WIDTHS = {".128": 4, ".64": 2, ".WIDE": 2, "CS2R": 2}


def mistake(kernel: CompiledKernel, target: GPUTarget) -> str:
    """What is wrong with a kernel, "" where nothing is known to be; of machine code where Triton brings nvdisasm."""
    ptx = kernel.asm.get("ptx", "")
    found = spoiled(ptx)
    if found:
        return f"{found[0]} multiplies what should be shifted"
    if target.arch == HOPPER and "wgmma.mma_async" in ptx:
        lost = overwritten(disassembled(kernel.asm["cubin"]))
        if lost:
            return f"the second tile of a loop overwrites a factor of {lost[0]}"
    return ""


def spoiled(ptx: str) -> tuple[str, ...]:
    """Wide products by 2^24 and more, of a kernel in PTX; no address needs one.

    LLVM (in Triton 3.6.0) makes them of a shift in the one of two lanes that nobody reads, as if it could not overflow;
    what overflows spoils the other lane, and numbers of columns with it.
    """
    found = re.finditer(r"mul\.wide\.[us]32\s[^;]*?(\d+);", ptx)
    return tuple(one[0] for one in found if int(one[1]) >= 1 << 24)


def overwritten(code: str) -> tuple[str, ...]:
    """Products in a loop whose first factor comes from before the loop in one round and from the loop in another; code:
    for sm_90, as nvdisasm prints it.

    A factor that stays in registers is written before the loop and not in it. ptxas (12.8 and 13.0) gave its registers
    to other numbers where it ran a kernel's products one by one, as it does when it is not sure of all their registers.
    """
    program = _parse(code)
    before = _predecessors(program)
    loops = [range(one.to, at + 1) for at, one in enumerate(program) if one.to is not None and one.to <= at]
    found = []
    for at, one in enumerate(program):
        around = [loop for loop in loops if at in loop]
        makers = [set(_makers(at, register, before, program)) for register in (one.factor if around else ())]
        if any(0 < len(these.intersection(loop)) < len(these) for these in makers for loop in around):
            found.append(f"{one.opcode} {one.operands}")
    return tuple(found)


def disassembled(cubin: bytes) -> str:
    """The machine code as text; "" where there is no disassembler."""
    try:
        tool = knobs.nvidia.nvdisasm.path
    except RuntimeError:
        return ""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(cubin)
        return subprocess.run([tool, "-c", file.name], capture_output=True, text=True, check=True).stdout


# ---- machine code ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Instruction:
    """guard: its predicate or ""; to: where it may jump, an index; writes: registers, or words of the stack."""

    guard: str
    opcode: str
    operands: str
    writes: range
    to: int | None = None

    @property
    def always_jumps(self) -> bool:
        return self.opcode.startswith("BRA") and not self.guard and self.operands.startswith("`")

    @property
    def ends(self) -> bool:
        return self.always_jumps or (self.opcode == "EXIT" and not self.guard)

    @property
    def factor(self) -> range:
        """The registers of a product's first factor, none where it lies in shared memory."""
        found = re.match(r"R\d+, R(\d+),", self.operands) if self.opcode.startswith("HGMMA") else None
        return range(int(found[1]), int(found[1]) + FACTOR) if found else range(0)

    def copied(self, register: int) -> int | None:
        """What the register or word that this writes is a copy of."""
        if self.opcode.startswith("LDL"):
            first = _word(self.operands)
        else:
            found = COPY.match(self.operands) if self.opcode.startswith(COPIES) else None
            first = int(found[1]) if found else None
        return None if first is None else first + register - self.writes.start


def _makers(at: int, register: int, before: list[list[int]], program: list[Instruction]) -> Iterator[int]:
    """The instructions that a register's number may come from, through copies and the stack."""
    seen, ahead = set(), [(one, register) for one in before[at]]
    while ahead:
        here, wanted = ahead.pop()
        if (here, wanted) in seen:
            continue
        seen.add((here, wanted))
        one = program[here]
        if wanted in one.writes:
            source = one.copied(wanted)
            if source is None:
                yield here
            else:
                ahead += [(earlier, source) for earlier in before[here]]
            if not one.guard:
                continue
        ahead += [(earlier, wanted) for earlier in before[here]]


def _parse(code: str) -> list[Instruction]:
    """The instructions of a disassembly, jumps resolved."""
    labels: dict[str, int] = {}
    found: list[tuple[str, str, str]] = []
    for line in code.splitlines():
        text = re.sub(r"/\*.*?\*/", "", line).strip()
        label, instruction = LABEL.match(text), INSTRUCTION.match(text)
        if label:
            labels[label[1]] = len(found)
        elif instruction:
            found.append((instruction[1] or "", instruction[2], instruction[3]))
    return [Instruction(*one, _writes(one[1], one[2]), _jump(one, labels)) for one in found]


def _jump(instruction: tuple[str, str, str], labels: dict[str, int]) -> int | None:
    _, opcode, operands = instruction
    target = re.search(r"\.L_x_\d+", operands) if opcode.startswith("BRA") else None
    return labels[target[0]] if target else None


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


def _predecessors(program: list[Instruction]) -> list[list[int]]:
    before: list[list[int]] = [[] for _ in program]
    for at, one in enumerate(program):
        if one.to is not None:
            before[one.to].append(at)
        if not one.ends and at + 1 < len(program):
            before[at + 1].append(at)
    return before
