"""Matrices: moved between registers and shared memory, and multiplied by warps (mma) and by groups of four (wgmma).

How a matrix lies in registers: of 8 x 8 numbers each lane of a warp has two of one row, rows by fours of lanes. A
product is summed in float64, with what it is added to, and rounded to float32 once; tensor cores round otherwise.
"""

import re
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from operator import is_

import numpy as np

from .formats import type_of, unsigned, widened
from .memory import Lies
from .parse import Fault
from .table import Table
from .threads import WARP

TABLE = Table()
SWIZZLES = {0: (0, 16), 1: (3, 128), 2: (2, 64), 3: (1, 32)}  # mode -> bits of rows that are mixed in, bytes of a row
ROWS = 64  # of a product of a warp group
FOUR = 4 * WARP  # threads of a warp group
SHAPES = [f"m64n{n}k{k}" for n in range(8, 257, 8) for k in (8, 16)]
SIZES = {"bf16": 2, "f16": 2, "tf32": 4}  # bytes


# ---- between registers and shared memory -----------------------------------------------------------------------------
@TABLE.does("ldmatrix", modifiers="sync aligned m8n8 x1 x2 x4 trans shared shared::cta")
def _load(group, instruction, active):
    """Each of 8 lanes knows where a row begins."""
    names, address = instruction.operands
    blocks, at = _rows(group, address, len(names), active)
    tiles = group.team.shared.load(blocks, at, 16).view(np.uint16).reshape(len(names), -1, 8, 8)
    tiles = tiles.swapaxes(2, 3) if "trans" in instruction.parts else tiles
    tiles = np.ascontiguousarray(tiles).view(np.uint32).reshape(len(names), -1)
    for name, x in zip(names, tiles, strict=True):
        group.put(name, x)


@TABLE.does("stmatrix", modifiers="sync aligned m8n8 x1 x2 x4 trans shared shared::cta")
def _store(group, instruction, active):
    address, names = instruction.operands
    blocks, at = _rows(group, address, len(names), active)
    tiles = np.stack([group.get(name, "b32") for name in names]).view(np.uint16).reshape(-1, 8, 8)
    tiles = np.ascontiguousarray(tiles.swapaxes(1, 2) if "trans" in instruction.parts else tiles)
    writers = np.tile(1 + np.repeat(group.thread[::WARP] // WARP, 8), len(names))
    group.team.shared.store(blocks, at, tiles.view(np.uint8).reshape(-1, 16), writers)


def _rows(group, address, count, active):
    """(blocks, addresses) of the rows of `count` matrices, one after the other, of each eight for each warp."""
    if active is not None:
        raise Fault("some threads of a warp move a matrix, others do not")
    at = group.address(address, True).reshape(-1, WARP // 8, 8)[:, :count]
    return np.tile(np.repeat(group.block[::WARP], 8), count), at.swapaxes(0, 1).reshape(-1)


# ---- registers as matrices -------------------------------------------------------------------------------------------
def _stacked(registers):
    """(registers, warps, 8, 4) bits: rows and places in a row of each warp."""
    return np.stack([unsigned(one) for one in registers]).reshape(len(registers), -1, 8, 4)


def _factor(registers, kind, second=False):
    """(warps, 16, K) of a first factor, (warps, K, 8) of a second: one number a register, or two of 16 bits."""
    bits, each = _stacked(registers), 4 // SIZES[kind]
    numbers = widened(bits.view(f"u{SIZES[kind]}"), kind).astype(np.float64)
    if second:
        return numbers.reshape(*bits.shape, each).transpose(1, 0, 3, 4, 2).reshape(bits.shape[1], -1, 8)
    halves = numbers.reshape(-1, 2, *bits.shape[1:], each)  # of columns, of rows
    return halves.transpose(2, 1, 3, 0, 4, 5).reshape(bits.shape[1], 16, -1)


def _sums(registers):
    """(warps, 16, N) of sums."""
    bits = _stacked(registers)
    parts = bits.view(np.float32).reshape(-1, 2, 2, *bits.shape[1:])  # eights of columns, halves of rows, neighbours
    return parts.transpose(3, 1, 4, 0, 5, 2).reshape(bits.shape[1], 16, -1)


def _of_sums(x):
    """The reverse of `_sums`."""
    parts = x.astype(np.float32).reshape(x.shape[0], 2, 8, x.shape[2] // 8, 4, 2)
    return parts.transpose(3, 1, 5, 0, 2, 4).reshape(x.shape[2] // 2, -1)


def _shape(instruction):
    """(M, N, K)."""
    return tuple(map(int, re.search(r"\.m(\d+)n(\d+)k(\d+)\.", instruction.opcode).groups()))


# ---- products of a warp ----------------------------------------------------------------------------------------------
@TABLE.does("mma", modifiers="sync aligned m16n8k16 m16n8k8 row col tf32")
def _multiply(group, instruction, active):
    to, first, second, sums = instruction.operands
    kind, k = instruction.parts[-2], _shape(instruction)[2]
    if kind not in SIZES or {instruction.parts[-4], instruction.kind} != {"f32"} or active is not None:
        raise Fault("only products of bf16, f16 and tf32 by all threads, summed in float32, are known")
    first, second, sums = ([group.get(name, "b32") for name in names] for names in (first, second, sums))
    a, b = _factor(first, kind), _factor(second, kind, second=True)
    if a.shape[2] != k:
        raise Fault(f"a first factor of {a.shape[2]} columns, not {k}")
    for name, value in zip(to, _of_sums(a @ b + _sums(sums)), strict=True):
        group.put(name, value)


# ---- products of four warps ------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Factor:
    """A factor in shared memory. start: (threads,) its descriptor. size: bytes of a number. flipped: what makes up its
    rows lies side by side, not what is summed over.
    """

    start: np.ndarray
    rows: int
    k: int
    size: int
    flipped: bool


@lru_cache(maxsize=4096)
def addresses(descriptor, rows, k, size, flipped):
    """(rows, k) addresses of the numbers of a factor; rows: those of the first one, or columns of the second."""
    start, leading, stride = ((descriptor >> at & 0x3FFF) << 4 for at in (0, 16, 32))
    mixed, width = SWIZZLES[descriptor >> 62]
    long, short = np.arange(k)[None, :], np.arange(rows)[:, None]
    inner, outer = (short, long) if flipped else (long, short)
    if descriptor >> 62 == 0 and flipped:
        leading, stride = stride, leading
    each = width // size
    at = start + inner % each * size + inner // each * leading + outer % 8 * width + outer // 8 * stride
    if not flipped and mixed and k > each:
        raise Fault("a row of a factor that is longer than its swizzle")
    return at ^ ((at >> 7 & (1 << mixed) - 1) << 4)


@lru_cache(maxsize=4096)
def lies(*factor):
    """Lies of a factor: see `addresses`."""
    return Lies(addresses(*factor), factor[3])


@cache
def _converted(kind):
    """A function to float64; the same one each time."""
    return lambda bits: widened(bits, kind).astype(np.float64)


@lru_cache(maxsize=4096)
def _held(factors, sums):
    return {**dict.fromkeys(factors, "factor"), **dict.fromkeys(sums, "sum")}


@dataclass(frozen=True)
class Product:
    """sums += first @ second^T, or = where `adds` (threads,) is false. sums: names of registers, and so may be first;
    else it is a Factor, as second is. kind: of the factors.
    """

    kind: str
    sums: tuple[str, ...]
    first: object
    second: Factor
    adds: np.ndarray

    def do(self, group):
        """Now, with the factors as they are."""
        b = self._numbers(group, self.second)
        if isinstance(self.first, Factor):
            a = self._numbers(group, self.first)
            if group.count < FOUR:  # its own rows, of 64
                a = a.reshape(a.shape[0], 4, 16, -1)[:, group.first // WARP % 4]
        else:
            a = _factor([group.last(name) for name in self.first], self.kind)
        x = a.reshape(b.shape[0], -1, b.shape[2]) @ b.swapaxes(1, 2)
        x, adds = x.reshape(-1, 16, b.shape[1]), self.adds[::WARP, None, None]
        if adds.all():
            x = x + self._sums(group)
        elif adds.any():
            x = x + np.where(adds, self._sums(group), np.float32(0))
        self._set(group, x.astype(np.float32))

    def _sums(self, group):
        """(warps, 16, N): as the last product made them, if nobody else has written them."""
        matrix, rows = group.sums.get(self.sums, (None, ()))
        if rows and all(map(is_, map(group.registers.get, self.sums), rows)):
            return matrix
        return _sums([group.last(name) for name in self.sums])

    def _set(self, group, x):
        rows = list(_of_sums(x))
        _check_width(group.team.program, self.sums)
        group.registers.update(zip(self.sums, rows, strict=True))
        group.sums[self.sums] = x, rows

    def part(self, threads):
        return replace(
            self, second=_part(self.second, threads), adds=self.adds[threads],
            first=_part(self.first, threads) if isinstance(self.first, Factor) else self.first,
        )  # fmt: skip

    @property
    def factors(self):
        """Registers of the first factor."""
        return () if isinstance(self.first, Factor) else self.first

    @property
    def stored(self):
        """Factors in shared memory."""
        return [one for one in (self.first, self.second) if isinstance(one, Factor)]

    def held(self):
        """Registers that nobody may touch meanwhile."""
        return _held(self.factors, self.sums)

    def _numbers(self, group, factor):
        """(groups of four warps, rows, k) of float64; where warps go alone, for each of them."""
        parts = list(_places(group, factor))
        found = [group.team.shared.numbers(blocks, at, _converted(self.kind)) for _, blocks, at in parts]
        if len(parts) == 1:
            return found[0]
        whole = np.empty((group.size // min(FOUR, group.count), factor.rows, factor.k))
        for (some, _, _), x in zip(parts, found, strict=True):
            whole[some] = x
        return whole


def _part(factor, threads):
    return replace(factor, start=factor.start[threads])


def _places(group, factor):
    """(which groups of four warps, their blocks, where it lies) of each descriptor that there is."""
    step = min(FOUR, group.count)
    blocks, starts = group.block[::step], factor.start[::step]
    for start in {*starts.tolist()}:
        some = starts == start
        yield some, blocks[some], lies(start, factor.rows, factor.k, factor.size, factor.flipped)


@TABLE.does("wgmma.mma_async", modifiers="sync aligned tf32 " + " ".join(SHAPES))
def _multiply_four(group, instruction, active):
    """What its registers and descriptors mean is read now, what they point to when it is done."""
    sums, first, second, adds, *flags = instruction.operands
    (_, n, k), kind = _shape(instruction), instruction.kind
    if kind not in SIZES or "f32" not in instruction.parts or active is not None or flags[:2] != ["1", "1"]:
        raise Fault("only products of bf16, f16 and tf32 by all threads, summed in float32, are known")
    flips = [flag == "1" for flag in flags[2:]] or [False]
    if isinstance(first, list):
        first = tuple(first)
    else:
        first = Factor(group.get(first, "b64"), ROWS, k, SIZES[kind], flips[0])
    second = Factor(group.get(second, "b64"), n, k, SIZES[kind], flips[-1])
    work = Product(kind, tuple(sums), first, second, group.get(adds, "pred"))
    _check_alike(group, work)
    _check_registers(group, work)
    group.products.ask(work, group)
    group.held = group.held | work.held()


def _check_alike(group, work):
    """Raise unless four warps mean the same product, of what was fenced."""
    for numbers in (work.adds, *(factor.start for factor in work.stored)):
        if (numbers == numbers[0]).all():
            continue
        alike = numbers.reshape(-1, min(FOUR, group.count))
        if (alike != alike[:, :1]).any():
            raise Fault("threads of four warps ask for different products")
    for factor in work.stored:
        for _, blocks, at in _places(group, factor):
            group.team.shared.check_fenced(blocks, at.chunks)


@lru_cache(maxsize=4096)
def _check_width(program, names):
    """Raise unless the registers have 32 bits."""
    for name in names:
        if type_of(program.registers[name]).itemsize != 4:
            raise Fault(f"{name} is not of 32 bits")


def _check_registers(group, work):
    """Raise if a product under way has them; those that add to the same sums may follow each other."""
    if not (group.held or work.factors):
        return
    same = any(other.sums == work.sums for other in group.products.all())
    for name in work.factors:
        if name in work.sums or group.held.get(name) == "sum":
            raise Fault(f"{name} is a factor, and a sum of a product that is not waited for")
    for name in work.sums:
        if group.held.get(name) == "factor" or (name in group.held and not same):
            raise Fault(f"{name} is a {group.held[name]} of another product, which is not waited for")


@TABLE.does("wgmma.fence", modifiers="sync aligned")
def _fence(group, instruction, active):
    """Registers and products have an order here anyway. That LLVM writes some registers after it is left to ptxas."""


@TABLE.does("wgmma.commit_group", modifiers="sync aligned")
def _commit(group, instruction, active):
    group.products.commit()


@TABLE.does("wgmma.wait_group", modifiers="sync aligned")
def _wait(group, instruction, active):
    group.products.wait(int(instruction.operands[0], 0), group)
    group.held = {}
    for work in group.products.all():
        group.held |= work.held()
