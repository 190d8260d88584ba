"""Documents whose running sums a card has: no call waits, and one captured graph serves all lengths."""

from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
import torch
from tests.gpu.test_oracle_document_blocks import OF_ITSELF
from tests.gpu.test_oracle_documents import PATTERNS, drawn, sums

import weft
from weft.kernels.gpu.programs import documents as programs_of
from weft.kernels.gpu.programs.documents import group_tables_made
from weft.planning.families.hopper import SUMMED, WIDE
from weft.testing.tolerance import assert_close
from weft.torch import device_documents

from .compare import BACKENDS
from .documents import DEVICE, NAMES, by_dense, in_pages, tensors_of

pytestmark = pytest.mark.skipif("triton" not in BACKENDS, reason="other backends have no such kernels")
IS_HOPPER = DEVICE.type == "cuda" and torch.cuda.get_device_capability(DEVICE) == (9, 0)
on_a_card = pytest.mark.skipif(DEVICE.type == "cpu", reason="captures and waits are a GPU's")


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

    device_documents._calls.clear()
    with (
        mock.patch.object(device_documents, "_planned", forced),
        mock.patch.object(programs_of, "group_tables_made", made),
    ):
        yield directions
    device_documents._calls.clear()


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


# ---- keys in pages ---------------------------------------------------------------------------------------------------
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
