"""Documents whose lengths the device has: tables as the host packs them, programs beside documents planned on the host,
and what is refused.
"""

from dataclasses import replace
from itertools import accumulate

import numpy as np
import pytest
import torch
from tests.tiers import every

import weft
from weft.errors import UnsupportedError
from weft.kernels.gpu.documents.spec import DOCUMENT, HEADER, ITEM, known
from weft.kernels.gpu.layout import Layout, Options, Vector
from weft.kernels.gpu.oracle import run_program
from weft.kernels.gpu.program import LaunchProgram, row_major
from weft.kernels.gpu.programs.documents import (
    Documents,
    PagedKeys,
    apart,
    documents_backward_program,
    documents_forward_program,
)
from weft.kernels.gpu.tables.pack import HEAD, nest_tables
from weft.planning.attention_plan import plan_attention
from weft.planning.problem import Problem
from weft.planning.tiling import Tiling
from weft.target import GPU

END, BEGIN = "bottom-right", "top-left"
PATTERNS = {
    "full": weft.full(),
    "causal": weft.causal(align=END),
    "causal window": (weft.causal() & weft.window(left=70)).aligned(END),
    "window": weft.window(left=33, right=20, align=END),
    "chunks": weft.chunks(48, align=END) & weft.causal(align=END),
    "causal, top-left": weft.causal(align=BEGIN),
    "chunks, top-left": (weft.chunks(24) & weft.window(left=30, right=3)).aligned(BEGIN),
}
MORE = PATTERNS | {"prefix": weft.prefix(20) & weft.causal(align=END)}  # whose later keys the host's tables leave out
TILINGS = {"forward": Tiling(64, 32, 4, 2), "dq": Tiling(32, 64, 4, 2), "dkdv": Tiling(64, 32, 4, 2)}


def drawn(seed, count, same):
    """Lengths of queries and keys, empty documents among them."""
    random = np.random.default_rng(seed)
    queries = random.integers(0, 200, count) * (random.random(count) > 0.2)
    keys = random.integers(0, 260, count) * (random.random(count) > 0.1)
    return queries.tolist(), queries.tolist() if same else keys.tolist()


def sums(lengths):
    return np.array([0, *accumulate(lengths)])


def asked(pattern, count, longest=512):
    return Documents(count, known(pattern, longest), TILINGS)


def problem_of(m, n, heads=(4, 2), dims=(4, 3), dtype="float32"):
    return Problem(1, *heads, m, n, *dims, dtype, "cuda")


def programs(pattern, count, problem, **options):
    """(forward, backward) for packed tensors of that problem."""
    p = problem
    sizes = (p.q_heads, p.m, p.d), (p.kv_heads, p.n, p.d), (p.kv_heads, p.n, p.dv), *((p.q_heads, p.m, p.dv),) * 2
    layout = Layout(tuple(row_major((1, *size)) for size in sizes), False)
    if options.pop("slopes", False):
        layout = layout._replace(slopes=Vector("float32", (1,)))
    sinks = Vector("float32", (1,)) if options.pop("sinks", False) else None
    lse = Vector("float32", row_major((1, p.q_heads, p.m)))
    plan = plan_attention(weft.full(), problem, GPU)
    chosen, one = Options(p.d**-0.5, **options), asked(pattern, count)
    forward = documents_forward_program(plan, layout._replace(strides=layout.strides[:3], sinks=sinks), chosen, one)
    return forward, documents_backward_program(plan, layout._replace(dlse=lse), chosen, one)


# ---- tables ----------------------------------------------------------------------------------------------------------
def packed(pattern, sizes, tiling, of_keys):
    """(items by their first row, words before them) of one document as the host packs them."""
    problem = Problem(1, 1, 1, *sizes, 64, 64, "bfloat16", "cuda")
    direction = "dkdv" if of_keys else "forward"
    (share,) = plan_attention(pattern, problem, GPU, ((direction, tiling),)).towards(direction)
    (nest,) = share.plan.nests
    ((tables, _),) = nest_tables(nest, tiling, sizes[1] if of_keys else sizes[0], None)
    found = tables.words[tables.place.items_at :].reshape(-1, tables.place.record)[:, :ITEM]
    return found[np.argsort(found[:, 0])]


@pytest.mark.parametrize("of_keys", [False, True], ids=["queries", "keys"])
@pytest.mark.parametrize("same", [True, False], ids=["same", "other keys"])
@pytest.mark.parametrize("name", every(3, PATTERNS))
def test_items_are_those_that_the_host_packs(name, same, of_keys):
    queries, keys = drawn(list(PATTERNS).index(name), 7, same)
    direction, tiling = ("dkdv", TILINGS["dkdv"]) if of_keys else ("forward", TILINGS["forward"])
    words = made_tables(PATTERNS[name], (queries, keys), direction)
    rows = keys if of_keys else queries
    documents = words[: DOCUMENT * (len(rows) + 1)].reshape(-1, DOCUMENT)
    np.testing.assert_array_equal(documents[:, HEADER - 1], [*rows, 5 if of_keys else 3])
    tiles = (sum(rows) + (5 if of_keys else 3)) // tiling.rows + len(rows) + 1
    items = words[documents.size :][: ITEM * tiles].reshape(-1, ITEM)
    members = words[documents.size + items.size :].reshape(tiles, -1, HEAD)
    assert members.shape[1] == (2 if of_keys else 4)
    owners, exists = members[:, 0, 4] // DOCUMENT, members[:, 0, 5] == 1
    for number, (m, n) in enumerate(zip(queries, keys, strict=True)):
        mine = items[exists & (owners == number)]
        assert len(mine) == -(-rows[number] // tiling.rows)
        if m and n:
            wanted = packed(PATTERNS[name], (m, n), tiling, of_keys)
            mine = mine[np.argsort(mine[:, 0])]
            np.testing.assert_array_equal(mine[wanted[:, 0] // tiling.rows], wanted, err_msg=f"{name} at {m}, {n}")
    assert not items[~exists].any()


def made_tables(pattern, lengths, direction):
    """The words that the device makes for documents, 3 queries and 5 keys of none after them."""
    queries, keys = lengths
    both = programs(pattern, len(queries), problem_of(sum(queries) + 3, sum(keys) + 5))
    program = both[direction != "forward"]
    name = f"{direction}_tables_0"
    slots = [slot for slot in program.slots if slot.name in ("of_queries", "of_keys", f"{direction}_bounds")]
    slots.append(replace(program.by_name[name], role="output"))
    launch = next(one for one in program.launches if name in one.written)
    tables = {f"{direction}_bounds": program.tables[f"{direction}_bounds"]}
    found = run_program(
        LaunchProgram("tables", tuple(slots), (launch,), tables), {"of_queries": sums(queries), "of_keys": sums(keys)}
    )
    return found[name].astype(np.int64)


# ---- attention -------------------------------------------------------------------------------------------------------
def tensors_of(queries, keys, seed=0):
    """q, k, v and the gradients of out and lse, (1, H, T, D)."""
    random = np.random.default_rng(seed)
    m, n = sum(queries), sum(keys)
    shapes = (4, m, 4), (2, n, 4), (2, n, 3), (4, m, 3), (4, m)
    return [random.standard_normal((1, *shape)) for shape in shapes]


def by_host(pattern, lengths, arrays, options):
    """{name: array} of `weft.varlen_attention` with lengths on the host, in float64."""
    queries, keys = (torch.from_numpy(sums(x)) for x in lengths)
    same = lengths[0] == lengths[1] and None in set(pattern.alignments())
    q, k, v, dout, dlse = (torch.from_numpy(x)[0].transpose(0, 1) for x in arrays)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    out, lse = weft.varlen_attention(
        *leaves, queries, queries if same else keys, pattern, return_lse=True, **options
    )  # fmt: skip
    grads = torch.autograd.grad((out, lse), leaves, (dout, dlse))
    found = dict(zip(("out", "lse", "dq", "dk", "dv"), (out, lse, *grads), strict=True))
    return {name: x.detach().transpose(0, 1)[None].numpy() for name, x in found.items()}


def by_programs(both, lengths, arrays, rows):
    """The same by launch programs in float64."""
    q, k, v, dout, dlse = arrays
    forward, backward = both
    counted = {"of_queries": sums(lengths[0]), "of_keys": sums(lengths[1])}
    given = {"q": q, "k": k, "v": v} | counted
    found = run_program(forward, given | rows)
    given |= {"out": found["out"], "dout": dout, "lse": found["lse"], "dlse": dlse}
    given |= {name: x for name, x in rows.items() if name == "slopes"}
    return found | run_program(backward, given)


OPTIONS = {
    "none": ({}, {}),
    "softcap": ({"softcap": 1.5}, {}),
    "sinks": ({}, {"sinks": np.linspace(-1, 1, 4)}),
    "slopes": ({}, {"slopes": np.linspace(0.1, 0.4, 4)}),
}


@pytest.mark.parametrize("same", [True, False], ids=["same", "other keys"])
@pytest.mark.parametrize("option", every(2, OPTIONS))
@pytest.mark.parametrize("name", every(5, MORE))
def test_programs_are_what_the_host_plans(name, option, same):
    """Every drawn document, empty ones too, forward and gradients; the tables are the device's."""
    if option == "slopes" and not same:
        pytest.skip("distances are of the same tokens")
    options, rows = OPTIONS[option]
    lengths = drawn(list(MORE).index(name) + 20, 5, same)
    arrays = tensors_of(*lengths)
    pattern = MORE[name]
    if option == "slopes" and name == "full":
        pattern = weft.window(left=2**28, right=2**28, align=END)
    told = options | {x: torch.from_numpy(y) for x, y in rows.items()}
    if "slopes" in told:
        told["alibi_slopes"] = told.pop("slopes")
    expected = by_host(pattern, lengths, arrays, told)
    both = programs(pattern, 5, problem_of(sum(lengths[0]), sum(lengths[1])), **options, **dict.fromkeys(rows, True))
    found = by_programs(both, lengths, arrays, rows)
    for x, wanted in expected.items():
        np.testing.assert_allclose(found[x], wanted, rtol=1e-9, atol=1e-9, err_msg=x)


def test_tokens_after_the_last_document_see_nothing():
    lengths = ([40, 0, 30], [50, 20, 30])
    q, k, v, dout, dlse = tensors_of([*lengths[0], 13], [*lengths[1], 70])
    both = programs(weft.causal(align=END), 3, problem_of(83, 170))
    found = by_programs(both, lengths, (q, k, v, dout, dlse), {})
    inside = [q[:, :, :70], k[:, :, :100], v[:, :, :100], dout[:, :, :70], dlse[:, :, :70]]
    expected = by_host(weft.causal(align=END), lengths, inside, {})
    for name, wanted in expected.items():
        size = wanted.shape[2]
        np.testing.assert_allclose(found[name][:, :, :size], wanted, rtol=1e-9, atol=1e-9, err_msg=name)
        rest = found[name][:, :, size:]
        assert (rest == (-np.inf if name == "lse" else 0)).all()


@pytest.mark.parametrize("wrong", [[0, 900, 950], [5, 20, 60], [0, -4, 60], [0, 60, 10**6]], ids=str)
def test_sums_that_do_not_fit_reach_no_other_memory(wrong):
    """The oracle stops at what lies outside of a tensor, and at what no launch wrote."""
    q, k, v, *_ = tensors_of([60], [60])
    forward, _ = programs(weft.causal(), 2, problem_of(60, 60))
    counted = dict.fromkeys(("of_queries", "of_keys"), np.array(wrong))
    assert np.isfinite(run_program(forward, {"q": q, "k": k, "v": v} | counted)["out"]).all()


# ---- keys in pages ---------------------------------------------------------------------------------------------------
def paged(keys, page, heads_first, seed=0):
    """(k, v, pools of both, PagedKeys, table): keys (1, 2, T, D) also in shuffled pages; what no key is, is NaN."""
    random = np.random.default_rng(seed)
    k, v = (random.standard_normal((1, 2, sum(keys), width)) for width in (4, 3))
    width, each = max(1, -(-max(keys, default=0) // page)) + 1, [-(-n // page) for n in keys]
    order = random.permutation(sum(each) + 2).tolist()
    table = np.full((len(keys), width), -1)
    pools = [np.full((sum(each) + 2, 2, page, x.shape[3]), np.nan) for x in (k, v)]
    first = 0
    for i, n in enumerate(keys):
        for j in range(each[i]):
            table[i, j] = order.pop()
            for pool, x in zip(pools, (k, v), strict=True):
                part = x[0, :, first + j * page : first + min((j + 1) * page, n)]
                pool[table[i, j], :, : part.shape[1]] = part
        first += n
    strides = tuple(row_major(x.shape) for x in pools)
    if not heads_first:
        strides = tuple((2 * page * d, d, 2 * d, 1) for d in (4, 3))
    step = strides[0][0] // strides[0][2]
    return k, v, pools, PagedKeys(len(pools[0]), page, width, width, step, strides), table


@pytest.mark.parametrize("heads_first", [True, False])
@pytest.mark.parametrize("page", [16, 40])
@pytest.mark.parametrize("name", every(3, MORE))
def test_keys_in_pages(name, page, heads_first):
    """Shuffled pages; those behind a document's last key have no number, and their memory is NaN."""
    queries, keys = drawn(list(MORE).index(name) + 60, 6, False)
    k, v, pools, lie, table = paged(keys, page, heads_first)
    q, _, _, dout, dlse = tensors_of(queries, keys)
    expected = by_host(MORE[name], (queries, keys), (q, k, v, dout, dlse), {})
    problem = problem_of(sum(queries), lie.room)
    layout = Layout((row_major(q.shape), *lie.strides), False)
    one = replace(asked(MORE[name], 6), paged=lie)
    program = documents_forward_program(plan_attention(weft.full(), problem, GPU), layout, Options(0.5), one)
    given = {"q": q, "k": pools[0], "v": pools[1], "of_queries": sums(queries), "of_keys": sums(keys)}
    found = run_program(program, given | {"block_table": table})
    for what in ("out", "lse"):
        np.testing.assert_allclose(found[what], expected[what], rtol=1e-9, atol=1e-9, err_msg=what)


@pytest.mark.parametrize("name", every(5, PATTERNS))
def test_programs_that_are_given_tables(name):
    """Out, lse and gradients have the bits of programs that make the same tables."""
    queries, keys = drawn(list(PATTERNS).index(name) + 90, 6, True)
    counted = {"of_queries": sums(queries), "of_keys": sums(keys)}
    given = dict(zip(("q", "k", "v", "dout", "dlse"), tensors_of(queries, keys), strict=True))
    whole, divided = dict(given), dict(given)
    for program in programs(PATTERNS[name], len(queries), problem_of(sum(queries), sum(keys))):
        making, rest = apart(program)
        assert {slot.name for slot in making.of_role("input")} == set(counted)
        whole |= run_program(program, {n: x for n, x in (whole | counted).items() if n in program.by_name})
        divided |= {n: x.astype(np.int32) for n, x in run_program(making, counted).items()}
        divided |= run_program(rest, {n: x for n, x in divided.items() if n in rest.by_name})
    for what in ("out", "lse", "dq", "dk", "dv"):
        np.testing.assert_array_equal(divided[what], whole[what], err_msg=what)


# ---- refused ---------------------------------------------------------------------------------------------------------
REFUSED = {
    "dilated": weft.dilated(9, 0, 3, align=END),
    "two terms": weft.longformer(16, 4).aligned(END),
    "two alignments": weft.causal(align=END) & weft.window(left=5, align=BEGIN),
    "documents": weft.documents([3, 4]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_patterns_say_what_to_do(name):
    with pytest.raises(UnsupportedError, match=r"cu_seqlens\.cpu\(\)"):
        known(REFUSED[name], 100)
