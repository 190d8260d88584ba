"""Small tables read through ids: prefix trees, blocks of unequal lengths, drafted trees after a cache."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tiers import examples

import weft
from weft.recognition import recognize

torch = pytest.importorskip("torch")
laws = settings(max_examples=examples(40), deadline=None)


def ancestors(parents):
    table = np.eye(len(parents), dtype=np.bool_)
    for node, parent in enumerate(parents):
        if parent >= 0:
            table[node] |= table[parent]
    return table


def nodes(lengths):
    return torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))


def dense(function, m, n):
    found = function(0, 0, torch.arange(m)[:, None], torch.arange(n)[None])
    return np.broadcast_to(found.numpy(), (m, n))


@pytest.mark.parametrize(
    ("parents", "lengths", "terms"),
    [
        ([-1, 0, 0, 0], [300, 50, 40, 80], 2),  # a prompt and answers
        ([-1, 0, 1, 1, 0, 4, 4, 0, 7, 7], [300, 50, 20, 30, 60, 25, 15, 40, 10, 35], 3),  # two levels of branches
        ([-1, -1, 0, 0, 1, 1], [100, 90, 30, 20, 25, 35], 2),  # two prompts
    ],
)
def test_prefix_trees_are_few_terms(parents, lengths, terms):
    node, allowed = nodes(lengths), torch.from_numpy(ancestors(parents))
    n = sum(lengths)

    def mask(b, h, q, k):
        return allowed[node[q], node[k]] & (k <= q)

    found = recognize(mask)
    acsr = found.pattern.acsr(n)
    assert found.proof == "symbolic" and found.closed and len(acsr.terms) <= terms
    assert (acsr.to_dense() == dense(mask, n, n)).all()
    assert (weft.tree(parents, lengths).to_dense(n) == dense(mask, n, n)).all()
    assert len(recognize(dense(mask, n, n).copy()).pattern.acsr(n).terms) <= terms + 1


@laws
@given(st.data(), st.integers(2, 7))
def test_any_table_through_runs(data, count):
    sides = [data.draw(st.lists(st.integers(1, 9), min_size=count, max_size=count)) for _ in range(2)]
    order = [data.draw(st.permutations(range(count))) for _ in range(2)]
    of_q, of_k = (torch.tensor(np.repeat(o, s)) for o, s in zip(order, sides, strict=True))
    table = torch.tensor([[data.draw(st.booleans()) for _ in range(count)] for _ in range(count)])
    m, n = map(sum, sides)

    def mask(b, h, q, k):
        return table[of_q[q], of_k[k]]

    found = recognize(mask, size=(m, n))
    assert found.exact and (found.pattern.to_dense(m, n) == dense(mask, m, n)).all()


def test_drafted_trees_after_a_cache():
    parents, past = [-1, 0, 0, 1, 1, 2, 2, 3], 500
    table = torch.from_numpy(np.concatenate([np.ones((8, 1), np.bool_), ancestors(parents)], axis=1))
    node = torch.from_numpy(np.concatenate([np.zeros(past, np.int64), 1 + np.arange(8)]))

    def mask(b, h, q, k):
        return table[q, node[k]]

    found = recognize(mask)
    assert found.proof == "symbolic" and (found.m, found.n) == (8, past + 8)
    assert (found.pattern.to_dense(8, past + 8) == dense(mask, 8, past + 8)).all()
    assert (weft.tree(parents, past=past).to_dense(8, past + 8) == dense(mask, 8, past + 8)).all()


def test_nodes_outside_the_table_are_refused():
    node, allowed = nodes([3, 4, 5]), torch.ones(2, 3, dtype=torch.bool)
    with pytest.raises(weft.errors.InputError, match="is read at"):
        recognize(lambda b, h, q, k: allowed[node[q], node[k]])
