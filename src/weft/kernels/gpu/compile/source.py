"""A kernel as text, before Triton is imported: what is compiled, and the types of its arguments."""

from __future__ import annotations

from dataclasses import dataclass

POINTERS = {"float32": "*fp32", "bfloat16": "*bf16", "float16": "*fp16"}


@dataclass(frozen=True)
class Source:
    """A module with one kernel, `kernel`. types: of its arguments, in order. aligned: pointers that are multiples of 16
    bytes, by place. registers: the most that a thread may use, 0: what the compiler takes. spec: what it was emitted
    from, as JSON for people. early: a launch of it may begin while the one before it ends. gluon: it is written in
    Triton's dialect of that name. shared: its warp groups share their code, see `weft.kernels.gpu.compile.dedup`.
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
