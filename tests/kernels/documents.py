"""Packed documents for tests: drawn tensors, and attention by dense tensors, by sums on the device and by pages."""

import numpy as np
import torch
from tests.gpu.test_oracle_documents import sums

from weft.testing.tolerance import assert_close
from weft.torch import device_documents

from . import dense
from .compare import BACKENDS

DEVICE = torch.device(BACKENDS.get("triton", "cpu"))
if DEVICE.type == "cuda":
    DEVICE = torch.device("cuda", torch.cuda.current_device())
NAMES = ("out", "lse", "dq", "dk", "dv", "dsinks")


def tensors_of(lengths, dtype=torch.float32, heads=(4, 2), dims=(16, 16), seed=0):
    """q, k, v (T, H, D), gradients of out and lse, sinks."""
    random = torch.Generator().manual_seed(seed)
    m, n = map(sum, lengths)
    shapes = ((m, heads[0], dims[0]), (n, heads[1], dims[0]), (n, heads[1], dims[1]), (m, heads[0], dims[1]))
    found = [torch.randn(shape, generator=random, dtype=torch.float64).to(dtype) for shape in shapes]
    lse = torch.randn((m, heads[0]), generator=random, dtype=torch.float64).float()
    return [*found, lse, torch.linspace(-1, 1, heads[0])]


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
    out, lse = device_documents.attention(tuple(views), counted, pattern, rows, chosen)
    out, lse = out[0], lse[0].transpose(0, 1)
    grads = torch.autograd.grad((out, lse), leaves, (dout, dlse))
    return {name: x.detach().cpu() for name, x in zip(NAMES, (out, lse, *grads), strict=False)}


def check(lengths, pattern, options=None, same=False, dtype=torch.float32, **how):
    options = options or {}
    tensors = tensors_of(lengths, dtype, dims=how.pop("dims", (16, 16)))
    truth, plain = (by_dense(lengths, tensors, pattern, options, one) for one in (torch.float64, dtype))
    for name, x in by_device(lengths, tensors, pattern, options, same, **how).items():
        assert_close(name, x, truth[name], plain[name])


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
    return {"out": out[0].cpu(), "lse": lse[0].transpose(0, 1).cpu()}
