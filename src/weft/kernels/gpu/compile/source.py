"""A kernel as text, before Triton is imported: what is compiled, and the types of its arguments."""

from __future__ import annotations

from dataclasses import dataclass

from weft.outside import is_name, shown

LONGEST = 500  # characters of a kernel's name, which lists its options
POINTERS = {"float32": "*fp32", "bfloat16": "*bf16", "float16": "*fp16"}


@dataclass(frozen=True)
class Source:
    """A module with one kernel, `kernel`. types: of its arguments, in order. aligned: pointers that are multiples of 16
    bytes, by place. registers: the most that a thread may use, 0: what the compiler takes. spec: what it was emitted
    from, as JSON for people. early: a launch of it may begin while the one before it ends. gluon: it is written in
    Triton's dialect of that name. shared: its warp groups share their code, see `weft.kernels.gpu.compile.dedup`.
    adds: boxes that it stores are added to memory, see `weft.kernels.gpu.compile.adding`.
    """

    name: str
    text: str
    types: tuple[tuple[str, str], ...]
    aligned: tuple[int, ...]
    warps: int
    stages: int
    registers: int = 0
    spec: str = ""
    early: bool = False
    gluon: bool = False
    shared: bool = False
    adds: bool = False

    def __post_init__(self) -> None:
        wrong = [name for name in (self.name, *(name for name, _ in self.types)) if not is_name(name, LONGEST)]
        if wrong:  # weft makes them all: whoever hands one on from outside is stopped here, before it is code
            raise ValueError(f"{shown(repr(wrong[0]))} is no name that a kernel's source may have")
