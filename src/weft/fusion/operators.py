"""A layer as a list of operators over named arrays: what is fused is chosen on this, without a framework."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import Literal

Kind = Literal["product", "attention", "norm", "pointwise", "other"]


@dataclass(frozen=True)
class Array:
    """An array in memory. width: elements of its last axis. weight: whether it is the same at every call."""

    name: str
    nbytes: int
    width: int = 0
    weight: bool = False


@dataclass(frozen=True)
class Operator:
    """One operator. flops: of products and attention; what others compute is hidden behind what they read."""

    name: str
    kind: Kind
    reads: tuple[Array, ...]
    writes: Array
    flops: float = 0.0


@dataclass(frozen=True)
class Layer:
    """Operators in the order in which they run. kept: names of arrays that are read after the layer."""

    name: str
    operators: tuple[Operator, ...]
    kept: frozenset[str]
    readers: dict[str, tuple[int, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        readers: dict[str, tuple[int, ...]] = {}
        for i, one in enumerate(self.operators):
            for name in {array.name for array in one.reads}:
                readers[name] = (*readers.get(name, ()), i)
        object.__setattr__(self, "readers", readers)

    def __len__(self) -> int:
        return len(self.operators)

    @cached_property
    def fingerprint(self) -> str:
        """Equal for layers whose operators, sizes and connections are equal, whatever their names are."""
        places: dict[str, int] = {}

        def of(array: Array) -> tuple[int, int, int, bool]:
            return places.setdefault(array.name, len(places)), array.nbytes, array.width, array.weight

        said = [(one.kind, tuple(map(of, one.reads)), of(one.writes), one.flops) for one in self.operators]
        kept = sorted(places.get(name, -1) for name in self.kept)
        return sha256(repr((said, kept)).encode()).hexdigest()[:12]

    def read_outside(self, array: Array, inside: Iterable[int]) -> bool:
        """Whether someone but the operators `inside` reads an array."""
        return array.name in self.kept or not set(self.readers.get(array.name, ())) <= set(inside)
