"""One block of a video transformer of diffusers, with random weights: dense, under a neighbourhood by weft, and by
FlexAttention with the same mask.

    python benchmarks/video_blocks.py [--models wan hunyuan ltx] [--rounds N] [--small] [--out FILE.csv]

Blocks have the sizes of Wan 1.3B, HunyuanVideo and LTX, in bfloat16 on a GPU. Printed are medians of a forward of the
block, and of forward and backward together, with the ratios to weft's; and how far outputs and gradients are from those
of the block with a dense mask. That is compared at --small sizes, since a dense mask of these lengths does not fit; so
is everything without a GPU. diffusers must be importable: pip install '.[diffusers]'.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
import warnings
from collections.abc import Callable
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

# Latents (channels, frames, rows, columns), at 480p for Wan and 720p for the others, and what a token sees.
LATENTS = {"wan": (16, 21, 60, 104), "hunyuan": (16, 33, 90, 160), "ltx": (128, 21, 22, 38)}
SMALL = {"wan": (16, 3, 12, 16), "hunyuan": (16, 3, 12, 16), "ltx": (128, 3, 6, 8)}
WINDOWS = {"wan": (9, 15, 25), "hunyuan": (18, 24, 24), "ltx": (9, 11, 19)}
NARROW = (3, 5, 5)  # at small sizes
TEXT = {"wan": 512, "hunyuan": 256, "ltx": 128}
COLUMNS = (
    "model",
    "tokens",
    "text",
    "window",
    "live",
    "direction",
    "method",
    "ms",
    "of_weft",
    "device",
    "torch",
    "weft",
)


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


@cache
def _flex() -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)


@cache
def _block_mask(rule: Any, grid: Any, tokens: int, valid: int | None, device: Any) -> Any:
    """FlexAttention's mask of a neighbourhood whose windows are pushed inwards, with text after the video."""
    from torch.nn.attention.flex_attention import create_block_mask

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

    return torch.compile(create_block_mask)(live, None, None, tokens, tokens, device=device)


def under(model: Any, kind: type[State] | None, window: tuple[int, ...]) -> None:
    """Have the model's layers attend by one method; None: dense, as they are."""
    diffusers.clear_pattern(model)
    if kind is not None:
        diffusers.set_pattern(model, neighborhood=window)
        getattr(model, STATE).__class__ = kind


# ---- measuring -------------------------------------------------------------------------------------------------------
def results(model: Any, given: dict[str, Any]) -> list[Tensor]:
    """The output, and the gradients of all parameters that have one."""
    out = model(**given, return_dict=False)[0]
    found = torch.autograd.grad(out.float().square().mean(), list(model.parameters()), allow_unused=True)
    return [out.detach(), *(x for x in found if x is not None)]


def compared(name: str, device: str, dtype: torch.dtype) -> None:
    """Raise unless weft's block is the block with a dense mask, at small sizes."""
    torch.manual_seed(0)
    model, given = model_of(name, SMALL[name], device, dtype)
    under(model, ByMask, NARROW)
    expected = results(model, given)
    under(model, State, NARROW)
    worst = max(
        ((a - b).abs().max() / b.abs().max().clamp(min=1e-6)).item()
        for a, b in zip(results(model, given), expected, strict=True)
    )
    limit = 1e-4 if dtype == torch.float32 else 0.05
    print(f"{name}: output and gradients are within {worst:.1e} of the dense mask's, relative to the largest of each")
    if not worst < limit:
        raise SystemExit(f"{name}: beyond {limit}: not timed")


def timed(call: Callable[[], Any], rounds: int) -> float:
    """The median of a call in milliseconds."""
    cuda = torch.cuda.is_available()
    for _ in range(2):
        call()
    found = []
    for _ in range(rounds):
        if cuda:
            torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        if cuda:
            torch.cuda.synchronize()
        found.append(1e3 * (time.perf_counter() - begin))
    return median(found)


def measure(name: str, latents: tuple[int, ...], device: str, rounds: int) -> list[dict[str, Any]]:
    """Rows of one model."""
    cuda = device == "cuda"
    window = WINDOWS[name] if latents == LATENTS[name] else NARROW
    model, given = model_of(name, latents, device, torch.bfloat16 if cuda else torch.float32)
    methods: dict[str, type[State] | None] = {"weft": State, "dense": None} | ({"flex": ByFlex} if cuda else {})

    @torch.no_grad()
    def forward() -> Any:
        return model(**given, return_dict=False)

    rows = []
    card, sizes = torch.cuda.get_device_name() if cuda else "cpu", problem(model, given, window)
    for direction, call in (("fwd", forward), ("fwd+bwd", lambda: results(model, given))):
        found = {}
        for method, kind in methods.items():
            under(model, kind, window)
            found[method] = timed(call, rounds)
        for method, ms in found.items():
            times = f"{ms:.3f}", f"{ms / found['weft']:.2f}"
            row = name, *sizes, direction, method, *times, card, torch.__version__, weft.__version__
            rows.append(dict(zip(COLUMNS, row, strict=True)))
    return rows


def problem(model: Any, given: dict[str, Any], window: tuple[int, ...]) -> tuple[str, int, str, str]:
    """The grid, text tokens beside the video, the window, and the share of pairs that are live."""
    under(model, State, window)
    state = getattr(model, STATE)
    state.enter(model, (), given)
    text = given["encoder_hidden_states"].shape[1] if state.model.text else 0
    tokens = prod(state.grid) + text
    pattern = pattern_of(state.rules[0], state.grid, text, state.model.text == "first")
    live = pattern.acsr(tokens, tokens).nnz / tokens**2
    return "x".join(map(str, state.grid)), text, "x".join(map(str, window)), f"{live:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--models", nargs="+", default=list(LATENTS), choices=list(LATENTS))
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--small", action="store_true", help="sizes for a CPU")
    parser.add_argument("--out", type=Path, help="append rows to this CSV file")
    asked = parser.parse_args()
    warnings.filterwarnings("ignore")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    latents = SMALL if asked.small or device == "cpu" else LATENTS
    rows = []
    for name in asked.models:
        compared(name, device, torch.float32)
        for row in measure(name, latents[name], device, asked.rounds):
            print("  ".join(f"{row[column]:>8}" for column in COLUMNS[:9]), flush=True)
            rows.append(row)
    if asked.out:
        fresh = not asked.out.exists()
        with asked.out.open("a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            if fresh:
                writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    sys.exit(main())
