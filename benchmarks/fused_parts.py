"""Parts of a layer that kernels of a profile belong to, by their names."""

from __future__ import annotations

PARTS = ("products", "attention", "activations alone", "norms, sums, the rest")
FIELDS = ("model", "batch", "tokens", "how", *PARTS, "card", "torch", "weft")
PRODUCTS, ATTENTION = ("nvjet", "gemm", "cutlass"), ("weft_fwd", "weft_bwd", "sdpa", "flash", "fmha", "flex")
ACTIVATIONS = ("gelu", "silu", "pow_tanh", "relu")
OWN = ("product", "projections")  # kernels of weft's templates, with what their epilogues have


def part_of(kernel):
    """The part of a kernel's name. Inductor's kernels of FlexAttention begin as its products do, with triton_tem."""
    if kernel.startswith("triton_tem"):
        return PARTS[1 if any(word in kernel for word in ATTENTION) else 0]
    if kernel.startswith("triton_"):
        return PARTS[2 if any(word in kernel for word in ACTIVATIONS) and "norm" not in kernel else 3]
    if any(word in kernel for word in ATTENTION):
        return PARTS[1]
    return PARTS[0 if kernel in OWN or any(word in kernel for word in PRODUCTS) else 3]


def microseconds(kernels):
    """us of each part. kernels: (name, us) of a call."""
    found = dict.fromkeys(PARTS, 0.0)
    for name, us in kernels:
        found[part_of(name)] += us
    return {part: f"{us:.0f}" for part, us in found.items()}
