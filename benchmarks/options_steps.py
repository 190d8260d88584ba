"""Steps of decoding in CUDA graphs, beside torch's own attention on the live keys; what finding a mask again costs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from math import ceil
from typing import Any

import torch
from graph_time import microseconds
from torch import Tensor

import weft

HEADS, KV_HEADS, D, PAGE, WINDOW = 32, 8, 128, 64, 4096
CACHED = 256 << 20  # bytes of keys that a graph goes through, so that none finds its keys in L2
Row = dict[str, Any]


def steps(device: str, small: bool) -> Iterator[Row]:
    """A row for each way of each step: contiguous keys, pages, and SDPA, by flash and as torch chooses."""
    batches, lengths = ((1, 2), (256, 512)) if small else ((1, 32, 256), (8192, 65536))
    for batch in batches:
        for keys in lengths:
            yield from _steps(device, batch, keys, 64 if small else WINDOW)


class Pools:
    """Caches of one size: (P, page, Hkv, D) each for keys and values, which are also (B, keys, Hkv, D) in order."""

    def __init__(self, device: str, batch: int, keys: int) -> None:
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        self.batch, self.keys, self.device = batch, keys, device
        copies = max(1, ceil(CACHED / (4 * batch * keys * KV_HEADS * D))) if device == "cuda" else 1
        self.copies = copies
        shape = (copies, 2, batch * keys, KV_HEADS, D)
        self.memory = torch.empty(shape, device=device, dtype=dtype).normal_()
        self.q = torch.randn(batch, HEADS, 1, D, device=device, dtype=dtype)
        self.count = torch.full((batch,), keys, dtype=torch.int32, device=device)
        order = torch.randperm(batch * keys // PAGE, generator=torch.Generator().manual_seed(0))
        self.order = order.to(device)
        self.table = order.view(batch, -1).to(device=device, dtype=torch.int32)

    def rows(self, copy: int) -> list[Tensor]:
        """k, v (B, Hkv, keys, D), tokens before heads in memory, as flash-attn's caches."""
        return [x.view(self.batch, self.keys, KV_HEADS, D).transpose(1, 2) for x in self.memory[copy]]

    def pages(self, copy: int) -> list[Tensor]:
        """k, v (P, Hkv, page, D): the same memory, whose pages the table takes in another order."""
        return [x.view(-1, PAGE, KV_HEADS, D).transpose(1, 2) for x in self.memory[copy]]


def _steps(device: str, batch: int, keys: int, window: int) -> Iterator[Row]:
    pools = Pools(device, batch, keys)
    for reach in (None, window):
        mask = weft.causal(align="bottom-right")
        if reach is not None:
            mask = mask & weft.window(left=reach - 1, align="bottom-right")
        name = f"decode batch {batch}, {keys} keys, {'no window' if reach is None else f'window {reach}'}"
        took: dict[str, float] = {}
        for who, call in _ways(pools, mask, reach, device):
            row = {"table": name, "who": who, "direction": "fwd", "beside": "sdpa"}
            try:
                if who != "weft, pages":
                    row["error"] = f"{_off(pools, call(0), keys if reach is None else min(reach, keys)):.2g}"
                else:
                    row["error"] = f"{_off_pages(pools, call(0), mask):.2g}"
                calls = [partial(call, copy) for copy in range(pools.copies)]
                took[who] = microseconds(calls) if device == "cuda" else _on_host(calls)
                row |= {"us": round(took[who], 2), "ratio": round(took[who] / took["sdpa"], 4)}
                if who == "weft, pages":
                    row |= {"message": f"{took[who] / took['weft']:.3f} of weft without pages"}
            except Exception as failed:
                row["message"] = f"{type(failed).__name__}: {failed}".replace("\n", " ")[:300]
            yield row


def _ways(pools: Pools, mask: Any, reach: int | None, device: str) -> Iterator[tuple[str, Callable[[int], Tensor]]]:
    first = 0 if reach is None else max(0, pools.keys - reach)

    def of_torch(copy: int) -> Tensor:
        k, v = (x[:, :, first:] for x in pools.rows(copy))
        return torch.nn.functional.scaled_dot_product_attention(pools.q, k, v, enable_gqa=True)

    def by_flash(copy: int) -> Tensor:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return of_torch(copy)

    def ours(copy: int) -> Any:
        return weft.decode_attention(pools.q, *pools.rows(copy), mask, pools.count)

    def paged(copy: int) -> Any:
        return weft.decode_attention(pools.q, *pools.pages(copy), mask, pools.count, block_table=pools.table)

    yield "sdpa", of_torch
    if device == "cuda":
        yield "sdpa, flash", by_flash
    yield "weft", ours
    yield "weft, pages", paged


def _off(pools: Pools, found: Tensor, live: int) -> float:
    """How far one head of the first row is off, as a part of its largest number."""
    k, v = (x[0, 0, pools.keys - live :].double() for x in pools.rows(0))
    return _compared(pools, found, k, v)


def _off_pages(pools: Pools, found: Tensor, mask: Any) -> float:
    seen = torch.from_numpy(mask.to_dense(1, pools.keys)[0]).to(pools.device)
    k, v = (x[pools.table[0].long(), 0].flatten(0, 1)[seen].double() for x in pools.pages(0))
    return _compared(pools, found, k, v)


def _compared(pools: Pools, found: Tensor, k: Tensor, v: Tensor) -> float:
    truth = (pools.q[0, 0].double() @ k.T * D**-0.5).softmax(-1) @ v
    return float((found[0, 0].double() - truth).abs().max() / truth.abs().max())


def _on_host(calls: list[Callable[[], Any]]) -> float:
    begin = time.perf_counter()
    for call in calls:
        call()
    return 1e6 * (time.perf_counter() - begin) / len(calls)


# ---- masks that are found again --------------------------------------------------------------------------------------
def cache_hits(device: str) -> Iterator[Row]:
    """The host's time of a warm call whose mask is a pattern, a function, a tensor: at most 10 us more is allowed."""
    n = 256
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    q, k, v = (torch.randn(1, 2, n, 64, device=device, dtype=dtype) for _ in range(3))
    pattern = weft.causal() & weft.window(left=31)
    dense = torch.from_numpy(pattern.to_dense(n, n)).to(device)
    reach = 31

    def function(q: Any, k: Any) -> Any:
        return (k <= q) & (q - k <= reach)

    def mod(b: Any, h: Any, q: Any, k: Any) -> Any:
        return (k <= q) & (q - k <= reach)

    masks: dict[str, Any] = {"pattern": pattern, "function": function, "function of b, h, q, k": mod, "tensor": dense}
    calls = {name: lambda mask=mask: weft.attention(q, k, v, mask) for name, mask in masks.items()}
    found: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(7):
        for name, call in calls.items():
            found[name].append(_host(call, device))
    least = {name: min(times) for name, times in found.items()}
    for name, took in least.items():
        more = took - least["pattern"]
        yield {
            "table": "a mask that is found again", "who": name, "direction": "host", "us": round(took, 2),
            "beside": "pattern", "ratio": round(took / least["pattern"], 4), "message": f"{more:+.1f} us",
        }  # fmt: skip


def _host(call: Callable[[], Any], device: str) -> float:
    count = 100
    begin = time.perf_counter()
    for _ in range(count):
        call()
    end = time.perf_counter()
    if device == "cuda":
        torch.cuda.synchronize()
    return 1e6 * (end - begin) / count
