"""What a kernel is predicted to take on a GPU, by cause.

The floor of a tile follows from its diagram: products on tensor cores, one exponential a pair, and reads of what it
walks. A tile reads keys and values (or queries and their gradients) once for all its rows. What a tile takes beyond the
floor is measured once for a card, as are a program's beginning and end (`weft.planning.rates`). Both are clocks of a
full processor. The rest is counting: programs, tiles with and without an edge, and how evenly they fill the processors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from math import floor

from weft.napkin.formulas import attention_transfers
from weft.planning.features import in_halves
from weft.planning.problem import DTYPES, Problem
from weft.planning.rates import Rates, rates
from weft.planning.resources import resident
from weft.planning.tiling import Direction, Tiling
from weft.planning.work import Work
from weft.target import Gpu

# Programs of one length fill processors in rounds; the last round, however few they are, takes this share of a whole.
ROUND = 0.55
# Where lengths differ, processors end apart: by this share of a mean program's time.
UNEVEN = 0.25
ALONE = 0.55  # the time of a program alone on a processor, of what it takes beside as many others as fit
ADDED = 0.32  # bytes a second of sums in the second-level cache, of those read (benchmarks/notes/triton.md, T6)
PRODUCTS = {"forward": (1, 1), "dq": (2, 1), "dkdv": (2, 2)}  # of a tile, over D and over Dv
HALVES = (3, 2)  # of dV and of dK, which both make scores


FLOORS = ("products", "exponentials", "reads", "loads")


@dataclass(frozen=True)
class Cost:
    """Seconds of one direction, by cause; their sum is the prediction.

    starts: beginnings and ends of programs. edges, full: tiles with and without a mask. uneven: processors that wait
    for the last programs. merging: sums that several launches add in memory. launches: of kernels. products,
    exponentials, reads, loads: the least that tensor cores, the units of exponentials, the second-level cache and
    global memory need, which overlap.
    """

    starts: float
    edges: float
    full: float
    uneven: float
    merging: float
    launches: float
    products: float
    exponentials: float
    reads: float
    loads: float

    @property
    def seconds(self) -> float:
        return self.starts + self.edges + self.full + self.uneven + self.merging + self.launches

    @property
    def bound(self) -> str:
        """Which of the floors is the highest."""
        return max(FLOORS, key=lambda name: float(getattr(self, name)))


def cost(works: Sequence[Work], direction: Direction, problem: Problem, tiling: Tiling, gpu: Gpu) -> Cost:
    """The prediction for the waves of one direction."""
    works = in_memory(works, direction, works)
    side_by_side = resident(direction, problem, tiling, gpu)
    known = [rates(work.kind, direction, problem, tiling, gpu) for work in works]
    even, uneven = [], 0.0
    for work, rate in zip(works, known, strict=True):
        share = gpu.processors * gpu.clock
        even.append([work.programs * rate.start / share, work.edge * rate.edge / share, work.full * rate.full / share])
        uneven += waiting(work, rate, side_by_side, gpu, tiling.groups > 0) / gpu.clock
    starts, edges, full = (sum(one[i] for one in even) for i in range(3))
    added = sum(merging(work, direction, problem, tiling, gpu) for work in works)
    floors = _floors(works, direction, problem, tiling, gpu)
    launches = len(works) * _passes(direction, problem, gpu)
    return Cost(starts, edges, full, uneven, added, launches * gpu.launch_seconds, *floors)


def _passes(direction: Direction, problem: Problem, gpu: Gpu) -> int:
    """Launches of a wave, each of which reads all that it walks."""
    return 2 if in_halves(direction, problem, gpu) else 1


def in_memory(works: Sequence[Work], direction: Direction, all_works: Sequence[Work]) -> Sequence[Work]:
    """Works as they add in memory: gradients are one tensor, in float32 for all waves if it is for one of them."""
    if direction == "forward" or not any(work.merged for work in all_works):
        return works
    return [replace(work, merged=True) for work in works]


def in_turn(costs: Sequence[Cost]) -> Cost:
    """Of parts that follow each other; each of them counts the loads of all tensors."""
    sums = {field.name: sum(float(getattr(one, field.name)) for one in costs) for field in fields(Cost)}
    return Cost(**sums | {"loads": max(one.loads for one in costs)})


def merging(work: Work, direction: Direction, problem: Problem, tiling: Tiling, gpu: Gpu) -> float:
    """Seconds for sums in float32 that a wave finds, adds to and leaves, and that began as zeros."""
    dims = {"forward": problem.dv, "dq": problem.d, "dkdv": problem.d + problem.dv}[direction]
    return 3 * 4 * dims * work.programs * tiling.rows / gpu.bandwidth if work.merged else 0.0


def converting(works: Sequence[Work], direction: Direction, problem: Problem, gpu: Gpu) -> float:
    """Seconds after the kernels, where gradients were added in float32: all of them are read and written once more."""
    if direction == "forward" or not any(work.merged for work in works):
        return 0.0
    p, of_queries = problem, direction == "dq"
    dims = p.d if of_queries else p.d + p.dv
    rows = p.batch * (p.q_heads * p.m if of_queries else p.kv_heads * p.n)
    return (4 + DTYPES[p.dtype]) * dims * rows / gpu.bandwidth


def adding(works: Sequence[Work], problem: Problem, cols: int, gpu: Gpu) -> float:
    """Seconds that sums of dQ take where programs of keys add to them in float32.

    A tile adds a row for each of its columns. A launch before clears the sums and makes delta. A launch after reads and
    converts them.
    """
    added = 4 * problem.d * sum(work.tiles for work in works) * cols
    return added / (ADDED * gpu.l2_bandwidth) + around_sums(problem, gpu)


def around_sums(problem: Problem, gpu: Gpu) -> float:
    """The part of `adding` before and after the kernel that adds."""
    width = DTYPES[problem.dtype]
    of_row = (4 + 4 + width) * problem.d + 2 * width * problem.dv
    return of_row * problem.batch * problem.q_heads * problem.m / gpu.bandwidth + 2 * gpu.launch_seconds


def waiting(work: Work, rate: Rates, side_by_side: int, gpu: Gpu, in_turn: bool = False) -> float:
    """Clocks beyond an even share of the work, until the last program ends; in_turn: one program on each processor
    takes them in turn, none of which is faster alone.

    The longest program shares a processor for as long as there is other work, and then has one for itself.
    """
    if not work.programs:
        return 0.0
    whole = work.programs * rate.start + work.edge * rate.edge + work.full * rate.full
    mean = whole / work.programs
    longest = max(mean, rate.start + work.most[0] * rate.edge + work.most[1] * rate.full)
    shortest = min(mean, rate.start + work.least[0] * rate.edge + work.least[1] * rate.full)
    rounds = work.programs / (gpu.processors * side_by_side)
    leftover = _leftover(rounds, longest, mean, shortest, 1.0 if in_turn else ROUND)
    spread = side_by_side * mean * (leftover + (1 - mean / longest) * UNEVEN)
    alone = max(ALONE, 1 / side_by_side) * (side_by_side * longest - whole / gpu.processors)
    return max(spread, alone)


def _leftover(rounds: float, longest: float, mean: float, shortest: float, least: float) -> float:
    """What the last of so many rounds takes beyond its programs' share, in rounds. longest, mean, shortest: clocks of
    programs; least: of a whole round, what few programs take.

    Short programs leave room for the last round before the long ones end. So it takes nothing where there are clearly
    more short programs than programs left. Each program is taken to be either the longest or the shortest.
    """
    part = rounds - floor(rounds)
    differ = longest - shortest > 1e-6 * longest  # beyond what rounding leaves of equal lengths
    short = (longest - mean) / (longest - shortest) if differ and rounds > 1 else 0.0
    waits = min(1.0, max(0.0, 2 * part / short - 1.5)) if short else 1.0
    return waits * mean / longest * max(0.0, least - part) if part else 0.0


def _floors(
    works: Sequence[Work], direction: Direction, problem: Problem, tiling: Tiling, gpu: Gpu
) -> tuple[float, float, float, float]:
    """Seconds of FLOORS."""
    passes, tiles = _passes(direction, problem, gpu), sum(work.tiles for work in works)
    over = HALVES if passes > 1 else PRODUCTS[direction]
    pairs = tiles * tiling.rows * tiling.cols
    rate = dict(gpu.flops)["fp16"] if DTYPES[problem.dtype] == 2 else gpu.fma_flops
    products = 2 * pairs * (over[0] * problem.d + over[1] * problem.dv) / rate
    exponentials = pairs / (gpu.processors * gpu.exponentials * gpu.clock)
    cached = passes * sum(read(work, direction, problem, tiling) for work in works)
    return products, exponentials, cached / gpu.l2_bandwidth, moved(direction, problem) / gpu.bandwidth


def read(work: Work, direction: Direction, problem: Problem, tiling: Tiling) -> float:
    """Bytes that programs read and write below shared memory.

    These are the transfers of attention with rows grouped and columns streamed
    (`weft.napkin.formulas.attention_transfers`). The keys of a group are its mean span.
    """
    own = {"forward": 1, "dq": 2, "dkdv": 2}[direction]  # q and out; q, dout and dq, out; k, v and dk, dv
    rows, span = work.programs * tiling.rows, work.tiles * tiling.cols / max(1, work.programs)
    width = DTYPES[problem.dtype]
    sizes = {"d": problem.d, "v": problem.dv, "nbytes": width, "q": rows, "x": span, "g_q": tiling.rows}
    return attention_transfers(**sizes) + (own - 1) * width * rows * (problem.d + problem.dv)


def moved(direction: Direction, problem: Problem) -> int:
    """Bytes that a direction reads and writes at least: each tensor once."""
    p, width = problem, DTYPES[problem.dtype]
    queries, keys = p.batch * p.q_heads * p.m, p.batch * p.kv_heads * p.n
    per_query = {"forward": p.d + p.dv, "dq": 2 * p.d + 2 * p.dv, "dkdv": p.d + p.dv}[direction]
    per_key = (p.d + p.dv) * (2 if direction == "dkdv" else 1)
    return width * (queries * per_query + keys * per_key) + 4 * queries
