"""What each of several gloo processes checks; `test_gloo` starts them. Everything in float64, beside one process."""

import os
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist

import weft
from weft import causal, window
from weft.distributed import Link, attention, decode_attention, local, plan
from weft.errors import InputError, OptionError, UnsupportedError

LENGTH, D, DV = 240, 8, 12
GRID = weft.neighborhood((12, 20), (5, 7))
# (pattern, heads, shards, strategies beside the chosen one)
CASES = {
    "window": (causal() & window(left=20), (4, 2), ("contiguous", "zigzag"), ("halo", "ulysses", "all-gather")),
    "both sides": (window(9, 7), (4, 4), ("contiguous",), ("halo",)),
    "causal": (causal(), (4, 2), ("work", "zigzag"), ("halo", "ulysses")),
    "longformer": (weft.longformer(16, 4), (4, 4), ("contiguous", "zigzag"), ("halo", "halo+queries", "ulysses")),
    "dilated": (weft.dilated(8, 3, 4), (4, 1), ("contiguous",), ("halo", "ulysses")),
    "documents": (causal() & weft.documents([50, 90, 100]), (4, 2), ("work",), ("halo",)),
    "chunks": (causal() & weft.chunks(30), (4, 2), ("contiguous",), ("halo",)),
    "2-D": (GRID, (4, 2), ("boxes", "contiguous"), ("halo", "ulysses")),
    "3-D": (weft.neighborhood((4, 6, 10), (3, 3, 5)), (4, 4), ("boxes",), ("halo",)),
    "text and video": (
        weft.segments([40, 200], [[causal(), None], [True, weft.neighborhood((10, 20), 5)]]), (4, 2),
        ("contiguous",), ("halo", "ulysses"),
    ),
    "blocks": (weft.random_blocks(16, 2), (4, 2), ("contiguous",), ("halo", "all-gather")),
    "no key": (weft.window(3, 3) & weft.keys(0, 100), (4, 2), ("contiguous",), ("halo",)),
}  # fmt: skip


def begin(rank, world, folder, check, *given):
    """A process of its own."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world)
    try:
        globals()[check](rank, world, *given)
    finally:
        dist.destroy_process_group()


def inputs(heads, **more):
    """Tensors of the whole sequence, the same on every rank."""
    generator = torch.Generator().manual_seed(7)
    shapes = (2, heads[0], LENGTH, D), (2, heads[1], LENGTH, D), (2, heads[1], LENGTH, DV), (heads[0],)
    drawn = [torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True) for shape in shapes]
    grads = [
        torch.randn((2, heads[0], LENGTH, *last), generator=generator, dtype=torch.float64) for last in ((DV,), ())
    ]
    return drawn, grads


def _loss(out, lse, grads):
    """Of out and of every lse that is a number."""
    return (out * grads[0]).sum() + (lse.masked_fill(~torch.isfinite(lse), 0.0) * grads[1]).sum()


def backward(out, lse, grads):
    """Gradients of out and lse."""
    _loss(out, lse, grads).backward()


def mine_of(tensors, tokens):
    return [x.detach()[:, :, tokens].clone().requires_grad_() for x in tensors]


def check_values(rank, world, names):
    """Out, lse and all gradients equal those of one process; bytes that arrive are those planned."""
    for name in names:
        pattern, heads, shards, strategies = CASES[name]
        (*qkv, sinks), grads = inputs(heads)
        whole = weft.attention(*qkv, pattern, return_lse=True, sinks=sinks, softcap=9.0)
        backward(*whole, grads)
        for shard in shards:
            for strategy in (None, *strategies):
                given = {"heads": heads, "head_dim": (D, DV), "dtype": "float64", "ranks": world, "shards": shard}
                try:
                    planned = plan(pattern, LENGTH, **given, strategy=strategy)
                except OptionError:  # heads that do not divide, or no rows to move
                    continue
                tokens = torch.as_tensor(planned.shards.tokens[rank].array())
                q, k, v = mine_of(qkv, tokens)
                alone = sinks.detach().clone().requires_grad_()
                with Counted() as received:
                    found = attention(
                        q, k, v, pattern, shards=shard, strategy=strategy, return_lse=True, sinks=alone, softcap=9.0
                    )
                backward(*found, [x[:, :, tokens] for x in grads])
                assert not any(x._version for x in (q, k, v))  # nothing is written into what was given
                dist.all_reduce(alone.grad)
                said = f"{name}, {shard}, {strategy}"
                pairs = [(x, y[:, :, tokens]) for x, y in zip(found, whole, strict=True)]
                pairs += [(x.grad, y.grad[:, :, tokens]) for x, y in zip((q, k, v), qkv, strict=True)]
                for x, y in (*pairs, (alone.grad, sinks.grad)):
                    torch.testing.assert_close(
                        x, y, rtol=1e-10, atol=1e-10, msg=lambda text, said=said: f"{said}: {text}"
                    )
                batch_row = planned.comm_bytes(rank) + lse_difference(planned, rank, strategy)
                assert sum(received) == 2 * batch_row, said
                assert bool(received) != planned.silent, said


def check_pieces(rank, world, names):
    """The same where ranks wait for keys, which travel in groups of heads: values, score functions and dropout."""
    local.PASSES, local.LEAST = 1 << 40, 1
    pattern, heads, *_ = CASES["window"]
    planned = plan(pattern, LENGTH, heads=heads, head_dim=(D, DV), dtype="float64", ranks=world)
    assert local.pieces_of(planned) == 2
    check_values(rank, world, names)
    check_scores(rank, world)
    check_dropout(rank, world)


def lse_difference(planned, rank, strategy):
    """lse travels in float64 here, where plans count float32; and back from heads, where plans count out alone."""
    heads, tokens = planned.heads, planned.shards.tokens
    if planned.strategy == "ulysses":
        return len(tokens[rank]) * (planned.ranks - 1) * heads.q // planned.ranks * 8
    return sum(len(planned.asked[p][rank]) for p in range(planned.ranks)) * heads.q * 4


def check_scores(rank, world):
    """Slopes, biases and extra keys: those of the whole sequence, with gradients that add up over ranks."""
    for name in ("window", "longformer", "causal"):
        pattern, heads, shards, strategies = CASES[name]
        (*qkv, _), grads = inputs(heads)
        drawn = torch.Generator().manual_seed(1)
        slopes, table, keys, values = (
            torch.randn(shape, generator=drawn, dtype=torch.float64, requires_grad=True)
            for shape in ((heads[0],), (heads[0], 21), (2, heads[1], 3, D), (2, heads[1], 3, DV))
        )
        by_distance = {"alibi_slopes": slopes, "bias": weft.bias.relative(table)}
        for given, learned in (
            (by_distance, (slopes, table)),
            ({"extra_keys": keys, "extra_values": values}, (keys, values)),
        ):
            leaves = [x.detach().requires_grad_() for x in qkv]
            whole = weft.attention(*leaves, pattern, return_lse=True, **given)
            wanted = torch.autograd.grad(_loss(*whole, grads), [*leaves, *learned])
            for shard in shards:
                for strategy in strategies:
                    planned = plan(
                        pattern, LENGTH, heads=heads, head_dim=(D, DV), dtype="float64", ranks=world, shards=shard
                    )
                    if strategy not in [one.strategy for one in planned.candidates]:
                        continue
                    tokens = torch.as_tensor(planned.shards.tokens[rank].array())
                    mine = mine_of(qkv, tokens)
                    found = attention(*mine, pattern, shards=shard, strategy=strategy, return_lse=True, **given)
                    loss = _loss(*found, [x[:, :, tokens] for x in grads])
                    *own, of_one, of_other = torch.autograd.grad(loss, [*mine, *learned])
                    for x in (of_one, of_other):
                        dist.all_reduce(x)
                    pairs = [(x, y[:, :, tokens]) for x, y in zip((*found, *own), (*whole, *wanted[:3]), strict=True)]
                    for x, y in (*pairs, (of_one, wanted[3]), (of_other, wanted[4])):
                        torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-9)


def check_dropout(rank, world):
    """The pairs that one process drops, whoever holds them; the first rank's seed counts."""
    for name in ("window", "causal", "longformer", "2-D", "text and video", "blocks"):
        pattern, heads, shards, strategies = CASES[name]
        (*qkv, sinks), grads = inputs(heads)
        given = {"return_lse": True, "sinks": sinks.detach(), "dropout": 0.3}
        leaves = [x.detach().requires_grad_() for x in qkv]
        whole = weft.attention(*leaves, pattern, seed=2**40 + 5, **given)
        wanted = torch.autograd.grad(_loss(*whole, grads), leaves)
        for shard in shards:
            planned = plan(pattern, LENGTH, heads=heads, head_dim=(D, DV), dtype="float64", ranks=world, shards=shard)
            tokens = torch.as_tensor(planned.shards.tokens[rank].array())
            for strategy in [one.strategy for one in planned.candidates if one.strategy in strategies]:
                mine, seed = mine_of(qkv, tokens), 2**40 + 5 if rank == 0 else rank
                found = attention(*mine, pattern, shards=shard, strategy=strategy, seed=seed, **given)
                own = torch.autograd.grad(_loss(*found, [x[:, :, tokens] for x in grads]), mine)
                for x, y in zip((*found, *own), (*whole, *wanted), strict=True):
                    said = f"{name}, {shard}, {strategy}"
                    torch.testing.assert_close(
                        x, y[:, :, tokens], rtol=1e-9, atol=1e-9, msg=lambda text, said=said: f"{said}: {text}"
                    )
    drawn = [attention(*mine, pattern, dropout=0.5) for _ in range(2)]
    assert not torch.equal(*drawn)  # each call draws a seed of its own


def check_nodes(rank, world):
    """Heads inside nodes of two ranks, keys between nodes: values, gradients, dropped pairs, and bytes as planned."""
    link = Link(node=2)
    for name, shards in (
        ("window", "contiguous"),
        ("window", "zigzag"),
        ("causal", "zigzag"),
        ("longformer", "contiguous"),
    ):
        pattern, heads, *_ = CASES[name]
        (*qkv, sinks), grads = inputs(heads)
        table = torch.randn(heads[0], 21, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        given = {"return_lse": True, "sinks": sinks.detach(), "dropout": 0.2, "seed": 9}
        given["bias"] = weft.bias.relative(table)
        leaves = [x.detach().requires_grad_() for x in qkv]
        whole = weft.attention(*leaves, pattern, **given)
        wanted = torch.autograd.grad(_loss(*whole, grads), leaves)
        planned = plan(
            pattern, LENGTH, heads=heads, head_dim=(D, DV), dtype="float64", ranks=world, shards=shards,
            strategy="ulysses+halo", link=link,
        )  # fmt: skip
        tokens = torch.as_tensor(planned.shards.tokens[rank].array())
        mine = mine_of(qkv, tokens)
        with Counted() as received:
            found = attention(*mine, pattern, shards=shards, strategy="ulysses+halo", link=link, **given)
        own = torch.autograd.grad(_loss(*found, [x[:, :, tokens] for x in grads]), mine)
        for x, y in zip((*found, *own), (*whole, *wanted), strict=True):
            torch.testing.assert_close(x, y[:, :, tokens], rtol=1e-9, atol=1e-9)
        back = len(tokens) * heads[0] // 2 * 8  # lse comes back from heads, where plans count out alone
        assert sum(received) == 2 * (planned.comm_bytes(rank) + back), name


def check_module(rank, world):
    """SparseAttention over a group: its options, and sinks that are its parameter."""
    pattern, heads = causal() & window(left=30), (4, 2)
    (*qkv, sinks), _ = inputs(heads)
    tokens = torch.arange(LENGTH * rank // world, LENGTH * (rank + 1) // world)
    mine = [x[:, :, tokens] for x in qkv]
    attend = weft.torch.SparseAttention(pattern, sinks=sinks, softcap=5.0, group=dist.group.WORLD, strategy="halo")
    found = attend(*mine)
    wanted = weft.attention(*qkv, pattern, sinks=sinks, softcap=5.0)[:, :, tokens]
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)
    try:
        weft.torch.SparseAttention(pattern, shards="zigzag")
    except OptionError as error:
        assert "group" in str(error)
    else:
        raise AssertionError("shards without a group were not refused")


def check_decode(rank, world):
    """The last tokens over a cache that ranks hold in runs, one of them empty."""
    (*qkv, sinks), _ = inputs((4, 2))
    q, k, v = (x.detach() for x in qkv)
    ends = [0, 100, 100, *(100 + (LENGTH - 100) * r // (world - 2) for r in range(1, world - 1))]
    for pattern in (causal(), causal() & window(left=120), causal() & weft.dilated(200, 0, 3)):
        wanted = weft.attention(q, k, v, pattern, sinks=sinks.detach(), softcap=9.0, return_lse=True)
        a, b = ends[rank : rank + 2]
        found = decode_attention(
            q[:, :, -3:], k[:, :, a:b], v[:, :, a:b], pattern, first=a, total=LENGTH, sinks=sinks.detach(), softcap=9.0,
            return_lse=True,
        )  # fmt: skip
        for x, y in zip(found, wanted, strict=True):
            torch.testing.assert_close(x, y[:, :, -3:], rtol=1e-10, atol=1e-10)


def check_dtensors(rank, world):
    """Sharded over batch rows, heads or tokens, as one device computes them; others are refused by name."""
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    mesh = dist.device_mesh.init_device_mesh("cpu", (world,))
    drawn = torch.Generator().manual_seed(3)
    qkv = [torch.randn((world, n, 50, D), generator=drawn, dtype=torch.float64) for n in (2 * world, world, world)]
    pattern, sinks = causal() & window(left=9), torch.randn(2 * world, generator=drawn, dtype=torch.float64)
    leaves = [x.clone().requires_grad_() for x in qkv]
    whole = weft.attention(*leaves, pattern, sinks=sinks)
    wanted = torch.autograd.grad(whole.square().sum(), leaves)
    for placed in (Shard(0), Shard(1), Shard(2), Replicate()):
        mine = [distribute_tensor(x, mesh, [placed]).requires_grad_() for x in qkv]
        found = weft.attention(*mine, pattern, sinks=sinks)
        assert isinstance(found, DTensor) and found.placements == (placed,) and found.shape == whole.shape
        torch.testing.assert_close(found.full_tensor(), whole, rtol=1e-10, atol=1e-10)
        local = found.to_local()
        got = torch.autograd.grad(local.square().sum(), mine)
        for x, y in zip(got, wanted, strict=True):
            torch.testing.assert_close(x.full_tensor(), y, rtol=1e-10, atol=1e-10)

    def refused(words, *given, **options):
        try:
            weft.attention(*given, pattern, **options)
        except (UnsupportedError, OptionError) as error:
            assert all(word in str(error) for word in words), str(error)
        else:
            raise AssertionError(f"not refused: {words}")

    over_batch = [distribute_tensor(x, mesh, [Shard(0)]) for x in qkv]
    refused(("head",), *(distribute_tensor(x, mesh, [Shard(3)]) for x in qkv))
    refused(("placed differently",), over_batch[0], *(distribute_tensor(x, mesh, [Replicate()]) for x in qkv[1:]))
    refused(("the others",), over_batch[0], *qkv[1:])
    refused(("dropout",), *over_batch, dropout=0.1)
    sizes = [10, 30, 10]
    uneven = [
        DTensor.from_local(
            x.split(sizes, dim=2)[rank], mesh, [Shard(2)], run_check=False, shape=x.shape, stride=x.stride()
        )
        for x in qkv
    ]
    if sizes[rank] != -(-50 // world) - (rank == world - 1):
        refused(("chunks",), *uneven)


class Counted:
    """The bytes that arrive from peers in each exchange."""

    def __enter__(self):
        received, real = [], dist.all_to_all_single

        def count(output, source, of, to, **options):
            me = dist.get_rank(options.get("group"))
            received.append((sum(of) - of[me]) * output.element_size())
            return real(output, source, of, to, **options)

        self.patch = mock.patch.object(dist, "all_to_all_single", count)
        self.patch.start()
        return received

    def __exit__(self, *_):
        self.patch.stop()


def check_sample(rank, world):
    """A part of every check."""
    check_values(rank, world, ["longformer"])
    check_refusals(rank, world)
    check_poison(rank, world, ["window"])


def check_poison(rank, world, names=("window", "longformer", "2-D", "blocks")):
    """What a rank neither holds nor receives may be anything."""
    for name in names:
        pattern, heads, (shard, *_), _ = CASES[name]
        (*qkv, _), _ = inputs(heads)
        given = {"heads": heads, "head_dim": (D, DV), "dtype": "float64", "ranks": world, "shards": shard}
        planned = plan(pattern, LENGTH, **given, strategy="halo")
        wanted = weft.attention(*qkv, pattern)
        for victim in range(world):
            used = planned.shards.tokens[victim] | planned.chosen.halo[victim]
            poisoned = [x.detach().clone() for x in qkv]
            for x in poisoned[1:]:
                x[:, :, ~torch.as_tensor(used.holds(np.arange(LENGTH)))] = float("nan")
            tokens = torch.as_tensor(planned.shards.tokens[rank].array())
            found = attention(*(x[:, :, tokens] for x in poisoned), pattern, shards=shard, strategy="halo")
            if rank == victim:
                torch.testing.assert_close(found, wanted[:, :, tokens], rtol=1e-10, atol=1e-10)


def check_ways_to_call(rank, world):
    """Layouts, meshes, checkpoints, compiled callers; the same bits twice."""
    pattern, heads = causal() & window(left=30), (4, 2)
    (*qkv, _), grads = inputs(heads)
    tokens = torch.arange(LENGTH * rank // world, LENGTH * (rank + 1) // world)
    q, k, v = mine_of(qkv, tokens)
    first = attention(q, k, v, pattern)
    (first * grads[0][:, :, tokens]).sum().backward()
    bits = [x.grad.clone() for x in (q, k, v)]
    mesh = dist.device_mesh.init_device_mesh("cpu", (world,), mesh_dim_names=("sequence",))
    turned = attention(*(x.transpose(1, 2) for x in (q, k, v)), pattern, layout="bshd", mesh=mesh, dim="sequence")
    assert torch.equal(turned.transpose(1, 2), first)
    calls = [
        lambda *x: torch.utils.checkpoint.checkpoint(attention, *x, pattern, use_reentrant=False),
        torch.compile(lambda *x: attention(*x, pattern) * 1.0, backend="eager"),
    ]
    for call in calls:
        q, k, v = mine_of(qkv, tokens)
        out = call(q, k, v)
        (out * grads[0][:, :, tokens]).sum().backward()
        assert torch.equal(out, first) and all(torch.equal(x.grad, y) for x, y in zip((q, k, v), bits, strict=True))


def check_refusals(rank, world):
    """Every rank hears of what one of them does otherwise, before rows travel."""
    (*qkv, _), _ = inputs((4, 2))
    size = LENGTH // world
    q, k, v = (x.detach()[:, :, rank * size : (rank + 1) * size] for x in qkv)

    def refused(error, words, *given, **options):
        try:
            attention(*given, **options)
        except error as found:
            assert all(word in str(found) for word in words), str(found)
        else:
            raise AssertionError(f"rank {rank} was not refused: {words}")

    other = causal() if rank else causal() & window(left=3)
    refused(InputError, ("disagree", "pattern", "rank 1"), q, k, v, other)
    refused(InputError, ("disagree", "dtype"), *(x.float() if rank else x for x in (q, k, v)), causal())
    refused(InputError, ("disagree", "options"), q, k, v, causal(), softcap=2.0 if rank else None)
    refused(InputError, ("disagree", "heads of q"), q[:, : 4 if rank else 2], k, v, causal())
    refused(InputError, ("rank 1", "tokens"), q[:, :, rank:], k, v, causal())
    uneven = [[(0, 10)], [(10, LENGTH)], *([[]] * (world - 2))]
    refused(InputError, (f"rank {rank} passed {size} tokens",), q, k, v, causal(), shards=uneven)
    refused(OptionError, ("group", "mesh"), q, k, v, causal(), group=dist.group.WORLD, mesh=object())
    refused(OptionError, ("bhds",), q, k, v, causal(), layout="bhds")
    refused(OptionError, ("dropout=1.5",), q, k, v, causal(), dropout=1.5)
    extra = {"extra_keys": k[:, :, :2], "extra_values": v[:, :, :2]}
    refused(OptionError, ("dropout", "extra keys"), q, k, v, causal(), dropout=0.1, **extra)
    refused(OptionError, ("is_causal",), q, k, v, causal(), is_causal=True)
    refused(UnsupportedError, ("bias",), q, k, v, causal(), bias=torch.zeros(LENGTH, LENGTH, dtype=torch.float64))
