"""The library: every pattern with the field's exact semantics, one function each (more in `composites`).

Each function checks its arguments and returns leaves; the `library` decorator keeps the call itself. So a pattern
prints, compares, pickles and crosses into a compiled graph as the expression that made it. q and k are token indices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from itertools import pairwise
from math import prod
from operator import or_
from typing import Any

import numpy as np

from weft.errors import PatternError
from weft.pattern import misuse
from weft.pattern.algebra import Align, Pattern, text
from weft.pattern.arguments import LARGEST, axes, choice, flags, integer, integers, library
from weft.pattern.bounds import IntTable, Stair, Steps
from weft.pattern.leaves import Affine, BlockList, Chosen, Labels, PerBatch, PerHead, Product, Segments, Sized
from weft.pattern.listed import Listed
from weft.pattern.relation import Relation, Residue

ALIGNMENTS = (None, "top-left", "bottom-right")
NOTHING = Relation(upper=(Stair.constant(0),))
LONGEST_STEP = 4  # of listed tokens that are kept as a residue class


def affine(function: str, align: Align, relation: Relation) -> Affine:
    """A position-dependent leaf; `function` is named if `align` is none of the alignments."""
    return Affine(relation, positional=True, align=choice(function, "align", align, ALIGNMENTS))


def diagonal(by: int) -> Stair:
    """The bound i -> i + by."""
    return Stair(base=by)


@library
def full() -> Pattern:
    """Every query sees every key."""
    return Affine(Relation())


@library
def nothing() -> Pattern:
    """No query sees any key: output 0, lse -inf, zero gradients."""
    return Affine(NOTHING)


@library
def causal(offset: int = 0, align: Align = None) -> Pattern:
    """k <= q + offset. With offset=-1 a query does not see itself."""
    return affine("causal", align, Relation(upper=(diagonal(integer("causal", "offset", offset) + 1),)))


@library
def window(left: int | None = None, right: int | None = None, align: Align = None) -> Pattern:
    """-left <= k - q <= right, in tokens; None leaves that side open.

    `causal() & window(left=1023)` is the sliding window of 1024 keys that Mistral and FlashAttention's
    window_size=(1023, 0) mean.
    """
    if left is None and right is None:
        raise PatternError("window()", "neither left nor right is given", "give one of them, or use full()")
    if isinstance(left, (tuple, IntTable)) and len(left) == 2:
        misuse.two_sides(left if isinstance(left, tuple) else tuple(left.array.tolist()))
    far = "use None for an unbounded side"
    lower = () if left is None else (diagonal(-integer("window", "left", left, 0, far)),)
    upper = () if right is None else (diagonal(integer("window", "right", right, 0, far) + 1),)
    return affine("window", align, Relation(lower, upper))


@library
def dilated(left: int, right: int, step: int, align: Align = None) -> Pattern:
    """k = q + step * j with -left <= j <= right: left and right count keys (Longformer's dilated window)."""
    step = integer("dilated", "step", step, 1)
    left, right = integer("dilated", "left", left, 0), integer("dilated", "right", right, 0)
    relation = Relation((diagonal(-left * step),), (diagonal(right * step + 1),), diagonal=Residue(step))
    return affine("dilated", align, relation)


@library
def periodic_keys(step: int, phase: int | None = None) -> Pattern:
    """k % step == phase, for every query; phase defaults to step - 1 (the last key of each block of `step`)."""
    step = integer("periodic_keys", "step", step, 1)
    phase = step - 1 if phase is None else integer("periodic_keys", "phase", phase, 0)
    if phase >= step:
        raise PatternError(
            f"periodic_keys({step}, phase={phase})", f"no key has remainder {phase} by {step}", "pass phase < step"
        )
    return Affine(Relation(keys=Residue(step, phase)))


@library
def strided(stride: int, align: Align = None) -> Pattern:
    """k <= q and (q - k < stride or (q - k) % stride == 0): Sparse Transformer's strided pattern, both factors in one
    head.

    Source: Child et al. 2019, arXiv 1904.10509, section 4.2.
    """
    stride = integer("strided", "stride", stride, 1)
    return _strided_near(stride, align) | _strided_far(stride, align)


def _strided_near(stride: int, align: Align) -> Pattern:
    return affine("strided", align, Relation((diagonal(1 - stride),), (diagonal(1),)))


def _strided_far(stride: int, align: Align) -> Pattern:
    return affine("strided", align, Relation(upper=(diagonal(1),), diagonal=Residue(stride)))


@library
def fixed(stride: int, summary: int = 1, align: Align = None) -> Pattern:
    """k <= q and (q // stride == k // stride or k % stride >= stride - summary): Sparse Transformer's fixed pattern.

    The last `summary` keys of every block of `stride` are seen by all later queries. Source: as `strided`.
    """
    stride = integer("fixed", "stride", stride, 1)
    summary = integer("fixed", "summary", summary, 1)
    _check_summary("fixed", stride, summary)
    return _fixed_near(stride, align) | _fixed_far(stride, summary, align, own=False)


def _check_summary(function: str, stride: int, summary: int) -> None:
    if summary > stride:
        raise PatternError(
            f"{function}(stride={stride}, summary={summary})", f"a block of {stride} keys has no {summary} last keys",
            "pass summary <= stride",
        )  # fmt: skip


def _fixed_near(stride: int, align: Align) -> Pattern:
    return affine("fixed", align, Relation((Stair(stride, stride),), (diagonal(1),)))


def _fixed_far(stride: int, summary: int, align: Align, *, own: bool) -> Pattern:
    """The last `summary` keys of earlier blocks, and with `own` those of q's block up to q."""
    if summary == stride and own:
        return affine("fixed", align, Relation(upper=(diagonal(1),)))
    if summary == 1:  # one key a block is a residue, and a flat term can share a launch with the near one
        return affine("fixed", align, Relation(upper=(diagonal(1),), keys=Residue(stride, stride - 1)))
    return Sized(_summaries, (stride, summary, int(own)), positional=True, align=align)


def _summaries(m: int, n: int, shift: int, stride: int, summary: int, own: int) -> Pattern:
    """Summary keys as products over (block, place in block).

    Queries are cut where whole blocks of them begin and end; keys into whole blocks and the rest.
    """
    edges = (0, -(-shift // stride) * stride, (m + shift) // stride * stride)
    cuts = [0, *sorted(min(max(edge - shift, 0), m) for edge in edges), m]
    whole = n // stride
    keys = ((0, (whole, stride)), (whole, (1, n - whole * stride)))
    cells: list[tuple[Pattern, ...]] = []
    for first, last in pairwise(cuts):
        block, place = divmod(first + shift, stride)
        if first == last or block < 0:
            cells.append((Affine(NOTHING),) * 2)
            continue
        rows = (1, last - first) if place or (last - first) % stride else ((last - first) // stride, stride)
        late = Relation(lower=(Stair.constant(stride - summary),))
        parts = [(_before, late)]
        if own:
            parts.append((_at, replace(late, upper=(diagonal(place + 1),))))
        cells.append(
            tuple(
                reduce(
                    or_, (Product((Affine(where(block - at)), Affine(which)), rows, shape) for where, which in parts)
                )
                for at, shape in keys
            )
        )
    return Segments(tuple(b - a for a, b in pairwise(cuts)), tuple(prod(shape) for _, shape in keys), tuple(cells))


def _before(offset: int) -> Relation:
    """k < q + offset."""
    return Relation(upper=(diagonal(offset),))


def _at(offset: int) -> Relation:
    """k == q + offset."""
    return Relation((diagonal(offset),), (diagonal(offset + 1),))


@library
def sparse_transformer(
    stride: int, heads: int, kind: str = "strided", summary: int = 1, align: Align = None
) -> Pattern:
    """Sparse Transformer with one factor per head: even heads see the near factor, odd heads the far one.

    strided: 0 <= q - k < stride | k <= q and (q - k) % stride == 0. fixed: k <= q in q's block of `stride` | k <= q and
    k % stride >= stride - summary. `strided` and `fixed` are the merged forms. Source: as `strided`.
    """
    stride = integer("sparse_transformer", "stride", stride, 1)
    summary = integer("sparse_transformer", "summary", summary, 1)
    heads = integer("sparse_transformer", "heads", heads, 1)
    if choice("sparse_transformer", "kind", kind, ("strided", "fixed")) == "strided":
        factors = (_strided_near(stride, align), _strided_far(stride, align))
    else:
        _check_summary("sparse_transformer", stride, summary)
        factors = (_fixed_near(stride, align), _fixed_far(stride, summary, align, own=True))
    return PerHead(tuple(factors[head % 2] for head in range(heads)))


@library
def chunks(size: int, align: Align = None) -> Pattern:
    """q // size == k // size: attention inside chunks (Llama 4 with `causal() & chunks(8192)`)."""
    size = integer("chunks", "size", size, 1)
    return affine("chunks", align, Relation((Stair(size, size),), (Stair(size, size, base=size),)))


@library
def blocks(block: int | Sequence[int], pairs: Any) -> Pattern:
    """(q // block_q, k // block_k) is in `pairs`. block: one size or (block_q, block_k); pairs: (row, column)
    integers.
    """
    block_q, block_k = axes("blocks", "block", block, 2, 1)
    asked = f"blocks({text(block)}, {text(pairs)})"
    if not isinstance(pairs, tuple):
        raise PatternError(asked, "pairs is not a list of (row, column)", "pass [(0, 0), ...]")
    if any(isinstance(x, bool) for row in pairs if isinstance(row, tuple) for x in row):
        raise PatternError(asked, "pairs are a mask of blocks", "pass those that are True: mask.nonzero()")
    table = [tuple(_pair(pair)) for pair in pairs]
    listed = sorted(set(table))
    rows, cols = ([pair[side] for pair in listed] for side in (0, 1))
    return BlockList(
        block_q, block_k, integers("blocks", "rows", IntTable(rows)), integers("blocks", "cols", IntTable(cols))
    )


def _pair(pair: Any) -> tuple[int, ...]:
    return axes("blocks", "pairs", pair, 2, 0)


@library
def documents(
    lengths: Any = None, *, ids: Any = None, cu_seqlens: Any = None, key_lengths: Any = None, key_ids: Any = None,
    key_cu_seqlens: Any = None,
) -> Pattern:  # fmt: skip
    """Tokens see their own document. M == N == the total.

    Exactly one of these. lengths: tokens of each document (0 is an empty one). cu_seqlens: their running sum from 0.
    ids: a number for each token, equal meaning same document, in any order. Where documents have other numbers of keys
    than of queries, key_lengths beside lengths, key_cu_seqlens beside cu_seqlens or key_ids beside ids says these. N is
    their total.
    """
    given = [name for name, x in (("lengths", lengths), ("ids", ids), ("cu_seqlens", cu_seqlens)) if x is not None]
    if len(given) != 1:
        raise PatternError(
            f"documents({', '.join(given)})", f"{len(given)} descriptions of the documents are given",
            "give exactly one of lengths, ids, cu_seqlens",
        )  # fmt: skip
    of_keys = {"lengths": key_lengths, "ids": key_ids, "cu_seqlens": key_cu_seqlens}
    odd = [f"key_{name}" for name, x in of_keys.items() if x is not None and name not in given]
    if odd:
        raise PatternError(
            f"documents({', '.join([*given, *odd])})", f"{odd[0]} does not go with {given[0]}",
            "give key_lengths beside lengths, key_cu_seqlens beside cu_seqlens, or key_ids beside ids",
        )  # fmt: skip
    if key_ids is not None:
        return Labels(*(integers("documents", name, x, -(2**63)) for name, x in (("ids", ids), ("key_ids", key_ids))))
    if ids is not None:
        return _labelled(integers("documents", "ids", ids, -(2**63)))
    ends = _ends(lengths, cu_seqlens, "")
    keys = of_keys[given[0]]
    if keys is not None:
        return _rectangular(ends, _ends(key_lengths, key_cu_seqlens, "key_"))
    each = np.diff(ends, prepend=0)
    some = each > 0
    return _contiguous(ends if some.all() else ends[some])


def _ends(lengths: Any, cu_seqlens: Any, of: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The token after each document; of: which argument it is."""
    if lengths is not None:
        ends: np.ndarray[Any, np.dtype[np.int64]] = np.cumsum(integers("documents", f"{of}lengths", lengths).array)
        if ends.size and ends[-1] > LARGEST:
            raise PatternError(
                f"documents({of}lengths=...)",
                f"they have {ends[-1]} tokens together, beyond any sequence (2**31 tokens)",
                "pass lengths that add up to 2**31 or less",
            )  # fmt: skip
        return ends
    bounds = integers("documents", f"{of}cu_seqlens", cu_seqlens).array
    if not bounds.size or bounds[0] != 0 or (np.diff(bounds) < 0).any():
        falls = np.flatnonzero(np.diff(bounds) < 0)
        where = f"falls after position {falls[0]}" if falls.size else "does not begin with 0"
        raise PatternError(f"documents({of}cu_seqlens=...)", f"the list {where}", "pass [0, n0, n0 + n1, ...]")
    return bounds[1:]


def _rectangular(ends: np.ndarray[Any, np.dtype[np.int64]], of_keys: np.ndarray[Any, np.dtype[np.int64]]) -> Pattern:
    """Documents that end before these queries and these keys."""
    if ends.size != of_keys.size:
        raise PatternError(
            "documents(..., with keys of their own)",
            f"there are {ends.size} documents of queries and {of_keys.size} of keys",
            "give one length on each side for each document, 0 for none",
        )  # fmt: skip
    length, key_length = (int(x[-1]) if x.size else 0 for x in (ends, of_keys))
    some = np.diff(ends, prepend=0) > 0
    if not some.any():
        return Affine(Relation(), length=length, key_length=key_length)
    first = np.append(0, of_keys[:-1])[some]
    breaks, after = IntTable.taking(ends[some][:-1]), IntTable.taking(of_keys[some])
    bounds = (Steps(breaks, IntTable.taking(first)),), (Steps(breaks, after),)
    return Affine(Relation(*bounds), length=length, key_length=key_length)


def _contiguous(ends: np.ndarray[Any, np.dtype[np.int64]]) -> Pattern:
    """Documents that end before the tokens `ends` (strictly increasing)."""
    if not ends.size:
        return Affine(Relation(), length=0)
    edges = np.append(0, ends)
    breaks, first, after = (IntTable.taking(one) for one in (edges[1:-1], edges[:-1], edges[1:]))
    return Affine(Relation((Steps(breaks, first),), (Steps(breaks, after),)), length=int(edges[-1]))


def _labelled(ids: IntTable) -> Pattern:
    changes = np.flatnonzero(np.diff(ids.array)) + 1
    contiguous = np.unique(ids.array).size == changes.size + (len(ids) > 0)
    return _contiguous(np.append(changes, len(ids))) if contiguous and len(ids) else Labels(ids)


@library
def padding(lengths: Any, rows: bool = False, align: Align = None) -> Pattern:
    """k < lengths[b] in batch row b; with rows=True also q < lengths[b]. An int serves every batch row. Without rows
    the alignment is what distances (ALiBi) are counted by.
    """
    (rows,) = flags("padding", "rows", rows, 1)
    return _per_row("padding", "lengths", lengths, lambda length: _padded(length, rows, align))


def _padded(length: int, rows: bool, align: Align) -> Pattern:
    if not rows:
        return Affine(Relation(upper=(Stair.constant(length),)), align=choice("padding", "align", align, ALIGNMENTS))
    return affine("padding", align, Relation((Stair.threshold(length),), (Stair.constant(length),)))


@library
def prefix(length: Any) -> Pattern:
    """k < length; a list gives one length per batch row. `causal() | prefix(n)` is prefix-LM."""
    return _per_row("prefix", "length", length, lambda n: Affine(Relation(upper=(Stair.constant(n),))))


def _per_row(function: str, name: str, value: Any, one: Any) -> Pattern:
    if isinstance(value, (IntTable, tuple)):
        table = integers(function, name, value)
        if not len(table):
            raise PatternError(f"{function}({name}=[])", "no batch row is given", "pass one length per batch row")
        return PerBatch(tuple(one(int(n)) for n in table.array))
    found: Pattern = one(integer(function, name, value, 0))
    return found


@library
def global_tokens(tokens: Any, rows: bool = True, columns: bool = True, align: Align = None) -> Pattern:
    """rows and q in tokens, or columns and k in tokens. tokens: an int n for the first n, or a list of indices."""
    (rows,), (columns,) = (flags("global_tokens", *flag, 1) for flag in (("rows", rows), ("columns", columns)))
    if not (rows or columns):
        raise PatternError("global_tokens(rows=False, columns=False)", "it would be empty", "use nothing()")
    if isinstance(tokens, (IntTable, tuple)):
        listed = integers("global_tokens", "tokens", tokens).array
        if (np.diff(listed) <= 0).any():
            listed = np.unique(listed)
        if not listed.size:
            return Affine(NOTHING)
        run = _arithmetic(listed)
        if run is None:
            return _chosen(Listed(IntTable(listed)), rows, columns, align)
    else:
        run = (0, integer("global_tokens", "tokens", tokens, 0), Residue())
    start, stop, residue = run
    by_rows, by_columns = (Relation.span(start, stop, of_rows, residue) for of_rows in (True, False))
    parts = [affine("global_tokens", align, by_rows)] * rows + [Affine(by_columns)] * columns
    return reduce(or_, parts)


def _chosen(tokens: Listed, rows: bool, columns: bool, align: Align) -> Pattern:
    parts = [Chosen(tokens, True, choice("global_tokens", "align", align, ALIGNMENTS))] * rows
    return reduce(or_, parts + [Chosen(tokens, False)] * columns)


def _arithmetic(tokens: np.ndarray[Any, np.dtype[np.int64]]) -> tuple[int, int, Residue] | None:
    """Sorted indices as one arithmetic run (start, stop, residue), if they are one. Long steps are left to a list: a
    run is cut out of another pattern class by class, a list in one piece.
    """
    step = int(tokens[1] - tokens[0]) if tokens.size > 1 else 1
    if step > LONGEST_STEP or (np.diff(tokens) != step).any():
        return None
    return int(tokens[0]), int(tokens[-1]) + 1, Residue(step, int(tokens[0]))
