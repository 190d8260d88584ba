"""What each process checks on its own GPU; `test_nccl` starts them. With gloo and without GPUs at small sizes.

Values are held against the whole sequence on one device in float64, dense, and as near as one device's own result is.
"""

import faulthandler
import os
import signal
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist

import weft
from weft import causal, window
from weft.distributed import attention, local, plan
from weft.errors import WeftError
from weft.testing.tolerance import assert_close
from weft.torch.distributed.lists import lists_of

D = 64
TIMEOUT, STARTED = 12, 60  # seconds: of a group, and until a process is ready to lose another one
CASES = {
    # pattern, heads, shards, strategy
    "window": (causal() & window(left=300), (4, 2), "contiguous", None),
    "dilated": (weft.dilated(64, 64, 4), (4, 4), "contiguous", None),
    "chunks": (causal() & weft.chunks(256), (4, 2), "contiguous", None),
    "documents": (causal() & weft.documents([700, 348, 1000]), (4, 2), "work", "halo"),
    "2-D": (weft.neighborhood((32, 64), (9, 11)), (4, 4), "boxes", "halo"),
    "3-D": (weft.neighborhood((8, 16, 16), (5, 7, 7)), (4, 4), "boxes", "halo"),
    "longformer": (weft.longformer(128, 16), (4, 4), "contiguous", "halo+queries"),
    "heads": (causal(), (4, 2), "contiguous", "ulysses"),
    "zigzag": (causal(), (4, 2), "zigzag", "halo"),
    "all keys": (causal() & window(left=300), (4, 2), "contiguous", "all-gather"),
}
LENGTH = 2048


def begin(rank, world, folder, backend, checks):
    """A process of its own: each check leaves its result in a file, "" or what was raised."""
    device = join(rank, world, folder, backend, 120)
    for check in checks:
        name, *given = check.split(":")
        try:
            globals()[f"check_{name}"](rank, world, device, *given)
            said = ""
        except BaseException:
            said = traceback.format_exc()
        Path(folder, f"{check.replace(' ', '_')}.{rank}").write_text(said)
        dist.barrier()
    dist.destroy_process_group()


def join(rank, world, folder, backend, timeout):
    """The device of a rank in a new group."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    given = {"device_id": device} if backend == "nccl" else {}
    if backend == "nccl":
        torch.cuda.set_device(device)
    meet = f"file://{folder}/meet-{backend}"
    dist.init_process_group(
        backend, init_method=meet, rank=rank, world_size=world, timeout=timedelta(seconds=timeout), **given
    )
    return device


def inputs(heads, device):
    """q, k, v and the gradient of out for the whole sequence, the same on every rank."""
    drawn = torch.Generator().manual_seed(7)
    counts = (heads[0], heads[1], heads[1], heads[0])
    return [torch.randn(1, n, LENGTH, D, generator=drawn).to(torch.bfloat16).to(device) for n in counts]


def with_gradients(function, qkv, dout):
    """(out, dq, dk, dv)"""
    leaves = [x.detach().clone().requires_grad_() for x in qkv]
    out = function(*leaves)
    return out.detach(), *torch.autograd.grad(out, leaves, dout)


def dense(pattern, q, k, v):
    """The definition, with all pairs in memory."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    live = torch.as_tensor(pattern.to_dense(LENGTH)).to(q.device)
    scores = (q @ k.transpose(-1, -2) * D**-0.5).masked_fill(~live, float("-inf"))
    return scores.softmax(-1) @ v


def planned(name, world):
    pattern, heads, shards, strategy = CASES[name]
    return plan(pattern, LENGTH, heads=heads, head_dim=D, ranks=world, shards=shards, strategy=strategy)


def distributed(name, world, rank, device, **options):
    """((out, dq, dk, dv) of this rank's tokens, these tokens)."""
    pattern, heads, shards, strategy = CASES[name]
    tokens = torch.as_tensor(planned(name, world).shards.tokens[rank].array(), device=device)
    *qkv, dout = (x[:, :, tokens] for x in inputs(heads, device))

    def call(q, k, v):
        return attention(q, k, v, pattern, shards=shards, strategy=strategy, **options)

    return with_gradients(call, qkv, dout), tokens


def check_values(rank, world, device, name):
    """Out and gradients are those of one device, as near to the definition in float64."""
    pattern, heads, *_ = CASES[name]
    found, tokens = distributed(name, world, rank, device)
    *qkv, dout = inputs(heads, device)
    truth = with_gradients(lambda *x: dense(pattern, *x), [x.double() for x in qkv], dout.double())
    plain = with_gradients(lambda *x: dense(pattern, *x), qkv, dout)
    alone = with_gradients(lambda *x: weft.attention(*x, pattern), qkv, dout)
    for what, *each in zip(("out", "dq", "dk", "dv"), found, truth, plain, alone, strict=True):
        mine, right, other, one = each[0], *(x[:, :, tokens] for x in each[1:])
        assert_close(f"{name}: {what}", mine, right, other)
        near = max((one.double() - right).abs().max().item(), 2.0**-8 * right.abs().max().item())
        far = (mine.double() - right).abs().max().item()
        assert far <= 2 * near, f"{name}: {what} is off by {far}, one device by {near}"


def check_bits(rank, world, device, name):
    """The same bits in two runs."""
    first, second = (distributed(name, world, rank, device, deterministic=True)[0] for _ in range(2))
    assert all(map(torch.equal, first, second))


def check_groups(rank, world, device, name):
    """The same values and bits where ranks wait for keys, which travel in groups of heads."""
    kept = local.local_of, local.pieces_of, lists_of
    with mock.patch.object(local, "PASSES", 1 << 40), mock.patch.object(local, "LEAST", 1):
        for one in kept:
            one.cache_clear()
        assert local.pieces_of(planned(name, world)) > 1
        check_values(rank, world, device, name)
        check_bits(rank, world, device, name)
    for one in kept:
        one.cache_clear()


def check_dropout(rank, world, device, name):
    """The pairs that one device drops."""
    pattern, heads, *_ = CASES[name]
    given = {"dropout": 0.25, "seed": 2**40 + 11}
    found, tokens = distributed(name, world, rank, device, **given)
    *qkv, dout = inputs(heads, device)
    alone = with_gradients(lambda *x: weft.attention(*x, pattern, **given), qkv, dout)
    for what, mine, one in zip(("out", "dq", "dk", "dv"), found, alone, strict=True):
        far = (mine.double() - one[:, :, tokens].double()).abs().max().item()
        assert far <= 2.0**-6 * one.double().abs().max().item(), f"{name}: {what} is off by {far}"


def check_compiled(rank, world, device):
    """Under torch.compile."""
    pattern, heads, *_ = CASES["window"]
    size = LENGTH // world
    *qkv, dout = (x[:, :, rank * size : (rank + 1) * size] for x in inputs(heads, device))

    def layer(q, k, v):
        return attention(q * 0.5, k, v, pattern) * 2.0

    backend = "inductor" if device.type == "cuda" else "aot_eager"
    found = with_gradients(torch.compile(layer, backend=backend), qkv, dout)
    for x, y in zip(found, with_gradients(layer, qkv, dout), strict=True):
        torch.testing.assert_close(x, y, rtol=2e-2, atol=2e-2)


def check_graph(rank, world, device):
    """A captured layer computes on what its tensors hold at each replay; a first call in a capture is refused."""
    pattern, heads, *_ = CASES["window"]
    size = LENGTH // world
    *qkv, dout = (x[:, :, rank * size : (rank + 1) * size].contiguous() for x in inputs(heads, device))
    leaves = [x.requires_grad_() for x in qkv]

    def call(mask=pattern):
        out = attention(*leaves, mask, deterministic=True)
        return out, *torch.autograd.grad(out, leaves, dout)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    dist.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        kept = call()
    with torch.no_grad():
        for x in leaves:
            x.mul_(-0.5)
    graph.replay()
    torch.cuda.synchronize()
    kept = [x.clone() for x in kept]
    for x, y in zip(kept, call(), strict=True):
        assert torch.equal(x, y)
    del graph
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local"):
            call(causal() & window(left=77))
    except WeftError as error:
        assert "captured" in str(error), str(error)
    else:
        raise AssertionError("a first call was captured")
    torch.cuda.synchronize()


# ---- a rank that is killed -------------------------------------------------------------------------------------------
def die(rank, world, folder, backend):
    """Rank 1 is killed between two calls; the others print what c10d raises. Who waits for longer prints where."""
    faulthandler.dump_traceback_later(STARTED, exit=True)
    os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"  # errors are raised where they are waited for
    device = join(rank, world, folder, backend, 60)
    q = torch.randn(1, 2, 512, D).to(torch.bfloat16).to(device)
    attention(q, q, q, causal() & window(left=100)).sum().item()  # kernels are compiled, which may take its time
    short = dist.new_group(timeout=timedelta(seconds=TIMEOUT))
    attention(q, q, q, causal() & window(left=100), group=short).sum().item()
    dist.barrier()
    faulthandler.dump_traceback_later(4 * TIMEOUT, exit=True)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    begun = time.monotonic()
    try:
        while time.monotonic() - begun < 3 * TIMEOUT:
            attention(q, q, q, causal() & window(left=100), group=short).sum().item()
    except RuntimeError as error:  # of which those of c10d are
        print(f"RAISED {type(error).__name__} after {time.monotonic() - begun:.1f} s: {error}", flush=True)
        os._exit(3)
    os._exit(0)


if __name__ == "__main__":
    die(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
