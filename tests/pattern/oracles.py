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


def documents(lengths=None, *, ids=None, cu_seqlens=None, key_ids=None):
    """Packed documents: the dense matrix of queries and keys."""
    if cu_seqlens is not None:
        lengths = [b - a for a, b in pairwise(cu_seqlens)]
    if lengths is not None:
        ids = [document for document, length in enumerate(lengths) for _ in range(length)]
    key_ids = ids if key_ids is None else key_ids
    out = np.zeros((len(ids), len(key_ids)), dtype=bool)
    for q, mine in enumerate(ids):
        for k, other in enumerate(key_ids):
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


# --- masks of models, and tables of blocks --------------------------------------------------------------------------


def block_diffusion(q, k, tokens, block):
    """Pair by pair: each half counts its own blocks."""
    out = np.zeros(np.broadcast_shapes(q.shape, k.shape), dtype=bool)
    for (i, j), _ in np.ndenumerate(out):
        query, key = int(q[i, 0]), int(k[0, j])
        noisy_q, noisy_k = query < tokens, key < tokens
        own, other = (query % tokens) // block, (key % tokens) // block
        if noisy_q and noisy_k:
            out[i, j] = own == other
        elif noisy_q:
            out[i, j] = own > other
        elif not noisy_k:
            out[i, j] = own >= other
    return out


def shared_prefix(lengths, prefixes=None):
    """The dense matrix, document by document."""
    prefixes = [0] * len(lengths) if prefixes is None else prefixes
    starts = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    out = np.zeros((starts[-1], starts[-1]), dtype=bool)
    for i, prefix in enumerate(prefixes):
        for q in range(starts[i], starts[i + 1]):
            out[q, starts[i] : q + 1] = True
            if prefix != i:
                out[q, starts[prefix] : starts[prefix + 1]] = True
    return out


def streaming_chunks(q, k, chunk, left=None):
    behind = q // chunk - k // chunk
    return (behind >= 0) & (behind <= left) if left is not None else behind >= 0


def sliding_tile(shape, tile, window, text=0):
    """The dense matrix: every token by the tile that it is in, its window clamped at the borders."""
    counts = [length // side for length, side in zip(shape, tile, strict=True)]
    tokens, video = int(np.prod(tile)), int(np.prod(shape))
    out = np.ones((video + text, video + text), dtype=bool)
    tiles = list(cartesian(*map(range, counts)))
    for q, query in enumerate(tiles):
        for k, key in enumerate(tiles):
            live = True
            for at, other, count, size in zip(query, key, counts, window, strict=True):
                left, right = size // 2, size // 2 + (size % 2 - 1)
                center = min(max(at, left), count - 1 - right)
                live = live and center - left <= other <= center + right
            out[q * tokens : (q + 1) * tokens, k * tokens : (k + 1) * tokens] = live
    return out


def svg_spatial(q, k, frame, width=2, prompt=0, sink=False):
    near = abs(q - k) < width * frame
    return near | ((q >= 0) & (q < prompt)) | (k < prompt + (frame if sink else 0))


def svg_temporal(q, k, frame, frames, width=2, prompt=0):
    reach = width * frame // frames
    near = abs((q - prompt) % frame - (k - prompt) % frame) < reach
    return np.where((q < prompt) | (k < prompt), True, near)


def radial(frames, frame, sink=False):
    """The dense matrix, frame by frame."""
    out = np.zeros((frames * frame, frames * frame), dtype=bool)
    for i in range(frames):
        for j in range(frames):
            decay = 1
            while 2 * decay <= abs(i - j):
                decay *= 2
            for place in range(frame):
                for other in range(frame):
                    near = (abs(place - other) + 1) * decay <= frame
                    same = place == other and abs(i - j) % -(-decay // frame) == 0 and decay > frame
                    out[i * frame + place, j * frame + other] = near or same or (sink and j == 0)
    return out


def rotating_anchors(q, k, frame, window, every, turn=0):
    return (abs(q // frame - k // frame) <= window) | (k // frame % every == turn % every)


def block_table(rows, cols, allowed):
    row, col = (np.repeat(np.arange(len(lengths)), lengths) for lengths in (rows, cols))
    return np.array(allowed, dtype=bool).reshape(len(rows), len(cols))[row[:, None], col]


def tree(parents, lengths=None, past=0):
    """The dense matrix: from every token up to the root."""
    lengths = [1] * len(parents) if lengths is None else lengths
    starts = [past + sum(lengths[:i]) for i in range(len(lengths) + 1)]
    out = np.zeros((starts[-1] - past, starts[-1]), dtype=bool)
    out[:, :past] = True
    for node in range(len(parents)):
        for q in range(starts[node], starts[node + 1]):
            out[q - past, starts[node] : q + 1] = True
            above = parents[node]
            while above >= 0:
                out[q - past, starts[above] : starts[above + 1]] = True
                above = parents[above]
    return out
