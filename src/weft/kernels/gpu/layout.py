"""How the tensors of a call lie in memory, and the options that its kernels are made for.

Both are plain values: what a front knows before it asks for a program, and the key by which it finds one again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from weft.kernels.gpu.program import Slot, Strides, row_major
from weft.planning.problem import DTYPES, Problem

LEAST_LINEAR_SCALE = 1e-10  # below it, masks and sums of scores would leave float32
OF_CALL = ("q", "k", "v", "out", "dout")  # in the order of `Layout.strides`
PARTS = ("batch", "head", "row")


class Vector(NamedTuple):
    """Numbers that a call brings beside its tensors: sinks and slopes (Hq,), lse and its gradient (B, Hq, M)."""

    dtype: str
    strides: Strides


class TableForm(NamedTuple):
    """A table that a score function reads. dtype: as torch names it; strides in elements. along: see
    `weft.kernels.gpu.score.spec.Captured`.
    """

    dtype: str
    shape: tuple[int, ...]
    strides: Strides
    along: bool = False


class Layout(NamedTuple):
    """Strides in elements of q, k and v, for gradients also of out and dout (batch, head, token, dim).

    aligned: every one of them begins on 16 bytes. lse, dlse, sinks, slopes: the vectors that there are. `lse` stays
    None where it is contiguous float32 on 16 bytes, as kernels leave it. tables: of all score functions, in order.
    """

    strides: tuple[Strides, ...]
    aligned: bool
    lse: Vector | None = None
    dlse: Vector | None = None
    sinks: Vector | None = None
    slopes: Vector | None = None
    tables: tuple[TableForm, ...] = ()

    @property
    def named(self) -> dict[str, Strides]:
        """Strides by slot."""
        return dict(zip(OF_CALL, self.strides, strict=False))


class Options(NamedTuple):
    """What scores become, and what a program leaves.

    shift: added to query indices in ALiBi's distance. tf32: products of float32 may take tf32. deterministic: sums of
    gradients have one order. with_delta: gradients leave delta (B, Hq, M) too, which the gradient of sinks takes.
    one_argument: no kernel writes a slot by two arguments, for fronts where a result is one buffer. score: the text of
    score functions (`weft.score.text`), "" for none. wanted: which of their tables' gradients are made.
    dropout: the share of weights that is dropped; tokens: so many numbers of queries and keys follow its seed, 0 where
    these have their own.
    """

    scale: float
    softcap: float | None = None
    shift: int = 0
    tf32: bool = False
    deterministic: bool = True
    with_delta: bool = False
    one_argument: bool = False
    score: str = ""
    wanted: tuple[bool, ...] = ()
    dropout: float = 0.0
    tokens: int = 0

    @property
    def by_pairs(self) -> bool:
        """Whether something depends on the numbers of a pair: a score function, or dropout."""
        return bool(self.score or self.dropout)

    @property
    def rescaled(self) -> bool:
        """Whether the scale is near zero or below, so that scores are multiplied by it before anything else."""
        return self.scale < LEAST_LINEAR_SCALE


def rows_like(strides: Strides, shape: tuple[int, int, int], width: int) -> Strides:
    """Strides of a dense (*shape, width) whose first three axes have the order in memory that `strides` says."""
    order = sorted(range(3), key=lambda axis: strides[axis], reverse=True)
    found, step = [0, 0, 0, 1], max(1, width)
    for axis in reversed(order):
        found[axis] = step
        step *= max(1, shape[axis])
    return tuple(found)


def result(
    name: str, side: Literal["q", "k"], width: int, problem: Problem, layout: Layout, dtype: str | None = None
) -> Slot:  # fmt: skip
    """An output (B, H, M or N, width) in the memory order of q or k, of their dtype or another one."""
    heads, length = (problem.q_heads, problem.m) if side == "q" else (problem.kv_heads, problem.n)
    shape = problem.batch, heads, length
    return Slot(name, "output", dtype or problem.dtype, (*shape, width), rows_like(layout.named[side], shape, width))


def of_rows(name: str, problem: Problem, dtype: str = "float32", width: int = 1) -> Slot:
    """So many numbers for each query, (B, Hq, M) or (B, Hq, M, width), contiguous."""
    shape: tuple[int, ...] = (problem.batch, problem.q_heads, problem.m)
    return Slot.dense(name, "output", dtype, shape if width == 1 else (*shape, width))


def inputs(problem: Problem, layout: Layout) -> tuple[Slot, ...]:
    """Slots of what a call is given: tensors first, then vectors, in the order of `Layout`."""
    p, named = problem, layout.named
    sizes = {"q": (p.q_heads, p.m, p.d), "k": (p.kv_heads, p.n, p.d), "v": (p.kv_heads, p.n, p.dv)}
    sizes |= dict.fromkeys(("out", "dout"), (p.q_heads, p.m, p.dv))
    found = [Slot(name, "input", p.dtype, (p.batch, *sizes[name]), named[name]) for name in named]
    rows = (p.batch, p.q_heads, p.m)
    if "dout" in named:
        form = layout.lse or Vector("float32", row_major(rows))
        found.append(Slot("lse", "input", form.dtype, rows, form.strides))
    shapes = {"dlse": rows, "sinks": (p.q_heads,), "slopes": (p.q_heads,)}
    for name, shape in shapes.items():
        vector: Vector | None = getattr(layout, name)
        if vector is not None:
            found.append(Slot(name, "input", vector.dtype, shape, vector.strides))
    return tuple(found)


def dense_rows(strides: Mapping[str, Strides], dtype: str) -> bool:
    """Whether rows are dense, every row begins on 16 bytes if the first does, and 32 bits hold strides in 16 bytes."""
    per = 16 // DTYPES[dtype]
    return all(s[3] == 1 and not any(x % per or x // per >= 1 << 31 for x in s[:3]) for s in strides.values())
