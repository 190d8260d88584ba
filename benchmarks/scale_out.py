"""Attention over all GPUs of this host: weft's plans, its other strategies, and context parallelism by all-gather.

    python benchmarks/scale_out.py [--out FILE.csv] [--seconds N] [--layers a h ...] [--profile FILE.csv]
    python benchmarks/scale_out.py --one-card [--ranks 8] [--out FILE.csv] [--seconds N]
    python benchmarks/scale_out.py --small
    python benchmarks/scale_out.py --gloo [--out FILE.csv]
    python benchmarks/scale_out.py --plans [--out FILE.csv]

It starts its own processes, one for each GPU (NCCL), and one for each layer before them, which compile kernels. Each
row is written when it is measured; what does not fit into the seconds is left out, and said. Tokens grow with the
ranks: `one_gpu_ms` is one GPU with its share of them. predicted_ms: one GPU's time by the planned work of the rank
that has most, and the exchange by the planned bytes at the bandwidth and latency that were measured before. off: the
largest difference to the whole sequence on one GPU, by the largest number there. --one-card: what each of several ranks
computes, one after the other, without any exchange. --small: two gloo processes on the CPU, at small sizes. --gloo:
four, which compute a window and a neighbourhood of 16,384 tokens, beside all-gather. --plans: milliseconds of a
processor for planning each layer at some 2^20 tokens over 64 ranks; it needs no GPU.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from graph_time import microseconds
from scaling import methods
from scaling.layers import Layer, fixed, layers
from scaling.measured import (
    Inputs,
    Measured,
    drawn,
    flex_call,
    forward,
    gloo_layers,
    gradients,
    model_layers,
    strategies_of,
)
from scaling.timing import Arrived, Rows, sync, timed

import weft

WARM = 240  # seconds at most for processes that do nothing but compile
FLEX = ("a", "h", "f")  # layers that FlexAttention computes too


def main() -> None:
    given = arguments()
    if given.worker:
        return warm_worker(given)
    given.end = time.time() + given.seconds
    if given.plans:
        return plans(given)
    if given.one_card:
        return one_card(given)
    given.small |= given.gloo
    cuda = torch.cuda.is_available() and not given.small
    ranks = torch.cuda.device_count() if cuda else 4 if given.gloo else min(given.ranks, 4)
    if cuda and not given.compiled:
        warm(given, ranks)
    if given.compile:
        return None
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(begin, (ranks, folder, given), nprocs=ranks)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=140.0)
    parser.add_argument("--layers", nargs="+", default=[*layers(), "models"], help="letters, and models")
    parser.add_argument("--profile", type=Path)
    parser.add_argument("--one-card", action="store_true")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--gloo", action="store_true")
    parser.add_argument("--plans", action="store_true")
    parser.add_argument("--compile", action="store_true", help="only compile")
    parser.add_argument("--compiled", action="store_true", help="compile nothing beforehand")
    parser.add_argument("--worker", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


# ---- kernels are compiled before ranks begin -------------------------------------------------------------------------
def warm(given: argparse.Namespace, ranks: int) -> None:
    """Compile what ranks will run, a process for each layer, so that they find it on disk."""
    begun = time.time()
    names = [name for name in given.layers if name != "models" or not given.one_card]
    if not given.one_card:
        flex = [name for name in (*FLEX, "models") if name in given.layers]
        names += [f"flex{rank}:{name}" for rank in range(ranks) for name in flex]
    alone = ["--one-card"] if given.one_card else []
    started = [
        subprocess.Popen([sys.executable, __file__, "--worker", name, "--ranks", str(ranks), *alone],
                         env={**os.environ, "CUDA_VISIBLE_DEVICES": str(i % torch.cuda.device_count())})
        for i, name in enumerate(names)
    ]  # fmt: skip
    limit = begun + (WARM if given.compile else 45)
    for process in started:
        try:
            process.wait(max(0.0, limit - time.time()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    print(f"compiled in {time.time() - begun:.0f} s", flush=True)


def warm_worker(given: argparse.Namespace) -> None:
    """One layer's calls, once, forward and backward."""
    device = torch.device("cuda", 0)
    flex, _, name = given.worker.rpartition(":")
    found = [layers()[name]] if name != "models" else model_layers(given.ranks)
    for layer in [fixed(x, name) for x in found] if given.one_card else found:
        inputs = drawn(layer, layer.tokens(given.ranks) // given.ranks, device)
        if flex:
            warm_flex(layer, given.ranks, int(flex.removeprefix("flex")), device, inputs)
            continue
        if given.one_card or layer.tokens(1) < layer.tokens(given.ranks):
            one = drawn(layer, layer.tokens(1), device)
            gradients(lambda *x, layer=layer: weft.attention(*x, layer.pattern(1)), one)
        for strategy in list(strategies_of(layer, given.ranks))[: 1 if given.one_card else None]:
            plan = methods.plan_of(layer, given.ranks, strategy)
            for rank in range(given.ranks if strategy != "ulysses" else 1):
                with Arrived():
                    mine = drawn(layer, len(plan.shards.tokens[rank]), device)
                    gradients(methods.as_rank(plan, rank), mine)


def warm_flex(layer: Layer, ranks: int, rank: int, device: torch.device, inputs: Inputs) -> None:
    """FlexAttention under all-gather, over keys that are there, and under Ulysses."""
    model = layer.name.startswith(("gemma", "video"))
    inner, plan = flex_call(layer, ranks, rank, device, model)
    gradients(lambda q, k, v: inner(q, torch.cat([k] * ranks, 2), torch.cat([v] * ranks, 2)), inputs)
    if not model and not rank:
        order = np.arange(plan.shards.size)
        inner = methods.flex_of(plan.pattern, order.size, order, order, device)
        some = replace(layer, heads=(layer.heads[0] // ranks, layer.heads[1] // ranks))
        gradients(inner, drawn(some, plan.shards.size, device))


# ---- ranks -----------------------------------------------------------------------------------------------------------
def begin(rank: int, ranks: int, folder: str, given: argparse.Namespace) -> None:
    cuda = torch.cuda.is_available() and not given.small
    device = torch.device("cuda", rank) if cuda else torch.device("cpu")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if cuda:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    dist.init_process_group(
        "nccl" if cuda else "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=ranks,
        timeout=timedelta(seconds=60), **({"device_id": device} if cuda else {}),
    )  # fmt: skip
    at = Measured(rank, ranks, device, given)
    for name, task, seconds in tasks(at, given):
        at.run(task, name, seconds)
    dist.destroy_process_group()


def tasks(at: Measured, given: argparse.Namespace) -> Iterator[tuple[str, Callable[[], None], float]]:
    """What is measured, most important first, with the seconds that it takes."""
    if given.gloo:
        for name in gloo_layers():
            yield name, lambda name=name: at.beside_all_gather(name), 1
        return
    yield "exchange", at.exchange, 2
    first = [("layer", "a"), ("flex", "a"), ("gemma", "weft"), ("gemma", "flex"), ("layer", "g"), ("layer", "f"),
             ("layer", "h"), ("layer", "i"), ("video", "weft"), ("video", "flex"), ("profile", "")]  # fmt: skip
    then = [("others", "a"), *(("layer", name) for name in "bdejck"), ("flex", "h"), ("others", "i"), ("others", "c"),
            ("others", "h"), ("flex", "f")]  # fmt: skip
    for what, name in first + then:
        if what in ("gemma", "video"):
            if "models" in given.layers:
                yield f"{what} {name}", lambda w=what, m=name: at.model(w, m), 8
        elif what == "profile":
            if given.profile:
                yield what, at.pictured, 4
        elif name in given.layers:
            yield f"{what} {name}", lambda w=what, name=name: getattr(at, w)(name), 6 if what == "flex" else 4


# ---- plans -----------------------------------------------------------------------------------------------------------
def plans(given: argparse.Namespace) -> None:
    """Each layer is planned for 64 ranks, the best of five; time of the processor."""
    rows = Rows(given.out, 0)
    for name, layer in layers().items():
        if name not in given.layers:
            continue
        many = max(1, (1 << 20) // layer.tokens(1))
        pattern, tokens, found = layer.pattern(many), layer.tokens(many), []
        for _ in range(5):
            begun = time.process_time()
            plan = weft.distributed.plan(
                pattern, tokens, heads=layer.heads, head_dim=layer.dim, dtype=layer.dtype, ranks=64, shards=layer.shards
            )
            found.append((time.process_time() - begun) * 1e3)
        rows.add(
            kind="plan", layer=f"{name} {layer.name}", ranks=64, tokens=tokens, ms=min(found),
            peers=plan.chosen.most_peers, method=f"weft {plan.strategy}", shards=str(plan.shards).split(",")[0],
            bytes_planned=plan.chosen.most_bytes, imbalance=plan.imbalance,
        )  # fmt: skip


# ---- one card --------------------------------------------------------------------------------------------------------
def one_card(given: argparse.Namespace) -> None:
    """Each rank's kernels after the other's, beside the whole layer by the number of ranks."""
    device = torch.device("cuda", 0) if torch.cuda.is_available() and not given.small else torch.device("cpu")
    rows, ranks = Rows(given.out, 0), given.ranks
    if device.type == "cuda" and not given.compiled:
        warm(given, ranks)
    for name in (name for name in given.layers if name != "models"):
        if time.time() + 4 > given.end:
            print(f"left out for want of time: {name}", flush=True)
            continue
        try:
            _one_card_layer(rows, name, ranks, device, given)
        except Exception:
            traceback.print_exc()
        if device.type == "cuda":
            torch.cuda.empty_cache()


def _one_card_layer(rows: Rows, name: str, ranks: int, device: torch.device, given: argparse.Namespace) -> None:
    layer = layers(given.small)[name]
    layer = layer if given.small else fixed(layer, name)
    inputs = drawn(layer, layer.tokens(ranks), device)
    whole = {
        which: _alone(lambda f=f: f(lambda *x: weft.attention(*x, layer.pattern(ranks)), inputs), device)
        for which, f in (("forward", forward), ("both", gradients))
    }
    inputs = None
    plan = methods.plan_of(layer, ranks)
    slowest = {"forward": 0.0, "both": 0.0}
    for rank in range(ranks):
        mine, call = drawn(layer, len(plan.shards.tokens[rank]), device), methods.as_rank(plan, rank)
        for which, f in (("forward", forward), ("both", gradients)):
            with Arrived():
                slowest[which] = max(slowest[which], _alone(lambda f=f, call=call, mine=mine: f(call, mine), device))
    for which, ms in slowest.items():
        rows.add(
            kind="one card", layer=f"{name} {layer.name}", ranks=ranks, tokens=layer.tokens(ranks),
            method=f"weft, chosen: {plan.strategy}", shards=str(plan.shards).split(",")[0], direction=which,
            ms=ms, one_gpu_ms=whole[which] / ranks, bytes_planned=plan.chosen.most_bytes,
            peers=plan.chosen.most_peers, imbalance=plan.imbalance,
        )  # fmt: skip


def _alone(call: Callable[[], Any], device: torch.device) -> float:
    """Milliseconds on the device alone: of a CUDA graph."""
    if device.type != "cuda":
        return timed(call, device, None, 3, 1)
    for _ in range(2):
        call()
    sync(device)
    return microseconds([call]) / 1e3


if __name__ == "__main__":
    main()
