"""One copy of the code of warp groups that run the same program: a rewriting of the PTX of a kernel that specialises.

Triton translates each group of a `warp_specialize` by itself. It does so even where all groups call one function and
ask the hardware which group they are (`which_group`). Copies of a loop do not fit where processors keep instructions,
and warps wait for them (docs/decisions/0010-warp-groups-that-specialise.md). They also take LLVM most of its time.

So only the first of such groups is given its function. The others are given `like_the_group_before`, which says so in
the PTX. `share` sends them to the first one's code. Its barrier becomes a number that follows from the thread's own.
Where `share` does not recognise what Triton made, the kernel is refused, since those groups would do nothing. For a
version of Triton that is not known every group is given its function (`COPIES`), which is right and slower.

Such a kernel begins some thirty barriers in shared memory before anything else. Triton does not tell them apart, so it
has all warps wait for each other after each. `begin_together` leaves out these waits: 0.5 to 1.0 us of a launch on an
H100 (benchmarks/notes/triton.md, T74).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from weft.errors import UnsupportedKernel
from weft.kernels.gpu.compile.stages import VERSIONS

GROUP = 128  # threads
COPIES = gl.constexpr(not triton.__version__.startswith(VERSIONS))  # whether each group has code of its own
ASKS = "// which of the groups that share their code"  # in the PTX of a group
LIKE_BEFORE = "// runs the code of the group before"  # and of those that have none
TABLE = re.compile(r"(\.branchtargets\s+)([^;]+);")
LABEL = re.compile(r"^(\$L__BB\d+_\d+):")
TARGET = re.compile(r"\$L__BB\d+_\d+")
LEAVES = re.compile(r"^\s*(?:bra(?:\.uni)?\s+\$L__BB|brx\.idx|ret;)")  # and never goes on below
EFFECT = re.compile(  # of a line, which may be predicated
    r"(?:@!?%\w+ )?"
    r"((?:ld|st|cp|bar|barrier|mbarrier|wgmma|fence|setmaxnreg|shfl|elect|stmatrix|ldmatrix|red|atom)\b\S*)"
)
BARRIER = re.compile(r"\bbar\.sync\s+(\d+), 128;")
COMMENT = re.compile(r"//.*|^\s*\.loc\b.*|^\s*\$L__tmp\d+:")
MINE = "%group_barrier"


@gluon.jit
def which_group():  # type: ignore[no-untyped-def] # of Triton's, which takes no annotation
    """The number of a group of four warps, of those that come after the kernel's own four."""
    return gl.inline_asm_elementwise(
        "{ // which of the groups that share their code\n"
        ".reg .b32 t; mov.u32 t, %tid.x; shr.u32 t, t, 7; add.s32 t, t, -1; shfl.sync.idx.b32 $0, t, 0, 31, -1; }",
        "=r,r", [0], dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def like_the_group_before():  # type: ignore[no-untyped-def]
    """Stands for the function of the group before, in a kernel that is rewritten."""
    gl.inline_asm_elementwise(
        "{ // runs the code of the group before\nmov.b32 $0, 0; }", "=r,r", [0], dtype=gl.int32, is_pure=False, pack=1
    )


@dataclass(frozen=True)
class Blocks:
    """A kernel's instructions, from label to label, and which block follows which in the text."""

    lines: Mapping[str, tuple[int, ...]]  # numbers of lines
    below: Mapping[str, str]
    text: tuple[str, ...]

    @staticmethod
    def of(ptx: str) -> Blocks:
        lines: dict[str, list[int]] = {"": []}
        text, at = ptx.split("\n"), ""
        for number, line in enumerate(text):
            found = LABEL.match(line)
            if found:
                at = found[1]
                lines[at] = []
            elif COMMENT.sub("", line).strip():
                lines[at].append(number)
        return Blocks({name: tuple(x) for name, x in lines.items()}, dict(pairwise(lines)), tuple(text))

    def code(self, name: str) -> list[str]:
        return [" ".join(COMMENT.sub("", self.text[n]).split()) for n in self.lines[name]]

    def effects(self, name: str) -> list[str]:
        """What its instructions are that do more than compute."""
        return [found[1] for line in self.code(name) if (found := EFFECT.match(line))]

    def after(self, name: str) -> list[str]:
        """Where a block may go next."""
        code = self.code(name)
        found = [target for line in code for target in TARGET.findall(line)]
        goes_on = not (code and LEAVES.match(code[-1])) and name in self.below
        return [*found, self.below[name]] if goes_on else found

    def reached(self, entry: str, stop: str) -> list[str]:
        """Blocks that are reached from one without passing `stop`, in an order that only branches decide."""
        found: dict[str, None] = {}
        left = [entry]
        while left:
            name = left.pop()
            if name not in found and name != stop:
                found[name] = None
                left += reversed(self.after(name))
        return list(found)


def share(ptx: str) -> str:
    """PTX whose groups without code run that of the group before. Raises UnsupportedKernel for what is not known."""
    if LIKE_BEFORE not in ptx:
        return ptx
    tables = TABLE.findall(ptx)
    if len(tables) != 1:
        raise _unknown(f"{len(tables)} tables of groups")
    blocks, entries = Blocks.of(ptx), TARGET.findall(tables[0][1])
    dispatch = next(name for name, code in blocks.lines.items() if any("brx.idx" in blocks.text[n] for n in code))
    groups = [blocks.reached(entry, dispatch) for entry in entries]
    alike = 1 + sum(any(LIKE_BEFORE in line for line in _raw(blocks, names)) for names in groups)
    asks, *others = (any(ASKS in line for line in _raw(blocks, names)) for names in groups)
    if not asks or any(others) or not all(_is_empty(blocks, names) for names in groups[1:alike]):
        raise _unknown("groups in another order")
    barrier = _barrier(blocks, groups[0])
    if barrier < 0 or _elsewhere(blocks, groups[0]).intersection(range(barrier, barrier + alike)):
        raise _unknown("barriers by other numbers")
    return _shared(ptx, blocks, entries[:alike], groups[0], barrier)


def _unknown(what: str) -> UnsupportedKernel:
    return UnsupportedKernel(
        "a kernel whose warp groups share their code", f"Triton {triton.__version__} translates it with {what}",
        f"use Triton {' or '.join(f'{one}*' for one in VERSIONS)}, and report this",
    )  # fmt: skip


def _is_empty(blocks: Blocks, names: list[str]) -> bool:
    """Whether a group does nothing but say that it runs the code of the one before."""
    effects = [effect for name in names for effect in blocks.effects(name)]
    marked = any(LIKE_BEFORE in line for line in _raw(blocks, names))
    return marked and not any(effect.startswith(("ld.global", "st.", "wgmma", "mbarrier", "cp.")) for effect in effects)


def _elsewhere(blocks: Blocks, names: list[str]) -> set[int]:
    """The barriers of four warps that others wait at."""
    rest = [name for name in blocks.lines if name not in names]
    return {int(x) for name in rest for line in blocks.code(name) for x in BARRIER.findall(line)}


def _raw(blocks: Blocks, names: list[str]) -> Iterator[str]:
    """Lines with their comments."""
    for name in names:
        lines = blocks.lines[name]
        yield from blocks.text[lines[0] : lines[-1] + 1] if lines else ()


def _barrier(blocks: Blocks, names: list[str]) -> int:
    """The only barrier that a group of four warps waits at; -1 where there are none or several."""
    found = {int(x) for name in names for line in blocks.code(name) for x in BARRIER.findall(line)}
    return found.pop() if len(found) == 1 else -1


def _shared(ptx: str, blocks: Blocks, asking: list[str], group: list[str], barrier: int) -> str:
    """All groups at the first one's code, whose barrier is number `barrier` and those after it."""
    text = list(blocks.text)
    for name in group:
        for n in blocks.lines[name]:
            text[n] = BARRIER.sub(f"bar.sync {MINE}, {GROUP};", text[n])
    entry = next(n for n, line in enumerate(text) if line.startswith(f"{asking[0]}:"))
    text[entry] += (
        f"\n\tmov.u32 {MINE}, %tid.x;\n\tshr.u32 {MINE}, {MINE}, 7;\n\tadd.s32 {MINE}, {MINE}, {barrier - 1};"
    )
    begin = next(n for n, line in enumerate(text) if line.lstrip().startswith(".reg "))
    text[begin] = f"\t.reg .b32 {MINE};\n{text[begin]}"
    table = TABLE.search(ptx)
    assert table is not None
    rest = TARGET.findall(table[2])[len(asking) :]
    targets = ",\n\t\t".join([asking[0]] * len(asking) + rest)
    return "\n".join(text).replace(table[0], f"{table[1]}{targets};")


def begin_together(ptx: str) -> str:
    """PTX without waits of warps between one mbarrier.init and the next.

    One thread begins all of these barriers, which differ. Whoever uses them waits after the last.
    """
    blocks = Blocks.of(ptx)
    needless = {n for name in blocks.lines for n in _between_inits(blocks, name)}
    return "\n".join(line for n, line in enumerate(blocks.text) if n not in needless)


def _between_inits(blocks: Blocks, name: str) -> Iterator[int]:
    """Lines of a block that only wait, with nothing but such and inits since an init, and then one more."""
    waits: list[int] | None = None
    for number, line in zip(blocks.lines[name], blocks.code(name), strict=True):
        found = EFFECT.match(line)
        if found is None:
            continue
        if found[1].startswith("mbarrier.init."):
            yield from waits or ()
            waits = []
        elif waits is not None and BARRIER.fullmatch(line):
            waits.append(number)
        else:
            waits = None


def rewritten(ptx: str) -> str:
    """PTX as it is assembled."""
    return begin_together(share(ptx))
