"""Score functions as text: jit functions of straight lines, which the entry of a kernel has beside the kernel.

`pair_score` gives the score of a pair, and what gradients need of it. `pair_through` turns the gradient by the score
into that by the score before all functions. Both are pointwise over the pairs (rows, cols) of a tile, whose indices
broadcast.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from weft.kernels.gpu.score.spec import PAIRS, Rules
from weft.score.derive import derived
from weft.score.expression import COMPARE, Ref, Step
from weft.score.reads import Read, added_to_score, reads_of

INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "lt": "<", "le": "<=", "eq": "==", "ne": "!=", "and": "&",
         "or": "|", "xor": "^"}  # fmt: skip
CALLS = {"min": "tl.minimum", "max": "tl.maximum", "abs": "tl.abs", "where": "tl.where", "exp": "tl.exp",
         "log": "tl.log", "sqrt": "tl.sqrt", "sin": "tl.sin", "cos": "tl.cos", "floor": "tl.floor", "tanh": "tanh",
         "erf": "tl.erf",
         "floordiv": "floor_divide", "mod": "remainder"}  # fmt: skip
HELPERS = ("tanh", "floor_divide", "remainder", "read_now", "read_ahead")  # of `weft.kernels.gpu.ops.pairs`
CASTS = {"real": "tl.float32", "int": "tl.int32"}
ARGUMENTS = ("score", "b", "h", "q", "k", "shift", "captured")
PAIR = frozenset("qk")
SHAPE = "rows", "cols"  # of a tile


@dataclass(frozen=True)
class Fragment:
    """The text of a kernel's functions of pairs. sloped: gradients are multiplied by a derivative that is not 1.
    paired: some read adds to its table's entries by pairs, at `pair_places`. helpers: names that the text calls.
    """

    text: str
    sloped: bool
    paired: bool
    helpers: tuple[str, ...]


def fragment(rules: Rules, gradients: bool, adds: bool = False, read: str = "tl.load") -> Fragment:
    """The functions of a kernel; gradients: it makes some, and so needs derivatives. adds: of scores no function is
    written, but of what is added to them. read: what reads tables by distance.
    """
    made = derived(rules.expression)
    write = _Writer(rules, made.steps, read)
    terms = added_to_score(rules.expression) if adds else ()
    slope = made.by_score if gradients else None
    reads = [reads_of(rules.expression)[one.number] for one in rules.entries] if gradients else []
    shares = [slope, *(read.by for read in reads)] if gradients else []
    kept = list(dict.fromkeys(x for x in shares if x is not None and not write.is_constant(x)))
    lines = [*write.lines([*((ref for ref, _ in terms) if adds else (made.result,)), *kept])]
    result = write.summed(terms) if adds else write.whole(made.result)
    lines.append(f"return ({', '.join([result, *map(write.name, kept)])},)")
    first = (*(f"{name}: tl.constexpr" for name in SHAPE), *ARGUMENTS[1:]) if adds else ARGUMENTS
    text = _function("pair_score", (*first, *("apart",) * rules.along), lines)
    if gradients:
        found = (f"ds * kept[{kept.index(x)}]" if x in kept else _constant_times(write, x) for x in shares)
        text += "\n\n" + _function("pair_through", ("ds", "kept"), [f"return ({', '.join(found)},)"])
    paired = [read for read, one in zip(reads, rules.entries, strict=False) if one.kind == PAIRS]
    if paired:
        text += "\n\n" + _function("pair_places", ARGUMENTS[1:], _places(write, paired))
    sloped = gradients and (slope is None or write.value(slope) != 1.0)
    return Fragment(text, sloped, bool(paired), tuple(name for name in HELPERS if f"{name}(" in text))


def _places(write: _Writer, reads: Sequence[Read]) -> Iterator[str]:
    """Lines of the places of entries in contiguous tables."""
    steps = [write.steps[read.step] for read in reads]
    yield from write.lines(arg for step in steps for arg in step.args)
    yield f"return ({', '.join(write.place(step) for step in steps)},)"


def _function(name: str, arguments: Sequence[str], lines: Iterable[str]) -> str:
    body = "".join(f"    {line}\n" for line in lines)
    return f"@triton.jit\ndef {name}({', '.join(arguments)}):\n{body}"


def _constant_times(write: _Writer, slope: Ref | None) -> str:
    if slope is None:
        return "tl.zeros_like(ds)"
    return "ds" if write.value(slope) == 1.0 else f"ds * {write.name(slope)}"


class _Writer:
    """Writes steps as lines. A step's name is a variable, a leaf or a constant."""

    def __init__(self, rules: Rules, steps: Sequence[Step], read: str) -> None:
        self.rules, self.steps, self.read = rules, steps, read
        self.depends = self._dependencies()

    def _dependencies(self) -> list[frozenset[str]]:
        """Of q and k, those that each step depends on; the score is of both."""
        found: list[frozenset[str]] = []
        for step in self.steps:
            own = PAIR if step.op == "score" else frozenset({step.op} & PAIR)
            found.append(own.union(*(found[a] for a in step.args)))
        return found

    # ---- names -------------------------------------------------------------------------------------------------------
    def is_constant(self, ref: Ref) -> bool:
        """Whether a step is one number."""
        return self.steps[ref].op == "const"

    def value(self, ref: Ref) -> float | None:
        """The number that a step is; None if it is none."""
        return self.steps[ref].value if self.is_constant(ref) else None

    def name(self, ref: Ref) -> str:
        """What a step is called in the text."""
        step = self.steps[ref]
        if step.op == "const":
            text = repr(float(step.value)) if step.kind == "real" else repr(step.value)
            return f'float("{text}")' if text.lstrip("-") in ("inf", "nan") else text
        if step.op == "size":
            return "captured{}_n{}".format(*step.value)
        return step.op if step.op in ("score", "b", "h", "q", "k", "shift") else f"v{ref}"

    def whole(self, ref: Ref) -> str:
        """A step, broadcast to all pairs."""
        if self.is_constant(ref):
            return f"tl.full(score.shape, {self.name(ref)}, tl.float32)"
        return self.name(ref) if self.depends[ref] == PAIR else f"tl.broadcast_to({self.name(ref)}, score.shape)"

    def summed(self, terms: Iterable[tuple[Ref, bool]]) -> str:
        """Steps that are added or subtracted, broadcast to all pairs."""
        text = " ".join(f"{'-' if less else '+'} {self.name(ref)}" for ref, less in terms)
        if all(self.is_constant(ref) for ref, _ in terms):
            return f"tl.full(({', '.join(SHAPE)}), {text}, tl.float32)"
        return f"tl.broadcast_to({text.removeprefix('+ ')}, ({', '.join(SHAPE)}))"

    # ---- lines -------------------------------------------------------------------------------------------------------
    def lines(self, results: Iterable[Ref]) -> Iterator[str]:
        """The lines of all steps that some results need."""
        needed, waiting = set(), [*results]
        while waiting:
            ref = waiting.pop()
            if ref not in needed:
                needed.add(ref)
                waiting += self.steps[ref].args
        names = [name.replace("Captured", "captured") for name in (*self.rules.pointers, *self.rules.scalars)]
        if names:
            yield f"{', '.join(names)}{',' * (len(names) == 1)} = captured"
        for ref in sorted(needed):
            if self.name(ref) == f"v{ref}":
                yield f"v{ref} = {self._line(self.steps[ref])}"

    def _line(self, step: Step) -> str:
        args = [self.name(a) for a in step.args]
        if step.op == "read":
            return self._read(step)
        if step.op in CASTS:
            return f"{args[0]}.to({CASTS[step.op]})"
        if step.op == "neg":
            return f"-{args[0]}"
        if step.op == "not":
            return f"{args[0]} == 0"
        if step.op in INFIX:
            left, right = (f"({x})" if x.startswith("-") else x for x in args)
            return f"{left} {INFIX[step.op]} {right}"
        return f"{CALLS[step.op]}({', '.join(args)})"

    def _read(self, step: Step) -> str:
        """An entry of a table; indices beyond its ends, which dead pairs may have, are clamped."""
        number, one = step.value, self.rules.tables[step.value]
        table = f"captured{number}"
        if one.along:
            places = [f"{self._within(a, number, axis)} * {table}_s{axis}" for axis, a in enumerate(step.args[:-1])]
            return f"{self.read}((({table} + ({' + '.join(places)})) + apart[0]) + apart[1])"
        alone: list[str] = []  # offsets of a program
        shared: list[str] = []  # and of its pairs
        for axis, arg in enumerate(step.args):
            index = self._within(arg, number, axis)
            last = one.dense and axis == one.axes - 1
            (shared if self.depends[arg] else alone).append(index if last else f"{index} * {table}_s{axis}")
        at = " + ".join([table, *([f"({' + '.join(alone)})"] if alone else [])])
        if shared:
            at = f"({at}) + ({' + '.join(shared)})" if alone else f"{at} + ({' + '.join(shared)})"
        if step.kind == "bool":
            return f"tl.load({at}) != 0"
        return f"tl.load({at})" + ".to(tl.float32)" * (one.dtype in ("bfloat16", "float16"))

    def place(self, step: Step) -> str:
        """Where an entry lies in a contiguous table."""
        found = self._within(step.args[0], step.value, 0)
        for axis, arg in enumerate(step.args[1:], 1):
            found = f"({found}) * captured{step.value}_n{axis} + {self._within(arg, step.value, axis)}"
        return found

    def _within(self, ref: Ref, table: int, axis: int) -> str:
        index = self.name(ref)
        if self.value(ref) == 0 or self._is_clipped(ref, table, axis):
            return index
        return f"tl.maximum(tl.minimum({index}, captured{table}_n{axis} - 1), 0)"

    def _is_clipped(self, ref: Ref, table: int, axis: int) -> bool:
        """Whether an index is max(min(..., the table's last one), 0) already."""
        step = self.steps[ref]
        if step.op != "max" or not any(self.value(a) == 0 for a in step.args):
            return False
        inner = [self.steps[a] for a in step.args if self.steps[a].op == "min"]
        return any(self._is_last(a, table, axis) for one in inner for a in one.args)

    def _is_last(self, ref: Ref, table: int, axis: int) -> bool:
        step = self.steps[ref]
        if step.op != "sub" or self.value(step.args[1]) != 1:
            return False
        size = self.steps[step.args[0]]
        return size.op == "size" and size.value == (table, axis)


assert set(COMPARE) <= set(INFIX)
