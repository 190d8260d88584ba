"""A mask function of transformers read by calling it with objects that stand for its indices.

This is what `weft.recognize` does, in so few operations that torch.compile can trace it. There recognition cannot run,
and the tensors that a function reads are known when the graph runs alone. It knows the operations of
`transformers.masking_utils`, and gives up on others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from torch import Tensor
from torch.overrides import TorchFunctionMode

from weft.errors import UnsupportedError


class Seen:
    """What a function says, as a tree. kind: "all", "none", "and", "or", or one of the leaves below.

    near: (least, most) of k - q, None for no limit, and whether positions were read from a table. same: tables (B, S)
    of queries and of keys that hold the same number. kept: "q" or "k", and the table (B, S) that is True where one is.
    chunks: the size, the token (B,) that the first chunk begins with, or None, and the tables of positions, or None.
    """

    def __init__(self, kind: str, *parts: Any) -> None:
        self.kind, self.parts = kind, parts

    def __and__(self, other: Any) -> Seen:
        return Seen("and", self, as_seen(other))

    def __or__(self, other: Any) -> Seen:
        return Seen("or", self, as_seen(other))

    def to(self, device: Any) -> Seen:
        """As of a tensor."""
        return self

    device = None


class Index:
    """A batch row ("b"), head ("h"), query ("q") or key ("k"), with a number added; table: what it was read from."""

    device = None

    def __init__(self, side: str, plus: int = 0, table: Tensor | None = None, minus: Tensor | None = None) -> None:
        self.side, self.plus, self.table, self.minus = side, plus, table, minus

    def new_ones(self, shape: Any, dtype: Any = None) -> Seen:
        """What a conjunction begins with."""
        return Seen("all")

    def new_zeros(self, shape: Any, dtype: Any = None) -> Seen:
        """What a union begins with."""
        return Seen("none")

    def to(self, device: Any) -> Index:
        """As of a tensor."""
        return self

    def __add__(self, by: int) -> Index:
        return Index(self.side, self.plus + by, self.table, self.minus)

    def __sub__(self, other: Any) -> Any:
        if isinstance(other, Index):
            if other.side == "b":
                return Index(self.side, self.plus, self.table, other.table)
            return Gap(self, other)
        return Index(self.side, self.plus - other, self.table, self.minus)

    def __floordiv__(self, size: int) -> Chunk:
        return Chunk(self, size)

    def __le__(self, other: Any) -> Seen:
        return _below(self, other, 0)

    def __lt__(self, other: Any) -> Seen:
        return _below(self, other, 1)

    def __ge__(self, other: Any) -> Seen:
        if isinstance(other, Index):
            return _below(other, self, 0)
        if other != 0:
            _unread(f"an index compared with {other}")
        return Seen("all") if self.table is None else Seen("kept", self.side, self.table >= 0)

    def __gt__(self, other: Any) -> Seen:
        return _below(other, self, 1)

    def __eq__(self, other: Any) -> Any:
        if not isinstance(other, Index) or self.table is None or other.table is None or self.side == other.side:
            _unread("an index compared for equality")
        queries, keys = (self, other) if self.side == "q" else (other, self)
        return Seen("same", queries.table, keys.table)

    __hash__ = None  # type: ignore[assignment]


class Gap:
    """The difference of two indices, and whether its sign was dropped."""

    def __init__(self, first: Index, second: Index, absolute: bool = False) -> None:
        self.first, self.second, self.absolute = first, second, absolute

    def __abs__(self) -> Gap:
        return Gap(self.first, self.second, True)

    def __le__(self, most: int) -> Seen:
        if not self.absolute:
            return _below(self.first, self.second + most, 0)
        return _below(self.first, self.second + most, 0) & _below(self.second, self.first + most, 0)

    def __lt__(self, most: int) -> Seen:
        return self <= most - 1


class Chunk:
    """An index divided by a size."""

    def __init__(self, index: Index, size: int) -> None:
        self.index, self.size = index, size

    def __eq__(self, other: Any) -> Any:
        if not isinstance(other, Chunk) or (other.size, other.index.plus) != (self.size, self.index.plus):
            _unread("chunks of two sizes")
        queries, keys = (self, other) if self.index.side == "q" else (other, self)
        return Seen("chunks", self.size, self.index.minus, (queries.index.table, keys.index.table))

    __hash__ = None  # type: ignore[assignment]


def _below(first: Any, second: Any, by: int) -> Seen:
    """first + by <= second, of a query and a key."""
    if not isinstance(first, Index) or not isinstance(second, Index) or {first.side, second.side} != {"q", "k"}:
        _unread("an index compared with a number")
    moved = (first.table is not None) or (second.table is not None)
    by = second.plus - first.plus - by
    return Seen("near", None, by, moved) if first.side == "k" else Seen("near", -by, None, moved)


def as_seen(value: Any) -> Seen:
    """What a function returned as a `Seen`."""
    if isinstance(value, Seen):
        return value
    if isinstance(value, Index) and value.table is not None and value.side in ("q", "k"):
        return Seen("kept", value.side, value.table)
    return _unread(f"a mask function that returns {type(value).__name__}")


class _Reads(TorchFunctionMode):
    """Tables read at indices, as `table[b, q]` and `table[b]`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__getitem__:
            table, at = args
            if isinstance(at, Index) and at.side == "b":
                return Index("b", 0, table)
            if isinstance(at, tuple) and len(at) == 2 and isinstance(at[1], Index):
                if not isinstance(at[0], Index) or at[0].side != "b" or at[1].plus or at[1].table is not None:
                    _unread("a table that is not read at [batch row, token]")
                return Index(at[1].side, 0, table)
        return func(*args, **(kwargs or {}))


def read(function: Callable[..., Any]) -> Seen:
    """What a mask function of (b, h, q, k) says. Raises UnsupportedError where it does what is not known here."""
    with _Reads():
        return as_seen(function(Index("b"), Index("h"), Index("q"), Index("k")))


def leaves(seen: Seen) -> list[Seen]:
    """The parts of a conjunction; the tree itself where it is none."""
    if seen.kind == "and":
        return leaves(seen.parts[0]) + leaves(seen.parts[1])
    return [seen] if seen.kind != "all" else []


def _unread(what: str) -> NoReturn:
    raise UnsupportedError(
        "a mask function inside a compiled function", f"it has {what}, which cannot be read in a graph",
        "make the mask outside of it, and pass the model attention_mask of four axes, or compile with fullgraph=False",
    )  # fmt: skip
