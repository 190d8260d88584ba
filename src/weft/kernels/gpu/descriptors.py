"""Tensor descriptors of a kernel's arguments: what `weft.planning.tma` says, for tensors that lie somehow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

from weft.kernels.gpu.hopper.config import config_of
from weft.kernels.gpu.program import row_major
from weft.kernels.gpu.spec import SHORT_DTYPES, KernelSpec
from weft.planning.problem import Problem
from weft.planning.tma import Extent, GridExtent

KEYS = ("K", "V", "DK", "DV")  # as many heads as keys have
VALUES = ("V", "Out", "DOut", "DV")  # as wide as values are
Which = Sequence[tuple[str, int]]  # boxes: a tensor, and which side's tokens
# Of a forward of two terms. Of queries Out is written whole, where a tile is.
FORWARD = (("Out", 0), ("Q", 0), ("K", 1), ("V", 1), ("K", 2), ("V", 2))
# The fused backward reads the first, and writes the second.
READ = (("Q", 0), ("K", 1), ("V", 1), ("DOut", 0), ("Out", 0))
WRITTEN = (("DQ", 0), ("DK", 1), ("DV", 1))
# Of sparse keys beside it; dQ is written too.
OF_SPARSE = (("Q", 0), ("DOut", 0), ("DQ", 0), ("K", 1), ("V", 1))

# Of gradients by tiles of queries; of keys: what is read, and what is added to.
OF_QUERIES = (("Q", 0), ("DOut", 0), ("K", 1), ("V", 1))
OF_KEYS = (("K", 0), ("V", 0), ("Q", 1), ("DOut", 1))
OF_SUMS = (("DQ", 1),)


@dataclass(frozen=True)
class TensorDescriptor:
    """A descriptor. tensor: as its kernel names it. shape, strides: batch, head, place, lane, dim, in elements.

    Of a grid of two axes these are places and lanes. Of three, see `batch_axis`.
    """

    name: str
    tensor: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def boxes(
    which: Which, names: Sequence[str], found: Sequence[Extent], problem: Problem,
    strides: Mapping[str, tuple[int, ...]],
) -> tuple[TensorDescriptor, ...]:  # fmt: skip
    """names: of the descriptors. found: what each side's reach. strides: batch, head, token, dim, in elements."""
    made = []
    for (tensor, side), name in zip(which, names, strict=True):
        reach, (batch, head, token, _) = found[side], strides[tensor]
        heads = problem.kv_heads if tensor in KEYS else problem.q_heads
        width = problem.dv if tensor in VALUES else problem.d
        if isinstance(reach, GridExtent):
            sizes, steps = _of_grid(reach.shape, (problem.batch, heads), (batch, head, token))
            made.append(TensorDescriptor(name, tensor, (*sizes, width), (*steps, 1)))
            continue
        place, lane = reach.first
        shape = (problem.batch, heads, place + reach.places, lane + reach.lanes, width)
        made.append(TensorDescriptor(name, tensor, shape, (batch, head, reach.step * token, token, 1)))
    return tuple(made)


def _of_grid(
    shape: tuple[int, ...], sizes: tuple[int, int], strides: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:  # fmt: skip
    """(sizes, strides) of a descriptor's axes but the last. sizes: batch rows, heads; strides: also of tokens."""
    (rows, heads), (batch, head, token) = sizes, strides
    steps = tuple(token * step for step in row_major(shape))
    if len(shape) == 2:
        return (rows, heads, *shape), (batch, head, *steps)
    if batch_axis(shape, sizes, strides) == "places":
        return (heads, rows * shape[0], *shape[1:]), (head, *steps)
    return (rows * heads, *shape), (head if heads > 1 else batch, *steps)


def batch_axis(
    shape: tuple[int, ...], sizes: tuple[int, int], strides: tuple[int, ...]
) -> Literal["heads", "places", ""]:  # fmt: skip
    """With which axis batch rows are one in a descriptor of three axes, which has no axis more; "" where with none."""
    (_, heads), (batch, head, token) = sizes, strides
    if 1 in sizes or batch == heads * head:
        return "heads"
    return "places" if batch == token * prod(shape) else ""


def batch_by_places(reach: Sequence[Extent], problem: Problem, strides: tuple[int, ...]) -> bool:
    """`KernelSpec.batch_by_places`. strides: of queries."""
    first = reach[0] if reach else None
    if not isinstance(first, GridExtent) or len(first.shape) < 3:
        return False
    return batch_axis(first.shape, (problem.batch, problem.q_heads), strides[:3]) == "places"


def box_names(terms: int) -> tuple[str, ...]:
    """Names of the descriptors among a kernel's arguments."""
    return tuple(f"{name}_{'near' if side < 2 else 'far'}" for name, side in FORWARD[: 2 + 2 * terms])


def walk_names(which: Which) -> tuple[str, ...]:
    """The same of the fused backward; which: READ, WRITTEN or OF_SPARSE."""
    return tuple(f"{name}_box" for name, _ in which)


def box_kind(name: str, spec: KernelSpec) -> str:
    """The type of a descriptor among a kernel's arguments. Its box has a tile's places, and dims as products want
    them: what lies beyond the tensor's reads as zeros.
    """
    config, tensor = config_of(spec), name.split("_", maxsplit=1)[0]
    walked = (tensor in KEYS) != spec.of_keys
    if spec.boxes:
        box = config.tile_box if walked else config.box if spec.of_keys else config.own_box
        sides = [*[1] * (4 - len(box)), *box]
    else:
        whole = spec.of_keys or config.makes == "dq"  # a block's rows in one box
        places = config.columns if walked else config.rows * (config.consumers if whole else 1)
        sides = [1, 1, places, 1]
    if spec.with_dq and tensor == "DQ":  # half of the dims of a tile
        return _box_kind("float32", [*sides, config.width // 2])
    return _box_kind(spec.dtype, [*sides, config.width_v if tensor in VALUES else config.width])


def _box_kind(dtype: str, shape: Any) -> str:
    """The type of a descriptor of boxes of a shape."""
    from triton.experimental.gluon import language as gl

    layout = gl.NVMMASharedLayout.get_default_for(shape, getattr(gl, dtype))
    return f"tensordesc<{SHORT_DTYPES[dtype]}{shape},{layout!r}>"
