"""Layouts: which axis of a tensor is which. Tensors are viewed as (B, H, S, D), and results viewed back; no copies.

A layout names the axes, slowest first: b batch rows, h heads, s tokens, d head dimension. The letter t stands for the
tokens of all batch rows, packed one after the other. Where tokens are a grid, its two or three axes stand where s does.
"""

from __future__ import annotations

from collections.abc import Hashable
from itertools import pairwise
from typing import Any, NamedTuple

from torch import Tensor
from torch.compiler import is_compiling

from weft.caching import Recent
from weft.errors import InputError, LengthError, OptionError, WeftError
from weft.pattern.algebra import Call, Operator, Pattern
from weft.pattern.arguments import axes, library
from weft.pattern.leaves import Product
from weft.torch.inputs import is_dense

LAYOUTS = {
    "bhsd": "q (B, Hq, M, D), k (B, Hkv, N, D), v (B, Hkv, N, Dv)",
    "bshd": "q (B, M, Hq, D), k (B, N, Hkv, D), v (B, N, Hkv, Dv)",
    "thd": "q (T, Hq, D), k (T, Hkv, D), v (T, Hkv, Dv)",
}
TOKENS_AT = {"bhsd": 2, "bshd": 1, "thd": 0}
GRIDS = (2, 3)  # axes of tokens that are a grid
NO_STRIDES = "pass tensors with strides, padded if need be"
KEPT = 256  # patterns whose grids were compared with tensors
Grid = tuple[int, ...]


class View(NamedTuple):
    """q, k, v as (B, H, S, D), and the way back. grid, key_grid: axes of tokens of q and of k, () if they are one."""

    tensors: tuple[Tensor, Tensor, Tensor]
    grid: Grid
    key_grid: Grid
    layout: str

    def back(self, x: Tensor) -> Tensor:
        """out (B, Hq, M, Dv) or lse (B, Hq, M) in the layout of q; lse has the axes of out but the last."""
        if self.layout == "bhsd":
            return x.unflatten(2, self.grid) if self.grid else x
        if self.layout == "thd":
            return x.squeeze(0).transpose(0, 1)
        x = x.transpose(1, 2)
        return x.unflatten(1, self.grid) if self.grid else x


def check_layout(layout: Any, function: str = "attention") -> None:
    """Raise OptionError unless it is one of LAYOUTS."""
    if not isinstance(layout, str) or layout not in LAYOUTS:
        raise OptionError(
            f"{function}(layout={layout!r})", f"a layout is one of {', '.join(map(repr, LAYOUTS))}",
            f'pass layout="bshd" for {LAYOUTS["bshd"]}',
        )  # fmt: skip


def viewed(tensors: tuple[Any, Any, Any], layout: str) -> View:
    """q, k, v of a layout as (B, H, S, D), by strides.

    Raises InputError for tensors of another rank, and where axes of a grid do not follow each other in memory.
    """
    check_layout(layout)
    q, k, v = tensors
    known = isinstance(q, Tensor) and isinstance(k, Tensor) and isinstance(v, Tensor)
    if known and q.dim() == k.dim() == v.dim() == 4 - (layout == "thd"):  # most calls: tokens are one axis
        return View((_viewed(q, layout), _viewed(k, layout), _viewed(v, layout)), (), (), layout)
    for name, x in zip("qkv", tensors, strict=True):
        _check_rank(name, x, layout)
    grid, key_grid, value_grid = (_tokens(x, layout) for x in tensors)
    if len(key_grid) != len(value_grid) or len(grid) != len(key_grid):
        several = f"q has {len(grid)} axes of tokens, k has {len(key_grid)}, v has {len(value_grid)}"
        _wrong(layout, several, "give q, k and v the same axes, or flatten the grids of all three")
    if key_grid != value_grid:
        _wrong(layout, f"k is a grid of {_by(key_grid)} and v one of {_by(value_grid)}", "give k and v one grid")
    q, k, v = (_viewed(_flattened(x, layout, name), layout) for name, x in zip("qkv", tensors, strict=True))
    return View((q, k, v), grid, key_grid, layout)


def _viewed(x: Tensor, layout: str) -> Tensor:
    """A tensor whose tokens are one axis as (B, H, S, D)."""
    if layout == "bshd":
        return x.transpose(1, 2)
    return x.transpose(0, 1).unsqueeze(0) if layout == "thd" else x


def _check_rank(name: str, x: Any, layout: str) -> None:
    if not isinstance(x, Tensor):
        _wrong(layout, f"{name} is {type(x).__name__}, not a tensor", "pass torch tensors")
    if not is_dense(x):
        _wrong(layout, f"{name} is {'nested' if x.is_nested else x.layout}", NO_STRIDES)
    rank = x.dim()
    if rank != 4 - (layout == "thd") and not (layout != "thd" and rank - 3 in GRIDS):
        _wrong(layout, f"{name} has {rank} dimensions", f"pass {LAYOUTS[layout]}")


def tokens_viewed(x: Any, layout: str, name: str) -> Tensor:
    """Keys or values without a grid (as `extra_keys`) as (B, H, S, D)."""
    rank = 4 - (layout == "thd")
    if not isinstance(x, Tensor) or x.dim() != rank:
        said = f"{name} has {x.dim()} dimensions" if isinstance(x, Tensor) else f"{name} is {type(x).__name__}"
        letters = {"bhsd": "(B, Hkv, E, D)", "bshd": "(B, E, Hkv, D)", "thd": "(E, Hkv, D)"}[layout]
        _wrong(layout, said, f"pass {name} as {letters}, values with Dv for D")
    return _viewed(x, layout)


def _tokens(x: Tensor, layout: str) -> Grid:
    """Lengths of the axes of tokens, of which there may be several."""
    first = TOKENS_AT[layout]
    return tuple(x.shape[first : first + x.dim() - 3])


def _flattened(x: Tensor, layout: str, name: str) -> Tensor:
    """The axes of a grid as one, by strides."""
    first = TOKENS_AT[layout]
    last = first + x.dim() - 4
    for a, b in pairwise([axis for axis in range(first, last + 1) if x.shape[axis] != 1]):
        if x.numel() and x.stride(a) != x.shape[b] * x.stride(b):
            lies = f"{name} {tuple(x.shape)} with strides {tuple(x.stride())}"
            wrong = f"axes {a} and {b} of {lies} cannot be viewed as one"
            _wrong(layout, wrong, f"pass {name}.contiguous(), which copies it")
    return x.flatten(first, last)


def _by(grid: Grid) -> str:
    return " x ".join(map(str, grid))


def _wrong(layout: str, wrong: str, cure: str) -> None:
    said = "" if layout == "bhsd" else f", layout={layout!r}"
    raise InputError(f"attention(q, k, v, ...{said})", wrong, cure)


# ---- a pattern's grid and a tensor's ---------------------------------------------------------------------------------
_compared: Recent[Hashable, Pattern] = Recent(KEPT)  # the pattern is kept, so that no other one takes its id


def on_grid_of(mask: Any, view: View) -> Any:
    """The mask, if its grid is that of the tensors; tokens that are one axis have none to compare."""
    if not view.grid:
        return mask
    if is_compiling() or not isinstance(mask, Pattern):
        return on_grid(mask, view.grid, view.key_grid)  # written down, and compared when the graph runs
    key = (id(mask), view.grid, view.key_grid)
    if _compared.get(key) is None:
        _compare(mask, view.grid, view.key_grid)
        _compared.keep(key, mask)
    return mask


@library
def on_grid(pattern: Any, shape: Any, key_shape: Any) -> Pattern:
    """`pattern`, whose tokens are the grid `shape` of queries and `key_shape` of keys, or a LengthError."""
    rank = len(shape)
    _compare(pattern, axes("on_grid", "shape", shape, rank, 0), axes("on_grid", "key_shape", key_shape, rank, 0))
    found: Pattern = pattern
    return found


def _compare(mask: Pattern, grid: Grid, key_grid: Grid) -> None:
    found = grids_of(mask)
    if found == {(grid, key_grid)}:
        return
    if not found:
        raise InputError(
            f"attention(q, k, v, {mask}) with {len(grid)} axes of tokens, {_by(grid)}",
            "the pattern has no grid, so it does not say how these tokens are counted",
            f"write weft.neighborhood({grid}, ...) or weft.product(..., shape={grid}) as the mask; or make one "
            'axis of tokens: q.flatten(2, -2), in layout="bshd" q.flatten(1, -3)',
        )  # fmt: skip
    said = " and ".join(_by(a) if a == b else f"{_by(a)} queries and {_by(b)} keys" for a, b in sorted(found))
    raise LengthError(
        f"attention on a grid of {_by(grid)} queries and {_by(key_grid)} keys under {mask}",
        f"the pattern's grid is {said}", f"make the pattern with shape={grid}",
    )  # fmt: skip


def grids_of(pattern: Pattern) -> set[tuple[Grid, Grid]]:
    """(queries, keys) of every grid of several axes in a pattern."""
    if isinstance(pattern, Call):
        return grids_of(pattern.body)
    if isinstance(pattern, Product) and len(pattern.shape) > 1:
        return {(pattern.shape, pattern.key_shape)}
    if isinstance(pattern, Operator):
        return {grid for part in pattern.parts for grid in grids_of(part)}
    return set()


# ---- a layout that is surely wrong -----------------------------------------------------------------------------------
def hint(error: WeftError, tensors: tuple[Any, Any, Any], layout: str) -> None:
    """Add to an error what the shapes look like: more heads than tokens, of queries and of keys. tensors: as given."""
    q, k, _ = tensors
    if not isinstance(layout, str) or layout not in LAYOUTS:
        return
    if not all(isinstance(x, Tensor) and is_dense(x) and x.dim() == 4 - (layout == "thd") for x in (q, k)):
        return
    heads, tokens = {"bhsd": (1, 2), "bshd": (2, 1), "thd": (1, 0)}[layout]
    if not all(x.shape[heads] > x.shape[tokens] for x in (q, k)):
        return
    cure = {
        "bhsd": 'if it is (B, S, H, D), pass layout="bshd"',
        "bshd": 'if it is (B, H, S, D), pass layout="bhsd"',
        "thd": "if it is (H, T, D), pass q[None], k[None], v[None] without layout=",
    }[layout]
    error.cure += f"; q {tuple(q.shape)} is read as {q.shape[heads]} heads of {q.shape[tokens]} tokens: {cure}"
    error.args = (error.asked, error.wrong, error.cure)
