"""What every library pattern means, written apart from the library: formulas on (q, k), loops, no import of weft.

A formula takes integer arrays q and k that broadcast against each other and returns a bool array; `dense` lays it over
an (M, N) grid, moving q by N - M for the bottom-right alignment. Patterns that need more than a formula (packed
documents, segments, products of axes, neighbourhoods) have a function that returns the dense matrix itself.
"""

from functools import cache
from itertools import pairwise
from itertools import product as cartesian

import numpy as np


def dense(formula, m, n=None, align=None):
    """The (M, N) matrix of a formula; align is None, "top-left" or "bottom-right"."""
    n = m if n is None else n
    q = np.arange(m, dtype=np.int64)[:, None]
    k = np.arange(n, dtype=np.int64)[None, :]
    if align == "bottom-right":
        q = q + (n - m)
    return np.array(np.broadcast_to(formula(q, k), (m, n)), dtype=bool)


def _everywhere(q, k, value):
    return np.full(np.broadcast_shapes(np.shape(q), np.shape(k)), value, dtype=bool)


# --- formulas -------------------------------------------------------------------------------------------------------


def full(q, k):
    return _everywhere(q, k, True)


def nothing(q, k):
    return _everywhere(q, k, False)


def causal(q, k, offset=0):
    return k <= q + offset


def window(q, k, left=None, right=None):
    allowed = _everywhere(q, k, True)
    if left is not None:
        allowed = allowed & (k - q >= -left)
    if right is not None:
        allowed = allowed & (k - q <= right)
    return allowed


def dilated(q, k, left, right, step):
    allowed = _everywhere(q, k, False)
    for j in range(-left, right + 1):
        allowed = allowed | (k == q + step * j)
    return allowed


def periodic_keys(q, k, step, phase=None):
    phase = step - 1 if phase is None else phase
    return _everywhere(q, k, True) & (k % step == phase)


def strided(q, k, stride):
    return (k <= q) & ((q - k < stride) | ((q - k) % stride == 0))


def strided_first(q, k, stride):
    return (q - k >= 0) & (q - k < stride)


def strided_second(q, k, stride):
    return (k <= q) & ((q - k) % stride == 0)


def fixed(q, k, stride, summary=1):
    return (k <= q) & ((q // stride == k // stride) | (k % stride >= stride - summary))


def fixed_first(q, k, stride):
    return (k <= q) & (q // stride == k // stride)


def fixed_second(q, k, stride, summary=1):
    return (k <= q) & (k % stride >= stride - summary)


def sparse_transformer(q, k, head, stride, kind="strided", summary=1):
    """What one head sees: even heads the first factor, odd heads the second."""
    if kind == "strided":
        return strided_first(q, k, stride) if head % 2 == 0 else strided_second(q, k, stride)
    return fixed_first(q, k, stride) if head % 2 == 0 else fixed_second(q, k, stride, summary)


def chunks(q, k, size):
    return q // size == k // size


def blocks(q, k, block, pairs):
    bq, bk = (block, block) if isinstance(block, int) else block
    allowed = _everywhere(q, k, False)
    for i, j in pairs:
        allowed = allowed | ((q // bq == i) & (k // bk == j))
    return allowed


def padding(q, k, length, rows=False):
    """One batch row."""
    allowed = _everywhere(q, k, True) & (k < length)
    return allowed & (q < length) if rows else allowed


def prefix(q, k, length):
    """One batch row."""
    return _everywhere(q, k, True) & (k < length)


def global_tokens(q, k, tokens, rows=True, columns=True):
    chosen = range(tokens) if isinstance(tokens, int) else tokens
    allowed = _everywhere(q, k, False)
    for token in chosen:
        if rows:
            allowed = allowed | (q == token)
        if columns:
            allowed = allowed | (k == token)
    return allowed


def longformer(q, k, window, global_tokens=0, dilation=1):
    band = (abs(q - k) <= dilation * (window // 2)) & ((q - k) % dilation == 0)
    # A row moved above the first key by the bottom-right alignment is no token at all, hence no global token either.
    return band | ((q >= 0) & (q < global_tokens)) | (k < global_tokens)


def bigbird(q, k, length, block, window, global_blocks, random):
    """Over a square of `length` tokens; `random` is the dense matrix of the random blocks of the same block size."""
    i, j = q // block, k // block
    count = -(-length // block)
    allowed = (abs(i - j) <= window // 2) | random
    allowed = allowed | (i < global_blocks) | (j < global_blocks)
    return allowed | (i >= count - global_blocks) | (j >= count - global_blocks)


def shift(matrix, dq=0, dk=0):
    """out[q, k] = matrix[q - dq, k - dk] where that exists, False elsewhere."""
    m, n = matrix.shape
    out = np.zeros((m, n), dtype=bool)
    for q in range(m):
        for k in range(n):
            if 0 <= q - dq < m and 0 <= k - dk < n:
                out[q, k] = matrix[q - dq, k - dk]
    return out


# --- matrices -------------------------------------------------------------------------------------------------------


def documents(lengths=None, *, ids=None, cu_seqlens=None):
    """Packed documents: the dense (total, total) matrix."""
    if cu_seqlens is not None:
        lengths = [b - a for a, b in pairwise(cu_seqlens)]
    if lengths is not None:
        ids = [document for document, length in enumerate(lengths) for _ in range(length)]
    out = np.zeros((len(ids), len(ids)), dtype=bool)
    for q, mine in enumerate(ids):
        for k, other in enumerate(ids):
            out[q, k] = mine == other
    return out


def segments(lengths, cells):
    """cells[i][j]: a bool, None, or the dense matrix of part i against part j."""
    total = sum(lengths)
    out = np.zeros((total, total), dtype=bool)
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    for i, q0 in enumerate(starts):
        for j, k0 in enumerate(starts):
            cell = cells[i][j]
            for q in range(lengths[i]):
                for k in range(lengths[j]):
                    out[q0 + q, k0 + k] = bool(cell) if cell is None or isinstance(cell, bool) else cell[q, k]
    return out


def product(axes, shape, key_shape=None):
    """axes[a]: the dense (shape[a], key_shape[a]) matrix of axis a; tokens are row-major flattenings."""
    key_shape = shape if key_shape is None else key_shape
    queries = list(cartesian(*(range(s) for s in shape)))
    keys = list(cartesian(*(range(s) for s in key_shape)))
    out = np.zeros((len(queries), len(keys)), dtype=bool)
    for q, query in enumerate(queries):
        for k, key in enumerate(keys):
            out[q, k] = all(axis[query[a], key[a]] for a, axis in enumerate(axes))
    return out


def random_block_table(matrix, block):
    """The block table of a matrix that must be constant within each block; AssertionError where it is not."""
    m, n = matrix.shape
    table = np.zeros((-(-m // block), -(-n // block)), dtype=bool)
    for i in range(table.shape[0]):
        for j in range(table.shape[1]):
            cell = matrix[i * block : (i + 1) * block, j * block : (j + 1) * block]
            assert cell.all() or not cell.any(), f"block ({i}, {j}) is neither full nor empty"
            table[i, j] = cell.all()
    return table


# --- NATTEN's rule --------------------------------------------------------------------------------------------------


def natten_keys(x, length, size, stride=1, dilation=1, causal=False):
    """The keys that token x of one axis sees, as scalars: residue group, inner coordinate, leader, clamped start."""
    group, inner = x % dilation, x // dilation
    members = [y for y in range(length) if y % dilation == group]
    if causal:
        leader = (inner // stride) * stride + stride - 1
        if leader > len(members) - 1:
            leader = len(members) - 1
        start = leader - size + 1
        if start < 0:
            start = 0
        end = inner + 1
    else:
        leader = (inner // stride) * stride + stride // 2
        if leader > len(members) - 1:
            leader = len(members) - 1
        start = leader - size // 2
        if start < 0:
            start = 0
        if start > len(members) - size:
            start = len(members) - size
        end = start + size
    return [group + dilation * y for y in range(start, end)]


@cache
def natten_axis(length, size, stride=1, dilation=1, causal=False):
    """The dense (length, length) matrix of one axis, read-only."""
    out = np.zeros((length, length), dtype=bool)
    for x in range(length):
        for y in natten_keys(x, length, size, stride, dilation, causal):
            out[x, y] = True
    out.flags.writeable = False
    return out


def neighborhood(shape, size, stride=1, dilation=1, causal=False):
    """The dense matrix over the row-major flattening of `shape`; scalars go to every axis."""
    shape = (shape,) if isinstance(shape, int) else tuple(shape)

    def per_axis(value):
        return (value,) * len(shape) if isinstance(value, int) else tuple(value)

    options = zip(shape, per_axis(size), per_axis(stride), per_axis(dilation), per_axis(causal), strict=True)
    out = np.ones((1, 1), dtype=bool)
    for axis in options:
        out = np.kron(out, natten_axis(*axis))
    return out
