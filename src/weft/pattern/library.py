"""The library: every pattern with the field's exact semantics, one function each.

Each function checks its arguments and returns leaves; the `library` decorator keeps the call itself, so that a pattern
prints, compares, pickles and crosses into a compiled graph as the expression that made it. q and k are token indices.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import pairwise
from operator import or_
from typing import Any

import numpy as np

from weft.errors import PatternError
from weft.pattern.algebra import Align, Pattern
from weft.pattern.arguments import LIBRARY, axes, choice, flags, integer, integers, library
from weft.pattern.arguments import patterns as _patterns
from weft.pattern.bounds import INF, IntTable, Stair, Steps
from weft.pattern.leaves import Affine, BlockList, Labels, PerBatch, PerHead, Product, Segments, Sized
from weft.pattern.relation import Relation, Residue

ALIGNMENTS = (None, "top-left", "bottom-right")
DIAGONAL = Stair()


def _affine(function: str, align: Align, relation: Relation) -> Affine:
    return Affine(relation, positional=True, align=choice(function, "align", align, ALIGNMENTS))


def _offset(by: int) -> Stair:
    return Stair(base=by)


@library
def full() -> Pattern:
    """Every query sees every key."""
    return Affine(Relation())


@library
def nothing() -> Pattern:
    """No query sees any key: output 0, lse -inf, zero gradients."""
    return Affine(Relation(upper=(Stair.constant(0),)))


@library
def causal(offset: int = 0, align: Align = None) -> Pattern:
    """k <= q + offset. With offset=-1 a query does not see itself."""
    return _affine("causal", align, Relation(upper=(_offset(integer("causal", "offset", offset) + 1),)))


@library
def window(left: int | None = None, right: int | None = None, align: Align = None) -> Pattern:
    """-left <= k - q <= right, in tokens; None leaves that side open.

    `causal() & window(left=1023)` is the sliding window of 1024 keys that Mistral and FlashAttention's
    window_size=(1023, 0) mean.
    """
    if left is None and right is None:
        raise PatternError("window()", "neither left nor right is given", "give one of them, or use full()")
    lower = () if left is None else (_offset(-integer("window", "left", left, 0)),)
    upper = () if right is None else (_offset(integer("window", "right", right, 0) + 1),)
    return _affine("window", align, Relation(lower, upper))


@library
def dilated(left: int, right: int, step: int, align: Align = None) -> Pattern:
    """k = q + step * j with -left <= j <= right: left and right count keys (Longformer's dilated window)."""
    step = integer("dilated", "step", step, 1)
    left, right = integer("dilated", "left", left, 0), integer("dilated", "right", right, 0)
    relation = Relation((_offset(-left * step),), (_offset(right * step + 1),), diagonal=Residue(step))
    return _affine("dilated", align, relation)


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
    return _affine("strided", align, Relation((_offset(1 - stride),), (_offset(1),)))


def _strided_far(stride: int, align: Align) -> Pattern:
    return _affine("strided", align, Relation(upper=(_offset(1),), diagonal=Residue(stride)))


@library
def fixed(stride: int, summary: int = 1, align: Align = None) -> Pattern:
    """k <= q and (q // stride == k // stride or k % stride >= stride - summary): Sparse Transformer's fixed pattern.

    The last `summary` keys of every block of `stride` are seen by all later queries. Source: as `strided`.
    """
    stride = integer("fixed", "stride", stride, 1)
    summary = integer("fixed", "summary", summary, 1)
    _check_summary("fixed", stride, summary)
    return _fixed_near(stride, align) | _fixed_far(stride, summary, align)


def _check_summary(function: str, stride: int, summary: int) -> None:
    if summary > stride:
        raise PatternError(
            f"{function}(stride={stride}, summary={summary})", f"a block of {stride} keys has no {summary} last keys",
            "pass summary <= stride",
        )  # fmt: skip


def _fixed_near(stride: int, align: Align) -> Pattern:
    return _affine("fixed", align, Relation((Stair(stride, stride),), (_offset(1),)))


def _fixed_far(stride: int, summary: int, align: Align) -> Pattern:
    """The last `summary` keys of earlier blocks. One key a block is a residue; several are a column of the grid of
    blocks.
    """
    causal_ = _affine("fixed", align, Relation(upper=(_offset(1),)))
    if summary == stride:
        return causal_
    if summary == 1:
        return causal_ & Affine(Relation(keys=Residue(stride, stride - 1)))
    earlier = Sized(_summaries, (stride, summary), positional=True, align=align)
    own = _fixed_near(stride, align) & _last_of_block(stride, summary, align)
    return earlier | own


def _last_of_block(stride: int, summary: int, align: Align) -> Pattern:
    """k at or after the first summary key of q's block."""
    return _affine("fixed", align, Relation((Stair(stride, stride, base=stride - summary),)))


def _summaries(m: int, n: int, shift: int, stride: int, summary: int) -> Pattern:
    """Summary keys of blocks before the query's: products over (block, place in block).

    Queries are cut where whole blocks of them begin and end; keys into whole blocks and the rest.
    """
    late = Affine(Relation(lower=(Stair.constant(stride - summary),)))
    edges = (0, -(-shift // stride) * stride, (m + shift) // stride * stride)
    cuts = [0, *sorted(min(max(edge - shift, 0), m) for edge in edges), m]
    whole = n // stride
    key_lengths = (whole * stride, n - whole * stride)
    cells: list[tuple[Pattern, ...]] = []
    for first, last in pairwise(cuts):
        block, within = divmod(first + shift, stride)
        if first == last or block < 0:
            cells.append((nothing(), nothing()))
            continue
        rows = (1, last - first) if within or (last - first) % stride else ((last - first) // stride, stride)
        cells.append(
            tuple(
                Product((Affine(Relation(upper=(_offset(block - origin),))), late), rows, keys)
                for origin, keys in ((0, (whole, stride)), (whole, (1, key_lengths[1])))
            )
        )
    return Segments(tuple(b - a for a, b in pairwise(cuts)), key_lengths, tuple(cells))


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
        factors = (_fixed_near(stride, align), _fixed_far(stride, summary, align))
    return PerHead(tuple(factors[head % 2] for head in range(heads)))


@library
def chunks(size: int, align: Align = None) -> Pattern:
    """q // size == k // size: attention inside chunks (Llama 4 with `causal() & chunks(8192)`)."""
    size = integer("chunks", "size", size, 1)
    return _affine("chunks", align, Relation((Stair(size, size),), (Stair(size, size, base=size),)))


@library
def blocks(block: int | Sequence[int], pairs: Any) -> Pattern:
    """(q // block_q, k // block_k) is in `pairs`. block: one size or (block_q, block_k); pairs: (row, column)
    integers.
    """
    block_q, block_k = axes("blocks", "block", block, 2, 1)
    table = [tuple(_pair(pair)) for pair in (pairs if isinstance(pairs, tuple) else ())]
    if not isinstance(pairs, tuple):
        raise PatternError(f"blocks({block}, {pairs!r})", "pairs is not a list of (row, column)", "pass [(0, 0), ...]")
    listed = sorted(set(table))
    rows, cols = ([pair[side] for pair in listed] for side in (0, 1))
    return BlockList(
        block_q, block_k, integers("blocks", "rows", IntTable(rows)), integers("blocks", "cols", IntTable(cols))
    )


def _pair(pair: Any) -> tuple[int, ...]:
    return axes("blocks", "pairs", pair, 2, 0)


@library
def documents(lengths: Any = None, *, ids: Any = None, cu_seqlens: Any = None) -> Pattern:
    """Tokens see their own document. M == N == the total.

    Exactly one of: lengths, tokens of each document (0 is an empty one); cu_seqlens, their running sum from 0; ids, a
    number for each token, equal meaning same document, in any order.
    """
    given = [name for name, x in (("lengths", lengths), ("ids", ids), ("cu_seqlens", cu_seqlens)) if x is not None]
    if len(given) != 1:
        raise PatternError(
            f"documents({', '.join(given)})", f"{len(given)} descriptions of the documents are given",
            "give exactly one of lengths, ids, cu_seqlens",
        )  # fmt: skip
    if ids is not None:
        return _labelled(integers("documents", "ids", ids, -INF))
    if lengths is not None:
        ends = np.cumsum(integers("documents", "lengths", lengths).array)
    else:
        bounds = integers("documents", "cu_seqlens", cu_seqlens).array
        if not bounds.size or bounds[0] != 0 or (np.diff(bounds) < 0).any():
            falls = np.flatnonzero(np.diff(bounds) < 0)
            where = f"falls after position {falls[0]}" if falls.size else "does not begin with 0"
            raise PatternError("documents(cu_seqlens=...)", f"the list {where}", "pass [0, n0, n0 + n1, ...]")
        ends = bounds[1:]
    return _contiguous(np.unique(ends[ends > 0]))


def _contiguous(ends: np.ndarray[Any, np.dtype[np.int64]]) -> Pattern:
    """Documents that end before the tokens `ends` (strictly increasing)."""
    if not ends.size:
        return Affine(Relation(), length=0)
    starts = np.concatenate([[0], ends[:-1]])
    breaks = IntTable(ends[:-1])
    relation = Relation((Steps(breaks, IntTable(starts)),), (Steps(breaks, IntTable(ends)),))
    return Affine(relation, length=int(ends[-1]))


def _labelled(ids: IntTable) -> Pattern:
    changes = np.flatnonzero(np.diff(ids.array)) + 1
    contiguous = np.unique(ids.array).size == changes.size + (len(ids) > 0)
    return _contiguous(np.append(changes, len(ids))) if contiguous and len(ids) else Labels(ids)


@library
def padding(lengths: Any, rows: bool = False, align: Align = None) -> Pattern:
    """k < lengths[b] in batch row b; with rows=True also q < lengths[b]. An int serves every batch row."""
    return _per_row("padding", "lengths", lengths, lambda length: _padded(length, rows, align))


def _padded(length: int, rows: bool, align: Align) -> Pattern:
    if not rows:
        return Affine(Relation(upper=(Stair.constant(length),)))
    return _affine("padding", align, Relation((Stair.threshold(length),), (Stair.constant(length),)))


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
    if not (rows or columns):
        raise PatternError("global_tokens(rows=False, columns=False)", "it would be empty", "use nothing()")
    if isinstance(tokens, (IntTable, tuple)):
        spans = _spans(np.unique(integers("global_tokens", "tokens", tokens).array))
    else:
        spans = [(0, integer("global_tokens", "tokens", tokens, 0), Residue())]
    parts: list[Pattern] = []
    for start, stop, residue in spans:
        if rows:
            relation = Relation((Stair.threshold(stop),), (Stair.threshold(start),), rows=residue)
            parts.append(_affine("global_tokens", align, relation))
        if columns:
            parts.append(Affine(Relation((Stair.constant(start),), (Stair.constant(stop),), keys=residue)))
    return reduce(or_, parts) if parts else Affine(Relation(upper=(Stair.constant(0),)))


def _spans(tokens: np.ndarray[Any, np.dtype[np.int64]]) -> list[tuple[int, int, Residue]]:
    """Sorted indices as few arithmetic runs (start, stop, residue)."""
    spans, at = [], 0
    while at < tokens.size:
        step = int(tokens[at + 1] - tokens[at]) if at + 1 < tokens.size else 1
        end = at + 1
        while end < tokens.size and tokens[end] - tokens[end - 1] == step:
            end += 1
        if end - at == 2 and step > 1:  # two lone tokens are two runs, not a stride
            end, step = at + 1, 1
        spans.append((int(tokens[at]), int(tokens[end - 1]) + 1, Residue(step, int(tokens[at]))))
        at = end
    return spans


@library
def random_blocks(block: int, count: int, seed: int = 0) -> Pattern:
    """For each block of `block` queries, `count` distinct blocks of keys drawn by `seed` (BigBird's random part).

    The draw depends on the seed and the numbers of blocks only. Where there are no more than `count`, all are taken.
    """
    least = (("block", block, 1), ("count", count, 0), ("seed", seed, 0))
    return Sized(_draw_blocks, tuple(integer("random_blocks", name, x, low) for name, x, low in least))


def _draw_blocks(m: int, n: int, shift: int, block: int, count: int, seed: int) -> Pattern:
    """Floyd's sampling without replacement, for all rows at once."""
    rows, cols = -(-m // block), -(-n // block)
    count = min(count, cols)
    generator = np.random.default_rng([seed, rows, cols])
    chosen = np.full((rows, count), -1, np.int64)
    for i, last in enumerate(range(cols - count, cols)):
        pick = generator.integers(0, last + 1, size=rows)
        chosen[:, i] = np.where((chosen == pick[:, None]).any(axis=1), last, pick)
    chosen.sort(axis=1)
    return BlockList(block, block, IntTable(np.repeat(np.arange(rows), count)), IntTable(chosen))


@library
def segments(lengths: Any, patterns: Any) -> Pattern:
    """A sequence of unlike parts, say text and an image: patterns[i][j] relates part i's queries to part j's keys.

    Cells are patterns on local indices (resolved at lengths[i], lengths[j]), True for all, False or None for nothing.
    M == N == sum(lengths).
    """
    sizes = tuple(int(x) for x in integers("segments", "lengths", lengths).array)
    rows = [_row(row) for row in patterns] if isinstance(patterns, tuple) else []
    if [len(row) for row in rows] != [len(sizes)] * len(sizes):
        raise PatternError(
            f"segments(lengths={list(sizes)}, ...)",
            f"patterns has rows of {[len(row) for row in rows]} cells, for {len(sizes)} parts it needs as many of each",
            "give one row per part, and one cell per part in each row",
        )  # fmt: skip
    return Segments(sizes, sizes, tuple(tuple(_cell(cell) for cell in row) for row in rows))


def _row(row: Any) -> tuple[Any, ...]:
    if isinstance(row, IntTable):
        return tuple(row.array.tolist())
    return row if isinstance(row, tuple) else ()


def _cell(cell: Any) -> Pattern:
    if isinstance(cell, Pattern):
        return cell
    if cell is None or isinstance(cell, bool):
        return full() if cell else nothing()
    raise PatternError(f"segments cell {cell!r}", "it is no pattern", "use a pattern, True, False or None")


@library
def longformer(window: int, global_tokens: int = 0, dilation: int = 1, align: Align = None) -> Pattern:
    """|q - k| <= dilation * (window // 2) on multiples of dilation, or q or k among the first `global_tokens`.

    `window` counts both sides, as Longformer's attention_window does. Source: Beltagy et al. 2020, arXiv 2004.05150.
    """
    half = integer("longformer", "window", window, 0) // 2
    band = dilated(half, half, integer("longformer", "dilation", dilation, 1), align=align)
    count = integer("longformer", "global_tokens", global_tokens, 0)
    return band | LIBRARY["global_tokens"](count, align=align) if count else band


@library
def bigbird(
    block: int = 64, window: int = 3, global_blocks: int = 1, random: int = 3, seed: int = 0, align: Align = None
) -> Pattern:
    """On blocks i = q // block, j = k // block: |i - j| <= window // 2, or i or j among the first or last
    `global_blocks`, or one of `random` blocks drawn for each i (see `random_blocks`).

    Source: Zaheer et al. 2020, arXiv 2007.14062 (internal transformer construction).
    """
    names = {"block": (block, 1), "window": (window, 0), "global_blocks": (global_blocks, 0), "random": (random, 0)}
    for name, (value, least) in names.items():
        integer("bigbird", name, value, least)
    half = window // 2 * block
    band = Relation((Stair(block, block, base=-half),), (Stair(block, block, base=half + block),))
    pattern = (
        _affine("bigbird", align, band) if window else _affine("bigbird", align, Relation(upper=(Stair.constant(0),)))
    )
    if global_blocks:
        ends = Sized(_last_blocks, (block, global_blocks), positional=True, align=align)
        pattern = pattern | LIBRARY["global_tokens"](block * global_blocks, align=align) | ends  # type: ignore[assignment]
    return pattern | random_blocks(block, random, seed) if random else pattern


def _last_blocks(m: int, n: int, shift: int, block: int, count: int) -> Pattern:
    """q or k in the last `count` blocks of its own side."""
    first_q, first_k = (block * max(0, -(-length // block) - count) for length in (m + shift, n))
    keys = Affine(Relation(lower=(Stair.constant(first_k),)))
    return keys | Affine(Relation(upper=(Stair.threshold(first_q - shift),)))


@library
def neighborhood(shape: Any, size: Any, stride: Any = 1, dilation: Any = 1, causal: Any = False) -> Pattern:
    """Neighbourhood attention on a grid of 1 to 3 axes; tokens are the row-major flattening of `shape`.

    Per axis each query sees exactly `size` keys around it, in its own residue class modulo `dilation`; at a border the
    window is pushed inwards, not cut. `stride` moves windows in steps (GNA); `causal` axes see no key after the query.
    Integers serve all axes. Source: NATTEN 0.21; Hassani et al. 2024, arXiv 2403.04690; 2025, arXiv 2504.16922.
    """
    rank = 1 if isinstance(shape, int) else len(shape) if isinstance(shape, (IntTable, tuple)) else 0
    if rank not in (1, 2, 3):
        raise PatternError(f"neighborhood(shape={shape!r})", "a grid has 1, 2 or 3 axes", "pass e.g. shape=(64, 64)")
    names = (("shape", shape), ("size", size), ("stride", stride), ("dilation", dilation))
    columns = [axes("neighborhood", name, value, rank, 1) for name, value in names]
    parts = [
        Affine(_neighbors(*row, axis=axis))
        for axis, row in enumerate(zip(*columns, flags("neighborhood", "causal", causal, rank), strict=True))
    ]
    return Product(tuple(parts), columns[0], columns[0])


def _neighbors(length: int, size: int, stride: int, dilation: int, causal: bool, *, axis: int) -> Relation:
    """One axis. NATTEN states the rule on x // dilation; on x itself the same staircase, times dilation, says it,
    because the congruence of k and q picks the residue class.
    """
    asked = f"neighborhood(shape={length}, size={size}, stride={stride}, dilation={dilation}) on axis {axis}"
    if size * dilation > length:
        raise PatternError(
            asked, f"a window of {size} keys {dilation} apart is larger than the grid of {length}",
            "pass size * dilation <= shape",
        )  # fmt: skip
    if stride > size:
        raise PatternError(asked, f"stride {stride} leaves keys out between windows of {size}", "pass stride <= size")
    step = dilation * stride
    leader = stride - 1 if causal else stride // 2
    before = size - 1 if causal else size // 2
    base, span = dilation * (leader - before), dilation * size
    lower = Stair(step, step, base=base, out_lo=0, out_hi=length - span)
    last = _offset(1) if causal else Stair(step, step, base=base + span, out_lo=span, out_hi=length)
    return Relation((lower,), (last,), diagonal=Residue(dilation))


@library
def per_head(heads: Any) -> Pattern:
    """Head h sees heads[h]; one pattern for each query head."""
    return PerHead(_patterns("per_head", heads))


@library
def per_batch(rows: Any) -> Pattern:
    """Batch row b sees rows[b]."""
    return PerBatch(_patterns("per_batch", rows))


@library
def product(patterns: Any, shape: Any, key_shape: Any = None) -> Pattern:
    """Tokens are the row-major points of a grid; live where every axis is: patterns[a] relates the a-th coordinates.

    M == prod(shape), N == prod(key_shape); key_shape defaults to shape.
    """
    parts = _patterns("product", patterns)
    if isinstance(shape, int):
        raise PatternError(f"product(shape={shape})", "a grid is a list of lengths", f"pass shape=({shape},)")
    sizes = axes("product", "shape", shape, len(parts), 0)
    keys = sizes if key_shape is None else axes("product", "key_shape", key_shape, len(parts), 0)
    return Product(parts, sizes, keys)
