"""What row-wise kernels are made for, and which of them a plan takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from weft.kernels.triton.spec import Strided
from weft.pattern.bounds import Stair
from weft.planning.problem import DTYPES
from weft.planning.row_choice import ByRows, RowShape
from weft.planning.rowwise import RowPlan
from weft.settings import interpreted

# Last arguments, 32-bit integers that grow step by step: from a query to the row of a term, and to the key beside it
# (for distances); the number of keys.
GROWING = ("shift", "beside", "length")


class Numbers(NamedTuple):
    """The options that a kernel is made for or told."""

    scale: float
    softcap: float | None
    alibi: bool
    sinks: bool
    beside: int = 0  # see `Step`


@dataclass(frozen=True)
class RowSpec(Strided):
    """One generated row-wise kernel.

    rows: of a program, a power of two from 16 on. cols: keys of a tile. bounds: on either side of a term. tables: some
    bound is a step function. aligned: as of `KernelSpec`. several: terms are walked in a loop. split: shares are left
    to a merge, or are merged (`merge`).
    """

    dtype: str
    d: int
    dv: int
    rows: int
    cols: int
    bounds: int = 2
    tables: bool = False
    aligned: bool = True
    several: bool = False
    split: bool = True
    softcap: bool = False
    alibi: bool = False
    sinks: bool = False
    upcast: bool = False  # see KernelSpec
    merge: bool = False
    warps: int = 4
    stages: int = 3

    @property
    def name(self) -> str:
        """A short readable name; the content decides, not the name."""
        dims = f"{self.d}" if self.d == self.dv else f"{self.d}x{self.dv}"
        words = ("tables", "several", "split", "softcap", "alibi", "sinks")
        options = "".join(f"_{x}" for x in words if getattr(self, x)) + "_any" * (not self.aligned)
        kind = "merge" if self.merge else "rows"
        return f"{kind}_{self.dtype}_{dims}_{self.rows}x{self.cols}{options}"

    @property
    def symbol(self) -> str:
        """What a profiler shows; several specs may share it."""
        return f"weft_decode_{'combine' if self.merge else 'split_kv'}_{self.sizes}"

    @property
    def tensors(self) -> tuple[str, ...]:
        """Arguments that are tensors, first of all."""
        return (
            ("Work", "Out", "Lse", "Sinks") if self.merge else ("Q", "K", "V", "Work", "Out", "Lse", "Sinks", "Slopes")
        )

    @property
    def strided(self) -> tuple[str, ...]:
        """Tensors whose strides are told, in elements or units."""
        return ("Out",) if self.merge else ("Q", "K", "V", "Out")

    @property
    def integers(self) -> tuple[str, ...]:
        """Arguments that are 32-bit integers."""
        return ("splits", "all_heads", "m") + (() if self.merge else ("members_at", "groups", "lanes", "span"))

    @property
    def arguments(self) -> tuple[str, ...]:
        """All arguments in order."""
        parts = ("batch", "head", "row") if self.aligned else ("batch", "head", "row", "dim")
        strides = ["sums", *(f"{x}_{part}" for x in self.strided for part in parts)]
        more = () if self.merge else ("Tables", "scale", "softcap", *GROWING)
        return (*self.tensors, *self.integers, *strides, *more)


def row_spec(plan: RowPlan, shape: RowShape, aligned: bool, numbers: Numbers) -> RowSpec:
    """The row-wise kernel of a plan."""
    problem = plan.problem
    step_functions = any(not isinstance(b, Stair) for r in plan.relations for b in r.lower + r.upper)
    return RowSpec(
        problem.dtype, problem.d, problem.dv, shape.rows, shape.cols, bounds_of(plan), step_functions, aligned,
        several=any(len(s.relations) != 1 for s in plan.shares), split=shape.splits > 1,
        softcap=numbers.softcap is not None, alibi=numbers.alibi, sinks=numbers.sinks,
        upcast=problem.dtype != "float32" and interpreted(), warps=shape.warps, stages=shape.stages,
    )  # fmt: skip


def specs_of(found: ByRows) -> tuple[RowSpec, ...]:
    """The kernels of a forward by rows, as `configure.specs_of` has those of tiles."""
    problem = found.plan.problem
    aligned = all(size * DTYPES[problem.dtype] % 16 == 0 for size in (problem.d, problem.dv))
    spec = row_spec(found.plan, found.shape, aligned, Numbers(problem.d**-0.5, None, alibi=False, sinks=False))
    return (spec, merging(spec)) if spec.split else (spec,)


def merging(spec: RowSpec) -> RowSpec:
    """The kernel that merges what another one leaves; it knows nothing of keys."""
    return RowSpec(
        spec.dtype, spec.d, spec.dv, 16, 16, aligned=spec.aligned, sinks=spec.sinks, merge=True, warps=4, stages=1
    )


def bounds_of(plan: RowPlan) -> int:
    """Bounds on either side of every record: 2, or 4 where some term needs more."""
    most = max((max(len(r.lower), len(r.upper)) for r in plan.relations), default=0)
    return 2 if most <= 2 else 4
