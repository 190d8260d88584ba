"""Instructions that each thread does with its own numbers.

Functions of float32 are numpy's and subnormal numbers are kept (.ftz is read over), so results are near a GPU's, not
equal to them. A sum of a product is made in float64 and rounded to float32.
"""

import numpy as np

from .formats import TF32, bits_of, narrowed, type_of, unsigned, widened
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
UNARY = {"ex2": np.exp2, "lg2": np.log2, "sqrt": np.sqrt, "tanh": np.tanh, "rcp": np.reciprocal, "neg": np.negative,
         "abs": np.abs, "not": np.invert}  # fmt: skip


def _in(group, instruction, count):
    """The first operands after the result, in the instruction's type."""
    return [group.get(text, instruction.kind) for text in instruction.operands[1 : 1 + count]]


# ---- arithmetic ------------------------------------------------------------------------------------------------------
@TABLE.does("mov", "cvta", modifiers="to global param")
def _move(group, instruction, active):
    """Also a register of several parts, taken apart or put together."""
    kind, (to, what) = instruction.kind, instruction.operands
    if isinstance(to, list):
        parts = np.ascontiguousarray(group.get(what, kind)).view(f"u{bits_of(kind) // 8 // len(to)}")
        for i, name in enumerate(to):
            group.put(name, parts[i :: len(to)].copy(), active)
    elif isinstance(what, list):
        parts = [group.get(name, f"b{bits_of(kind) // len(what)}") for name in what]
        group.put(to, np.stack(parts, 1).view(f"u{bits_of(kind) // 8}")[:, 0].copy(), active)
    else:
        group.put(to, group.get(what, kind), active)


@TABLE.does("ex2", "lg2", "sqrt", "tanh", "rcp", "neg", "abs", "not", modifiers="approx ftz rn")
def _unary(group, instruction, active):
    (a,) = _in(group, instruction, 1)
    group.put(instruction.operands[0], UNARY[instruction.parts[0]](a), active)


@TABLE.does("add", "sub", modifiers="rn ftz")
def _add(group, instruction, active):
    a, b = _in(group, instruction, 2)
    group.put(instruction.operands[0], a + b if instruction.parts[0] == "add" else a - b, active)


@TABLE.does("and", "or", "xor")
def _bitwise(group, instruction, active):
    a, b = _in(group, instruction, 2)
    group.put(instruction.operands[0], BITWISE[instruction.parts[0]](a, b), active)


@TABLE.does("min", "max", modifiers="ftz NaN relu")
def _extreme(group, instruction, active):
    """A number wins over a NaN, unless the instruction says otherwise."""
    a, b = _in(group, instruction, 2)
    names = ("minimum", "maximum") if "NaN" in instruction.parts or instruction.kind[0] != "f" else ("fmin", "fmax")
    x = getattr(np, names[instruction.parts[0] == "max"])(a, b)
    group.put(instruction.operands[0], np.maximum(x, 0, dtype=x.dtype) if "relu" in instruction.parts else x, active)


@TABLE.does("mul", "mad", "fma", modifiers="lo hi wide rn ftz")
def _multiply(group, instruction, active):
    """lo: the lower half of the product; wide: all of it."""
    kind, parts, operands = instruction.kind, instruction.parts, instruction.operands
    a, b = _in(group, instruction, 2)
    whole = f"{kind[0]}{2 * bits_of(kind)}" if "wide" in parts else kind
    c = group.get(operands[3], whole) if len(operands) > 3 else None
    if "wide" in parts:
        x = a.astype(type_of(whole)) * b.astype(type_of(whole))
    elif "hi" in parts:
        x = ((a.astype(object) * b.astype(object)) >> bits_of(kind)).astype(a.dtype)
    elif kind == "f32" and c is not None:
        x, c = (a.astype(np.float64) * b + c).astype(np.float32), None
    else:
        x = a * b
    group.put(operands[0], x if c is None else x + c, active)


@TABLE.does("div", "rem", modifiers="full rn approx ftz")
def _divide(group, instruction, active):
    """Of integers towards zero; by zero all bits are set."""
    a, b = _in(group, instruction, 2)
    if instruction.kind[0] == "f":
        x = a / b
    else:
        rest = np.fmod(a, np.where(b == 0, 1, b).astype(b.dtype))
        x = (a - rest) // np.where(b == 0, 1, b).astype(b.dtype) if instruction.parts[0] == "div" else rest
        x = np.where(b == 0, ~a.dtype.type(0), x)
    group.put(instruction.operands[0], x, active)


# ---- bits ------------------------------------------------------------------------------------------------------------
@TABLE.does("shl", "shr")
def _shift(group, instruction, active):
    """By as many bits as there are, or more: nothing is left but the sign."""
    bits, (a,) = bits_of(instruction.kind), _in(group, instruction, 1)
    by = group.get(instruction.operands[2], "u32")
    inside = np.minimum(by, bits - 1).astype(a.dtype)
    if instruction.parts[0] == "shl":
        x = np.where(by < bits, a << inside, a.dtype.type(0))
    else:
        x = np.where((by < bits) | (instruction.kind[0] == "s"), a >> inside, a.dtype.type(0))
    group.put(instruction.operands[0], x, active)


@TABLE.does("shf", modifiers="l r wrap clamp")
def _funnel(group, instruction, active):
    low, high, by = (group.get(text, "u32").astype(np.uint64) for text in instruction.operands[1:])
    by = by % np.uint64(32) if "wrap" in instruction.parts else np.minimum(by, np.uint64(32))
    both = high << np.uint64(32) | low
    x = (both << by) >> np.uint64(32) if "l" in instruction.parts else (both >> by) & ALL
    group.put(instruction.operands[0], x.astype(np.uint32), active)


@TABLE.does("bfe")
def _extract(group, instruction, active):
    """Bits from `first` on, as a number; with a sign, the last of them (at most the register's) fills what is above."""
    bits, signed = bits_of(instruction.kind), instruction.kind[0] == "s"
    a, first, count = _in(group, instruction, 1)[0], *(group.get(x, "u32") & 255 for x in instruction.operands[2:])
    count = np.minimum(count, bits).astype(np.int64)
    last = np.clip(first.astype(np.int64) + count - 1, 0, bits - 1)
    sign = (unsigned(a).astype(np.uint64) >> last.astype(np.uint64)) & np.uint64(1) if signed else np.uint64(0)
    above = np.where(sign == 1, ~np.uint64(0), np.uint64(0))
    shifted = np.where(
        first < bits, unsigned(a).astype(np.uint64) >> np.minimum(first, 63).astype(np.uint64), np.uint64(0)
    )
    kept = _mask(np.minimum(count, np.maximum(0, bits - first.astype(np.int64))))
    x = np.where(count == 0, np.uint64(0), (shifted & kept) | (above & ~kept))
    group.put(instruction.operands[0], x.astype(f"u{bits // 8}"), active)


@TABLE.does("bfi")
def _insert(group, instruction, active):
    """Bits of a put into b from `first` on."""
    bits, (a, b) = bits_of(instruction.kind), (x.astype(np.uint64) for x in _in(group, instruction, 2))
    first, count = (group.get(x, "u32") & 255 for x in instruction.operands[3:])
    at = np.minimum(first, 63).astype(np.uint64)
    mask = np.where(first < bits, _mask(np.minimum(count, bits).astype(np.int64)) << at, np.uint64(0))
    group.put(instruction.operands[0], ((b & ~mask) | ((a << at) & mask)).astype(f"u{bits // 8}"), active)


def _mask(count):
    """So many ones."""
    return np.where(
        count >= 64, ~np.uint64(0), (np.uint64(1) << np.minimum(count, 63).astype(np.uint64)) - np.uint64(1)
    )


@TABLE.does("prmt")
def _permute(group, instruction, active):
    """Four bytes picked of eight; bit 3 of a pick: its sign, eight times."""
    a, b, picks = _in(group, instruction, 3)
    pool = np.stack([a, b], 1).view(np.uint8).reshape(-1, 8)
    pick = picks[:, None] >> np.arange(0, 16, 4, dtype=np.uint32)
    found = np.take_along_axis(pool, (pick & 7).astype(np.int64), 1)
    found = np.where(pick & 8, np.where(found & 128, 255, 0), found).astype(np.uint8)
    group.put(instruction.operands[0], found.view(np.uint32)[:, 0].copy(), active)


@TABLE.does("lop3")
def _lop3(group, instruction, active):
    """Any function of three bits, as its table."""
    inputs, x = _in(group, instruction, 3), np.uint32(0)
    for row in (row for row in range(8) if int(instruction.operands[4], 0) >> row & 1):
        a, b, c = (one if row >> (2 - place) & 1 else ~one for place, one in enumerate(inputs))
        x = x | a & b & c
    group.put(instruction.operands[0], np.broadcast_to(x, group.size), active)


@TABLE.does("clz", "popc")
def _count(group, instruction, active):
    (a,) = _in(group, instruction, 1)
    ones = np.unpackbits(a.view(np.uint8).reshape(a.size, -1), axis=1, bitorder="little")[:, ::-1]
    x = ones.sum(1) if instruction.parts[0] == "popc" else np.where(a == 0, bits_of(instruction.kind), ones.argmax(1))
    group.put(instruction.operands[0], x.astype(np.uint32), active)


# ---- comparisons -----------------------------------------------------------------------------------------------------
@TABLE.does("setp", modifiers=" ".join([*COMPARE, *JOIN, *(f"{how}u" for how in COMPARE), "num", "nan", "ftz"]))
def _compare(group, instruction, active):
    """A NaN compares as false, unless the comparison ends with u; perhaps joined with another predicate."""
    how, parts, operands = instruction.parts[1], instruction.parts, instruction.operands
    a, b = _in(group, instruction, 2)
    if instruction.kind[0] == "f":
        unordered = np.isnan(a) | np.isnan(b)
        if how in ("nan", "num"):
            x = unordered if how == "nan" else ~unordered
        elif how in COMPARE:
            x = COMPARE[how](a, b) & ~unordered
        else:
            x = COMPARE[how[:-1]](a, b) | unordered
    else:
        x = COMPARE[how](a, b)
    names, found = operands[0].split("|"), [x, ~x]
    if parts[2] in JOIN:
        other = group.get(operands[3].lstrip("!"), "pred") != operands[3].startswith("!")
        found = [JOIN[parts[2]](one, other) for one in found]
    for name, one in zip(names, found, strict=False):
        group.put(name, one, active)


@TABLE.does("selp")
def _select(group, instruction, active):
    a, b = _in(group, instruction, 2)
    group.put(instruction.operands[0], np.where(group.get(instruction.operands[3], "pred"), a, b), active)


# ---- conversions -----------------------------------------------------------------------------------------------------
@TABLE.does("cvt", modifiers="rn rna ftz tf32 " + " ".join(ROUND))
def _convert(group, instruction, active):
    """To 16 bits (of one number or two), tf32, from 16 bits, to integers, and between integers."""
    (to, origin), (name, *given) = instruction.parts[-2:], instruction.operands
    if to in ("bf16x2", "f16x2"):
        high, low = (narrowed(group.get(one, "f32"), to[:-2]).astype(np.uint32) for one in given)
        x = high << np.uint32(16) | low
    elif to in ("bf16", "f16") and origin == "f32":
        x = narrowed(group.get(given[0], "f32"), to)
    elif to == "tf32":
        x = (group.get(given[0], "b32") + np.uint32(0x1000 if "rna" in instruction.parts else 0)) & TF32
    elif origin in ("bf16", "f16"):
        x = widened(group.get(given[0], "b16"), origin)
    elif origin[0] == "f" and to[0] in "su":
        x = _integer(group.get(given[0], origin), instruction)
    elif to[0] == "f":
        x = group.get(given[0], origin).astype(type_of(to))
    else:
        x = _resized(group, given[0], to, origin)
    group.put(name, _as_wide(x, group.team.program.registers[name]), active)


def _integer(x, instruction):
    """A NaN gives 0, what is too large the largest."""
    how = next(ROUND[part] for part in instruction.parts if part in ROUND)
    to = type_of(instruction.parts[-2])
    low, high = np.iinfo(to).min, np.iinfo(to).max
    found = np.nan_to_num(how(x.astype(np.float64)), nan=0.0)
    inside = np.where((found > low) & (found < high), found, 0).astype(to)  # 2^63 - 1 is no float64
    return np.where(found >= high, to.type(high), np.where(found <= low, to.type(low), inside))


def _resized(group, text, to, origin):
    """An integer of `origin`, perhaps the lower part of a wider register, as `to`."""
    raw = unsigned(group.raw(text, origin))
    return raw.astype(f"u{bits_of(origin) // 8}").view(type_of(origin)).astype(type_of(to))


def _as_wide(x, kind):
    """As wide as a register is."""
    wide = type_of(kind).itemsize
    return x if x.itemsize == wide else x.astype(f"{x.dtype.kind}{wide}")
