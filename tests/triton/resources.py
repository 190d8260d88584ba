"""What a compiled kernel takes of a GPU, read from its machine code; no GPU is needed."""

import re
import subprocess
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from triton import knobs
from triton.backends.compiler import GPUTarget

from weft.kernels.gpu.compile import miscompiles

# weft looks at the machine code of what it compiles, too: half a second that is not spent twice.
WHOLE = miscompiles.disassembled
_once = lru_cache(maxsize=1)(WHOLE)
miscompiles.disassembled = lambda cubin, *options: _once(cubin)
TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
SMALL = GPUTarget("cuda", 89, 32)  # an RTX 4090
SHARED = {"sm_80": 163, "sm_89": 99, "sm_90": 227, "sm_100": 227, "gfx942": 64}  # KB that one block may have
REGISTERS = {"sm_80": 255, "sm_90": 255, "sm_100": 255, "gfx942": 512}  # that one thread may have


@dataclass(frozen=True)
class Resources:
    """registers: of a thread. spilled: bytes of local memory of a thread. shared: bytes of a block. inside: loads and
    stores of local memory in innermost loops. read: for each of these that multiplies, the instructions (64 rows x 16
    dims) that read their first factor from shared memory. waits: waits for products over products, in the loop
    where it is most; about 1 where the assembler runs them one by one, since it was not sure of their registers.
    """

    registers: int
    spilled: int
    shared: int
    inside: int = 0
    read: tuple[int, ...] = ()
    waits: float = 0.0


def resources(kernel, target):
    """Resources of what `compile_for` returned, for a key of TARGETS; what is said of loops for sm_90 only."""
    shared = kernel.metadata.shared
    if target.startswith("gfx"):
        text = kernel.asm["amdgcn"]
        return Resources(
            _number(r"\.vgpr_count: +(\d+)", text), _number(r"\.private_segment_fixed_size: +(\d+)", text), shared
        )
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(kernel.asm["cubin"])
        usage = _output(knobs.nvidia.cuobjdump.path, "-res-usage", file.name)
    code = miscompiles.disassembled(kernel.asm["cubin"]) if target == "sm_90" else ""
    assert code or target != "sm_90", "there is no nvdisasm"
    loops = innermost(code)
    spills = sum(len(re.findall(r"\b(?:LDL|STL)\b", loop)) for loop in loops)
    registers, stack = _number(r"REG:(\d+)", usage), _number(r"STACK:(\d+)", usage)
    return Resources(registers, stack, shared, spills, reads(loops), waits(loops))


def _number(pattern, text):
    return int(re.search(pattern, text)[1])


def _output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def innermost(code):
    """The text of each innermost loop of a disassembly."""
    lines = code.splitlines()
    labels = {line.strip().removesuffix(":"): at for at, line in enumerate(lines) if re.match(r"\.L_x_\d+:", line)}
    jumps = [(at, re.search(r"BRA.*`\((\.L_x_\d+)\)", line)) for at, line in enumerate(lines)]
    loops = [(labels[found[1]], at) for at, found in jumps if found and labels[found[1]] < at]
    inner = [a for a in loops if not any(a != b and a[0] <= b[0] and b[1] <= a[1] for b in loops)]
    return ["\n".join(lines[first:last]) for first, last in inner]


def reads(loops):
    """Of each loop with products: how many have their first factor in shared memory (`HGMMA sum, gdesc, ...`)."""
    return tuple(len(re.findall(r"HGMMA\S+ R\d+, gdesc", loop)) for loop in loops if "HGMMA" in loop)


def waits(loops):
    """See `Resources.waits`."""
    return max((loop.count("WARPGROUP.DEPBAR") / loop.count("HGMMA") for loop in loops if "HGMMA" in loop), default=0.0)
