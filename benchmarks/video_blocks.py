"""One block of a video transformer of diffusers, with random weights: under a neighbourhood by weft, by FlexAttention
with the same mask, dense, and without attention.

    python benchmarks/video_blocks.py [--models wan ltx hunyuan] [--rounds N] [--small] [--seconds N] [--out FILE.csv]

Blocks have the sizes of Wan 1.3B, LTX and HunyuanVideo, in bfloat16 on a GPU. Printed are medians of a forward of the
block, and of forward and backward together, with the ratios to weft's. "allowed" is how much faster than dense a block
may become where attention takes the live share of its time, and the rest what a block takes whose attention returns v.

FlexAttention's outputs and gradients are compared with weft's before anything is timed, at the sizes that are timed. A
dense mask of these lengths does not fit: at --small sizes, after the timing, weft's block and the one with a dense mask
are compared with the latter in float32. Of each tensor weft's error may be 1.5 times that of the dense mask, no more:
the gradient of a bias of keys, which nearly cancels, is off by 7 % of its norm in both.
Each model has a process of its own; all of them compile at once, then they are timed in turn. Without a GPU everything
is small. diffusers must be importable: pip install '.[diffusers]'.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import select
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from math import prod
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

import weft
from weft.integrations import diffusers
from weft.integrations.diffusers.processors import STATE, State
from weft.integrations.diffusers.rules import pattern_of
from weft.torch.blockmask import kinds_of_blocks, ordered

# Latents (channels, frames, rows, columns), at 480p for Wan and 720p for the others, and what a token sees.
LATENTS = {"wan": (16, 21, 60, 104), "ltx": (128, 21, 22, 38), "hunyuan": (16, 33, 90, 160)}
SMALL = {"wan": (16, 3, 12, 16), "ltx": (128, 3, 6, 8), "hunyuan": (16, 3, 12, 16)}
WINDOWS = {"wan": (9, 15, 25), "ltx": (9, 11, 19), "hunyuan": (18, 24, 24)}
NARROW = (3, 5, 5)  # at small sizes
TEXT = {"wan": 512, "ltx": 128, "hunyuan": 256}
MORE, LEAST = 1.5, {torch.bfloat16: 2**-8, torch.float32: 1e-5}  # of a dense mask's error; what is none
ZERO = 1e-9  # of the norm of all gradients: none
BLOCK = 128  # queries and keys of a block: FlexAttention's own choice
DIRECTIONS = ("fwd+bwd", "fwd")
COLUMNS = (
    "date", "machine", "python", "torch", "commit", "device", "model", "tokens", "text", "window", "live", "direction",
    "method", "ms", "of_weft", "allowed",
)  # fmt: skip


# ---- models ----------------------------------------------------------------------------------------------------------
def model_of(name: str, latents: tuple[int, ...], device: str, dtype: torch.dtype) -> tuple[Any, dict[str, Any]]:
    """A transformer of one block, and the arguments of its forward."""
    import diffusers as theirs

    channels, *grid = latents
    text, given = TEXT[name] if prod(grid) > 10_000 else 8, {"timestep": torch.tensor([500], device=device)}
    with torch.device(device):
        if name == "wan":
            model: Any = theirs.WanTransformer3DModel(
                num_attention_heads=12, attention_head_dim=128, ffn_dim=8960, num_layers=1, text_dim=64
            )
        elif name == "hunyuan":
            model = theirs.HunyuanVideoTransformer3DModel(
                num_layers=1, num_single_layers=0, num_refiner_layers=1, text_embed_dim=64, guidance_embeds=False
            )
            valid = torch.arange(text)[None] < text * 3 // 4
            given |= {"encoder_attention_mask": valid.long(), "pooled_projections": torch.randn(1, 768).to(dtype)}
        else:
            model = theirs.LTXVideoTransformer3DModel(num_layers=1, caption_channels=64)
            given |= {"encoder_attention_mask": torch.ones(1, text).to(dtype)}
            given |= dict(zip(("num_frames", "height", "width"), grid, strict=True))
        shape = (1, prod(grid), channels) if name == "ltx" else (1, *latents)
        given |= {"hidden_states": torch.randn(shape).to(dtype)}
        given |= {"encoder_hidden_states": torch.randn(1, text, 64).to(dtype)}
    return model.to(dtype).eval(), given


# ---- methods ---------------------------------------------------------------------------------------------------------
class ByFlex(State):
    """Attention by FlexAttention, compiled, with a block mask of the pattern."""

    def attend(self, rule: Any, tensors: Any, layout: str, given: dict[str, Any]) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in tensors) if layout == "bshd" else tensors
        valid = None if given.get("attn_mask") is None else int(given["attn_mask"].sum())
        out = _flex()(q, k, v, block_mask=_block_mask(rule, self.grid, q.shape[2], valid, q.device))
        return out.transpose(1, 2) if layout == "bshd" else out


class ByMask(State):
    """Attention by torch with a dense mask of the pattern."""

    def attend(self, rule: Any, tensors: Any, layout: str, given: dict[str, Any]) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in tensors) if layout == "bshd" else tensors
        tokens, grid = q.shape[2], self.grid or ()
        mask = torch.from_numpy(pattern_of(rule, grid, tokens - prod(grid), False).to_dense(tokens)).to(q.device)
        own = given.get("attn_mask")
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask if own is None else mask & own)
        return out.transpose(1, 2) if layout == "bshd" else out


class ByNothing(State):
    """No attention: the block's other work."""

    def attend(self, rule: Any, tensors: Any, layout: str, given: dict[str, Any]) -> Tensor:
        q, k, v = tensors
        return v + 0 * (q + k)  # a gradient for each projection


METHODS: dict[str, type[State] | None] = {"weft": State, "flex": ByFlex, "dense": None, "nothing": ByNothing}


@cache
def _flex() -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False) if torch.cuda.is_available() else flex_attention


@cache
def _block_mask(rule: Any, grid: Any, tokens: int, valid: int | None, device: Any) -> Any:
    """FlexAttention's mask of a neighbourhood whose windows are pushed inwards, with text after the video.

    create_block_mask would compile for a minute, or hold all pairs, so weft lists the blocks.
    """
    from torch.nn.attention.flex_attention import BlockMask

    frames, rows, columns = grid
    sizes = [min(k, n) for k, n in zip(rule.neighborhood, grid, strict=True)]

    def near(q: Any, k: Any, length: int, size: int) -> Any:
        first = (q - size // 2).clamp(0, length - size)
        return (k >= first) & (k < first + size)

    def live(b: Any, h: Any, q: Any, k: Any) -> Any:
        both = [(x // (rows * columns), x // columns % rows, x % columns) for x in (q, k)]
        seen = near(both[0][0], both[1][0], frames, sizes[0])
        seen = seen & near(both[0][1], both[1][1], rows, sizes[1]) & near(both[0][2], both[1][2], columns, sizes[2])
        seen = seen | (q >= prod(grid)) | (k >= prod(grid))
        return seen if valid is None else seen & (k < valid)

    pattern = pattern_of(rule, grid, tokens - prod(grid), False)
    if valid is not None:
        pattern = pattern & weft.padding([valid])
    partial, full = (torch.from_numpy(x).to(device) for x in kinds_of_blocks(pattern, (tokens, tokens), (BLOCK, BLOCK)))
    return BlockMask.from_kv_blocks(
        *ordered(partial), *ordered(full), BLOCK_SIZE=BLOCK, mask_mod=live, seq_lengths=(tokens, tokens)
    )


def under(model: Any, kind: type[State] | None, window: tuple[int, ...]) -> None:
    """Have the model's layers attend by one method; None: dense, as they are."""
    diffusers.clear_pattern(model)
    if kind is not None:
        diffusers.set_pattern(model, neighborhood=window)
        getattr(model, STATE).__class__ = kind


# ---- one model -------------------------------------------------------------------------------------------------------
class Block:
    """A block at one size, under each method that works."""

    def __init__(self, name: str, latents: tuple[int, ...], window: tuple[int, ...]) -> None:
        torch.manual_seed(0)
        self.name, self.window, self.cuda = name, window, torch.cuda.is_available()
        device, dtype = ("cuda", torch.bfloat16) if self.cuda else ("cpu", torch.float32)
        self.model, self.given = model_of(name, latents, device, dtype)
        self.limit = 1e-4 if dtype == torch.float32 else 0.05

    def under(self, kind: type[State] | None) -> None:
        """Have its layers attend by one method; None: dense, as they are."""
        diffusers.clear_pattern(self.model)
        if kind is not None:
            diffusers.set_pattern(self.model, neighborhood=self.window)
            getattr(self.model, STATE).__class__ = kind

    def in_float32(self) -> Block:
        """A copy with the same numbers."""
        made = copy.deepcopy(self)
        made.model.float()
        made.given = {name: x.float() if x.is_floating_point() else x for name, x in self._tensors()}
        made.given |= {name: x for name, x in self.given.items() if name not in made.given}
        return made

    def _tensors(self) -> list[tuple[str, Tensor]]:
        return [(name, x) for name, x in self.given.items() if isinstance(x, Tensor)]

    def results(self) -> dict[str, Tensor]:
        """The output, and the gradients of all parameters that have one, by their names."""
        out = self.model(**self.given, return_dict=False)[0]
        parameters = dict(self.model.named_parameters())
        found = torch.autograd.grad(out.float().square().mean(), list(parameters.values()), allow_unused=True)
        gradients = zip(parameters, found, strict=True)
        return {"the output": out.detach(), **{name: x for name, x in gradients if x is not None}}

    @torch.no_grad()
    def forward(self) -> Any:
        return self.model(**self.given, return_dict=False)

    def compare(self, method: str, expected: dict[str, Tensor]) -> None:
        """Raise where the results now are not those."""
        found = self.results()
        worst, name = max(
            (((found[name].float() - b.float()).abs().max() / b.float().abs().max().clamp(min=1e-6)).item(), name)
            for name, b in expected.items()
        )
        said = f"{self.name}: {method} is within {worst:.1e} of the largest of each tensor, worst in {name}"
        print(said, flush=True)
        if not worst < self.limit:
            raise ValueError(f"{said}; allowed are {self.limit}: not timed")

    def problem(self) -> dict[str, Any]:
        """The grid, text tokens beside the video, the window, and the share of pairs that are live."""
        self.under(State)
        state = getattr(self.model, STATE)
        state.enter(self.model, (), self.given)
        text = self.given["encoder_hidden_states"].shape[1] if state.model.text else 0
        tokens = prod(state.grid) + text
        pattern = pattern_of(state.rules[0], state.grid, text, state.model.text == "first")
        live = pattern.acsr(tokens, tokens).nnz / tokens**2
        grid, window = ("x".join(map(str, each)) for each in (state.grid, self.window))
        return {"model": self.name, "tokens": grid, "text": text, "window": window, "live": f"{live:.4f}"}


def timed(block: Block, direction: str, rounds: int) -> float:
    """The median in milliseconds."""
    call: Callable[[], Any] = block.forward if direction == "fwd" else block.results
    found = []
    for turn in range(rounds + 1):
        if block.cuda:
            torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        if block.cuda:
            torch.cuda.synchronize()
        if turn:
            found.append(1e3 * (time.perf_counter() - begin))
    return median(found)


def prepared(block: Block) -> list[str]:
    """The methods that work, compiled; FlexAttention's results are weft's."""
    block.under(State)
    expected = block.results()
    block.forward()
    works = ["weft"]
    for method in ("flex", "dense", "nothing") if block.cuda else ("dense", "nothing"):  # no gradients of it on a CPU
        try:
            block.under(METHODS[method])
            if method == "flex":
                block.compare("FlexAttention", expected)
            block.forward()
            works.append(method)
        except Exception:
            traceback.print_exc()
    return works


def measured(block: Block, methods: list[str], rounds: int) -> Iterator[dict[str, Any]]:
    """A row for each direction and method."""
    device = torch.cuda.get_device_name() if block.cuda else "cpu"
    problem = {"device": device, **block.problem()}
    live = float(problem["live"])
    for direction in DIRECTIONS:
        found = {}
        for method in methods:
            block.under(METHODS[method])
            found[method] = timed(block, direction, rounds if method in ("weft", "flex") else 3)
        for method, ms in found.items():
            allowed = ""
            if method == "dense" and "nothing" in found:
                allowed = f"{ms / (found['nothing'] + live * (ms - found['nothing'])):.2f}"
            yield problem | {
                "direction": direction, "method": method, "ms": f"{ms:.3f}", "of_weft": f"{ms / found['weft']:.2f}",
                "allowed": allowed,
            }  # fmt: skip


def beside_a_dense_mask(name: str) -> None:
    """Raise where weft's block is further than one with a dense mask from that in float32, at small sizes."""
    block = Block(name, SMALL[name], NARROW)
    exact = block.in_float32()
    exact.under(ByMask)
    truth = exact.results()
    least, errors = LEAST[next(block.model.parameters()).dtype], {}
    norms = {name: x.norm() for name, x in truth.items()}
    nothing = ZERO * torch.stack(list(norms.values())).norm()  # of gradients that are zero by mathematics
    for kind in (State, ByMask):
        block.under(kind)
        off = {name: (x.float() - truth[name]).norm() for name, x in block.results().items()}
        errors[kind] = {name: (x / norms[name].clamp(min=nothing)).item() for name, x in off.items()}
    ours, dense = errors[State], errors[ByMask]
    for what, worst in (
        ("furthest off", max(ours, key=lambda x: ours[x])),
        ("furthest from a dense mask's", max(ours, key=lambda x: ours[x] / max(dense[x], least))),
    ):
        both = f"{ours[worst]:.1e} of its norm, a dense mask's {dense[worst]:.1e}"
        print(f"{name}: {what} is {worst}: {both}", flush=True)
    wrong = [name for name, error in ours.items() if not error <= max(MORE * dense[name], least)]
    if wrong:
        raise ValueError(f"{name}: {', '.join(wrong)} of weft is {MORE} times as far from float32 as a dense mask's")
    print(f"{name}: output and gradients of weft are as near to float32 as a dense mask's", flush=True)


def worker(name: str, rounds: int, small: bool) -> None:
    """Says what works, waits for a line on standard input, and answers with rows; a last line is empty."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else prints goes to the other stream
    block = Block(name, SMALL[name] if small else LATENTS[name], NARROW if small else WINDOWS[name])
    methods = prepared(block)
    torch.cuda.empty_cache()
    print(json.dumps(methods), file=answers, flush=True)
    sys.stdin.readline()
    for row in measured(block, methods, rounds):
        print(json.dumps(row), file=answers, flush=True)
    print(file=answers, flush=True)
    sys.stdin.readline()
    beside_a_dense_mask(name)


# ---- all models ------------------------------------------------------------------------------------------------------
class Worker:
    """The process of one model."""

    def __init__(self, name: str, asked: argparse.Namespace) -> None:
        command = [sys.executable, str(Path(__file__).resolve()), "--worker", name, "--rounds", str(asked.rounds)]
        self.name, self.rest = name, b""
        self.process = subprocess.Popen(
            [*command, "--small"] if asked.small else command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def go_on(self) -> None:
        """Let it do the next step; nothing where it died."""
        assert self.process.stdin is not None
        if self.process.poll() is None:
            self.process.stdin.write(b"\n")
            self.process.stdin.flush()

    def answer(self, until: float) -> Any:
        """The next line it says; None after an empty one, where it died, or where time is up."""
        assert self.process.stdout is not None
        while b"\n" not in self.rest:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                print(f"{self.name}: time is up", flush=True)
                return None
            more = os.read(self.process.stdout.fileno(), 1 << 16)
            if not more:
                return None
            self.rest += more
        line, _, self.rest = self.rest.partition(b"\n")
        return json.loads(line) if line else None


def run(workers: list[Worker], end: float, out: Path | None) -> None:
    """Have all compile at once, then time each alone, then compare each with a dense mask."""
    from planning import append, provenance  # here, since tests have a package of that name

    ready = []
    for one in workers:
        methods = one.answer(end)
        print(f"{one.name}: {methods} compiled, {end - time.monotonic():.0f} s are left", flush=True)
        ready += [one] if methods else []
    for one in ready:
        one.go_on()
        while row := one.answer(end):
            print("  ".join(f"{row[column]:>8}" for column in COLUMNS[6:]), flush=True)
            if out:
                append(out, COLUMNS, [provenance("torch") | row])
    for one in ready:
        one.go_on()
    for one in ready:
        try:
            one.process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            print(f"{one.name}: not compared with a dense mask, time is up", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--models", nargs="+", default=list(LATENTS), choices=list(LATENTS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--small", action="store_true", help="sizes for a CPU")
    parser.add_argument("--seconds", type=float, default=3600, help="for all of it")
    parser.add_argument("--out", type=Path, help="append rows to this CSV file")
    parser.add_argument("--worker", choices=list(LATENTS), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    warnings.filterwarnings("ignore")
    asked.small = asked.small or not torch.cuda.is_available()
    if asked.worker:
        worker(asked.worker, asked.rounds, asked.small)
        return 0
    end = time.monotonic() + asked.seconds
    workers = [Worker(name, asked) for name in asked.models]
    try:
        run(workers, end, asked.out)
    finally:
        for one in workers:
            one.process.kill()
    return any(one.process.wait() for one in workers)


if __name__ == "__main__":
    sys.exit(main())
