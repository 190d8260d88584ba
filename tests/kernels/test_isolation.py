"""What NaN reaches: queries and keys that no chain of live pairs joins to it keep their bits, forward and backward.

The law holds for documents, segments of tokens, lengths of batch rows and padding. Windows and grids join all tokens.
"""

import numpy as np
import pytest
import torch
from scipy.sparse import bmat, csr_array
from scipy.sparse.csgraph import connected_components
from tests.tiers import every

import weft
from weft.acsr.interpret import Scoring, backward, forward
from weft.settings import interpreted

from .compare import BACKENDS, generator, normal, qkv

# Pairs that are listed one by one, tokens that a list leaves out and chunks are multiplied by weights of 0 there.
CPU_ALONE = {"holes", "holes in keys", "chunks"}
HOLES = np.random.default_rng(0).random((2, 300)) < 0.7
PATTERNS = {
    "documents": weft.documents(lengths=[70, 1, 29, 200]),
    "causal documents": weft.causal() & weft.documents(lengths=[70, 1, 29, 200]),
    "short documents": weft.causal() & weft.documents(lengths=[1 + i % 5 for i in range(100)]),
    "equal documents": weft.causal() & weft.documents(lengths=[20] * 15),
    "ids": weft.documents(ids=[3] * 100 + [-1] * 50 + [7] * 150),
    "scattered ids": weft.causal() & weft.documents(ids=np.random.default_rng(5).integers(0, 9, 300)),
    "windows in documents": weft.causal() & weft.window(left=20) & weft.documents(lengths=[100, 60, 140]),
    "other numbers of keys": weft.documents(lengths=[100, 0, 200], key_lengths=[50, 100, 150]),
    "segments": weft.segments(
        [90, 110, 100], [[weft.causal(), False, False], [False, True, False], [False, False, True]]
    ),
    "chunks": weft.chunks(50) & weft.causal(),
    "lengths": weft.padding([170, 300], rows=True) & weft.causal(),
    "lengths of keys": weft.padding([170, 300]),
    "holes": weft.padding(mask=HOLES, rows=True) & weft.causal(),
    "holes in keys": weft.padding(mask=HOLES),
    "every fourth": weft.dilated(100, 100, 4) & weft.documents(lengths=[140, 160]),
    "heads": weft.per_head([weft.documents(lengths=[a, 300 - a]) for a in (50, 99, 100, 256)]),
    "nothing before the fifth": weft.causal(offset=-5) & weft.documents(lengths=[140, 160]),
}
OPTIONS = {"plain": {}, "softcap": {"softcap": 3.0}, "slopes": {"alibi_slopes": torch.tensor([0.5, 0.25, 0.1, 0.0])}}


def joined(live):
    """(component of each query, of each key): tokens that a chain of live pairs joins."""
    edges = csr_array(live)
    _, labels = connected_components(bmat([[None, edges], [edges.T, None]]), directed=False)
    return labels[: live.shape[0]], labels[live.shape[0] :]


def poisoned(pattern, n):
    """(B, H, n) booleans for queries and for keys (B, Hkv, n): of half of the components of every head."""
    queries, keys = np.zeros((2, 4, n), bool), np.zeros((2, 4, n), bool)
    for b, h in np.ndindex(2, 4):
        of_queries, of_keys = joined(pattern.at(b, h).to_dense(n))
        chosen = np.random.default_rng(1).random(max(of_queries.max(), of_keys.max()) + 1) < 0.5
        chosen[of_queries[0]] = True
        queries[b, h], keys[b, h] = chosen[of_queries], chosen[of_keys]
    return torch.from_numpy(queries), torch.from_numpy(keys)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", every(4, PATTERNS))
def test_tokens_that_nothing_joins_keep_their_bits(name, options, backend):
    pattern, n = PATTERNS[name], 300
    if options == "slopes" and name == "segments":
        pytest.skip("its cells declare no common alignment")
    if backend != "cpu" and name in CPU_ALONE:
        pytest.skip("kernels of GPUs promise it for documents, segments and lengths")
    if interpreted() and name == "short documents":
        pytest.skip("a tile for each of 100 documents: tests/gpu/test_oracle_poison.py has them")
    random = generator(name)
    q, k, v = qkv(random, (n, n), torch.float32, heads=(4, 4))
    d_out, d_lse = normal((2, 4, n, 16), random, torch.float32), normal((2, 4, n), random, torch.float32)
    bad_queries, bad_keys = poisoned(pattern, n)
    assert bad_keys.any()
    device = BACKENDS[backend]
    q, k, v, d_out, d_lse, bad_queries, bad_keys = (
        x.to(device) for x in (q, k, v, d_out, d_lse, bad_queries, bad_keys)
    )
    chosen = {option: x.to(device) if isinstance(x, torch.Tensor) else x for option, x in OPTIONS[options].items()}

    def computed(wrong):
        """out, lse, dq, dk, dv; without a gradient of lse too, which goes another way."""
        rows = [x.masked_fill(bad_queries[..., None], torch.nan) if wrong else x for x in (q, d_out)]
        columns = [x.masked_fill(bad_keys[..., None], torch.nan) if wrong else x for x in (k, v)]
        leaves = [x.clone().requires_grad_() for x in (rows[0], *columns)]
        found = weft.attention(*leaves, pattern, return_lse=True, backend=backend, **chosen)
        grads = torch.autograd.grad(found[0], leaves, rows[1], retain_graph=True)
        both = torch.autograd.grad(found, leaves, (rows[1], d_lse))
        return [x.detach() for x in (*found, grads[0], both[0])], [*grads[1:], *both[1:]]

    for clean, got, bad in zip(computed(False), computed(True), (bad_queries, bad_keys), strict=True):
        for x, y in zip(clean, got, strict=True):
            assert torch.equal(x[~bad], y[~bad])


@pytest.mark.skipif("cpu" not in BACKENDS, reason="of the CPU's tiles")
def test_tiles_that_join_documents_break_the_law(monkeypatch):
    """A control: of whole tiles of the plan NaN reaches all rows."""
    monkeypatch.setattr("weft.kernels.cpu.lines._together", lambda bounds: [np.arange(bounds[0][0].size)])
    pattern = weft.causal() & weft.documents(lengths=[21, 43])
    q, k, v = qkv(generator("control"), (64, 64), torch.float32)
    v[:, :, 0] = torch.nan
    assert weft.attention(q, k, v, pattern, softcap=3.0).isnan().all()


@pytest.mark.parametrize("name", every(4, PATTERNS))
def test_the_law_is_what_rows_mean(name):
    """The definition of attention in float64 keeps it."""
    pattern, n = PATTERNS[name].at(0, 0), 300
    acsr, random = pattern.acsr(n), np.random.default_rng(2)
    tensors = [random.standard_normal((n, 4)) for _ in range(3)]
    d_out, d_lse = random.standard_normal((n, 4)), random.standard_normal(n)
    of_queries, of_keys = joined(pattern.to_dense(n))
    bad = np.unique(of_queries)[::2]
    rows, columns = np.isin(of_queries, bad), np.isin(of_keys, bad)
    sides = rows, columns, columns

    def computed(wrong):
        q, k, v = (np.where(some[:, None] & wrong, np.nan, x) for x, some in zip(tensors, sides, strict=True))
        given = np.where(rows[:, None] & wrong, np.nan, d_out)
        out, lse = forward(acsr, q, k, v, Scoring(0.5))
        grads = backward(acsr, (q, k, v), given, d_lse, Scoring(0.5))
        return (out, lse, grads.dq), (grads.dk, grads.dv)

    with np.errstate(invalid="ignore"):
        found = computed(True)
    for clean, got, some in zip(computed(False), found, (rows, columns), strict=True):
        for x, y in zip(clean, got, strict=True):
            np.testing.assert_array_equal(x[~some], y[~some])
