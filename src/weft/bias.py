"""Ready biases: what is added to scores, with gradients for their tables; each one is a score function with its tables.

Tables are tensors of the framework whose attention is called, of any floating dtype. A table whose heads are 1 serves
all heads. Biases add up: `weft.bias.relative(a) + weft.bias.dense(x)`. Distances are counted between aligned tokens:
where M != N, as the pattern's alignment says. A bias of -inf masks its pair.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from math import prod
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from weft.errors import OptionError
from weft.score import Score

__all__ = ["alibi", "buckets", "dense", "grid", "relative"]

MOST_INDICES = 64
_INDICES: dict[tuple[int, bool, int, str], Any] = {}
ALIBI = "score - real0[h] * abs(q + shift - k)"  # of slopes (Hq,)


def relative(table: Any) -> Score:
    """table[h, clip(k - q, -R, R) + R]: one number for each head and distance.

    table: (Hq, 2R + 1), or (1, 2R + 1) for all heads. Keys further away than R take the table's ends. Example::

        out = weft.attention(q, k, v, weft.window(64, 64), bias=weft.bias.relative(table))  # table (Hq, 129)
    """
    heads, length = _shape("relative", table, 2, "(Hq, 2R + 1)")
    _check_odd("relative", (length,))
    return Score(f"score + real0[{_head(heads)}, {_clipped('k - q - shift', 1)}]", (table,), "weft.bias.relative")


def buckets(table: Any, bidirectional: bool = True, max_distance: int = 128) -> Score:
    """T5's relative position bias (Raffel et al. 2020, arXiv 1910.10683): table[bucket(k - q), h].

    table: (buckets, Hq), as the weight of T5's embedding. Near distances have a bucket each, further ones share buckets
    that grow with the logarithm up to max_distance. From there on all share the last one. bidirectional: half of the
    buckets are for keys after the query, as in an encoder; else these share the bucket of distance 0. Example::

        bias = weft.bias.buckets(layer.relative_attention_bias.weight, max_distance=128)
    """
    count, _ = _shape("buckets", table, 2, "(buckets, Hq)")
    least = 4 if bidirectional else 2
    if count < least or (bidirectional and count % 2):
        wrong = f"there are {count} buckets, {'half of them for each direction' if bidirectional else 'too few'}"
        _refuse(
            "buckets", wrong, f"pass a table of {'an even number of' if bidirectional else ''} {least} rows or more"
        )
    if isinstance(max_distance, bool) or not isinstance(max_distance, int) or max_distance <= count // least:
        wrong = f"max_distance={max_distance!r} is not above the {count // least} distances that have their own bucket"
        _refuse("buckets", wrong, "pass a larger max_distance, as an int")
    expanded = table[_index_for(table, count, bidirectional, max_distance)]  # (2 * max_distance + 1, Hq)
    text = f"score + real0[{_clipped('k - q - shift', 0)}, h]"
    return Score(text, (expanded,), "weft.bias.buckets")


def grid(table: Any, shape: Sequence[int], dilation: int | Sequence[int] = 1) -> Score:
    """A relative position bias on a grid of one to three axes, as Swin's and NATTEN's: table[h, dy + Ry, dx + Rx].

    shape: the tokens of each axis; M = N = their product, the last axis first in memory. table: (Hq, 2Ry + 1, 2Rx + 1),
    or with 1 for Hq; dy, dx: the key's coordinate minus the query's, divided by `dilation` and rounded down; further
    ones take the table's ends. Swin's table ((2Wh - 1) * (2Ww - 1), Hq) is table.T.reshape(Hq, 2 * Wh - 1, 2 * Ww - 1);
    NATTEN's rpb is this table. Example::

        out = weft.attention(q, k, v, weft.neighborhood((64, 64), (7, 7)), bias=weft.bias.grid(rpb, (64, 64)))
    """
    shape = tuple(shape)
    if not 1 <= len(shape) <= 3 or not all(isinstance(n, int) and n > 0 for n in shape):
        _refuse(
            "grid", f"shape={shape!r} is no grid of one to three axes", "pass the tokens of each axis, e.g. (64, 64)"
        )
    heads, *lengths = _shape("grid", table, 1 + len(shape), f"(Hq, {', '.join(['2R + 1'] * len(shape))})")
    _check_odd("grid", lengths)
    steps = (dilation,) * len(shape) if isinstance(dilation, int) else tuple(dilation)
    if len(steps) != len(shape) or not all(isinstance(n, int) and n > 0 for n in steps):
        _refuse("grid", f"dilation={dilation!r}", "pass an int from 1 on, or one for each axis")
    places = []
    for axis, step in enumerate(steps):
        distance = f"{_coordinate('k', shape, axis)} - {_coordinate('q', shape, axis)}"
        places.append(_clipped(distance if step == 1 else f"({distance}) // {step}", axis + 1))
    text = f"score + real0[{', '.join([_head(heads), *places])}]"
    return Score(text, (table,), "weft.bias.grid", tokens=prod(shape))


def dense(x: Any) -> Score:
    """x[b, h, q, k]: one number for each pair, read where pairs are live and nowhere else.

    x: (B, Hq, M, N), (Hq, M, N) or (M, N); axes of 1 are broadcast. `bias=x` of a tensor means this. Example::

        out = weft.attention(q, k, v, weft.window(64, 64), bias=pair_bias)  # (B, Hq, M, N)
    """
    shape = tuple(getattr(x, "shape", ()))
    if not 2 <= len(shape) <= 4:
        _refuse(
            "dense", f"x is {_said(x)}", "pass (B, Hq, M, N), (Hq, M, N) or (M, N), with axes of 1 where it is shared"
        )
    _check_real("dense", x)
    names = "bhqk"[4 - len(shape) :]
    at = ", ".join(["0" if length == 1 else name for name, length in zip(names, shape)])  # noqa: B905 - traced
    return Score(f"score + real0[{at}]", (x,), "weft.bias.dense", dense=True)


def alibi(slopes: Any) -> Score:
    """-slopes[h] * abs(q - k) (Press et al. 2022, arXiv 2108.12409), with gradients for the slopes, (Hq,).

    `alibi_slopes=` means this too. Example::

        out = weft.attention(q, k, v, weft.causal(), bias=weft.bias.alibi(2.0 ** -torch.arange(1, 9)))
    """
    _shape("alibi", slopes, 1, "(Hq,)")
    return Score(ALIBI, (slopes,), "weft.bias.alibi")


# ---- parts of texts --------------------------------------------------------------------------------------------------
def _head(heads: int) -> str:
    return "0" if heads == 1 else "h"


def _clipped(distance: str, axis: int) -> str:
    """The place of a distance in an axis of table 0, whose middle is distance 0."""
    return f"max(min({distance} + size(0, {axis}) // 2, size(0, {axis}) - 1), 0)"


def _coordinate(index: str, shape: tuple[int, ...], axis: int) -> str:
    pace = prod(shape[axis + 1 :])
    found = index if pace == 1 else f"{index} // {pace}"
    return found if axis == 0 else f"{found} % {shape[axis]}"


def _index_for(table: Any, count: int, bidirectional: bool, most: int) -> Any:
    """The bucket of each distance, which a table is read by. It is kept on the device of torch's tensors: the host
    would wait for each copy of it.
    """
    torch = sys.modules.get("torch")
    plain = torch is not None and type(table) in (torch.Tensor, torch.nn.Parameter)
    if torch is None or not plain or torch.compiler.is_compiling():
        return _bucket_of(count, bidirectional, most)
    key = count, bidirectional, most, str(table.device)
    if key in _INDICES:
        return _INDICES[key]
    index = torch.as_tensor(_bucket_of(count, bidirectional, most), device=table.device)
    if type(index) is torch.Tensor:  # and not one that only has a shape
        if len(_INDICES) >= MOST_INDICES:
            _INDICES.clear()
        _INDICES[key] = index
    return index


def _bucket_of(count: int, bidirectional: bool, most: int) -> NDArray[np.int64]:
    """The bucket of each distance k - q from -most to most; float32, as T5 computes them."""
    distance = np.arange(-most, most + 1)
    first = np.zeros_like(distance)
    if bidirectional:
        count //= 2
        first, distance = np.where(distance > 0, count, 0), np.abs(distance)
    else:
        distance = -np.minimum(distance, 0)
    exact = count // 2
    far = np.log(np.maximum(distance, 1).astype(np.float32) / np.float32(exact))
    far = exact + (far / np.float32(np.log(most / exact)) * np.float32(count - exact)).astype(np.int64)
    return first + np.where(distance < exact, distance, np.minimum(far, count - 1))


# ---- checks ----------------------------------------------------------------------------------------------------------
def _shape(function: str, table: Any, rank: int, wanted: str) -> tuple[int, ...]:
    shape = tuple(getattr(table, "shape", ()))
    if len(shape) != rank:
        _refuse(function, f"the table is {_said(table)}", f"pass a tensor of shape {wanted}")
    _check_real(function, table)
    return shape


def _check_real(function: str, table: Any) -> None:
    kind = str(getattr(table, "dtype", ""))
    if "float" not in kind or "complex" in kind:
        _refuse(function, f"the table is {_said(table)}", "pass a tensor of a floating dtype")


def _check_odd(function: str, lengths: Sequence[int]) -> None:
    if not all(length % 2 for length in lengths):
        wrong = f"{' x '.join(map(str, lengths))} entries have no middle, where distance 0 is"
        _refuse(function, wrong, "pass an odd number of entries along each axis of distances: 2R + 1")


def _said(x: Any) -> str:
    shape = getattr(x, "shape", None)
    return f"a {type(x).__name__}" if shape is None else f"{getattr(x, 'dtype', '')} of shape {tuple(shape)}"


def _refuse(function: str, wrong: str, cure: str) -> NoReturn:
    raise OptionError(f"weft.bias.{function}(...)", wrong, cure)
