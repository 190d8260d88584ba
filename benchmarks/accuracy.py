"""How far out and gradients are from float64 where scores are large: weft beside FlashAttention.

    PYTHONPATH=src python benchmarks/accuracy.py [--tokens N] [--spreads 1,4,16,48] [--to FILE.csv]

q, k, v and dout are normal in bfloat16, q times the spread, so that scores have it for a standard deviation. An error
is the norm of the difference from float64 over the norm of the truth. Peers: flash-attn-4 where it is installed, else
torch's own FlashAttention. Needs a GPU.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from planning import commit
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import weft

HEADS = 4
NAMES = ("out", "dq", "dk", "dv")
COLUMNS = ("run", "device", "torch", "commit", "problem", "d", "spread", "who", *NAMES)
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


def patterns(tokens: int) -> dict[str, Any]:
    """The masks, by name."""
    return {
        "causal": weft.causal(),
        "documents": weft.causal() & weft.documents([tokens // 4 + 3, tokens // 2 - 5, tokens // 4 + 2]),
        "window": weft.causal() & weft.window(left=255),
    }


def results(attend: Attention, leaves: list[Tensor], dout: Tensor) -> list[Tensor]:
    """out, dq, dk and dv."""
    own = [x.detach().requires_grad_() for x in leaves]
    out = attend(*own)
    return [out.detach(), *torch.autograd.grad(out, own, dout.to(out.dtype))]


def dense(mask: Tensor, scale: float) -> Attention:
    """Attention under a mask, in the dtype of its inputs."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = (q @ k.transpose(-1, -2) * scale).masked_fill(~mask, -torch.inf)
        return scores.softmax(-1) @ v

    return attend


def peers(name: str) -> dict[str, Attention]:
    """Those that have the mask: heads before tokens."""
    try:
        from flash_attn.cute import flash_attn_func
    except ImportError:
        if name != "causal":
            return {}

        def flash(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

        return {"flash": flash}
    if name == "documents":
        return {}
    options = {"causal": True} | ({"window_size": (255, 0)} if name == "window" else {})

    def fa4(*given: Tensor) -> Tensor:
        found: Any = flash_attn_func(*(x.transpose(1, 2).contiguous() for x in given), **options)
        return (found[0] if isinstance(found, tuple) else found).transpose(1, 2)

    return {"fa4": fa4}


def rows(tokens: int, spreads: list[float]) -> list[dict[str, Any]]:
    """A row for each problem, head dimension, spread and contender."""
    found = []
    for name, pattern in patterns(tokens).items():
        mask = torch.from_numpy(pattern.to_dense(tokens)).cuda()
        for d in (64, 128):
            for spread in spreads:
                torch.manual_seed(0)
                q, k, v, dout = (torch.randn(1, HEADS, tokens, d, device="cuda") for _ in range(4))
                leaves, dout = [x.bfloat16() for x in (q * spread, k, v)], dout.bfloat16()
                truth = results(dense(mask, d**-0.5), [x.double() for x in leaves], dout.double())
                ours: Attention = lambda q, k, v, pattern=pattern: weft.attention(q, k, v, pattern)  # noqa: E731
                for who, attend in {"weft": ours, **peers(name)}.items():
                    pairs = zip(NAMES, results(attend, leaves, dout), truth, strict=True)
                    errors = {x: f"{float((a.double() - b).norm() / b.norm()):.3e}" for x, a, b in pairs}
                    found.append({"problem": name, "d": d, "spread": spread, "who": who, **errors})
                    print(*found[-1].values(), flush=True)
    return found


def main() -> None:
    """Print a line a contender, and write rows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--spreads", default="1,4,16,48")
    parser.add_argument("--to", type=Path)
    asked = parser.parse_args()
    about = {"run": f"{datetime.now(UTC):%Y-%m-%dT%H:%M}-accuracy", "device": torch.cuda.get_device_name()}
    about |= {"torch": torch.__version__, "commit": commit()}
    found = rows(asked.tokens, [float(x) for x in asked.spreads.split(",")])
    if asked.to:
        with asked.to.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(about | row for row in found)


if __name__ == "__main__":
    main()
