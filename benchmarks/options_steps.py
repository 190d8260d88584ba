"""Steps of decoding in CUDA graphs, beside torch's own attention on the live keys; what finding a mask again costs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import ceil
from typing import Any

import torch
from graph_time import microseconds
from torch import Tensor

import weft

HEADS, KV_HEADS, D, PAGE, WINDOW = 32, 8, 128, 64, 4096
CACHED = 256 << 20  # bytes of keys that a graph goes through, so that none finds its keys in L2
OURS, PAGED = "weft", "weft, pages"
Row = dict[str, Any]


def steps(device: str, small: bool) -> Iterator[Row]:
    """A row for each way of each step: contiguous keys, pages, and SDPA, by flash and as torch chooses."""
    batches, lengths, window = ((1, 2), (256, 512), 64) if small else ((1, 32, 256), (8192, 65536), WINDOW)
    for batch in batches:
        for keys in lengths:
            for reach in (None, window):
                yield from Problem(device, batch, keys, reach).rows(("sdpa", "sdpa, flash", OURS, PAGED))


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


class Problem:
    """Keys and queries of one size. took: microseconds by who took them."""

    def __init__(self, device: str, batch: int, keys: int, window: int | None) -> None:
        self.device, self.pools = device, Pools(device, batch, keys)
        self.live = keys if window is None else min(window, keys)
        mask = weft.causal(align="bottom-right")
        self.mask = mask if window is None else mask & weft.window(left=window - 1, align="bottom-right")
        self.name = f"decode batch {batch}, {keys} keys, {'no window' if window is None else f'window {window}'}"
        self.took: dict[str, float] = {}

    def rows(self, names: Sequence[str], beside: str = "") -> Iterator[Row]:
        """A row of each of these ways. beside: what is said of them."""
        for name, call in self._ways():
            if name in names:
                yield self._row(name, f"{name}, {beside}" if beside else name, call)

    def _row(self, name: str, who: str, call: Callable[[int], Tensor]) -> Row:
        row: Row = {"table": self.name, "who": who, "direction": "fwd", "beside": "sdpa"}
        try:
            off = self._off_in_pages if name == PAGED else self._off
            row["error"] = f"{off(call(0)):.2g}"
            calls = [partial(call, copy) for copy in range(self.pools.copies)]
            took = self.took[who] = microseconds(calls) if self.device == "cuda" else _on_host(calls)
            row |= {"us": round(took, 2), "ratio": round(took / self.took["sdpa"], 4)}
            if who != OURS and OURS in self.took:
                row["message"] = f"{took / self.took[OURS]:.3f} of {OURS}"
        except Exception as failed:
            row["message"] = f"{type(failed).__name__}: {failed}".replace("\n", " ")[:300]
        return row

    def _ways(self) -> Iterator[tuple[str, Callable[[int], Tensor]]]:
        pools, first = self.pools, self.pools.keys - self.live

        def of_torch(copy: int) -> Tensor:
            k, v = (x[:, :, first:] for x in pools.rows(copy))
            return torch.nn.functional.scaled_dot_product_attention(pools.q, k, v, enable_gqa=True)

        def by_flash(copy: int) -> Tensor:
            from torch.nn.attention import SDPBackend, sdpa_kernel

            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                return of_torch(copy)

        def ours(copy: int) -> Any:
            return weft.decode_attention(pools.q, *pools.rows(copy), self.mask, pools.count)

        def paged(copy: int) -> Any:
            return weft.decode_attention(pools.q, *pools.pages(copy), self.mask, pools.count, block_table=pools.table)

        yield "sdpa", of_torch
        if self.device == "cuda":
            yield "sdpa, flash", by_flash
        yield OURS, ours
        yield PAGED, paged

    def _off(self, found: Tensor) -> float:
        """How far one head of the first row is off, as a part of its largest number."""
        k, v = (x[0, 0, self.pools.keys - self.live :].double() for x in self.pools.rows(0))
        return _compared(self.pools, found, k, v)

    def _off_in_pages(self, found: Tensor) -> float:
        pools = self.pools
        seen = torch.from_numpy(self.mask.to_dense(1, pools.keys)[0]).to(pools.device)
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
