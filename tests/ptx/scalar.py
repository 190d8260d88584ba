"""Instructions that each thread does with its own numbers.

Functions of float32 are numpy's and subnormal numbers are kept (.ftz is read over), so results are near a GPU's, not
equal to them. A sum of a product is made in float64 and rounded to float32.

What is decorated here says what an instruction means, which is done at once (`Alone`) or among others (`straight`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from .formats import TF32, TYPES, bits_of, narrowed, type_of, unsigned, widened
from .parse import Fault
from .table import Table

TABLE = Table()
ALL = np.uint64(0xFFFFFFFF)
COMPARE = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal,
}  # fmt: skip
JOIN = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}
BITWISE = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
ROUND = {"rzi": np.trunc, "rni": np.rint, "rmi": np.floor, "rpi": np.ceil}
SMALL = ("bf16", "bf16x2", "f16x2")  # as their bits
OF_SMALL = ("add", "sub", "mul", "fma", "neg")
UNARY = {"ex2": np.exp2, "lg2": np.log2, "sqrt": np.sqrt, "tanh": np.tanh, "rcp": np.reciprocal, "neg": np.negative,
         "abs": np.abs, "not": np.invert}  # fmt: skip


@dataclass(frozen=True)
class Meaning:
    """results = function(*inputs), the one result itself or several in a tuple; None: the input as it is. results:
    names of registers. inputs: (operand, type).
    """

    results: tuple[str, ...]
    inputs: tuple[tuple[str, str], ...]
    function: Callable | None


class Alone:
    """Does an instruction. means(instruction, types of registers): its Meaning."""

    def __init__(self, means):
        self.means = means

    def __call__(self, group, instruction, active):
        meaning = self.means(instruction, group.team.program.registers)
        inputs = [group.get(*one) for one in meaning.inputs]
        found = inputs[0] if meaning.function is None else meaning.function(*inputs)
        for name, x in zip(meaning.results, found if isinstance(found, tuple) else (found,), strict=True):
            group.put(name, x, active)


def does(*names, modifiers=""):
    """Decorates what says what the instructions mean whose opcodes begin with one of these names."""
    return lambda means: TABLE.does(*names, modifiers=modifiers)(Alone(means))


def _of(instruction, count, function, *more):
    """The Meaning: a function of the first operands after the result, in the instruction's type, and of more inputs."""
    if instruction.kind in SMALL and instruction.parts[0] not in BITWISE:
        if instruction.parts[0] not in OF_SMALL:
            raise Fault(f"{'.'.join(instruction.parts)} of numbers that numpy lacks is not known")
        function = partial(_small, function, instruction.kind)
    inputs = [(text, instruction.kind) for text in instruction.operands[1 : 1 + count]]
    return Meaning((instruction.operands[0],), (*inputs, *more), function)


def _small(function, kind, *inputs):
    """Numbers of 16 bits as float32, and what a function makes of them rounded; also of two in each register."""
    one, count = kind.removesuffix("x2"), 1 + kind.endswith("x2")
    found = (narrowed(function(*half), one) for half in _halves(inputs, one, count))
    low, *high = (x.astype(type_of(kind)) for x in found)
    return low | high[0] << 16 if high else low


def _halves(inputs, kind, count):
    """The inputs' lower numbers, then the upper ones, as float32."""
    return [[widened((x >> 16 * n).astype(np.uint16), kind) for x in inputs] for n in range(count)]


def literal(text):
    """The number that an operand is; None if it is none."""
    try:
        return int(text.removesuffix("U"), 0)
    except ValueError:
        return None


# ---- arithmetic ------------------------------------------------------------------------------------------------------
@does("mov", "cvta", modifiers="to global param")
def _move(instruction, registers):
    """Also a register of several parts, taken apart or put together."""
    kind, (to, what) = instruction.kind, instruction.operands
    if isinstance(to, list):
        return Meaning(tuple(to), ((what, kind),), partial(_apart, f"u{bits_of(kind) // 8 // len(to)}", len(to)))
    if isinstance(what, list):
        inputs = tuple((name, f"b{bits_of(kind) // len(what)}") for name in what)
        return Meaning((to,), inputs, partial(_together, f"u{bits_of(kind) // 8}"))
    return Meaning((to,), ((what, kind),), None)


def _apart(kind, count, x):
    parts = np.ascontiguousarray(x).view(kind)
    return tuple(parts[i::count].copy() for i in range(count))


def _together(kind, *parts):
    return np.stack(parts, 1).view(kind)[:, 0].copy()


@does("ex2", "lg2", "sqrt", "tanh", "rcp", "neg", "abs", "not", modifiers="approx ftz rn")
def _unary(instruction, registers):
    return _of(instruction, 1, UNARY[instruction.parts[0]])


@does("add", "sub", modifiers="rn ftz")
def _add(instruction, registers):
    return _of(instruction, 2, np.add if instruction.parts[0] == "add" else np.subtract)


@does("and", "or", "xor")
def _bitwise(instruction, registers):
    return _of(instruction, 2, BITWISE[instruction.parts[0]])


@does("min", "max", modifiers="ftz NaN relu")
def _extreme(instruction, registers):
    """A number wins over a NaN, unless the instruction says otherwise."""
    names = ("minimum", "maximum") if "NaN" in instruction.parts or instruction.kind[0] != "f" else ("fmin", "fmax")
    function = getattr(np, names[instruction.parts[0] == "max"])
    if "relu" in instruction.parts:
        return _of(instruction, 2, lambda a, b: np.maximum(function(a, b), 0, dtype=a.dtype))
    return _of(instruction, 2, function)


@does("mul", "mad", "fma", modifiers="lo hi wide rn ftz")
def _multiply(instruction, registers):
    """lo: the lower half of the product; wide: all of it."""
    kind, parts, operands = instruction.kind, instruction.parts, instruction.operands
    whole = f"{kind[0]}{2 * bits_of(kind)}" if "wide" in parts else kind
    more = [(operands[3], whole)] if len(operands) > 3 else []
    if "wide" in parts:
        product = partial(_wide, type_of(whole))
    elif "hi" in parts:
        product = partial(_upper, bits_of(kind))
    elif kind == "f32" and more:
        return _of(instruction, 2, _rounded_once, *more)
    else:
        product = np.multiply
    return _of(instruction, 2, (lambda a, b, c: product(a, b) + c) if more else product, *more)


def _wide(kind, a, b):
    return a.astype(kind) * b.astype(kind)


def _upper(bits, a, b):
    return ((a.astype(object) * b.astype(object)) >> bits).astype(a.dtype)


def _rounded_once(a, b, c):
    x = a.astype(np.float64)
    x *= b
    x += c
    return x.astype(np.float32)


@does("div", "rem", modifiers="full rn approx ftz")
def _divide(instruction, registers):
    """Of integers towards zero; by zero all bits are set."""
    if instruction.kind[0] == "f":
        return _of(instruction, 2, np.divide)
    return _of(instruction, 2, partial(_divided, instruction.parts[0] == "rem"))


def _divided(remainder, a, b):
    divisor = np.where(b == 0, 1, b).astype(b.dtype)
    rest = np.fmod(a, divisor)
    return np.where(b == 0, ~a.dtype.type(0), rest if remainder else (a - rest) // divisor)


# ---- bits ------------------------------------------------------------------------------------------------------------
@does("shl", "shr")
def _shift(instruction, registers):
    """By as many bits as there are, or more: nothing is left but the sign."""
    kind, by = type_of(instruction.kind), literal(instruction.operands[2])
    left, bits = instruction.parts[0] == "shl", bits_of(instruction.kind)
    if by is not None and 0 <= by < bits:
        by = kind.type(by)
        return _of(instruction, 1, (lambda a: a << by) if left else (lambda a: a >> by))
    return _of(instruction, 1, partial(_shifted, left), (instruction.operands[2], "u32"))


def _shifted(left, a, by):
    bits = 8 * a.itemsize
    inside = np.minimum(by, bits - 1).astype(a.dtype)
    if left:
        return np.where(by < bits, a << inside, a.dtype.type(0))
    return np.where((by < bits) | (a.dtype.kind == "i"), a >> inside, a.dtype.type(0))


@does("shf", modifiers="l r wrap clamp")
def _funnel(instruction, registers):
    inputs = tuple((text, "u32") for text in instruction.operands[1:])
    return Meaning((instruction.operands[0],), inputs, partial(_funnelled, instruction.parts))


def _funnelled(parts, *inputs):
    low, high, by = (x.astype(np.uint64) for x in inputs)
    by = by % np.uint64(32) if "wrap" in parts else np.minimum(by, np.uint64(32))
    both = high << np.uint64(32) | low
    return ((both << by) >> np.uint64(32) if "l" in parts else (both >> by) & ALL).astype(np.uint32)


@does("bfe")
def _extract(instruction, registers):
    """Bits from `first` on, as a number; with a sign, the last of them (at most the register's) fills what is above."""
    first, count = (literal(text) for text in instruction.operands[2:])
    if None not in (first, count) and 0 <= first < first + count <= bits_of(instruction.kind):
        return _of(instruction, 1, partial(_extracted_inside, first, count))
    return _of(instruction, 1, _extracted, *((text, "u32") for text in instruction.operands[2:]))


def _extracted_inside(first, count, a):
    """Where first and count are the same for all, and inside."""
    kind, bits = a.dtype.type, 8 * a.itemsize
    return a << kind(bits - first - count) >> kind(bits - count)


def _extracted(a, first, count):
    bits, first = 8 * a.itemsize, first & 255
    count = np.minimum(count & 255, bits).astype(np.int64)
    last = np.clip(first.astype(np.int64) + count - 1, 0, bits - 1)
    wide = unsigned(a).astype(np.uint64)
    sign = (wide >> last.astype(np.uint64)) & np.uint64(1) if a.dtype.kind == "i" else np.uint64(0)
    above = np.where(sign == 1, ~np.uint64(0), np.uint64(0))
    shifted = np.where(first < bits, wide >> np.minimum(first, 63).astype(np.uint64), np.uint64(0))
    kept = _mask(np.minimum(count, np.maximum(0, bits - first.astype(np.int64))))
    return np.where(count == 0, np.uint64(0), (shifted & kept) | (above & ~kept)).astype(f"u{bits // 8}")


@does("bfi")
def _insert(instruction, registers):
    """Bits of a put into b from `first` on."""
    return _of(instruction, 2, _inserted, *((text, "u32") for text in instruction.operands[3:]))


def _inserted(a, b, first, count):
    bits, first, count = 8 * a.itemsize, first & 255, count & 255
    a, b, at = a.astype(np.uint64), b.astype(np.uint64), np.minimum(first, 63).astype(np.uint64)
    mask = np.where(first < bits, _mask(np.minimum(count, bits).astype(np.int64)) << at, np.uint64(0))
    return ((b & ~mask) | ((a << at) & mask)).astype(f"u{bits // 8}")


def _mask(count):
    """So many ones."""
    return np.where(
        count >= 64, ~np.uint64(0), (np.uint64(1) << np.minimum(count, 63).astype(np.uint64)) - np.uint64(1)
    )


@does("prmt")
def _permute(instruction, registers):
    """Four bytes picked of eight; bit 3 of a pick: its sign, eight times."""
    return _of(instruction, 3, _permuted)


def _permuted(a, b, picks):
    pool = np.stack([a, b], 1).view(np.uint8).reshape(-1, 8)
    pick = picks[:, None] >> np.arange(0, 16, 4, dtype=np.uint32)
    found = np.take_along_axis(pool, (pick & 7).astype(np.int64), 1)
    found = np.where(pick & 8, np.where(found & 128, 255, 0), found).astype(np.uint8)
    return found.view(np.uint32)[:, 0].copy()


@does("lop3")
def _lop3(instruction, registers):
    """Any function of three bits, as its table."""
    return _of(instruction, 3, partial(_looked_up, int(instruction.operands[4], 0)))


def _looked_up(table, *inputs):
    x = np.zeros_like(inputs[0])
    for row in (row for row in range(8) if table >> row & 1):
        a, b, c = (one if row >> (2 - place) & 1 else ~one for place, one in enumerate(inputs))
        x = x | a & b & c
    return x


@does("clz", "popc")
def _count(instruction, registers):
    return _of(instruction, 1, partial(_counted, instruction.parts[0]))


def _counted(what, a):
    ones = np.unpackbits(a.view(np.uint8).reshape(a.size, -1), axis=1, bitorder="little")[:, ::-1]
    return (ones.sum(1) if what == "popc" else np.where(a == 0, 8 * a.itemsize, ones.argmax(1))).astype(np.uint32)


# ---- comparisons -----------------------------------------------------------------------------------------------------
@does("setp", modifiers=" ".join([*COMPARE, *JOIN, *(f"{how}u" for how in COMPARE), "num", "nan", "ftz"]))
def _compare(instruction, registers):
    """A NaN compares as false, unless the comparison ends with u; perhaps joined with another predicate."""
    parts, operands = instruction.parts, instruction.operands
    names, more = tuple(operands[0].split("|")), []
    if instruction.kind in SMALL:
        return _small_compared(instruction, names)
    compare = _ordered(parts[1]) if instruction.kind[0] == "f" else COMPARE[parts[1]]
    if parts[2] in JOIN:
        more = [(operands[3].lstrip("!"), "pred")]
    elif len(names) == 1:
        return _of(instruction, 2, compare)
    how = compare, JOIN.get(parts[2]), operands[-1].startswith("!")
    of_one = _of(instruction, 2, partial(_joined, how, len(names)), *more)
    return Meaning(names, of_one.inputs, of_one.function)


def _small_compared(instruction, names):
    """Numbers of 16 bits; two that are in a register have a result each, the lower one first."""
    kind, parts = instruction.kind.removesuffix("x2"), instruction.parts
    count = 1 + instruction.kind.endswith("x2")
    if len(names) != count or parts[2] in JOIN:
        raise Fault(f"{'.'.join(parts)} with {len(names)} results, or joined, is not known")
    inputs = tuple((text, instruction.kind) for text in instruction.operands[1:3])
    return Meaning(names, inputs, partial(_halves_compared, _ordered(parts[1]), kind, count))


def _halves_compared(compare, kind, count, *both):
    found = tuple(compare(*half) for half in _halves(both, kind, count))
    return found if count > 1 else found[0]


def _ordered(how):
    """A comparison of floating-point numbers."""
    if how in ("nan", "num"):
        return lambda a, b: (np.isnan(a) | np.isnan(b)) == (how == "nan")
    if how in COMPARE:
        return COMPARE[how] if how != "ne" else lambda a, b: (a < b) | (a > b)
    return lambda a, b: COMPARE[how[:-1]](a, b) | np.isnan(a) | np.isnan(b)


def _joined(how, count, a, b, other=None):
    """The comparison, and what is not it, if `count` is two; each joined with the other predicate."""
    compare, join, negated = how
    x = compare(a, b)
    found = (x, ~x)[:count]
    if join:
        other = other != negated
        found = tuple(join(one, other) for one in found)
    return found


@does("selp")
def _select(instruction, registers):
    return _of(instruction, 2, lambda a, b, which: np.where(which, a, b), (instruction.operands[3], "pred"))


# ---- conversions -----------------------------------------------------------------------------------------------------
@does("cvt", modifiers="rn rna ftz tf32 " + " ".join(ROUND))
def _convert(instruction, registers):
    """To 16 bits (of one number or two), tf32, from 16 bits, to integers, and between integers."""
    (to, origin), (name, *given) = instruction.parts[-2:], instruction.operands
    if to in ("bf16x2", "f16x2"):
        kind, function = "f32", partial(_both, to[:-2])
    elif to in ("bf16", "f16") and origin == "f32":
        kind, function = "f32", partial(narrowed, kind=to)
    elif to == "tf32":
        kind, function = "b32", partial(_cut, np.uint32(0x1000 if "rna" in instruction.parts else 0))
    elif origin in ("bf16", "f16"):
        kind, function = "b16", partial(widened, kind=origin)
    elif origin[0] == "f" and to[0] in "su":
        how = next(ROUND[part] for part in instruction.parts if part in ROUND)
        kind, function = origin, partial(_integer, how, type_of(to))
    elif to[0] == "f":
        kind, function = origin, partial(np.ndarray.astype, dtype=type_of(to))
    else:  # an integer of `origin`, perhaps the lower part of a wider register
        kind, function = registers.get(given[0], origin), partial(_resized, type_of(to), type_of(origin))
    wide = type_of(registers[name])
    if wide.itemsize != TYPES.get(to, TYPES["b32"]).itemsize:
        function = partial(_as_wide, function, wide.itemsize)
    return Meaning((name,), tuple((one, kind) for one in given), function)


def _both(kind, high, low):
    """Two numbers of 16 bits."""
    high, low = (narrowed(x, kind).astype(np.uint32) for x in (high, low))
    return high << np.uint32(16) | low


def _cut(more, bits):
    return (bits + more) & TF32


def _integer(how, to, x):
    """A NaN gives 0, what is too large the largest."""
    low, high = np.iinfo(to).min, np.iinfo(to).max
    found = np.nan_to_num(how(x.astype(np.float64)), nan=0.0)
    inside = np.where((found > low) & (found < high), found, 0).astype(to)  # 2^63 - 1 is no float64
    return np.where(found >= high, to.type(high), np.where(found <= low, to.type(low), inside))


def _resized(to, origin, x):
    return unsigned(x).astype(f"u{origin.itemsize}").view(origin).astype(to)


def _as_wide(function, wide, *inputs):
    """What a function makes, as wide as a register is."""
    x = function(*inputs)
    return x if x.itemsize == wide else x.astype(f"{x.dtype.kind}{wide}")
