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
        """As JSON holds it: a short text for counts, and no word of a refusal where there is none."""
        if self.refused:
            return {"refused": self.refused}
        found = {name: getattr(self, name) for name in RECORDED}
        return found | {"opcodes": " ".join(f"{name}:{count}" for name, count in self.opcodes)}


RECORDED = ("registers", "spilled", "shared", "loops", "opcodes", "modifiers")


def from_record(record):
    """The `Measured` of a record. Raises ValueError if fields are missing or unknown."""
    if record.keys() == {"refused"}:
        return Measured(**record)
    if set(record) != set(RECORDED):
        raise ValueError(f"a record has {', '.join(record)}; record the reference again: make replay ARGS=--record")
    counts = (text.rsplit(":", 1) for text in record["opcodes"].split())
    opcodes = tuple((name, int(count)) for name, count in counts)
    return Measured(**record | {"loops": tuple(map(tuple, record["loops"])), "opcodes": opcodes})


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
