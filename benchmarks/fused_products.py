"""The templates of weft/kernels/gpu/gemm, tiling by tiling, beside cuBLAS and what Inductor makes of the same.

    PYTHONPATH=src python benchmarks/fused_products.py --out rows.csv

Each row: a product of a model's layer with what follows it, who computed it, median ms in a CUDA graph, TFLOP/s. Fp16.
`products alone` is cuBLAS without what follows. It ends by itself after --seconds.
"""

from __future__ import annotations

import argparse
import time
import traceback
from pathlib import Path
from statistics import median

import torch
from table import append
from torch import nn

from weft.fusion import kernels
from weft.kernels.gpu.gemm.config import configs

F = nn.functional
FIELDS = ("case", "m", "n", "k", "who", "ms", "tflops", "error", "card", "torch")
# name: (rows, k, n, kind, biased); the most important ones first
CASES = {
    "llama-1b gate, up (16, 2048)": (32768, 2048, 8192, "silu", False),
    "bert-base up, GELU (16, 2048)": (32768, 768, 3072, "gelu", True),
    "llama-1b q, k, v, RoPE (16, 2048)": (32768, 2048, (2048, 512), "rope", False),
    "gpt2 up, GELU by tanh (16, 2048)": (32768, 768, 3072, "gelu_tanh", True),
    "llama-1b down, residual (16, 2048)": (32768, 8192, 2048, "residual", False),
    "llama-1b gate, up (8, 512)": (4096, 2048, 8192, "silu", False),
    "bert-base up, GELU (8, 512)": (4096, 768, 3072, "gelu", True),
    "bert-base q, k, v (8, 512)": (4096, 768, (768, 768), "qkv", True),
    "llama-1b q, k, v, RoPE (8, 512)": (4096, 2048, (2048, 512), "rope", False),
    "bert-base up, GELU (1, 128)": (128, 768, 3072, "gelu", True),
    "bert-base q, k, v (1, 128)": (128, 768, (768, 768), "qkv", True),
    "llama-1b gate, up (1, 128)": (128, 2048, 8192, "silu", False),
    "llama-1b q, k, v, RoPE (1, 128)": (128, 2048, (2048, 512), "rope", False),
    "bert-base q, k, v (16, 2048)": (32768, 768, (768, 768), "qkv", True),
}


def rotated(x, cos, sin):
    """As transformers has it: x (B, S, H, D)."""
    half = x.shape[-1] // 2
    return x * cos[:, :, None] + torch.cat((-x[..., half:], x[..., :half]), -1) * sin[:, :, None]


class Case:
    """One product: its tensors, how it is written in torch, and what a template is asked."""

    def __init__(self, rows, k, n, kind, biased):
        make = lambda *s: torch.randn(*s, device="cuda", dtype=torch.float16)  # noqa: E731
        self.kind, self.widths = kind, n if isinstance(n, tuple) else (n,)
        self.batch = 16 if rows == 32768 else 8 if rows == 4096 else 1
        self.x = make(self.batch, rows // self.batch, k)
        widths = {"silu": (n, n), "rope": (self.widths[0], self.widths[-1], self.widths[-1])}
        widths["qkv"] = widths["rope"]
        self.weights = [make(width, k) * k**-0.5 for width in widths.get(kind, self.widths)]
        self.biases = [make(w.shape[0]) for w in self.weights] if biased else []
        self.residual = make(self.batch, rows // self.batch, n) if kind == "residual" else None
        angle = torch.arange(rows // self.batch, device="cuda")[:, None] * torch.rand(32, device="cuda")
        self.tables = [f(torch.cat((angle, angle), -1))[None].half() for f in (torch.cos, torch.sin)]
        self.flops = 2 * rows * k * sum(w.shape[0] for w in self.weights)

    def products(self, *_):
        """The products alone."""
        biases = self.biases or [None] * len(self.weights)
        return tuple(F.linear(self.x, w, b) for w, b in zip(self.weights, biases, strict=True))

    def written(self, x, weights, biases, tables):
        """In torch, for Inductor."""
        made = [F.linear(x, w, b) for w, b in zip(weights, biases or [None] * len(weights), strict=True)]
        if self.kind == "silu":
            return (F.silu(made[1]) * made[0],)
        if self.kind in ("gelu", "gelu_tanh"):
            return (F.gelu(made[0], approximate="tanh" if self.kind == "gelu_tanh" else "none"),)
        if self.kind == "residual":
            return (made[0] + self.residual,)
        if self.kind == "rope":
            made[:2] = (rotated(y.unflatten(-1, (-1, 64)), *tables).flatten(2) for y in made[:2])
        return tuple(made)

    def torch(self, dtype=torch.float16):
        change = lambda xs: [x.to(dtype) for x in xs]  # noqa: E731
        return self.written(self.x.to(dtype), change(self.weights), change(self.biases), change(self.tables))

    def candidates(self):
        """(tiling, what launches it)."""
        qkv = self.kind in ("rope", "qkv")
        weights = 2 if self.kind == "silu" else 1
        m, n = self.x.numel() // self.x.shape[-1], self.widths[-1]
        for config in configs(
            m, n, weights, kernels.card_of(self.x.device), 64 if qkv else 1, self.kind in ("rope", "residual")
        ):
            if qkv and any(width % config.cols for width in self.widths):
                continue
            if qkv:
                spec = kernels.ProjectionsSpec(64, bool(self.biases), self.kind == "rope")
                tensors = [self.x, *self.weights, *self.biases, *(self.tables if self.kind == "rope" else ())]
                yield config, kernels.projections(spec, config, tensors)
                continue
            activation = "" if self.kind == "residual" else self.kind
            spec = kernels.ProductSpec(activation, self.kind == "silu", bool(self.biases), self.residual is not None)
            tensors = [self.x, *self.weights, *self.biases]
            yield config, kernels.product(spec, config, tensors + ([] if self.residual is None else [self.residual]))


def milliseconds(call, seconds=0.05):
    """Median of calls in a CUDA graph of several."""
    call()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    call()
    torch.cuda.synchronize()
    each = max(1, min(20, int(2e-3 / max(1e-6, time.perf_counter() - begin))))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(each):
            call()
    found, end = [], time.perf_counter() + seconds
    while len(found) < 5 or (time.perf_counter() < end and len(found) < 100):
        pair = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        pair[0].record()
        graph.replay()
        pair[1].record()
        torch.cuda.synchronize()
        found.append(pair[0].elapsed_time(pair[1]) / each)
    return median(found)


def error_of(found, truth):
    """The largest difference relative to the largest number."""
    return max(float((a.float() - b).abs().max() / b.abs().max()) for a, b in zip(found, truth, strict=True))


def measure(name, given, write):
    case = Case(*given)
    truth = [x.clone() for x in case.torch(torch.float32)] if case.x.numel() < 1 << 24 else None
    n, k = sum(w.shape[0] for w in case.weights), case.x.shape[-1]

    def row(who, call, whole=True):
        try:
            error = f"{error_of(call(), truth):.1e}" if whole and truth is not None else ""
            ms = milliseconds(call)
        except Exception:
            traceback.print_exc()
            return
        m = case.x.numel() // k
        write(dict(zip(FIELDS, (name, m, n, k, who, f"{ms:.4f}", f"{case.flops / ms / 1e9:.0f}", error), strict=False)))

    row("products alone", case.products, whole=False)
    made = list(case.candidates())
    for (config, launch), why in zip(made, kernels.compile_all(one for _, one in made), strict=True):
        if why:
            print(f"{name}: {config}: {why}", flush=True)
        else:
            row(f"weft {config}", launch.run)
    if case.kind == "gelu_tanh":
        x, w = case.x.view(-1, k), case.weights[0].t()
        row("cuBLASLt's epilogue", lambda: (torch._addmm_activation(case.biases[0], x, w, use_gelu=True),))
    torch._dynamo.reset()
    compiled = torch.compile(case.torch)
    row("Inductor", compiled)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=75)
    parser.add_argument("--only", default="", help="part of a case's name")
    asked = parser.parse_args()
    end = time.perf_counter() + asked.seconds
    card = torch.cuda.get_device_name()

    def write(row):
        row |= {"card": card, "torch": torch.__version__}
        print(*row.values(), sep=", ", flush=True)
        append(asked.out, FIELDS, row)

    with torch.no_grad():
        for name, given in CASES.items():
            if asked.only in name and time.perf_counter() < end:
                try:
                    measure(name, given, write)
                except Exception:
                    traceback.print_exc()
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
