"""What NATTEN's functions may be given: arguments for each axis, tensors, and knobs that have no effect."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.compiler import is_compiling

from weft.errors import ArgumentError, InputError, OptionError, UnsupportedError

KINDS = ("cutlass", "hopper", "blackwell", "flex")
SCHEDULES = ("non", "coop", "pp", "NonPersistent", "WarpSpecializedCooperative", "WarpSpecializedPingpong")
FLAGS = ("backward_use_pt_reduction", "run_persistent_kernel", "torch_compile")
DEFAULTS = {"run_persistent_kernel": True, "backward_use_pt_reduction": False, "torch_compile": False}
Axes = tuple[int, ...]

_told = False  # that knobs have no effect


# ---- arguments for each axis -----------------------------------------------------------------------------------------
def neighbourhood(rank: int, kernel_size: Any, stride: Any, dilation: Any, is_causal: Any) -> tuple[Axes, ...]:
    """The four arguments as tuples of one entry for each axis, or an OptionError (a ValueError)."""
    return (
        _axes(rank, "kernel_size", kernel_size, _from(2), "integers from 2 on"),
        _axes(rank, "stride", 1 if stride is None else stride, _from(1), "integers from 1 on"),
        _axes(rank, "dilation", 1 if dilation is None else dilation, _from(1), "integers from 1 on"),
        _axes(rank, "is_causal", False if is_causal is None else is_causal, _is_flag, "True or False"),
    )


def _from(least: int) -> Callable[[Any], bool]:
    return lambda x: isinstance(x, int) and not isinstance(x, bool) and x >= least


def _is_flag(x: Any) -> bool:
    return isinstance(x, bool)


def _axes(rank: int, name: str, value: Any, fits: Callable[[Any], bool], wanted: str) -> Axes:
    if fits(value):
        return (value,) * rank
    if isinstance(value, Sequence) and len(value) == rank and all([fits(x) for x in value]):  # noqa: C419 - traced
        return tuple(value)
    raise OptionError(f"na{rank}d({name}={value!r})", f"it is no {wanted}", f"pass one of them, or {rank}, one an axis")


def check_fits(grid: Sequence[int], kernel_size: Axes, stride: Axes, dilation: Axes) -> None:
    """Raise InputError where a window is larger than the grid or smaller than its stride."""
    asked = f"na{len(kernel_size)}d(kernel_size={kernel_size}, stride={stride}, dilation={dilation})"
    for axis, length in enumerate(grid):
        if kernel_size[axis] * dilation[axis] > length:
            wrong = f"the window spans {kernel_size[axis] * dilation[axis]} tokens of {length} on axis {axis}"
            raise InputError(asked, wrong, "pass kernel_size * dilation <= the token layout")
        if stride[axis] > kernel_size[axis]:
            wrong = f"stride {stride[axis]} leaves keys out between windows of {kernel_size[axis]} on axis {axis}"
            raise InputError(asked, wrong, "pass stride <= kernel_size")


# ---- tensors ---------------------------------------------------------------------------------------------------------
def check_tensors(function: str, rank: int, tensors: Mapping[str, Any]) -> None:
    """Raise for what weft.attention would not see, or would name otherwise. rank: of the token layout."""
    for name, x in tensors.items():
        if not isinstance(x, Tensor):
            raise InputError(f"{function}({name}={type(x).__name__})", "it is no tensor", "pass torch tensors")
        if x.is_sparse or x.is_nested:
            kind = "sparse" if x.is_sparse else "nested"
            raise UnsupportedError(f"{function}({name}: a {kind} tensor)", "it has no strides", "pass a dense tensor")
        if x.dim() != rank + 3:
            wanted = ", ".join(["batch", *"XYZ"[:rank], "heads", "head_dim"])
            raise InputError(f"{function}({name})", f"{name} has {x.dim()} dimensions", f"pass ({wanted})")


def check_layouts(function: str, rank: int, tensors: Sequence[Tensor]) -> None:
    """Raise InputError unless query, key and value have one token layout."""
    grids = [tuple(x.shape[1 : 1 + rank]) for x in tensors]
    if grids[0] != grids[1] or grids[0] != grids[2]:
        said = f"the token layouts are {grids[0]}, {grids[1]} and {grids[2]}"
        raise InputError(f"{function}(query, key, value)", said, "give query, key and value one token layout")


# ---- knobs -----------------------------------------------------------------------------------------------------------
def check_knobs(function: str, backends: str, knobs: Mapping[str, Any]) -> None:
    """Check what chooses kernels and tiles in NATTEN, and say once that it has no effect. backends: "fna", "fmha"."""
    given = {name: x for name, x in knobs.items() if x is not None and x != DEFAULTS.get(name)}
    if not given:
        return
    for name, x in given.items():
        if name == "backend":
            if x not in [f"{kind}-{backends}" for kind in KINDS]:
                known = ", ".join(f"{kind}-{backends}" for kind in KINDS)
                raise UnsupportedError(f"{function}(backend={x!r})", "it is none of NATTEN's", f"pass one of {known}")
        elif name == "kernel_schedule":
            if getattr(x, "name", x) not in SCHEDULES:
                raise OptionError(f"{function}(kernel_schedule={x!r})", "there is none", "pass 'non', 'coop' or 'pp'")
        elif name not in FLAGS and not _is_tile(x):
            raise OptionError(f"{function}({name}={x!r})", "it is no tile", "pass up to three integers, or None")
    _tell(function, given)


def _is_tile(x: Any) -> bool:
    parts = x if isinstance(x, Sequence) and not isinstance(x, str) else (x,)
    return len(parts) <= 3 and all([isinstance(n, int) for n in parts])  # noqa: C419 - traced


def _tell(function: str, given: Mapping[str, Any]) -> None:
    global _told  # noqa: PLW0603 - once in a process
    if is_compiling() or _told:
        return
    _told = True
    warnings.warn(
        f"{function}({', '.join(given)}): weft chooses its own kernels and tiles, so these arguments have no effect",
        stacklevel=4,
    )


def check_attention_kwargs(given: Mapping[str, Any] | None, known: Sequence[str]) -> None:
    """Check the knobs of `attention` that a neighbourhood operation passes on."""
    unknown = [name for name in given or {} if name not in known]
    if unknown:
        cure = f"pass of {', '.join(known)} what is wanted"
        raise ArgumentError(f"attention_kwargs={{{unknown[0]!r}: ...}}", "it is no knob of attention's kernels", cure)
    check_knobs("attention", "fmha", given or {})
