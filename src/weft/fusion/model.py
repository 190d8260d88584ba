"""What a segmentation is predicted to take: bytes to and from memory, launches, and products that are behind cuBLAS.

The shares of a card's rates that are reached are those of a roofline for an H200, not measurements of fused kernels.
The model ranks segmentations, and what it leaves is to be measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.errors import OptionError
from weft.fusion.operators import Array, Layer
from weft.fusion.segments import Segment, reason_against, segments
from weft.target import Gpu

PRODUCTS = 0.76  # of the rate of tensor cores that cuBLAS reaches
BANDWIDTH = 0.83  # of a memory's bandwidth that is reached
ATTENTION = 0.5  # of the rate of tensor cores, on the pairs that are computed
BEHIND = 0.10  # by which a fused product is slower than cuBLAS
BEHIND_NORM = 0.20  # by which one that holds whole rows of a norm is
LAUNCH = 2e-6  # seconds of a kernel in a graph
CACHED = 0.25  # of the second-level cache: activations up to it are read from there


@dataclass(frozen=True)
class Cost:
    """Of one segment, or of all: seconds, bytes to and from memory, kernels."""

    seconds: float = 0.0
    nbytes: int = 0
    launches: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.seconds + other.seconds, self.nbytes + other.nbytes, self.launches + other.launches)


def cost(layer: Layer, digits: str, gpu: Gpu) -> Cost:
    """Of a whole segmentation. Raises OptionError for one of another length."""
    if len(digits) != len(layer):
        raise OptionError(
            f"the cost of scheme {digits} of {layer.name}", f"it has {len(digits)} digits, and the layer"
            f" {len(layer)} operators", "give one digit for each operator",
        )  # fmt: skip
    total = Cost()
    for part in segments(digits):
        total = total + of_segment(layer, part, gpu)
    return total


def is_legal(layer: Layer, digits: str, gpu: Gpu) -> bool:
    """Whether each segment is one that a kernel could compute."""
    return not any(reason_against(layer, part, gpu) for part in segments(digits))


def moved(layer: Layer, part: Segment) -> tuple[list[Array], list[Array]]:
    """(arrays read from memory, arrays written to it) by a segment, each once."""
    reads: dict[str, Array] = {}
    made: set[str] = set()
    writes: dict[str, Array] = {}
    for i in part:
        one = layer.operators[i]
        reads |= {array.name: array for array in one.reads if array.name not in made}
        made.add(one.writes.name)
        if layer.read_outside(one.writes, part) or not layer.readers.get(one.writes.name):
            writes[one.writes.name] = one.writes
    return list(reads.values()), list(writes.values())


def of_segment(layer: Layer, part: Segment, gpu: Gpu) -> Cost:
    """Of one kernel: the longer of its arithmetic and its transfers, and its launch."""
    reads, writes = moved(layer, part)
    transfers = sum(_seconds(array, gpu) for array in (*reads, *writes))
    arithmetic = sum(_arithmetic(layer, part, i, gpu) for i in part)
    nbytes = sum(array.nbytes for array in (*reads, *writes))
    return Cost(max(transfers, arithmetic) + LAUNCH, nbytes, 1)


def _seconds(array: Array, gpu: Gpu) -> float:
    cached = not array.weight and array.nbytes <= CACHED * gpu.l2
    return array.nbytes / (BANDWIDTH * (gpu.l2_bandwidth if cached else gpu.bandwidth))


def _arithmetic(layer: Layer, part: Segment, i: int, gpu: Gpu) -> float:
    one = layer.operators[i]
    peak = dict(gpu.flops)["fp16"]
    if one.kind == "attention":
        return one.flops / (ATTENTION * peak)
    if one.kind != "product":
        return 0.0
    behind = BEHIND if len(part) > 1 else 0.0
    if any(layer.operators[j].kind == "norm" for j in range(i + 1, part.stop)):
        behind = BEHIND_NORM
    return one.flops * (1 + behind) / (PRODUCTS * peak)


def breaks_even(width: int, gpu: Gpu) -> float:
    """By how much a product over `width` may be slower than cuBLAS for an activation in its epilogue to pay.

    The epilogue saves writing and reading a result once; the product takes 2 * width operations for each element.
    """
    saved = 2 * 2 / (BANDWIDTH * gpu.bandwidth)
    return saved / (2 * width / (PRODUCTS * dict(gpu.flops)["fp16"]))
