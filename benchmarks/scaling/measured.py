"""What one rank of a group measures: layers by each strategy, models, exchanges."""

from __future__ import annotations

import argparse
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

import weft
from scaling import methods
from scaling.layers import Layer, layers
from scaling.models import Block, Sizes, train
from scaling.profile import profiled
from scaling.timing import Counted, Rows, timed
from weft import causal, window
from weft.distributed import STRATEGIES, Link
from weft.distributed.model import cost_of
from weft.distributed.plan import Plan
from weft.errors import OptionError
from weft.torch.distributed.exchange import sent, unpacked

CALLS = 4  # of a layer, one after the other
Inputs = tuple[list[Tensor], Tensor]


# ---- one layer -------------------------------------------------------------------------------------------------------
def drawn(layer: Layer, tokens: int, device: torch.device) -> Inputs:
    """q, k, v and the gradient of out, the same on every rank."""
    generator = torch.Generator(device).manual_seed(0)
    counts = (layer.heads[0], layer.heads[1], layer.heads[1], layer.heads[0])
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    *qkv, dout = (torch.randn((1, n, tokens, layer.dim), generator=generator, device=device).to(dtype) for n in counts)
    return [x.requires_grad_() for x in qkv], dout


def gradients(call: methods.Call, inputs: Inputs) -> tuple[Tensor, ...]:
    qkv, dout = inputs
    out = call(*qkv)
    return out.detach(), *torch.autograd.grad(out, qkv, dout)


def forward(call: methods.Call, inputs: Inputs) -> Tensor:
    with torch.no_grad():
        return call(*inputs[0])


def strategies_of(layer: Layer, ranks: int) -> Iterator[str]:
    """The chosen one first."""
    chosen = methods.plan_of(layer, ranks).strategy
    for strategy in (chosen, *(x for x in STRATEGIES if x != chosen)):
        try:
            methods.plan_of(layer, ranks, strategy)
        except OptionError:
            continue
        yield strategy


def flex_call(
    layer: Layer, ranks: int, rank: int, device: torch.device, model: bool = False
) -> tuple[methods.Call, Plan]:  # fmt: skip
    """FlexAttention of a rank's rows over all keys, and who holds which. model: causal work as PyTorch has it."""
    zigzag = layer.shards == "zigzag" or (model and layer.name.startswith("gemma"))
    plan = methods.plan_of(layer, ranks, shards="zigzag" if zigzag else "contiguous")
    held = [tokens.array() for tokens in plan.shards.tokens]
    return methods.flex_of(plan.pattern, plan.shards.size, held[rank], np.concatenate(held), device), plan


class Measured:
    """What one rank of a group measures."""

    def __init__(self, rank: int, ranks: int, device: torch.device, given: argparse.Namespace) -> None:
        self.rank, self.ranks, self.device, self.given = rank, ranks, device, given
        self.told = dist.new_group(backend="gloo", timeout=timedelta(seconds=60))
        self.rows = Rows(given.out, rank)
        self.link = Link()
        self.alone: dict[str, dict[str, float]] = {}  # milliseconds of one GPU, by layer

    def there_is_time(self, seconds: float) -> bool:
        said = [time.time() + seconds < self.given.end]
        dist.broadcast_object_list(said, 0, group=self.told)
        return said[0]

    def run(self, task: Callable[[], None], name: str, seconds: float) -> None:
        """A task that all ranks begin together, if there is time for it."""
        if not self.there_is_time(seconds):
            if self.rank == 0:
                print(f"left out for want of time: {name}", flush=True)
            return
        try:
            task()
        except Exception:
            print(f"rank {self.rank}: {name}", flush=True)
            traceback.print_exc()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        dist.barrier(group=self.told)

    def time(self, call: Callable[[], Any], rounds: int = 5, calls: int = CALLS) -> float:
        return timed(call, self.device, self.told, *((1, 1) if self.given.small else (rounds, 2, calls)))

    # ---- the model
    def exchange(self) -> None:
        """Bandwidth and latency of all_to_all_single, and of an exchange as layers have it: packed, sent, put together.

        The link is fitted to the latter: a line through two sizes, and at least what the smallest takes.
        """
        found = []
        for power in (16, 20, 23, 26, 29):
            size = 1 << (power if self.device.type == "cuda" else power - 8)
            nbytes = size * (self.ranks - 1)
            flat = torch.zeros(size * self.ranks // 2, dtype=torch.bfloat16, device=self.device)
            came = torch.empty_like(flat)
            ms = self.time(lambda flat=flat, came=came: dist.all_to_all_single(came, flat), rounds=15)
            self.rows.add(kind="exchange", layer="all_to_all_single", ranks=self.ranks, ms=ms, bytes_counted=nbytes)
            blocks = [[x.view(1, 4, -1, 32)] for x in flat.chunk(self.ranks)]
            ms = self.time(lambda blocks=blocks: _exchanged(blocks), rounds=15)
            self.rows.add(kind="exchange", layer="packed", ranks=self.ranks, ms=ms, bytes_counted=nbytes)
            found.append((nbytes, ms / 1e3))
        (low, least), (high, most) = found[2], found[-1]
        bandwidth = (high - low) / (most - least)
        latency = min(seconds - nbytes / bandwidth for nbytes, seconds in found[:3]) / np.ceil(np.log2(self.ranks))
        self.link = Link(inside=bandwidth, latency=max(1e-7, latency))
        note = f"{bandwidth / 1e9:.0f} GB/s, latency {self.link.latency * 1e6:.1f} us"
        self.rows.add(kind="link", layer="refitted", ranks=self.ranks, note=note)

    def predicted(self, name: str, plan: Plan, which: str) -> float:
        """Milliseconds: one GPU's time for its tokens by the work of the rank that has most, and then the exchange."""
        layer = layers(self.given.small)[name]
        pairs, alone = layer.pattern(1).acsr(layer.tokens(1)).nnz, self.alone[name][which]
        one = plan.chosen
        phases = 1 + (one.strategy != "halo")
        exchange = cost_of(one.received, one.work * 0, plan.heads, self.link, phases).exchange * 1e3
        return alone * float(one.work.max()) / pairs + exchange * (2 if which == "both" else 1)

    # ---- layers
    def layer(self, name: str) -> None:
        """The chosen strategy, beside one GPU with its share of the tokens."""
        layer = layers(self.given.small)[name]
        inputs = drawn(layer, layer.tokens(1), self.device)
        self.alone[name] = {
            which: self.time(lambda f=f: f(lambda *x: weft.attention(*x, layer.pattern(1)), inputs))
            for which, f in (("forward", forward), ("both", gradients))
        }
        inputs = None
        plan = methods.plan_of(layer, self.ranks)
        way = f"weft, chosen: {plan.strategy}", methods.by_weft(plan)
        self.method(name, layer, way, plan, check=True)

    def others(self, name: str) -> None:
        """Every other strategy."""
        layer = layers(self.given.small)[name]
        for strategy in list(strategies_of(layer, self.ranks))[1:]:
            plan = methods.plan_of(layer, self.ranks, strategy)
            self.method(name, layer, (f"weft {strategy}", methods.by_weft(plan)), plan, check=False)

    def method(self, name: str, layer: Layer, way: tuple[str, methods.Call], plan: Plan, check: bool) -> None:
        said, call = way
        ours = said.startswith("weft")
        tokens = torch.as_tensor(plan.shards.tokens[self.rank].array(), device=self.device)
        whole, dout = drawn(layer, layer.tokens(self.ranks), self.device)
        inputs = [x.detach()[:, :, tokens].requires_grad_() for x in whole], dout[:, :, tokens]
        note, off = "", ""
        with Counted() as received:
            forward(call, inputs)
        if check:
            found = gradients(call, inputs)
            right = gradients(lambda *x: weft.attention(*x, plan.pattern), (whole, dout))
            off = [_off(x, y[:, :, tokens]) for x, y in zip(found, right, strict=True)]
            right = found = None
        every: list[Any] = [None] * self.ranks
        dist.all_gather_object(every, (sum(received), off), group=self.told)
        off = max(max(x) for _, x in every) if check else ""
        if check and off > 0.02:
            note = f"out, dq, dk, dv off by {[[f'{y:.2g}' for y in x] for _, x in every]}"
        whole = dout = None
        shared = {
            "kind": "layer", "layer": f"{name} {layer.name}", "ranks": self.ranks, "tokens": layer.tokens(self.ranks),
            "method": said, "shards": str(plan.shards).split(",")[0], "off": off, "note": note,
        }  # fmt: skip
        if ours:
            shared |= {
                "bytes_counted": max(x for x, _ in every), "bytes_planned": plan.chosen.most_bytes,
                "peers": plan.chosen.most_peers, "imbalance": plan.imbalance,
            }  # fmt: skip
        for which, f in (("forward", forward), ("both", gradients)):
            ms = self.time(lambda f=f: f(call, inputs))
            predicted = self.predicted(name, plan, which) if ours else ""
            alone = self.alone[name][which] if layer.scales and ours else ""
            self.rows.add(**shared, direction=which, ms=ms, one_gpu_ms=alone, predicted_ms=predicted)

    def flex(self, name: str) -> None:
        """All-gather and Ulysses with FlexAttention."""
        torch._dynamo.reset()  # each mask is a function of its own, of which dynamo compiles eight
        layer = layers(self.given.small)[name]
        inner, plan = flex_call(layer, self.ranks, self.rank, self.device)
        call = methods.gathered(inner)
        self.method(name, layer, ("all-gather, FlexAttention", call), plan, check=True)
        if layer.shards == "zigzag":
            return
        order = np.arange(layer.tokens(self.ranks))
        inner = methods.flex_of(plan.pattern, order.size, order, order, self.device)
        whole = methods.by_heads_of(inner)
        self.method(name, layer, ("Ulysses, FlexAttention", whole), plan, check=True)

    def beside_all_gather(self, name: str) -> None:
        """Wall times of the chosen strategy and of all-gather in turn."""
        layer = gloo_layers()[name]
        plans = {one: methods.plan_of(layer, self.ranks, one) for one in (None, "all-gather")}
        inputs = drawn(layer, layer.tokens(self.ranks) // self.ranks, self.device)
        for which, f in (("forward", forward), ("both", gradients)):
            found: dict[Any, list[float]] = {one: [] for one in plans}
            for _ in range(5):
                for one, plan in plans.items():
                    call = methods.by_weft(plan)
                    found[one].append(timed(lambda f=f, call=call: f(call, inputs), self.device, self.told, 1, 1))
            for one, plan in plans.items():
                with Counted() as received:
                    forward(methods.by_weft(plan), inputs)
                every: list[Any] = [None] * self.ranks
                dist.all_gather_object(every, sum(received), group=self.told)
                self.rows.add(
                    kind="gloo", layer=name, ranks=self.ranks, tokens=layer.tokens(self.ranks), direction=which,
                    method=f"weft {plan.strategy}", shards=str(plan.shards).split(",")[0], ms=median(found[one]),
                    bytes_counted=max(every), bytes_planned=plan.chosen.most_bytes, peers=plan.chosen.most_peers,
                )  # fmt: skip

    # ---- models
    def model(self, which: str, method: str) -> None:
        """Milliseconds of a training step."""
        found = [x for x in model_layers(self.ranks, self.given.small) if x.name.startswith(which)]
        sizes = model_sizes(found[0], self.given.small)
        calls, plan = [], None
        torch._dynamo.reset()
        for layer in found:
            if method == "weft":
                plan = methods.plan_of(layer, self.ranks)
                calls.append(methods.by_weft(plan))
            else:
                inner, plan = flex_call(layer, self.ranks, self.rank, self.device, model=True)
                calls.append(methods.gathered(inner))
        dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        blocks = [
            Block(sizes, calls[0 if (i + 1) % 6 else -1]).to(self.device, dtype)
            for i in range(6 if which == "gemma" else 1)
        ]
        tokens = found[0].tokens(self.ranks)
        x = torch.randn(1, tokens // self.ranks, sizes.hidden, device=self.device).to(dtype)
        ms = self.time(train(blocks, x), rounds=3, calls=1)
        self.rows.add(
            kind="step", layer=f"{which}-like, {len(blocks)} layers", ranks=self.ranks, tokens=tokens,
            method="weft" if method == "weft" else "all-gather, FlexAttention", direction="both", ms=ms,
            shards=str(plan.shards).split(",")[0],
        )  # fmt: skip

    def pictured(self) -> None:
        """Kernels and exchanges of each rank, side by side, a file for each of some layers."""
        for name in (name for name in ("h", "a", "f", "i") if name in self.given.layers):
            layer = layers(self.given.small)[name]
            plan = methods.plan_of(layer, self.ranks, "halo")
            inputs = drawn(layer, len(plan.shards.tokens[self.rank]), self.device)
            call, path = methods.by_weft(plan), self.given.profile
            profiled(lambda: gradients(call, inputs), path.with_stem(f"{path.stem}-{name}"), self.rank)  # noqa: B023


def _exchanged(blocks: list[list[Tensor]]) -> Tensor:
    """Blocks of each rank, packed and sent; what comes is put together."""
    shapes = [[x.shape for x in peer] for peer in blocks]
    came = unpacked(sent(blocks, shapes, dist.group.WORLD).arrived(), shapes)
    return torch.cat([x for (x,) in came], dim=2)


def _off(x: Tensor, y: Tensor) -> float:
    return float((x.float() - y.float()).abs().max() / y.float().abs().max())


def gloo_layers() -> dict[str, Layer]:
    """What four processes on CPUs compute, in float32."""
    line = Layer("window 128", lambda _: causal() & window(left=127), lambda _: (16384,), (8, 8), 64, dtype="float32")
    grid = Layer(
        "2-D 9x9", lambda _: weft.neighborhood((128, 128), 9), lambda _: (128, 128), (8, 8), 64, "boxes", "float32"
    )
    return {line.name: line, grid.name: grid}


def model_layers(ranks: int, small: bool = False) -> list[Layer]:
    """Attention of the models, at 131,072 tokens in all whatever the ranks."""
    tokens, near = (4096, 64) if small else (131072, 1024)
    heads, dim = ((8, 4), 32) if small else ((16, 8), 128)
    grid, size = ((8, 16, 16), (3, 5, 5)) if small else ((32, 64, 64), (18, 24, 24))
    return [
        Layer("gemma window", lambda _: causal() & window(left=near - 1), lambda _: (tokens,), heads, dim),
        Layer("gemma global", lambda _: causal(), lambda _: (tokens,), heads, dim),
        Layer("video", lambda _: weft.neighborhood(grid, size), lambda _: grid, (heads[0] * 3 // 2,) * 2, dim, "boxes"),
    ]


def model_sizes(layer: Layer, small: bool) -> Sizes:
    hidden = 64 if small else (2560 if layer.name.startswith("gemma") else 3072)
    return Sizes(hidden, 4 * hidden, layer.heads, layer.dim)
