"""Programs of a few lines, on arrays of numpy."""

from dataclasses import dataclass

import numpy as np

from .launch import Kernel, launch
from .memory import Global
from .parse import parse
from .threads import EAGER

FRAME = """
.extern .shared .align 16 .b8 global_smem[];
.visible .entry kernel(
{params}
)
.reqntid {threads}
{{
    .reg .pred %p<40>;
    .reg .b16 %rs<40>;
    .reg .b32 %r<200>;
    .reg .b64 %rd<40>;
    mov.u32 %r0, %tid.x;
{lines}
    ret;
}}
"""
FAMILIES = {2: "%rs", 4: "%r", 8: "%rd"}  # of registers, by bytes


@dataclass(frozen=True)
class Small:
    """Lines of a program, whose parameters are pointers to arrays: %rd0, %rd1, ..., and at %rd10, %rd11, ... the places
    of this thread, `each` bytes further for every one. %r0: its number.
    """

    lines: str
    threads: int = 32
    blocks: int = 1
    shared: int = 1 << 16
    each: int = 4

    def text(self, count):
        head = []
        for i in range(count):
            head.append(f"ld.param.b64 %rd{i}, [p{i}];")
            head.append(f"mad.wide.u32 %rd{10 + i}, %r0, {self.each}, %rd{i};")
        params = ",\n".join(f"    .param .u64 .ptr .global .align 1 p{i}" for i in range(count))
        return FRAME.format(params=params, threads=self.threads, lines="\n".join([*head, self.lines]))

    def run(self, *arrays, order=EAGER):
        """What it writes into arrays stays there; returns the last one."""
        kernel = Kernel(parse(self.text(len(arrays))), self.shared)
        memory = Global([(x.ctypes.data, x.nbytes) for x in arrays])
        launch(kernel, (self.blocks, 1, 1), [x.ctypes.data for x in arrays], memory, order)
        return arrays[-1]


def result(opcode, *inputs, kind=None):
    """(32,) of what one instruction makes of arrays (threads, of bool too) and, after these, of
    numbers in the text.

    kind: numpy's type of the result; else the first array's.
    """
    arrays = [np.broadcast_to(x, 32) for x in inputs if not isinstance(x, int)]
    kind = np.dtype(kind or arrays[0].dtype)
    lines, names = [], []
    for place, x in enumerate(inputs):
        names.append(str(x) if isinstance(x, int) else register(x.dtype, place))
        lines += [] if isinstance(x, int) else _loaded(x.dtype, place)
    arrays.append(np.zeros(32, kind))
    lines += [f"{opcode} {register(kind, 9)}, {', '.join(names)};", *_stored(kind, 9, len(arrays) - 1)]
    memory = [x.astype(np.uint32) if x.dtype.kind == "b" else x.copy() for x in arrays]
    return Small("\n".join(lines)).run(*memory).astype(kind)


def register(kind, place):
    """A register for numpy's type."""
    return f"{'%p' if kind.kind == 'b' else FAMILIES[kind.itemsize]}{20 + place}"


def _loaded(kind, place):
    """From the array of that number; a truth is any number but 0."""
    width = 4 if kind.kind == "b" else kind.itemsize
    to = "%r39" if kind.kind == "b" else register(kind, place)
    yield f"mad.wide.u32 %rd39, %r0, {width}, %rd{place};"
    yield f"ld.global.b{8 * width} {to}, [%rd39];"
    if kind.kind == "b":
        yield f"setp.ne.b32 {register(kind, place)}, %r39, 0;"


def _stored(kind, place, number):
    width = 4 if kind.kind == "b" else kind.itemsize
    if kind.kind == "b":
        yield f"selp.b32 %r39, 1, 0, {register(kind, place)};"
    yield f"mad.wide.u32 %rd39, %r0, {width}, %rd{number};"
    yield f"st.global.b{8 * width} [%rd39], {'%r39' if kind.kind == 'b' else register(kind, place)};"
