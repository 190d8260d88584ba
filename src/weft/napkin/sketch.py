"""Sketches of kernels: the variables that live together, how many groups fit, clocks, and the balance of work and
transfers.

`hopper_attention` is the worked example of arXiv 2412.03317: FP8 scores, FP16 values. The sizes of its pieces, the
totals of memory and the clocks are the paper's. Which variables make up the registers is our own account of its total.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from weft.errors import RelabelError
from weft.napkin.machine import rate
from weft.target import Gpu


@dataclass(frozen=True)
class Variable:
    """Bytes held at a level, once for each block of threads or for each warpgroup."""

    name: str
    level: str
    per: str
    nbytes: float


@dataclass(frozen=True)
class Sketch:
    """The variables of a kernel, the rows of queries of a warpgroup, and clocks for each operation on a chunk.

    tensor: the operations that the tensor cores do.
    """

    variables: tuple[Variable, ...]
    rows: int
    clocks: Mapping[str, float]
    tensor: tuple[str, ...]

    def held(self, level: str, per: str) -> float:
        """Bytes of all variables of a kind."""
        return sum(v.nbytes for v in self.variables if v.level == level and v.per == per)

    def fitting(self, machine: Gpu) -> dict[str, float]:
        """N_max: warpgroups that each level has room for, beside what the block holds once."""
        levels = sorted({v.level for v in self.variables})
        return {at: (machine.limit(at) - self.held(at, "block")) / self.held(at, "warpgroup") for at in levels}

    def warpgroups(self, machine: Gpu) -> int:
        """Whole warpgroups that fit every level."""
        fitting = self.fitting(machine)
        level = min(fitting, key=lambda at: fitting[at])
        if fitting[level] < 1:
            raise RelabelError(
                f"a warpgroup on {machine.name}",
                f"it needs {self.held(level, 'warpgroup'):.0f} bytes in {level}, which has {machine.limit(level)}",
                "take smaller pieces",
            )
        return int(fitting[level])

    @property
    def tensor_clocks(self) -> float:
        """Clocks of the tensor cores for one chunk."""
        return sum(self.clocks[name] for name in self.tensor)


@dataclass(frozen=True)
class Pieces:
    """Sizes of the worked example: rows of a warpgroup, keys of a chunk and of a step, head dimension and its slices.

    d_score: dims of one tensor-core step of scores; d_value: of one of values.
    """

    w_q: int = 128
    s_x: int = 64
    u_x: int = 64
    d: int = 128
    d_score: int = 32
    d_value: int = 8


def hopper_attention(machine: Gpu, pieces: Pieces | None = None) -> Sketch:
    """Attention with scores in FP8 and values in FP16, two chunks of keys in flight."""
    p = pieces or Pieces()
    rows, fp8, fp16, fp32 = p.w_q, 1, 2, 4
    variables = (
        Variable("K, two chunks", "shared", "block", 2 * p.s_x * p.d * fp8),
        Variable("V, two chunks", "shared", "block", 2 * p.s_x * p.d * fp16),
        Variable("Q", "shared", "warpgroup", rows * p.d * fp8),
        Variable("O on its way out", "shared", "warpgroup", rows * p.d * fp16),
        Variable("O, accumulator", "register", "warpgroup", rows * p.d * fp16),
        Variable("S, next scores", "register", "warpgroup", rows * p.u_x * fp16),
        Variable("P, weights", "register", "warpgroup", rows * p.u_x * fp16),
        Variable("maximum, rescale, sum", "register", "warpgroup", 3 * rows * fp16),
        Variable("fragment of Q", "register", "warpgroup", rows * p.d_score * fp8),
        Variable("fragment of K", "register", "warpgroup", p.u_x * p.d_score * fp8),
        Variable("slice of P V", "register", "warpgroup", rows * p.d_value * fp32),
    )
    threads, per = 128, machine.processors * machine.clock
    scores, dims = rows * p.u_x, rows * p.d
    clocks = {
        "QK": 2 * scores * p.d / (rate(machine, "fp8") / per) / threads,
        "exp": (scores + rows) / threads / machine.exponentials,  # and one rescaling a row
        "PV": 2 * scores * p.d / (rate(machine, "fp16") / per) / threads,
        "accumulate": dims / threads / machine.fma16,
    }
    return Sketch(variables, rows, clocks, ("QK", "PV"))


# ---- balance ---------------------------------------------------------------------------------------------------------
def mixed_rate(rates: tuple[float, ...]) -> float:
    """Operations a second of equal amounts of work at each of the rates, one after another."""
    return len(rates) / sum(1 / one for one in rates)


@dataclass(frozen=True)
class Balance:
    """Attention of one processor with its share of the bandwidth. key_bytes: of a key and its value, for each dim.

    rate: operations a second of the whole device.
    """

    machine: Gpu
    rate: float
    key_bytes: float

    def compute_seconds(self, g_q: int, s_x: int, d: int) -> float:
        """Both products of a group with a chunk of keys."""
        return 4 * g_q * s_x * d / (self.rate / self.machine.processors)

    def transfer_seconds(self, s_x: int, d: int) -> float:
        """Reading a chunk of keys and values."""
        return s_x * d * self.key_bytes / (self.machine.bandwidth / self.machine.processors)

    @property
    def least_rows(self) -> float:
        """Rows of a group from which on work takes longer than transfers."""
        return self.rate * self.key_bytes / (4 * self.machine.bandwidth)
