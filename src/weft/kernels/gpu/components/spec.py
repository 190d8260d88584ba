"""What kernels of components are made for, and their entries with the types of their arguments."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from weft.kernels.gpu.compile.source import POINTERS, Source
from weft.kernels.gpu.entry import module
from weft.kernels.gpu.score.fragment import Fragment, fragment
from weft.kernels.gpu.score.spec import Rules
from weft.kernels.gpu.spec import NARROW, Strided
from weft.kernels.gpu.tile.config import Named, literal
from weft.planning.families.components import SIZE
from weft.planning.tiling import chunks

WIDE = ("Lse", "DLse")  # always float32
INTEGERS = ("batch", "per", "heads", "length", "shift")
STRIDED = ("Q", "K", "V", "Out", "DOut", "DQ", "DK", "DV")
Chunks = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class ComponentSpec(Strided):
    """One kernel. lse_gradient: lse has a gradient. rules: score functions, with what is summed for their tables.

    upcast: see `KernelSpec`. Rows of tensors begin on 16 bytes.
    """

    direction: Literal["forward", "gradients"]
    dtype: str
    d: int
    dv: int
    rules: Rules
    lse_gradient: bool = False
    upcast: bool = False
    aligned: bool = True

    @property
    def warps(self) -> int:
        """Eight where a thread of four would spill: for gradients beyond narrow heads."""
        return 8 if self.direction == "gradients" and max(self.d, self.dv) > NARROW else 4

    @property
    def stages(self) -> int:
        """Loads in flight: those of one batch row beyond narrow heads, else of two."""
        return 3 if max(self.d, self.dv) <= NARROW else 2

    @property
    def registers(self) -> int:
        """The most of a thread: a forward at the narrowest heads takes 134, and with 128 has four programs beside each
        other (counted for sm_90).
        """
        return 128 if self.direction == "forward" and max(self.d, self.dv) <= 32 else 0

    @property
    def name(self) -> str:
        """A short readable name; the content decides, not the name."""
        dims = f"{self.d}" if self.d == self.dv else f"{self.d}x{self.dv}"
        sums = "".join(f"_{one.number}" for one in self.rules.entries)
        more = "_lse_gradient" * self.lse_gradient + f"_sums{sums}" * bool(sums)
        return f"components_{self.direction}_{self.dtype}_{dims}_{self.rules.digest}{more}"

    @property
    def symbol(self) -> str:
        """What a profiler shows; several specs may share it."""
        return f"weft_components_{'fwd' if self.direction == 'forward' else 'bwd'}_{self.sizes}"

    @property
    def reads(self) -> tuple[str, ...]:
        """Arguments that are pointers to what is read, in order."""
        of_gradients = ("Out", "DOut", "Lse", *("DLse",) * self.lse_gradient)
        beside = of_gradients if self.direction == "gradients" else ()
        return ("Q", "K", "V", *beside, *self.rules.pointers, "Tables")

    @property
    def writes(self) -> tuple[str, ...]:
        """Arguments that are pointers to what is written, in order."""
        return ("Out", "Lse") if self.direction == "forward" else ("DQ", "DK", "DV", *self.rules.sums)

    @property
    def strided(self) -> tuple[str, ...]:
        """Tensors whose strides are told."""
        return tuple(name for name in STRIDED if name in (*self.reads, *self.writes))

    @property
    def arguments(self) -> tuple[str, ...]:
        """All arguments in order: what is read, scalars, what is written."""
        strides = (f"{name}_{part}" for name in self.strided for part in ("batch", "head", "row"))
        return (*self.reads, *INTEGERS, *strides, *self.rules.scalars, "scale", *self.writes)


class Config(NamedTuple):
    """What the functions of a kernel branch on; see `ComponentSpec` and `weft.kernels.gpu.tile.config.Config`."""

    d: Chunks
    dv: Chunks
    unit: int
    rows: int = SIZE
    entries: tuple[int, ...] = ()
    aligned: bool = True
    precision: str | None = None
    lse_gradient: bool = False
    upcast: bool = False
    score: Any = None
    through: Any = None


def fragment_of(spec: ComponentSpec) -> Fragment:
    """The functions of pairs that a kernel calls."""
    return fragment(spec.rules, spec.direction == "gradients", adds=True)


def config_of(spec: ComponentSpec) -> Config:
    """The configuration of a kernel."""
    through = Named("pair_through") if spec.direction == "gradients" else None
    return Config(
        chunks(spec.d), chunks(spec.dv), spec.unit, entries=tuple(one.kind for one in spec.rules.entries),
        lse_gradient=spec.lse_gradient, upcast=spec.upcast, score=Named("pair_score"), through=through,
    )  # fmt: skip


# ---- the entry -------------------------------------------------------------------------------------------------------
@lru_cache(maxsize=256)
def source_of(spec: ComponentSpec) -> Source:
    """The entry with the types of its arguments; integers have a declared width and are never specialised."""
    types = {name: _type_of(name, spec) for name in spec.arguments}
    aligned = tuple(
        i for i, (name, kind) in enumerate(types.items())
        if kind[0] == "*" and name != "DLse" and name not in spec.rules.pointers
    )  # fmt: skip
    said = json.dumps(asdict(spec), indent=1)
    return Source(spec.name, entry(spec), tuple(types.items()), aligned, spec.warps, spec.stages, spec.registers, said)


def _type_of(name: str, spec: ComponentSpec) -> str:
    rules = spec.rules
    if name in (*rules.pointers, *rules.scalars, *rules.sums):
        return rules.type_of(name)
    if name == "Tables":
        return "*i32"
    if name in (*spec.reads, *spec.writes):
        return "*fp32" if name in WIDE else POINTERS[spec.dtype]
    return "fp32" if name == "scale" else "i32"


def entry(spec: ComponentSpec) -> str:
    """The source of a module with one kernel."""
    about = f"{spec.name}\n\nWritten by weft; {spec.warps} warps, {spec.stages} stages."
    found = fragment_of(spec)
    helpers = f"from weft.kernels.gpu.components.kernel import Tensors, Walk, {spec.direction}\n"
    helpers += "from weft.kernels.gpu.components.spec import Config\nfrom weft.kernels.gpu.ops.loads import Strided\n"
    if found.helpers:
        helpers += f"from weft.kernels.gpu.ops.pairs import {', '.join(found.helpers)}\n"
    return module(spec.symbol, about, f"{helpers}\n{found.text}\n\n", spec.arguments, _body(spec))


def _body(spec: ComponentSpec) -> Iterator[str]:
    first, *more = literal(config_of(spec))
    yield f"C: tl.constexpr = {first}"
    yield from more
    names = "Q", "K", "V", "Out", "DOut", "Lse", "DLse", "DQ", "DK", "DV"
    yield f"{spec.direction}("
    yield "    C,"
    yield "    Tensors("
    for name in names:
        yield f"        {_tensor(spec, name)},"
    yield f"        {_tuple(spec.rules.sums)},"
    yield "    ),"
    yield "    Walk(Tables, batch, per, heads, length),"
    yield f"    scale, shift, {_tuple((*spec.rules.pointers, *spec.rules.scalars))},"
    yield ")"


def _tensor(spec: ComponentSpec, name: str) -> str:
    """A tensor as a body takes it; None for one that this kernel does not take."""
    if name in spec.strided:
        return f"Strided({name}, {name}_batch, {name}_head, {name}_row, ())"
    return name if name in spec.arguments else "None"


def _tuple(names: tuple[str, ...]) -> str:
    return f"({', '.join(names)}{',' * (len(names) == 1)})"
