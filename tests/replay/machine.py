"""What a compiled kernel is made of, read from its machine code; no GPU is needed."""

import re
from collections import Counter
from hashlib import sha256

from tests.triton.resources import innermost, resources

from weft.kernels.gpu.compile import miscompiles
from weft.kernels.gpu.compile.sass import parse

from .adapter import HEX
from .measured import Measured

PADDING = ("NOP", "s_code_end")  # fills up the end of a kernel
PRODUCT = re.compile(r"\b(?:[A-Z]*[HIQ]G?MMA|UTC\w*MMA|v_mfma_\w+|v_smfmac_\w+)\b")
WAIT = re.compile(r"\b(?:WARPGROUP\.DEPBAR|DEPBAR|SYNCS\.\S*TRYWAIT\S*|s_waitcnt)\b")
LOCAL = re.compile(r"\b(?:LDL|STL|scratch_load\w*|scratch_store\w*)\b")
AMD_INSTRUCTION = re.compile(r"\s+([a-z]\w+)(?:\s|$)")
AMD_LABEL = re.compile(r"(\.?LBB\w+):")
AMD_JUMP = re.compile(r"\s+s_c?branch\w*\s+(\.?LBB\w+)")


def measure(kernel, target):
    """The `Measured` of what Triton compiled for a target."""
    found = resources(kernel, target)
    if target.startswith("gfx"):
        code = kernel.asm["amdgcn"]
        opcodes, loops = amd_opcodes(code), amd_loops(code)
    else:
        code = miscompiles.disassembled(kernel.asm["cubin"])
        if not code:
            raise RuntimeError("Triton brings no nvdisasm here, so machine code cannot be compared")
        opcodes, loops = nvidia_opcodes(code), innermost(code)
    whole = Counter(opcodes)
    short = Counter(map(stem, opcodes))
    digest = sha256(repr(sorted(whole.items())).encode()).hexdigest()[:HEX]
    sizes = found.registers, found.spilled, found.shared
    tallies = (tuple(sorted(one.items())) for one in (short, whole))
    opcodes, every = tallies
    return Measured(*sizes, counted(loops), opcodes, digest, whole=every)


def stem(opcode):
    """An opcode without its modifiers: LDG of LDG.E.128, and v_pk of AMD's v_pk_mul_f32."""
    return opcode.split(".")[0] if opcode[0].isupper() else "_".join(opcode.split("_")[:2])


def nvidia_opcodes(code):
    """The opcodes of a disassembly by nvdisasm, without guards; padding is left out."""
    return [one.opcode for one in parse(code) if one.opcode not in PADDING]


def amd_opcodes(text):
    """The opcodes of AMD's assembly; directives, labels, comments and padding are left out."""
    found = (AMD_INSTRUCTION.match(line) for line in text.splitlines())
    return [one[1] for one in found if one and one[1] not in PADDING]


def amd_loops(text):
    """The text of each innermost loop of AMD's assembly."""
    lines = text.splitlines()
    labels = {found[1]: at for at, line in enumerate(lines) if (found := AMD_LABEL.match(line))}
    jumps = [(at, found[1]) for at, line in enumerate(lines) if (found := AMD_JUMP.match(line))]
    loops = {(labels[to], at) for at, to in jumps if labels.get(to, at) < at}
    inner = [a for a in loops if not any(a != b and a[0] <= b[0] and b[1] <= a[1] for b in loops)]
    return ["\n".join(lines[first:last]) for first, last in inner]


def counted(loops):
    """(products, waits, accesses of local memory) of each loop with products, sorted: blocks have no fixed order."""
    found = (tuple(len(kind.findall(loop)) for kind in (PRODUCT, WAIT, LOCAL)) for loop in loops)
    return tuple(sorted(one for one in found if one[0]))
