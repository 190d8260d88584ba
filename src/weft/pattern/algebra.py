"""Patterns: immutable expressions for which query may see which key.

A pattern is what its author wrote: a call of a library function (`Call`) or an operator on patterns (`And`, `Or`,
`Not`, `Shift`). The leaves under the calls, in `weft.pattern.leaves`, carry the meaning. Two meanings are computed
apart, and tests compare them: `contains`, pair by pair, here and in the leaves; and the affine rows of `weft.acsr`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from weft import memory
from weft.errors import PatternError
from weft.pattern import crossing, misuse
from weft.pattern.bounds import PRINTED, Ints, IntTable
from weft.pattern.depth import settled
from weft.pattern.extent import common_extent
from weft.pattern.integers import below, integer, length_of
from weft.pattern.relation import NDBool

if TYPE_CHECKING:
    from weft.acsr.format import Acsr

STRIP = 1 << 18  # pairs that to_dense looks at together: what a core's cache holds

Align: TypeAlias = Literal["top-left", "bottom-right"] | None


@dataclass(frozen=True)
class Where:
    """Where a pattern is asked: its lengths, and the batch row and head when those matter."""

    m: int
    n: int
    batch: int = 0
    head: int = 0


class Pattern:
    """Base of all patterns: the operators, and the questions one may ask.

    structure and numbers are what crosses into a compiled graph, tensor the same numbers where torch is there: see
    `weft.pattern.crossing`.
    """

    __slots__ = ()
    structure: str
    numbers: Ints
    tensor: Any

    def __reduce_ex__(self, protocol: Any) -> Any:
        """As what crosses into a graph, where there is that: it needs no class of weft's to be read again."""
        if "numbers" in self.__dict__:
            return crossing.decode, (self.structure, self.numbers.tobytes())
        return super().__reduce_ex__(protocol)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "tensor"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        crossing.keep(self)

    # ---- algebra -------------------------------------------------------------------------------------------------
    def __and__(self, other: Pattern) -> Pattern:
        return _joined("and_", And, self, other)

    def __or__(self, other: Pattern) -> Pattern:
        return _joined("or_", Or, self, other)

    __rand__, __ror__, __array_ufunc__ = __and__, __or__, None  # of `mask & pattern`: refused, by numpy too

    def __invert__(self) -> Pattern:
        return Not(self)

    def written(self, *, whole: bool) -> str:
        """The expression, as it can be written in Python; unless `whole`, long tables are cut in the middle."""
        return repr(self)  # of a leaf, which nobody writes

    def __str__(self) -> str:
        return self.written(whole=False)

    def __repr__(self) -> str:
        """The whole expression: evaluated with weft's names it is this pattern."""
        return self.written(whole=True)

    def __bool__(self) -> bool:
        raise PatternError(
            f"the truth value of {self} was asked for",
            "a pattern is a set of pairs and is neither true nor false; `and`, `or`, `not` and `if` cannot work on it",
            "combine patterns with `&`, `|` and `~`",
        )

    def shift(self, q: int = 0, k: int = 0) -> Pattern:
        """(i, j) is live iff (i - q, j - k) is live in self; what moves in from outside is dead."""
        return Shift(self, integer(q, "shift", "q"), integer(k, "shift", "k"))

    def aligned(self, align: Align) -> Pattern:
        """The same expression with `align` set on every position-dependent part that declares none. PatternError where
        every one declares its own, and not all of them this one: nothing would change.
        """
        declared = dict.fromkeys(self.alignments())
        if align is not None and None not in declared and declared.keys() - {align}:
            said = " and ".join(map(repr, declared))
            raise PatternError(
                f"{_operand(self)}.aligned({align!r})", f"its parts declare {said} already",
                "leave align= out where they are made. A mask function counts from the first query on: recognize one "
                "of (q + N - M, k) if the last is meant",
            )  # fmt: skip
        return self.filled(align)

    def filled(self, align: Align) -> Pattern:
        """As `aligned`, also where nothing is left to declare."""
        raise NotImplementedError

    # ---- meaning -------------------------------------------------------------------------------------------------
    def holds(self, q: Ints, k: Ints, at: Where) -> NDBool:
        """The meaning, pair by pair, for indices inside the lengths and lengths already checked."""
        raise NotImplementedError

    def check(self, m: int, n: int, asked: str) -> None:
        """Raise if the pattern has no meaning for m queries and n keys."""
        raise NotImplementedError

    def extent(self) -> tuple[int | None, int | None]:
        """(batch rows, heads) that the pattern tells apart, None where it tells none apart."""
        raise NotImplementedError

    def at(self, batch: int, head: int) -> Pattern:
        """The pattern that batch row `batch` and head `head` see, free of per_batch and per_head."""
        raise NotImplementedError

    def alignments(self) -> Iterator[Align]:
        """The alignment of every position-dependent part."""
        raise NotImplementedError

    # ---- questions -----------------------------------------------------------------------------------------------
    def contains(self, q: Any, k: Any, m: int, n: int | None = None, batch: int = 0, head: int = 0) -> NDBool:
        """Whether query q sees key k, for broadcastable integer arrays q and k. Indices outside (m, n) are dead."""
        m, n = self._sizes(m, n, batch, head)
        q, k = np.asarray(q, np.int64), np.asarray(k, np.int64)
        inside = (q >= 0) & (q < m) & (k >= 0) & (k < n)
        if not inside.any():
            return np.asarray(inside)
        qs, ks = np.clip(q, 0, max(m - 1, 0)), np.clip(k, 0, max(n - 1, 0))
        return np.asarray(inside & self.holds(qs, ks, Where(m, n, batch, head)))

    def to_dense(self, m: int, n: int | None = None) -> NDBool:
        """The boolean mask: (M, N), or (B, H, M, N) if batch rows or heads differ (1 where they do not).

        This is the oracle: it evaluates the meaning on every pair and knows nothing of affine rows.
        """
        m, n = self._sizes(m, n)
        k = np.arange(n, dtype=np.int64)[None, :]
        batches, heads = self.extent()
        cure = "ask for an excerpt (weft.excerpt), or for acsr(), which makes no matrix"
        pairs = (batches or 1) * (heads or 1) * m * n
        memory.check(f"{text(self)}.to_dense({m}, {n})", pairs, cure, PatternError)
        dense = np.empty((batches or 1, heads or 1, m, n), np.bool_)
        strip = max(1, STRIP // max(1, n))
        for b, h in np.ndindex(dense.shape[:2]):
            for first in range(0, m, strip):
                q = np.arange(first, min(first + strip, m), dtype=np.int64)[:, None]
                dense[b, h, first : first + strip] = self.holds(q, k, Where(m, n, b, h))
        return dense[0, 0] if batches is None and heads is None else dense

    def acsr(self, m: int, n: int | None = None, batch: int = 0, head: int = 0, *, orders: bool = True) -> Acsr:
        """The affine rows of one batch row and head, proven disjoint; orders=False: scattered documents are blocks."""
        from weft.acsr.build import build  # the floor above; a method here because users look for it here

        m, n = self._sizes(m, n, batch, head)
        return build(self, m, n, int(batch), int(head), orders)

    def draw(self, m: int, n: int | None = None, width: int = 48) -> str:
        """The pattern at (m, n) in block characters, at most `width` columns, two characters each; queries run down,
        keys to the right. Head 0 of batch row 0.

        Shades show the share of live pairs, which are counted. A cell is blank only if none of its pairs is live, and
        solid only if all are. Raises what `acsr` raises.
        """
        from weft.acsr.picture import owned  # a floor above, as in `acsr`
        from weft.pattern.draw import drawn

        return drawn(owned(self.acsr(m, n), width, width).share)

    def to_block_mask(self, m: int, n: int | None = None, *, block_size: Any = 128, device: Any = None) -> Any:
        """The pattern at (m, n) as torch's own BlockMask, for its flex_attention. block_size: of queries and keys, or
        both; device: of its tensors, torch's default if None. B and H are those that the pattern tells apart, else 1.

        Its mask_mod is a function of (b, h, q_idx, kv_idx) that torch.compile can trace. Raises what `acsr` raises, and
        ModuleNotFoundError without torch.
        """
        blocks: Any = import_module("weft.torch.blockmask")  # the front end, which alone knows torch
        return blocks.block_mask_of(self, *self._sizes(m, n), block_size=block_size, device=device)

    def _sizes(self, m: Any, n: Any, batch: int = 0, head: int = 0) -> tuple[int, int]:
        """(m, n) checked, n defaulting to m; and that batch row and head exist."""
        m, n = (length_of(x, name) for x, name in ((m, "m"), (m if n is None else n, "n")))
        self.check(m, n, f"{self} at M={m}, N={n}")
        batches, heads = self.extent()
        below(batch, batches, "batch row", self)
        below(head, heads, "head", self)
        return m, n


@dataclass(frozen=True, repr=False)
class Call(Pattern):
    """A library function and its arguments; `body` is what the function returned and takes no part in equality."""

    name: str
    args: tuple[tuple[str, Any], ...]
    body: Pattern = field(compare=False)

    def __post_init__(self) -> None:
        from weft.pattern.arguments import written

        _crossed(self, self.name, written(self.name, dict(self.args)))

    def written(self, *, whole: bool) -> str:
        return f"{self.name}({', '.join(f'{key}={text(value, whole=whole)}' for key, value in self.args)})"

    def filled(self, align: Align) -> Pattern:
        from weft.pattern.arguments import rebuild

        args = {key: _filled_arg(value, align) for key, value in self.args}
        return rebuild(self.name, args, align=align)

    def holds(self, q: Ints, k: Ints, at: Where) -> NDBool:
        return self.body.holds(q, k, at)

    def check(self, m: int, n: int, asked: str) -> None:
        self.body.check(m, n, asked)

    def extent(self) -> tuple[int | None, int | None]:
        return self.body.extent()

    def at(self, batch: int, head: int) -> Pattern:
        return self if self.extent() == (None, None) else self.body.at(batch, head)

    def alignments(self) -> Iterator[Align]:
        return self.body.alignments()


class Operator(Pattern):
    """A pattern made of patterns, all asked at the same lengths."""

    __slots__ = ()
    parts: tuple[Pattern, ...]

    def rebuilt(self, parts: tuple[Pattern, ...]) -> Pattern:
        raise NotImplementedError

    def filled(self, align: Align) -> Pattern:
        return self.rebuilt(tuple(part.filled(align) for part in self.parts))

    def check(self, m: int, n: int, asked: str) -> None:
        for part in self.parts:
            part.check(m, n, asked)

    def extent(self) -> tuple[int | None, int | None]:
        return common_extent(self.parts, self)

    def at(self, batch: int, head: int) -> Pattern:
        return self.rebuilt(tuple(part.at(batch, head) for part in self.parts))

    def alignments(self) -> Iterator[Align]:
        for part in self.parts:
            yield from part.alignments()


@dataclass(frozen=True, repr=False)
class And(Operator):
    """Live where every part is."""

    parts: tuple[Pattern, ...]

    def __post_init__(self) -> None:
        _crossed(self, "and_", [("", part) for part in self.parts])

    def written(self, *, whole: bool) -> str:
        return " & ".join(_operand(part, whole) for part in self.parts)

    def rebuilt(self, parts: tuple[Pattern, ...]) -> Pattern:
        return And(parts)

    def holds(self, q: Ints, k: Ints, at: Where) -> NDBool:
        return np.asarray(np.logical_and.reduce(np.broadcast_arrays(*(p.holds(q, k, at) for p in self.parts))))


@dataclass(frozen=True, repr=False)
class Or(Operator):
    """Live where any part is."""

    parts: tuple[Pattern, ...]

    def __post_init__(self) -> None:
        _crossed(self, "or_", [("", part) for part in self.parts])

    def written(self, *, whole: bool) -> str:
        return " | ".join(_operand(part, whole) for part in self.parts)

    def rebuilt(self, parts: tuple[Pattern, ...]) -> Pattern:
        return Or(parts)

    def holds(self, q: Ints, k: Ints, at: Where) -> NDBool:
        return np.asarray(np.logical_or.reduce(np.broadcast_arrays(*(p.holds(q, k, at) for p in self.parts))))


@dataclass(frozen=True, repr=False)
class Not(Operator):
    """Live where the part is not."""

    part: Pattern

    @property
    def parts(self) -> tuple[Pattern, ...]:  # type: ignore[override]
        return (self.part,)

    def __post_init__(self) -> None:
        _crossed(self, "invert", [("", self.part)])

    def written(self, *, whole: bool) -> str:
        return f"~{_operand(self.part, whole)}"

    def rebuilt(self, parts: tuple[Pattern, ...]) -> Pattern:
        return Not(parts[0])

    def holds(self, q: Ints, k: Ints, at: Where) -> NDBool:
        return np.asarray(~self.part.holds(q, k, at))


@dataclass(frozen=True, repr=False)
class Shift(Operator):
    """The part moved by q queries and k keys."""

    part: Pattern
    q: int
    k: int

    @property
    def parts(self) -> tuple[Pattern, ...]:  # type: ignore[override]
        return (self.part,)

    def __post_init__(self) -> None:
        _crossed(self, "shift", [("", self.part), ("q", self.q), ("k", self.k)])

    def written(self, *, whole: bool) -> str:
        part = self.part.written(whole=whole)
        part = f"({part})" if isinstance(self.part, (And, Or, Not)) else part
        return f"{part}.shift(q={self.q}, k={self.k})"

    def rebuilt(self, parts: tuple[Pattern, ...]) -> Pattern:
        return Shift(parts[0], self.q, self.k)

    def holds(self, q: Ints, k: Ints, at: Where) -> NDBool:
        q, k = q - self.q, k - self.k
        inside = (q >= 0) & (q < at.m) & (k >= 0) & (k < at.n)
        if not inside.any():
            return np.asarray(inside)
        q, k = np.clip(q, 0, at.m - 1), np.clip(k, 0, at.n - 1)
        return np.asarray(inside & self.part.holds(q, k, at))


def _joined(name: str, kind: type[And] | type[Or], left: Pattern, right: object) -> Any:
    """left & right or left | right; written down instead while a compiler traces."""
    if crossing.tracing():
        return crossing.tracer.call(name, [("", left), ("", right)])
    return kind(_flat(kind, left, right)) if isinstance(right, Pattern) else misuse.not_a_pattern(left, name, right)


def _crossed(pattern: Pattern, name: str, args: list[tuple[str, Any]]) -> None:
    """Set depth, structure and numbers. Leaves have none: only what a user wrote crosses."""
    pattern.__dict__["depth"] = settled(name, [value for _, value in args])
    try:
        structure, numbers = crossing.cross(name, args)
    except crossing.Bare:
        return
    pattern.__dict__.update(structure=structure, numbers=numbers)
    crossing.keep(pattern)


def _flat(operator: type[And] | type[Or], *parts: Pattern) -> tuple[Pattern, ...]:
    """The operands of a chain of one associative operator, so that a | b | c is one union of three."""
    return tuple(leaf for part in parts for leaf in (part.parts if isinstance(part, operator) else (part,)))


def _operand(part: Pattern, whole: bool = False) -> str:
    found = part.written(whole=whole)
    return f"({found})" if isinstance(part, (And, Or)) else found


def text(value: Any, *, whole: bool = False) -> str:
    """An argument as it is printed; of a long list the first entries and the last one, unless it is to be whole."""
    if isinstance(value, tuple):
        if len(value) > PRINTED and not whole:
            return f"[{', '.join(map(text, value[:3]))}, ..., {text(value[-1])}; {len(value)} in all]"
        return "[" + ", ".join(text(v, whole=whole) for v in value) + "]"
    if isinstance(value, Pattern):
        return value.written(whole=whole)
    return str(value) if isinstance(value, IntTable) and not whole else repr(value)


def _filled_arg(value: Any, align: Align) -> Any:
    if isinstance(value, Pattern):
        return value.filled(align)
    return tuple(_filled_arg(v, align) for v in value) if isinstance(value, tuple) else value
