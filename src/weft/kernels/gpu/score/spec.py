"""What a kernel's text depends on where scores are changed by functions: their steps, and how tables are read."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256

from weft.score.expression import Expression
from weft.score.reads import added_to_score
from weft.score.value import composed

POINTERS = {"float32": "*fp32", "bfloat16": "*bf16", "float16": "*fp16", "int32": "*i32"}


@dataclass(frozen=True)
class Captured:
    """A table as kernels read it. dtype: one of POINTERS; booleans are int32. axes: how many it has. wide: the offsets
    of its entries take 64 bits. dense: neighbours along the last axis are neighbours in memory. along: its last index
    says how far apart a pair is, k - q or on a grid (ky - qy) * (2 Y - 1) + kx - qx. It begins at distance 0, and has
    an entry for every pair of every tile, also before its first one.
    """

    dtype: str
    axes: int
    wide: bool = False
    dense: bool = True
    along: bool = field(default=False, repr=False)


# What a read depends on: where gradients of what it gave are summed.
OF_ROWS, DENSE, SHARED, ORDERED, DIAGONALS, OFFSETS, PAIRS, OF_TILES = range(8)


@dataclass(frozen=True)
class Entry:
    """Gradients of what a read gave, which a kernel sums. number: of the read, among `reads_of` the functions.

    kind: OF_ROWS where it depends on the side that stays; DIAGONALS on k - q. ORDERED likewise, with sums of each
    program apart. OFFSETS on differences of coordinates of the grid that is walked. DENSE where every pair of a head
    has its own entry; SHARED where heads share these. PAIRS of any other, which is added to the table's entries.
    OF_TILES: every pair of a tile has its own sum over batch rows, see `weft.kernels.gpu.components`.
    """

    number: int
    kind: int

    @property
    def pointer(self) -> str:
        """The name of the sums among a kernel's arguments."""
        return f"Entries{self.number}"


@dataclass(frozen=True)
class Rules:
    """Score functions of a kernel. text: theirs, in order; tables: of all of them, one after the other. entries: whose
    gradients it sums, by their kinds.
    """

    text: str
    tables: tuple[Captured, ...] = ()
    entries: tuple[Entry, ...] = ()

    @property
    def digest(self) -> str:
        """Eight digits that tell functions apart in the names of kernels."""
        along = "".join(f"|{number}" for number, one in enumerate(self.tables) if one.along)
        return sha256(f"{self!r}{along}".encode()).hexdigest()[:8]

    @property
    def along(self) -> bool:
        """Whether some table is read by how far apart pairs are."""
        return any(one.along for one in self.tables)

    @property
    def adds(self) -> bool:
        """Whether they only add to scores."""
        return bool(added_to_score(self.expression))

    @property
    def expression(self) -> Expression:
        """All of them as one."""
        return composed(self.text)

    @property
    def pointers(self) -> tuple[str, ...]:
        """Names of the tables among a kernel's arguments."""
        return tuple(f"Captured{number}" for number in range(len(self.tables)))

    @property
    def scalars(self) -> tuple[str, ...]:
        """Names of their lengths, `_n0`, and of their strides, `_s0`, in elements; a stride of 1 has none."""
        return tuple(
            f"{name}_{part}{axis}" for name, one in zip(self.pointers, self.tables, strict=True)
            for part, count in (("n", one.axes), ("s", one.axes - one.dense * (one.axes > 0))) for axis in range(count)
        )  # fmt: skip

    @property
    def sums(self) -> tuple[str, ...]:
        """Names of what the kernel adds to."""
        return tuple(one.pointer for one in self.entries)

    def type_of(self, name: str) -> str:
        """The type of one of these arguments."""
        if name in self.sums:
            return "*fp32"
        pointer, _, part = name.partition("_")
        one = self.tables[int(pointer.removeprefix("Captured"))]
        if not part:
            return POINTERS[one.dtype]
        return "i64" if part[0] == "s" and one.wide else "i32"
