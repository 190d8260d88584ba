"""Whether a kernel was translated wrongly, though its source is right: what LLVM and ptxas were met doing.

Both make a kernel that runs and computes something else, on a GPU alone; Triton's interpreter runs the source and never
meets them. How each was found: benchmarks/notes/triton.md, T67 to T70.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import CompiledKernel

from weft.kernels.gpu.compile.sass import LOOKED_UP, Flow, Instruction, parse, table_of

VERSION = 2  # of what is refused; raised whenever a kernel that was accepted may now be refused
PACKS = "F2FP"  # two numbers of 32 bits into one word
HOPPER = 90  # whose products run while other instructions do


def mistake(kernel: CompiledKernel, target: GPUTarget) -> str:
    """What is wrong with a kernel, "" where nothing is known to be; of machine code where Triton brings nvdisasm."""
    ptx = kernel.asm.get("ptx", "")
    found = spoiled(ptx)
    if found:
        return f"{found[0]} multiplies what should be shifted"
    if target.arch == HOPPER and "wgmma.mma_async" in ptx:
        flow = Flow.of(_program(kernel.asm["cubin"]))
        lost = overwritten(flow, carried(ptx))
        if lost:
            return f"the second tile of a loop overwrites a factor of {lost[0]}"
        missing = unset(flow)
        if missing:
            return f"a path leaves out what is read by {missing[0]}"
    return ""


def spoiled(ptx: str) -> tuple[str, ...]:
    """Wide products by powers of 2 from 2^24 on, of a kernel in PTX; no address needs one.

    LLVM (in Triton 3.6.0) makes them of a shift in the one of two lanes that nobody reads, as if it could not overflow.
    What overflows spoils the other lane, and numbers of columns with it.
    """
    found = re.finditer(r"mul\.wide\.[us]32\s[^;]*?(\d+);", ptx)
    return tuple(one[0] for one in found if int(one[1]) >= 1 << 24 and int(one[1]).bit_count() == 1)


def overwritten(flow: Flow, packed: bool = False) -> tuple[str, ...]:
    """Products in a loop whose first factor comes from before the loop in one round and from the loop in another.

    A factor that stays in registers is written before the loop and not in it. Where ptxas (12.8 and 13.0) is not sure
    of the registers of products, it runs these one by one. It then gave the factor's registers to other numbers.
    Weights that wait for their product until the next round are such factors on purpose. packed: factors that are
    packed before a loop and in it are such (`carried`).
    """
    program = flow.program
    loops = [range(to, at + 1) for at, one in enumerate(program) for to in one.to if to <= at]
    found = []
    for at, one in enumerate(program):
        around = [loop for loop in loops if at in loop] if one.factor else []
        makers = [set(flow.makers(at, register)) for register in (one.factor if around else ())]
        if packed:
            makers = [these for these in makers if not all(program[x].opcode.startswith(PACKS) for x in these)]
        if any(0 < len(these.intersection(loop)) < len(these) for these in makers for loop in around):
            found.append(f"{one.opcode} {one.operands}")
    return tuple(found)


def carried(ptx: str) -> bool:
    """Whether products take factors that a loop carries: registers that are written in several places."""
    factors = {
        x.strip()
        for found in re.findall(r"wgmma\.mma_async\S+\s+\{[^}]*\},\s*\{([^}]*)\}", ptx)
        for x in found.split(",")
    }
    written = re.findall(r"^\s*cvt\.rn\.\w+x2\.f32\s+(%r\d+),", ptx, re.MULTILINE)
    return any(count > 1 for name, count in Counter(written).items() if name in factors)


def unset(flow: Flow) -> tuple[str, ...]:
    """Instructions that read a uniform register which not every path to them has written.

    ptxas (12.8) makes the descriptors of a product's second, third and fourth part from that of its first. It does so
    once for all products of one matrix, even where the first stands in a branch that a program may pass by.
    """
    program = flow.program
    makes, takes = ([_bits(each) for each in side] for side in ([x.makes for x in program], [x.takes for x in program]))
    # of the first of each run that some path reaches: what all of these have written, a bit a register
    known: dict[int, int] = {0: 0}
    ahead = [0] if program else []
    while ahead:
        start = ahead.pop()
        found = known[start]
        for at in flow.run(start):
            found |= makes[at]
            for later in flow.leaves(at):
                common = found & known.get(later, found)
                if common != known.get(later):
                    known[later] = common
                    ahead.append(later)
    wrong = []
    for start in sorted(known):
        found = known[start]
        for at in flow.run(start) if program else ():
            if takes[at] & ~found:
                wrong.append(f"{program[at].opcode} {program[at].operands}")
            found |= makes[at]
    return tuple(wrong)


def _bits(registers: Iterable[int]) -> int:
    return sum(1 << one for one in set(registers))


def _program(cubin: bytes) -> list[Instruction]:
    """The instructions of a kernel.

    A branch that looks its target up has a table in the cubin. It is read here, since finding targets in the code takes
    the disassembler another third of its time.
    """
    code = disassembled(cubin, "-ndf")
    table: tuple[int, ...] = ()
    if LOOKED_UP in code:
        table = table_of(cubin) if code.count(f" {LOOKED_UP} ") == 1 else ()
        code = code if table else disassembled(cubin)
    return parse(code, table)


def disassembled(cubin: bytes, *options: str) -> str:
    """The machine code as text; "" where there is no disassembler."""
    try:
        tool = knobs.nvidia.nvdisasm.path
    except RuntimeError:
        return ""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(cubin)
        command = [tool, "-c", *options, file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
