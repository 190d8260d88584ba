"""Programs of a few rows against many keys run on the oracle, beside dense attention at the same counts."""

import zlib
from dataclasses import dataclass, field

import numpy as np

from weft.kernels.gpu.layout import Layout, Options, Vector
from weft.kernels.gpu.oracle import run_program
from weft.kernels.gpu.program import row_major
from weft.kernels.gpu.programs.split_kv import Cache, split_kv_program
from weft.kernels.gpu.split_kv.spec import Counts
from weft.planning.problem import DTYPES, Problem
from weft.planning.rowwise import RowPlan, decode_plan

from .checked import EXACT
from .dense import Scores, attend

POSITIONS = 1 << 28  # tokens that a sequence behind a ring may have
PROCESSORS = 16


@dataclass(frozen=True)
class Step:
    """The last m tokens against keys, of which there may be `room`. options: softcap, alibi, sinks."""

    pattern: object
    m: int = 1
    room: int = 200
    heads: tuple = (4, 2)
    batch: int = 2
    dims: tuple = (16, 16)
    dtype: str = "bfloat16"
    options: dict = field(default_factory=dict)
    processors: int = PROCESSORS

    def problem(self, n):
        return Problem(self.batch, *self.heads, self.m, n, *self.dims, self.dtype, "cuda")

    @property
    def how(self):
        return Options(0.3, self.options.get("softcap"))

    def arrays(self, keys):
        """q, k, v of so many keys, and as options say sinks and slopes."""
        random, (hq, hkv), (d, dv) = np.random.default_rng(zlib.crc32(f"{self}".encode())), self.heads, self.dims
        sizes = {"q": (hq, self.m, d), "k": (hkv, keys, d), "v": (hkv, keys, dv)}
        found = {name: random.normal(size=(self.batch, *size)) for name, size in sizes.items()}
        found |= {"sinks": random.normal(size=hq)} if self.options.get("sinks") else {}
        return found | ({"slopes": random.uniform(0.0, 0.2, hq)} if self.options.get("alibi") else {})

    def layout(self, keys):
        """How q, k and v of so many keys lie."""
        (hq, hkv), (d, dv) = self.heads, self.dims
        shapes = (self.batch, hq, self.m, d), (self.batch, hkv, keys, d), (self.batch, hkv, keys, dv)
        vector = Vector("float32", (1,))
        return Layout(
            tuple(map(row_major, shapes)), not any(size * DTYPES[self.dtype] % 16 for size in self.dims),
            sinks=vector if self.options.get("sinks") else None, slopes=vector if self.options.get("alibi") else None,
        )  # fmt: skip


@dataclass(frozen=True)
class Counted:
    """What the device says of each batch row: keys so far, the first query's token, how many tokens a query sees."""

    keys: tuple
    offset: tuple | None = None
    window: tuple | None = None
    ring: bool = False
    dtype: str = "int32"
    page: int = 0

    @property
    def counts(self):
        told = self.offset is not None, self.window is not None
        return Counts(self.dtype, len(self.keys) > 1, self.ring, *told, self.page)

    def of_row(self, b, m):
        """(keys, token of the first query, window) of a batch row."""
        keys, offset, window = (x if x is None else x[b % len(x)] for x in (self.keys, self.offset, self.window))
        return keys, keys - m if offset is None else offset, window

    def arrays(self):
        """By slot."""
        found = {"key_count": self.keys, "offset": self.offset, "window": self.window}
        return {name: np.array(x, self.dtype) for name, x in found.items() if x is not None}


# ---- by programs -----------------------------------------------------------------------------------------------------
def steady_plan(step, n, capacity=None):
    plan = decode_plan(step.pattern, step.problem(n), capacity)
    assert isinstance(plan, RowPlan), plan
    return plan


def at_length(step, plan, n):
    """(program, outputs) of a steady plan where the host gives the number of keys."""
    program = split_kv_program(plan, step.layout(n), step.how, step.processors)
    growing = {"shift": n - step.m, "beside": n - step.m, "length": n}
    return program, run_program(program, step.arrays(n), growing)


def cached_program(step, counted):
    """The program of a cache of `room` tokens, or of `pages_of` as many."""
    plan = steady_plan(step, step.room, POSITIONS if counted.ring else step.room)
    layout, cache = step.layout(step.room), Cache(step.room, counted.counts)
    if counted.page:
        pages, each = pages_of(step, counted)
        cache = cache._replace(pages=pages, table=(each, 1))
        shapes = [(pages, step.heads[1], counted.page, width) for width in step.dims]
        layout = layout._replace(strides=(layout.strides[0], *map(row_major, shapes)))
    return split_kv_program(plan, layout, step.how, step.processors, cache)


# ---- pages -----------------------------------------------------------------------------------------------------------
SPARE = 3  # pages that no batch row has


def pages_of(step, counted):
    """(pages of all batch rows and some more, pages of each)"""
    each = step.room // counted.page
    return step.batch * each + SPARE, each


def paged(step, counted, arrays, gone=()):
    """Arrays with k and v in shuffled pages, and their block table. What is in no page of a row is no number.

    gone: (batch row, page of it) that were freed: in the table they are negative.
    """
    pages, each = pages_of(step, counted)
    order = np.random.default_rng(pages).permutation(pages)[: step.batch * each].reshape(step.batch, each)
    found = dict(arrays)
    for name in "kv":
        of_pages = arrays[name].reshape(step.batch, step.heads[1], each, counted.page, -1).swapaxes(1, 2)
        found[name] = np.full((pages, *of_pages.shape[2:]), np.nan)
        found[name][order] = of_pages
        for b, page in gone:
            found[name][order[b, page]] = np.nan
    for b, page in gone:
        order[b, page] = -1 - page
    return found | {"block_table": order.astype(np.int32)}


# ---- by definition ---------------------------------------------------------------------------------------------------
def expected(step, counted):
    """(out, lse) by the plain mask at each batch row's counts."""
    arrays = step.arrays(step.room)
    out, lse = np.zeros((*arrays["q"].shape[:3], step.dims[1])), np.zeros(arrays["q"].shape[:3])
    for b in range(step.batch):
        keys, offset, window = counted.of_row(b, step.m)
        query = offset + np.arange(step.m)
        key = np.arange(max(0, keys - step.room) if counted.ring else 0, keys if counted.ring else min(keys, step.room))
        size = max(int(query.max()), keys, 0) + 1
        square = np.broadcast_to(step.pattern.to_dense(size, size), (step.batch, step.heads[0], size, size))
        for h in range(step.heads[0]):
            live = square[b, h][np.maximum(query, 0)][:, key] & (query >= 0)[:, None]
            if window is not None:
                live &= key > query[:, None] - window
            kv, place = h * step.heads[1] // step.heads[0], key % step.room
            slope, sink = (float(arrays[x][h]) if x in arrays else none for x, none in
                           (("slopes", 0.0), ("sinks", -np.inf)))  # fmt: skip
            qkv = arrays["q"][b, h], arrays["k"][b, kv, place], arrays["v"][b, kv, place]
            rows = attend(qkv, live, np.abs(query[:, None] - key), Scores(0.3, step.how.softcap, slope, sink))
            out[b, h], lse[b, h] = rows.out, rows.lse
    return out, lse


def check_counted(step, counted, given=None, gone=()):
    """Raise AssertionError unless the program of a cache computes what the plain mask says.

    given: other arrays. gone: see `paged`.
    """
    program = cached_program(step, counted)
    arrays = step.arrays(step.room) if given is None else given
    if counted.page:
        arrays = paged(step, counted, arrays, gone)
    found = run_program(program, arrays | counted.arrays())
    for x, y, name in zip((found["out"], found["lse"]), expected(step, counted), ("out", "lse"), strict=True):
        np.testing.assert_allclose(x, y, **EXACT, err_msg=f"{name} of {step} at {counted}")
