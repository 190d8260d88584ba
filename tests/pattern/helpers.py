"""How a pattern is compared with its oracle, through every door it has."""

import numpy as np


def show(matrix, limit=24):
    rows = ["".join("x" if live else "." for live in row[:80]) for row in matrix[:limit]]
    return "\n".join(rows)


def same(got, expected, what):
    got = np.asarray(got)
    assert got.dtype == np.bool_, f"{what}: dtype {got.dtype}"
    assert got.shape == expected.shape, f"{what}: shape {got.shape}, expected {expected.shape}"
    if not np.array_equal(got, expected):
        where = np.argwhere(got != expected)
        first = tuple(int(x) for x in where[0])
        raise AssertionError(
            f"{what}: {len(where)} pairs differ, the first at {first}, expected {bool(expected[first])}\n"
            f"expected\n{show(expected)}\ngot\n{show(got)}"
        )


def same_acsr(acsr, expected, what):
    """The format says the same as the matrix, counts it, and its transpose says the transposed matrix."""
    same(acsr.to_dense(), expected, f"{what}: acsr")
    for row in range(0, acsr.m, -(-acsr.m // 16) or 1):
        assert acsr.columns(row).tolist() == np.flatnonzero(expected[row]).tolist(), f"{what}: row {row} of acsr"
    assert acsr.nnz == int(expected.sum()), f"{what}: nnz {acsr.nnz}, expected {int(expected.sum())}"
    turned = acsr.transpose()
    same(turned.to_dense(), expected.T, f"{what}: transposed acsr")
    assert turned.nnz == acsr.nnz, f"{what}: nnz changes under transpose"


def same_everywhere(pattern, expected):
    """One (M, N) pattern that depends on neither head nor batch."""
    m, n = expected.shape
    what = f"{pattern} at ({m}, {n})"
    same(pattern.to_dense(m, n), expected, what)
    if m == n:
        same(pattern.to_dense(m), expected, f"{what}, n left out")
    q, k = np.arange(m)[:, None], np.arange(n)[None, :]
    same(np.broadcast_to(pattern.contains(q, k, m, n), (m, n)), expected, f"{what}: contains")
    same_acsr(pattern.acsr(m, n), expected, what)


def same_per_row(pattern, expected):
    """A pattern that depends on head or batch: expected is (B, H, M, N), 1 where it does not depend."""
    batches, heads, m, n = expected.shape
    what = f"{pattern} at ({m}, {n})"
    same(pattern.to_dense(m, n), expected, what)
    q, k = np.arange(m)[:, None], np.arange(n)[None, :]
    for batch in range(batches):
        for head in range(heads):
            here = f"{what}, batch {batch}, head {head}"
            matrix = expected[batch, head]
            got = pattern.contains(q, k, m, n, batch=batch, head=head)
            same(np.broadcast_to(got, (m, n)), matrix, f"{here}: contains")
            same_acsr(pattern.acsr(m, n, batch=batch, head=head), matrix, here)
