"""Few queries against a cache whose number of keys only the device knows: beside dense attention at every length."""

from dataclasses import dataclass

import pytest
import torch

import weft
from weft.kernels.gpu.layout import Options
from weft.kernels.gpu.programs.split_kv import Cache, split_kv_program
from weft.kernels.gpu.split_kv.spec import Counts
from weft.planning.problem import Problem
from weft.planning.rowwise import decode_plan
from weft.testing.tolerance import assert_close
from weft.torch.bind import Bound
from weft.torch.gpu import layout_of, processors_of

from . import dense
from .compare import BACKENDS, generator, qkv

pytestmark = pytest.mark.skipif("triton" not in BACKENDS, reason="other backends have no such kernels")
DEVICE = torch.device(BACKENDS.get("triton", "cpu"))
END, ROOM, TOKENS = "bottom-right", 80, 200  # places of a cache; more tokens than a ring has places
PATTERNS = {
    "window": weft.causal() & weft.window(left=30),
    "several terms": weft.strided(9),
    "lanes": weft.causal() & weft.dilated(20, 0, 3),
}


@dataclass(frozen=True)
class Asked:
    """Numbers of one call, for each batch row. offsets: first queries' tokens; windows: tokens up to a query's own."""

    lengths: tuple
    offsets: tuple | None = None
    windows: tuple | None = None

    def offset(self, row, m):
        """The token of a batch row's first query."""
        return self.lengths[row] - m if self.offsets is None else self.offsets[row]


@dataclass(frozen=True)
class Decoding:
    """A pattern's queries, all tokens' keys and values, and a program for any number of them. m: queries."""

    pattern: object
    counts: Counts
    m: int = 3
    sinks: bool = False
    alibi: bool = False

    def tensors(self):
        """q, and keys and values of all tokens."""
        return qkv(generator("counts"), (self.m, TOKENS), torch.float32, (4, 2), (16, 16))

    def vectors(self):
        """sinks and slopes, where they are asked for."""
        found = {"sinks": torch.linspace(-1, 1, 4)} if self.sinks else {}
        return found | ({"slopes": torch.tensor([0.1, 0.2, 0.0, 0.05])} if self.alibi else {})

    def bound(self, tensors):
        """The program for such tensors."""
        problem = Problem(2, 4, 2, self.m, ROOM, 16, 16, "float32", "cuda")
        layout = layout_of(tensors, **{name: x.to(DEVICE) for name, x in self.vectors().items()})
        plan = decode_plan(self.pattern.aligned(END), problem)
        program = split_kv_program(plan, layout, Options(0.3), processors_of(DEVICE), Cache(ROOM, self.counts))
        return Bound(program, DEVICE)

    def cached(self, tokens, lengths):
        """(B, H, ROOM, D): the tokens that a cache holds after so many were written; all else is no number."""
        found = torch.full((*tokens.shape[:2], ROOM, tokens.shape[3]), torch.nan)
        for row, length in enumerate(lengths):
            for token in range(length):
                if self.counts.ring or token < ROOM:
                    found[row, :, token % ROOM] = tokens[row, :, token]
        return found

    def live(self, asked):
        """(B, Hq, M, TOKENS): which tokens each query sees."""
        whole = torch.from_numpy(self.pattern.aligned(END).to_dense(TOKENS, TOKENS))
        found = torch.zeros(2, 4, self.m, TOKENS, dtype=torch.bool)
        tokens = torch.arange(TOKENS)
        for row, length in enumerate(asked.lengths):
            held = (tokens < length) & (tokens >= length - ROOM if self.counts.ring else tokens < ROOM)
            for query in range(self.m):
                mine = asked.offset(row, self.m) + query
                if mine < 0:
                    continue
                near = tokens > mine - asked.windows[row] if asked.windows else torch.tensor(True)
                found[row, :, query] = whole[mine] & held & near
        return found

    def truth(self, asked, dtype):
        """(out, lse) of dense attention."""
        q, k, v = (x.to(dtype) for x in self.tensors())
        live, found = self.live(asked), []
        vectors = {name: x.to(dtype) for name, x in self.vectors().items()}
        options = {"scale": 0.3, **({"sinks": vectors["sinks"]} if self.sinks else {})}
        if self.alibi:
            options["alibi_slopes"] = vectors["slopes"]
        for row in range(2):
            here = [x[row : row + 1] for x in (q, k, v)]
            found.append(dense.attention(*here, live[row : row + 1], options, asked.offset(row, self.m)))
        return [torch.cat(some) for some in zip(*found, strict=True)]

    def given(self, asked):
        """Numbers as device slots hold them, in the order of the program's."""
        size = slice(None) if self.counts.per_batch else slice(1)
        rows = asked.lengths, asked.offsets, asked.windows
        dtype = getattr(torch, self.counts.dtype)
        return [torch.tensor(some[size], dtype=dtype, device=DEVICE) for some in rows if some is not None]


def check(decoding, *several):
    """One bound program computes what dense attention does, whatever the numbers are."""
    q, keys, values = decoding.tensors()
    bound = None
    for asked in several:
        tensors = [x.to(DEVICE) for x in (q, *(decoding.cached(x, asked.lengths) for x in (keys, values)))]
        bound = bound or decoding.bound(tensors)
        given = [*tensors, *(x.to(DEVICE) for x in decoding.vectors().values()), *decoding.given(asked)]
        found = bound(given)
        results = (decoding.truth(asked, dtype) for dtype in (torch.float64, torch.float32))
        for name, x, truth, plain in zip(("out", "lse"), found, *results, strict=True):
            assert_close(f"{asked} {name}", x.cpu(), truth, plain)


def alike(*lengths):
    """The same number in both batch rows."""
    return [Asked((length, length)) for length in lengths]


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("name", PATTERNS)
def test_every_length(name, dtype):
    """From none on: queries before the first token see nothing, and what lies beyond the cache is never read."""
    check(Decoding(PATTERNS[name], Counts(dtype)), *alike(0, 1, 2, 3, 17, 64, ROOM, ROOM + 1, ROOM + 9))


@pytest.mark.parametrize("m", [1, 5])
def test_batch_rows_have_numbers_of_their_own(m):
    decoding = Decoding(PATTERNS["several terms"], Counts("int32", per_batch=True), m)
    check(decoding, Asked((5, 61)), Asked((80, 0)), Asked((1, 3)))


@pytest.mark.parametrize("name", PATTERNS)
def test_queries_that_do_not_end_with_the_keys(name):
    decoding = Decoding(PATTERNS[name], Counts("int64", per_batch=True, offset=True))
    check(decoding, Asked((40, 70), (20, 68)), Asked((40, 70), (0, 69)), Asked((9, 9), (50, 7)), Asked((9, 9), (-2, 3)))


@pytest.mark.parametrize("name", PATTERNS)
def test_a_window_of_the_call(name):
    decoding = Decoding(PATTERNS[name], Counts("int32", per_batch=True, window=True))
    check(
        decoding, Asked((40, 70), windows=(1, 12)), Asked((40, 70), windows=(1000, 30)), Asked((2, 1), windows=(1, 4))
    )


@pytest.mark.parametrize("name", PATTERNS)
def test_a_ring(name):
    """Tokens that others were written over are seen no more; lengths count all tokens that were ever written."""
    check(Decoding(PATTERNS[name], Counts("int64", ring=True)), *alike(2, 40, ROOM, ROOM + 1, 2 * ROOM - 1, 195))


def test_all_at_once():
    counts = Counts("int64", per_batch=True, ring=True, offset=True, window=True)
    decoding = Decoding(weft.causal(), counts, m=2, sinks=True, alibi=True)
    check(decoding, Asked((50, 150), (48, 148), (200, 25)), Asked((3, 190), (0, 120), (2, 60)))


def test_sinks_and_slopes():
    check(Decoding(PATTERNS["window"], Counts("int32"), sinks=True, alibi=True), *alike(1, 2, 50))


def test_numbers_of_keys_have_slots():
    """One integer or one for each batch row, after what every call is given."""
    decoding = Decoding(PATTERNS["window"], Counts("int64", per_batch=True, offset=True, window=True))
    q, keys, values = decoding.tensors()
    bound = decoding.bound([q, *(decoding.cached(x, (1, 1)) for x in (keys, values))])
    slots = {slot.name: (slot.dtype, slot.shape) for slot in bound.inputs}
    assert list(slots) == ["q", "k", "v", "key_count", "offset", "window"]
    assert slots["k"] == slots["v"] == ("float32", (2, 2, ROOM, 16))
    assert all(slots[name] == ("int64", (2,)) for name in ("key_count", "offset", "window"))
    assert bound.program.given == ()
