"""Items of documents made from running sums: the words that the host packs for each document, and what is refused."""

import numpy as np
import pytest

import weft
from weft.errors import UnsupportedError
from weft.kernels.gpu.documents.spec import ITEM, ItemsSpec, Sizes
from weft.kernels.gpu.oracle import run_program
from weft.kernels.gpu.programs.documents import document_items_program
from weft.kernels.gpu.tables.pack import launch_tables
from weft.planning.attention_plan import plan_attention
from weft.planning.problem import Problem
from weft.planning.tiling import Tiling
from weft.target import GPU

END = "bottom-right"
PATTERNS = {
    "full": weft.full(),
    "causal": weft.causal(align=END),
    "causal window": (weft.causal() & weft.window(left=70)).aligned(END),
    "window": weft.window(left=33, right=20, align=END),
    "chunks": weft.chunks(48, align=END) & weft.causal(align=END),
}
SPEC = ItemsSpec(64, 32)


def packed(pattern, m, n):
    """Items of one document as the host packs them, by their first query."""
    tiling = Tiling(SPEC.rows, SPEC.cols, 4, 2)
    problem = Problem(1, 1, 1, m, n, 64, 64, "bfloat16", "cuda")
    plan = plan_attention(pattern, problem, GPU, (("forward", tiling),)).forward[0].plan
    (launch,) = plan.launches
    assert launch.box == (SPEC.rows,) and launch.parts[0].axes[0].block_k == SPEC.cols
    ((tables, _),) = launch_tables(launch, tiling, m, None)
    found = tables.words[tables.place.items_at :].reshape(-1, tables.place.record)[:, :ITEM]
    return found[np.argsort(found[:, 0])]


def drawn(seed, count, same):
    """Lengths of queries and keys, empty documents among them."""
    random = np.random.default_rng(seed)
    queries = random.integers(0, 400, count) * (random.random(count) > 0.2)
    return queries, queries if same else random.integers(1, 500, count)


@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("name", PATTERNS)
def test_items_are_those_that_the_host_packs(name, same):
    queries, keys = drawn(list(PATTERNS).index(name), 8, same)
    sizes = Sizes(queries.size, 400, 500)
    program = document_items_program(PATTERNS[name], sizes, SPEC)
    sums = {x: np.concatenate([[0], np.cumsum(y)]) for x, y in (("of_queries", queries), ("of_keys", keys))}
    found = run_program(program, sums)["items"]
    for document, (m, n) in enumerate(zip(queries.tolist(), keys.tolist(), strict=True)):
        mine = found[document]
        tiles = -(-m // SPEC.rows)
        assert not mine[tiles:].any(), "there are no rows beyond a document"
        if m and n:
            wanted = packed(PATTERNS[name], m, n)
            np.testing.assert_array_equal(mine[wanted[:, 0] // SPEC.rows], wanted, err_msg=f"{name} at {m}, {n}")


REFUSED = {
    "dilated": weft.dilated(9, 0, 3, align=END),
    "two terms": weft.longformer(16, 4).aligned(END),
    "no alignment": weft.causal(),
    "documents": weft.documents([3, 4]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_patterns_say_what_to_do(name):
    with pytest.raises(UnsupportedError, match=r"cu_seqlens\.cpu\(\)"):
        document_items_program(REFUSED[name], Sizes(2, 100, 100), SPEC)
