"""Documents whose running sums the device has: tables beside the oracle's, attention and gradients beside the same with
lengths on the host in float64; on a card no call waits, and one captured graph serves all lengths.
"""

from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
import torch
from tests.gpu.test_oracle_document_blocks import OF_ITSELF
from tests.gpu.test_oracle_documents import MORE, PATTERNS, drawn, problem_of, programs, sums
from tests.tiers import every

import weft
from weft.errors import AlignmentError, InputError, UnsupportedError
from weft.kernels.gpu.documents.spec import group_places_of, known
from weft.kernels.gpu.oracle import run_program
from weft.kernels.gpu.program import LaunchProgram, Slot
from weft.kernels.gpu.programs import documents as programs_of
from weft.kernels.gpu.programs.documents import Documents, group_tables_made
from weft.planning.attention_plan import plan_attention
from weft.planning.families.hopper import SUMMED, WIDE
from weft.planning.problem import Problem
from weft.target import GPU
from weft.testing.refusals import refuse
from weft.testing.tolerance import assert_close
from weft.torch import device_documents, varlen
from weft.torch.bind import Bound

from . import dense
from .compare import BACKENDS

pytestmark = pytest.mark.skipif("triton" not in BACKENDS, reason="other backends have no such kernels")
DEVICE = torch.device(BACKENDS.get("triton", "cpu"))
if DEVICE.type == "cuda":
    DEVICE = torch.device("cuda", torch.cuda.current_device())
IS_HOPPER = DEVICE.type == "cuda" and torch.cuda.get_device_capability(DEVICE) == (9, 0)
on_a_card = pytest.mark.skipif(DEVICE.type == "cpu", reason="captures and waits are a GPU's")
NAMES = ("out", "lse", "dq", "dk", "dv", "dsinks")


# ---- tables ----------------------------------------------------------------------------------------------------------
def of_tables(pattern, count, problem, direction):
    """A program that makes the tables of one direction and nothing else."""
    program = programs(pattern, count, problem)[direction != "forward"]
    made, read = f"{direction}_tables_0", ("of_queries", "of_keys", f"{direction}_bounds")
    slots = [slot for slot in program.slots if slot.name in read]
    slots.append(replace(program.by_name[made], role="output"))
    launch = next(one for one in program.launches if made in one.written)
    return LaunchProgram("tables", tuple(slots), (launch,), {read[2]: program.tables[read[2]]})


@pytest.mark.parametrize("direction", ["forward", "dkdv"])
@pytest.mark.parametrize("name", MORE)
def test_one_program_makes_tables_for_all_lengths(name, direction):
    """Documents may be empty, and have fewer keys than queries; there are more of them than are counted at a time."""
    count, problem = 80, problem_of(9000, 11000)
    program = of_tables(MORE[name], count, problem, direction)
    bound = Bound(program, DEVICE)
    for seed, same in ((1, True), (2, False)):
        given = [sums(x) for x in drawn(seed, count, same)]
        (found,) = bound([torch.tensor(x, dtype=torch.int32, device=DEVICE) for x in given])
        (wanted,) = run_program(program, dict(zip(("of_queries", "of_keys"), given, strict=True))).values()
        np.testing.assert_array_equal(found.cpu().numpy(), wanted)


@pytest.mark.parametrize(("direction", "same"), [("forward", True), ("forward", False), ("dkdv", True)])
@pytest.mark.parametrize("name", every(2, OF_ITSELF))
def test_two_programs_make_tables_of_warp_groups(name, direction, same):
    """Items of tiles that there are, blocks in order, and all that is before them."""
    count, tokens, heads = 80, 9000, 6
    problem = Problem(1, heads, 2, tokens, tokens, 128, 128, "bfloat16", "cuda")
    tiling, members = (WIDE, heads) if direction == "forward" else (SUMMED, 2)
    asked = Documents(count, known(OF_ITSELF[name], tokens), {})
    made = group_tables_made(direction, plan_attention(weft.full(), problem, GPU), asked, tiling)
    at = group_places_of(count, tokens, tiling, members)
    slots = [Slot.dense(x, "input", "int32", (count + 1,)) for x in ("of_queries", "of_keys")]
    slots.append(made.bounds.slot(f"{direction}_bounds"))
    slots.append(Slot.dense(f"{direction}_tables_0", "output", "int32", (at.size,)))
    program = LaunchProgram("tables", tuple(slots), made.launches, {f"{direction}_bounds": made.bounds})
    given = [np.minimum(sums(x), tokens) for x in drawn(3, count, same)]
    (found,) = Bound(program, DEVICE)([torch.tensor(x, dtype=torch.int32, device=DEVICE) for x in given])
    (wanted,) = run_program(program, dict(zip(("of_queries", "of_keys"), given, strict=True))).values()
    there = ~np.isnan(wanted)
    np.testing.assert_array_equal(found.cpu().numpy()[there], wanted[there])
    blocks = int(wanted[at.blocks_at - 1])
    items = wanted[at.blocks_at :][: 2 * blocks : 2].astype(np.int64)
    assert blocks and there[at.items_at : at.heads_at].reshape(-1, at.record)[items].all()
    assert there[: at.items_at].all() and there[at.heads_at : at.works_at].all()


# ---- attention -------------------------------------------------------------------------------------------------------
def tensors_of(lengths, dtype=torch.float32, heads=(4, 2), dims=(16, 16), seed=0):
    """q, k, v (T, H, D), gradients of out and lse, sinks."""
    random = torch.Generator().manual_seed(seed)
    m, n = map(sum, lengths)
    shapes = ((m, heads[0], dims[0]), (n, heads[1], dims[0]), (n, heads[1], dims[1]), (m, heads[0], dims[1]))
    found = [torch.randn(shape, generator=random, dtype=torch.float64).to(dtype) for shape in shapes]
    lse = torch.randn((m, heads[0]), generator=random, dtype=torch.float64).float()
    return [*found, lse, torch.linspace(-1, 1, heads[0])]


def test_a_pattern_that_is_written_anew_is_planned_once():
    lengths = ([5, 9], [5, 9])
    q, k, v = (x.to(DEVICE) for x in tensors_of(lengths)[:3])
    ends = torch.tensor([0, 5, 14], dtype=torch.int32, device=DEVICE)
    device_documents.forget()
    sums_of_both = device_documents.Sums(ends, ends, True, (9, 9))
    chosen = device_documents.Chosen(None, None, "triton")
    view = [x.transpose(0, 1)[None] for x in (q, k, v)]
    for _ in range(2):
        device_documents.attention(view, sums_of_both, weft.causal() & weft.window(3), (None, None), chosen)
    assert len(device_documents._calls) == 1


def live_pairs(lengths, pattern):
    """(1, Hq, M, N), document by document by the pattern's definition."""
    live = torch.zeros(sum(lengths[0]), sum(lengths[1]), dtype=torch.bool)
    q = k = 0
    for m, n in zip(*lengths, strict=True):
        if m and n:
            live[q : q + m, k : k + n] = torch.from_numpy(pattern.to_dense(m, n))
        q, k = q + m, k + n
    return live.expand(1, 4, *live.shape)


def by_dense(lengths, tensors, pattern, options, dtype):
    """{name: tensor} of dense attention in `dtype`."""
    q, k, v, dout, dlse, sinks = tensors
    told = {name: x for name, x in options.items() if name != "sinks"}
    seeds = [x.transpose(0, 1)[None].to(dtype) for x in (dout, dlse)]
    found = dense.with_gradients(
        [x.transpose(0, 1)[None].to(dtype) for x in (q, k, v)], sinks.to(dtype) if "sinks" in options else None, seeds,
        (live_pairs(lengths, pattern), told, 0),
    )  # fmt: skip
    return {name: x if name == "dsinks" else x[0].transpose(0, 1) for name, x in found.items()}


def by_device(lengths, tensors, pattern, options, same, most=(None, None)):
    """The same with running sums on the device; interpreted where there is none."""
    q, k, v, dout, dlse, sinks = (x.to(DEVICE) for x in tensors)
    leaves = [x.clone().requires_grad_() for x in (q, k, v, *([sinks] if "sinks" in options else []))]
    slopes = options.get("alibi_slopes")
    rows = leaves[3] if "sinks" in options else None, slopes if slopes is None else slopes.to(DEVICE)
    of_queries, of_keys = (torch.tensor(sums(x), dtype=torch.int32, device=DEVICE) for x in lengths)
    counted = device_documents.Sums(of_queries, of_queries if same else of_keys, same, most)
    chosen = device_documents.Chosen(options.get("scale"), options.get("softcap"), "triton")
    views = [x.transpose(0, 1)[None] for x in leaves[:3]]
    out, lse = (x[0].transpose(0, 1) for x in device_documents.attention(tuple(views), counted, pattern, rows, chosen))
    grads = torch.autograd.grad((out, lse), leaves, (dout, dlse))
    return {name: x.detach().cpu() for name, x in zip(NAMES, (out, lse, *grads), strict=False)}


def check(lengths, pattern, options=None, same=False, dtype=torch.float32, **how):
    options = options or {}
    tensors = tensors_of(lengths, dtype, dims=how.pop("dims", (16, 16)))
    truth, plain = (by_dense(lengths, tensors, pattern, options, one) for one in (torch.float64, dtype))
    for name, x in by_device(lengths, tensors, pattern, options, same, **how).items():
        assert_close(name, x, truth[name], plain[name])


OPTIONS = {
    "none": {},
    "scale and softcap": {"scale": 0.4, "softcap": 1.5},
    "sinks": {"sinks": True},
    "slopes": {"alibi_slopes": torch.linspace(0.1, 0.4, 4)},
}


@pytest.mark.parametrize("same", [True, False], ids=["same", "other keys"])
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("name", every(3, MORE))
def test_attention_and_gradients(name, option, same):
    if option == "slopes" and not same:
        pytest.skip("distances are of the same tokens")
    pattern = MORE[name]
    if option == "slopes" and name == "full":
        pattern = weft.window(left=2**28, right=2**28, align="bottom-right")  # which says what distances are
    lengths = drawn(list(MORE).index(name) + 40, 4, same)
    check(lengths, pattern, OPTIONS[option], same)


@pytest.mark.parametrize(("dtype", "dims"), [(torch.bfloat16, (64, 64)), (torch.float16, (80, 32))])
def test_dtypes_and_dims(dtype, dims):
    check(drawn(7, 4, False), PATTERNS["causal window"], dtype=dtype, dims=dims, most=(200, 260))
    check(drawn(8, 4, True), weft.causal(), {"sinks": True}, same=True, dtype=dtype, dims=dims, most=(200, None))


def test_a_document_keeps_its_numbers_to_itself():
    """NaN in one document, or beyond all, reaches no other, forward and backward."""
    lengths = ([50, 40, 70], [50, 40, 70])
    tensors = tensors_of(lengths)
    found = by_device(lengths, tensors, weft.causal(), {}, True)
    for token in (0, 49, 95, 159):
        first, last = next((a, b) for a, b in ((0, 50), (50, 90), (90, 160)) if a <= token < b)
        spoilt = [x.clone() for x in tensors]
        for x in spoilt[:3]:
            x[token] = torch.nan
        again = by_device(lengths, spoilt, weft.causal(), {}, True)
        for name, x in again.items():
            same = torch.cat([x[:first], x[last:]]), torch.cat([found[name][:first], found[name][last:]])
            assert torch.equal(*same), f"{name}, token {token}"


def test_the_public_call(monkeypatch):
    """`weft.varlen_attention` with sums that are taken to be the device's: options, extra keys, pages and refusals."""
    monkeypatch.setattr(varlen, "on_device", lambda x: isinstance(x, torch.Tensor))
    lengths = drawn(9, 3, True)
    q, k, v, dout, _, sinks = (x.to(DEVICE) for x in tensors_of(lengths))
    leaves = [x.requires_grad_() for x in (q, k, v)]
    extra = [x[:3].to(DEVICE) for x in tensors_of(([3], [3]), seed=3)[1:3]]
    counted, host = (torch.tensor(sums(lengths[0]), dtype=torch.int32, device=x) for x in (DEVICE, "cpu"))

    def called(given):
        return weft.varlen_attention(
            *leaves, given, None, weft.causal(), sinks=sinks, extra_keys=extra[0], extra_values=extra[1],
            return_lse=True, backend="triton",
        )  # fmt: skip

    out, lse = called(counted)
    found = torch.autograd.grad(out, leaves, dout)
    refuse(lambda: weft.varlen_attention(q, k, v, counted, None, CAUSAL, dropout=0.5), UnsupportedError, (".cpu()",))
    monkeypatch.undo()
    wanted, wanted_lse = called(host)
    for x, y in zip((out, lse, *found), (wanted, wanted_lse, *torch.autograd.grad(wanted, leaves, dout)), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("lengths", [[], [0], [0, 0], [1], [0, 1, 0]], ids=str)
def test_hardly_anything(lengths):
    check((lengths, lengths), weft.causal(), same=True)


# ---- keys in pages ---------------------------------------------------------------------------------------------------
def in_pages(lengths, tensors, pattern, page, heads_first, seed=0):
    """{name: tensor} of out and lse, keys in shuffled pages; what no key is, is NaN."""
    q, k, v, *_ = tensors
    random = np.random.default_rng(seed)
    each = [-(-n // page) for n in lengths[1]]
    order = random.permutation(sum(each) + 2).tolist()
    table = torch.full((len(each), max([*each, 1]) + 1), -1, dtype=torch.int32)
    pools = [torch.full((sum(each) + 2, 2, page, x.shape[2]), torch.nan, dtype=x.dtype) for x in (k, v)]
    if not heads_first:
        pools = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in pools]
    for i, (first, n) in enumerate(zip(sums(lengths[1])[:-1].tolist(), lengths[1], strict=True)):
        for j in range(each[i]):
            table[i, j] = order.pop()
            for pool, x in zip(pools, (k, v), strict=True):
                part = x[first + j * page : first + min((j + 1) * page, n)]
                pool[table[i, j], :, : part.shape[0]] = part.transpose(0, 1)
    counted = [torch.tensor(sums(x), dtype=torch.int32, device=DEVICE) for x in lengths]
    given = device_documents.Sums(*counted, False, (None, None), table.to(DEVICE))
    caches = q.to(DEVICE).transpose(0, 1)[None], *(x.to(DEVICE) for x in pools)
    out, lse = device_documents.attention(
        caches, given, pattern, (None, None), device_documents.Chosen(None, None, "triton")
    )
    return {"out": out[0].transpose(0, 1).cpu(), "lse": lse[0].transpose(0, 1).cpu()}


@pytest.mark.parametrize(("page", "heads_first"), [(16, True), (48, False)])
@pytest.mark.parametrize("name", every(3, PATTERNS))
def test_keys_in_pages(name, page, heads_first):
    lengths = drawn(list(PATTERNS).index(name) + 80, 4, False)
    tensors = tensors_of(lengths)
    truth, plain = (by_dense(lengths, tensors, PATTERNS[name], {}, one) for one in (torch.float64, torch.float32))
    for what, x in in_pages(lengths, tensors, PATTERNS[name], page, heads_first).items():
        assert_close(what, x, truth[what], plain[what])


@on_a_card
@pytest.mark.parametrize("dims", [(64, 64), (128, 128)], ids=str)
@pytest.mark.parametrize("name", PATTERNS)
def test_pages_on_a_card(name, dims):
    """In bfloat16, by the public call, which does not wait; a table that changes is read anew by a captured graph."""
    lengths = ([300, 0, 70, 513], [2000, 100, 70, 1900])
    tensors = tensors_of(lengths, torch.bfloat16, dims=dims)
    truth, plain = (by_dense(lengths, tensors, PATTERNS[name], {}, x) for x in (torch.float64, torch.bfloat16))
    for page in (16, 128):
        for what, x in in_pages(lengths, tensors, PATTERNS[name], page, page == 16).items():
            assert_close(what, x, truth[what], plain[what])


@on_a_card
def test_a_captured_prefill_reads_tables_and_lengths_anew():
    page, width, pattern = 16, 8, PATTERNS["causal window"]
    random = torch.Generator().manual_seed(1)
    q = torch.randn((120, 4, 64), generator=random).bfloat16().to(DEVICE)
    pools = [torch.randn((40, page, 2, 64), generator=random).bfloat16().to(DEVICE).transpose(1, 2) for _ in range(2)]
    counted = [torch.zeros(4, dtype=torch.int32, device=DEVICE) for _ in range(2)]
    table = torch.zeros(3, width, dtype=torch.int32, device=DEVICE)

    def step():
        return weft.varlen_attention(q, *pools, *counted, pattern, block_table=table, return_lse=True)

    step()
    with no_waits():
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    for seed in range(3):
        order = np.random.default_rng(seed)
        lengths = order.integers(0, 40, 3).tolist(), order.integers(40, page * width, 3).tolist()
        pages = torch.from_numpy(order.permutation(40)[: 3 * width].reshape(3, width)).int()
        table.copy_(pages)
        for x, other in zip(counted, lengths, strict=True):
            x.copy_(torch.tensor(sums(other), dtype=torch.int32))
        graph.replay()
        m = sum(lengths[0])
        wanted = weft.varlen_attention(
            q[:m].cpu().float(), *(x.cpu().float() for x in pools), *(torch.tensor(sums(x)) for x in lengths), pattern,
            block_table=pages, return_lse=True,
        )  # fmt: skip
        for x, y in zip(found, wanted, strict=True):
            torch.testing.assert_close(x[:m].float().cpu(), y, rtol=2e-2, atol=2e-2)


# ---- on a card -------------------------------------------------------------------------------------------------------
@contextmanager
def no_waits():
    """Raise where the host waits for the device."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def on_card(lengths, **how):
    return [x.to(DEVICE) for x in tensors_of(lengths, **how)]


@on_a_card
@pytest.mark.parametrize("name", PATTERNS)
def test_no_call_waits(name):
    """Forward and backward, with lse and sinks, int32 and int64 sums of any lengths. The first call copies bounds."""
    q, k, v, dout, dlse, sinks = on_card(([1900], [2600]), dtype=torch.bfloat16, dims=(64, 64))
    leaves = [x.requires_grad_() for x in (q, k, v, sinks)]

    def step(counted):
        out, lse = weft.varlen_attention(
            *leaves[:3], *counted, PATTERNS[name], sinks=leaves[3], return_lse=True, max_seqlen_q=200
        )
        torch.autograd.grad((out, lse), leaves, (dout, dlse))

    lengths = [[torch.tensor(sums(x), device=DEVICE) for x in drawn(seed, 10, False)] for seed in range(3)]
    step(lengths[0])
    for kind in (torch.int32, torch.int64):
        given = [[x.to(kind) for x in both] for both in lengths]
        with no_waits():
            for both in given:
                step(both)


@on_a_card
@pytest.mark.parametrize("name", PATTERNS)
def test_one_captured_graph_serves_all_lengths(name):
    """cu_seqlens change between replays, and so do the tokens that documents have in all; right at each."""
    pattern, room = PATTERNS[name], (1500, 1800)
    whole = ([room[0]], [room[1]])
    q, k, v, dout, dlse, _ = on_card(whole, dtype=torch.bfloat16, dims=(64, 64))
    leaves = [x.requires_grad_() for x in (q, k, v)]
    counted = [torch.zeros(10, dtype=torch.int32, device=DEVICE) for _ in range(2)]

    def step():
        out, lse = weft.varlen_attention(*leaves, *counted, pattern, return_lse=True)
        return [out, lse, *torch.autograd.grad((out, lse), leaves, (dout, dlse))]

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    for seed in range(4):
        lengths = drawn(seed, 9, False)
        for x, other in zip(counted, lengths, strict=True):
            x.copy_(torch.tensor(sums(other), dtype=torch.int32))
        graph.replay()
        inside = [x.detach()[: sum(lengths[side])].cpu() for x, side in ((q, 0), (k, 1), (v, 1), (dout, 0), (dlse, 0))]
        given = [*inside, torch.zeros(4)]
        truth, plain = (by_dense(lengths, given, pattern, {}, one) for one in (torch.float64, torch.bfloat16))
        for what, x in zip(NAMES, found, strict=False):
            tokens = truth[what].shape[0]
            assert_close(what, x[:tokens], truth[what], plain[what])
            assert (x[tokens:] == (-torch.inf if what == "lse" else 0)).all(), what


@contextmanager
def by_groups():
    """Calls are planned for warp groups, whatever is predicted to be faster; yields the directions of their tables."""
    planned, directions = device_documents._planned, []

    def forced(*args):
        plan, asked = planned(*args)
        return plan, replace(asked, groups=WIDE, sums=SUMMED)

    def made(direction, *args):
        directions.append(direction)
        return group_tables_made(direction, *args)

    device_documents.forget()
    with (
        mock.patch.object(device_documents, "_planned", forced),
        mock.patch.object(programs_of, "group_tables_made", made),
    ):
        yield directions
    device_documents.forget()


@on_a_card
@pytest.mark.skipif(not IS_HOPPER, reason="kernels by warp groups are Hopper's")
@pytest.mark.parametrize("times", [1.0, 40.0], ids=["scores", "large scores"])
@pytest.mark.parametrize("name", OF_ITSELF)
def test_by_warp_groups(name, times):
    """At D=128, of queries and keys that are the same tokens. One captured graph serves all lengths; tokens after the
    last document may hold anything. Rows of large scores are computed again.
    """
    pattern, room = OF_ITSELF[name], 1500
    q, k, v, dout, dlse, _ = on_card(([room], [room]), dtype=torch.bfloat16, dims=(128, 128))
    q = q * times
    leaves, counted = [x.requires_grad_() for x in (q, k, v)], torch.zeros(10, dtype=torch.int32, device=DEVICE)

    def step():
        out, lse = weft.varlen_attention(*leaves, counted, counted, pattern, return_lse=True)
        return [out, lse, *torch.autograd.grad((out, lse), leaves, (dout, dlse))]

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with by_groups() as directions, torch.cuda.stream(stream):
        step()
        with no_waits():
            step()
        assert directions == ["forward", "dkdv"]
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            found = step()
    torch.cuda.current_stream().wait_stream(stream)
    whole = [x.detach().clone() for x in (*leaves, dout)]
    for lengths in (*([x, x] for x, _ in (drawn(seed, 9, True) for seed in range(4))), ([5], [5]), ([130], [130])):
        tokens, ends = sum(lengths[0]), sums(lengths[0])
        counted.copy_(torch.tensor(np.pad(ends, (0, 10 - ends.size), mode="edge"), dtype=torch.int32))
        for x, kept in zip((*leaves, dout), whole, strict=True):
            x.detach().copy_(kept)[tokens:] = torch.nan
        graph.replay()
        inside = [x.detach()[:tokens].cpu() for x in (q, k, v, dout, dlse)]
        truth, plain = (
            by_dense(lengths, [*inside, torch.zeros(4)], pattern, {}, x) for x in (torch.float64, torch.bfloat16)
        )  # fmt: skip
        for what, x in zip(NAMES, found, strict=False):
            assert_close(what, x[:tokens].cpu(), truth[what], plain[what])
            assert (x[tokens:] == (-torch.inf if what == "lse" else 0)).all(), what


@on_a_card
@pytest.mark.wide
@pytest.mark.parametrize("dims", [(64, 64), (128, 128)], ids=str)
def test_many_long_documents_beside_lengths_on_the_host(dims):
    """The bits may differ, since tiles do; both are held to float32's attention of the host's plan."""
    random = np.random.default_rng(5)
    queries = random.integers(0, 3001, 300).tolist()
    keys = [m + int(x) for m, x in zip(queries, random.integers(0, 200, 300), strict=True)]
    for name in ("causal", "causal window", "chunks"):
        tensors = on_card((queries, keys), dtype=torch.bfloat16, heads=(2, 1), dims=dims)[:5]
        results = []
        for dtype, where in ((torch.bfloat16, DEVICE), (torch.bfloat16, "cpu"), (torch.float32, "cpu")):
            leaves = [x.detach().to(dtype).requires_grad_() for x in tensors[:3]]
            counted = [torch.tensor(sums(x), device=where) for x in (queries, keys)]
            out, lse = weft.varlen_attention(*leaves, *counted, PATTERNS[name], return_lse=True)
            results.append([out, lse, *torch.autograd.grad((out, lse), leaves, (tensors[3].to(dtype), tensors[4]))])
        for what, x, plain, truth in zip(NAMES, *results, strict=False):
            both = [(y.float() - truth)[truth.isfinite()].abs().max().item() for y in (x, plain)]
            assert both[0] <= 2 * both[1] + 1e-3, f"{name}: {what} is off by {both}"


@on_a_card
def test_extra_keys_join_every_document():
    lengths = drawn(3, 6, True)
    q, k, v, *_ = on_card(lengths)
    extra = [x[:5] for x in on_card(([5], [5]), seed=3)[1:3]]
    counted = [torch.tensor(sums(lengths[0]), device=x) for x in (DEVICE, "cpu")]
    found, wanted = (
        weft.varlen_attention(q, k, v, x, x, weft.causal(), extra_keys=extra[0], extra_values=extra[1], return_lse=True)
        for x in counted
    )
    for x, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(x, other, rtol=1e-4, atol=1e-4)


# ---- refused ---------------------------------------------------------------------------------------------------------
CU, CAUSAL = torch.tensor([0, 30, 70], dtype=torch.int32, device=DEVICE), weft.causal()


def call(pattern=CAUSAL, counted=(CU, CU), same=True, rows=(None, None), most=(None, None)):
    tensors = tuple(x.to(DEVICE).transpose(0, 1)[None] for x in tensors_of(([70], [70]))[:3])
    given = device_documents.sums_of(counted, same, most, [x[0].transpose(0, 1) for x in tensors])
    chosen = device_documents.Chosen(None, None, "triton")
    return device_documents.attention(tensors, given, pattern, rows, chosen)


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"counted": (CU.float(), CU)}, InputError, ("cu_seqlens_q is (3,) of torch.float32",)),
        ({"counted": (CU, CU[None])}, InputError, ("cu_seqlens_k is (1, 3)",)),
        ({"counted": (CU, CU[:2])}, InputError, ("2 documents of queries and 1 of keys",)),
        ({"counted": (CU, [0, 70])}, InputError, ("cu_seqlens_k is list",)),
        ({"most": (None, 70.0)}, InputError, ("max_seqlen_k is float", "an int of Python")),
        ({"same": False}, AlignmentError, ('.aligned("bottom-right")',)),
        ({"pattern": weft.dilated(9, 0, 3)}, UnsupportedError, ("cu_seqlens.cpu()",)),
        ({"pattern": weft.per_head([weft.causal()] * 4)}, UnsupportedError, ("heads apart", "cu_seqlens.cpu()")),
        (
            {"same": False, "pattern": weft.causal(align="top-left"), "rows": (None, torch.ones(4, device=DEVICE))},
            UnsupportedError, ("alibi_slopes", "cu_seqlens.cpu()"),
        ),
    ],
    ids=lambda x: ", ".join(x) if isinstance(x, dict) else "",
)  # fmt: skip
def test_refused(given, error, words):
    refuse(lambda: call(**given), error, words)


def test_no_second_derivative():
    tensors = tuple(x.to(DEVICE).transpose(0, 1)[None].requires_grad_() for x in tensors_of(([70], [70]))[:3])
    counted = device_documents.Sums(CU, CU, True, (None, None))
    out, _ = device_documents.attention(
        tensors, counted, weft.causal(), (None, None), device_documents.Chosen(None, None, "triton")
    )
    refuse(lambda: torch.autograd.grad(out.sum(), tensors, create_graph=True), UnsupportedError, ("double backward",))
