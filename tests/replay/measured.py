"""What the gate knows of a kernel, as the reference holds it, and how two of them differ, in words."""

from collections import Counter
from dataclasses import dataclass, field

WORDS = {"registers": "registers", "spilled": "bytes of local memory", "shared": "bytes of shared memory"}


@dataclass(frozen=True)
class Measured:
    """registers: of a thread. spilled: bytes of local memory of a thread. shared: bytes of a block. loops: of each
    innermost loop with products these, waits, and accesses of local memory. opcodes: how often each occurs, without
    modifiers. modifiers: a digest of the same with modifiers. refused: why there is no such kernel, else "".
    whole: how often each opcode occurs with its modifiers; it is not recorded.
    """

    registers: int = 0
    spilled: int = 0
    shared: int = 0
    loops: tuple[tuple[int, int, int], ...] = ()
    opcodes: tuple[tuple[str, int], ...] = ()
    modifiers: str = ""
    refused: str = ""
    whole: tuple[tuple[str, int], ...] = field(default=(), compare=False, repr=False)

    def record(self):
        """As a row of a table holds it: a text for each of RECORDED that is not empty, and a number for each opcode."""
        loops = " ".join("/".join(map(str, loop)) for loop in self.loops)
        found = {name: getattr(self, name) for name in RECORDED} | {"loops": loops}
        if self.refused:
            found = {"refused": self.refused}
        return {name: str(value) for name, value in found.items() if value != ""} | dict(self.opcodes)


NUMBERS = ("registers", "spilled", "shared")
RECORDED = ("refused", *NUMBERS, "loops", "modifiers")  # then opcodes by name


def from_record(record):
    """The `Measured` of a row: texts by column, "" where a cell is empty. Raises ValueError if columns are missing."""
    missing = [name for name in RECORDED if name not in record]
    if missing:
        raise ValueError(f"a record has no {', '.join(missing)}; record the reference again: make replay ARGS=--record")
    if record["refused"]:
        return Measured(refused=record["refused"])
    loops = tuple(tuple(map(int, loop.split("/"))) for loop in record["loops"].split())
    counts = {name: text for name, text in record.items() if name not in RECORDED and text}
    opcodes = tuple((name, int(count)) for name, count in sorted(counts.items()))
    sizes = {name: int(record[name]) for name in NUMBERS}
    return Measured(**sizes, loops=loops, opcodes=opcodes, modifiers=record["modifiers"])


# ---- differences -----------------------------------------------------------------------------------------------------
def differences(before, after):
    """What differs, one readable text each; none if nothing does."""
    if before.refused or after.refused:
        return [] if before == after else [f"{_compiles(before)} before, {_compiles(after)} now"]
    found = [
        f"{getattr(before, name)} -> {getattr(after, name)} {words}"
        for name, words in WORDS.items()
        if getattr(before, name) != getattr(after, name)
    ]
    if before.loops != after.loops:
        found.append(f"innermost loops: {_loops(before.loops)} -> {_loops(after.loops)}")
    changed = opcode_changes(dict(before.opcodes), dict(after.opcodes))
    if changed:
        sizes = (sum(count for _, count in one.opcodes) for one in (before, after))
        found.append("opcodes " + " -> ".join(map(str, sizes)) + ": " + " ".join(changed))
    elif before.modifiers != after.modifiers:
        found.append("the same opcodes with other modifiers (--dump writes them)")
    return found


def opcode_changes(before, after):
    """As "+3 IMAD" and "-1 LDG", the largest first."""
    changes = Counter(after)
    changes.subtract(before)
    return [f"{count:+d} {name}" for name, count in sorted(changes.items(), key=lambda x: (-abs(x[1]), x[0])) if count]


def _compiles(one):
    return f"refused ({one.refused})" if one.refused else "compiled"


def _loops(loops):
    texts = [
        f"{waits} waits for {products} products" + f", {local} accesses of local memory" * bool(local)
        for products, waits, local in loops
    ]
    return "; ".join(texts) or "none with products"
