"""weft under torch's operators of flash attention; `weft.integrations.flash_attn.register` is the way in.

torch gives a flash implementation five operators. What weft does not serve goes to the kernel that was there before.
Gradients run the forward again, since the operators keep nothing that weft's own backward reads.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from weft.errors import UnsupportedError
from weft.integrations.flash_attn import window_of
from weft.torch.attention import attention
from weft.torch.varlen import varlen_attention

Tensors = tuple[Tensor, Tensor, Tensor]
# Options of torch's operators that weft does not take, each with the value that asks for nothing.
NOTHING = {"dropout_p": 0.0, "return_debug_mask": False, "seqused_k": None, "block_table": None, "alibi_slopes": None}


class Handle:
    """What torch keeps while weft is active; `remove()` gives the operators back."""

    def __init__(self, library: Any) -> None:
        self.library = library

    def remove(self) -> None:
        """Give the operators back."""
        self.library = None


def install(device: str = "CUDA") -> Handle:
    """Take over the operators on a kind of device, as a dispatch key; the CPU is for tests."""
    library = torch.library.Library("aten", "IMPL")
    for name, serve in SERVED.items():
        library.impl(name, _Served(name, serve, device), device, with_keyset=True)
    return Handle(library)


class _Served:
    """One operator: weft's where it serves the call, else the kernel before it."""

    def __init__(self, name: str, serve: Callable[..., Any], device: str) -> None:
        self.name, self.serve, self.said = name, serve, False
        self.schema = getattr(torch.ops.aten, name).default._schema
        try:
            self.before = torch.library.get_kernel(f"aten::{name}", device)
        except RuntimeError:  # there is none: a build without it
            self.before = None

    def __call__(self, keys: Any, *args: Any, **options: Any) -> Any:
        given = {one.name: x for one, x in zip(self.schema.arguments, args, strict=False)} | options
        odd = [name for name, nothing in NOTHING.items() if given.get(name, nothing) != nothing]
        if (given.get("num_splits") or 0) > 1:
            odd.append("num_splits")
        if not odd:
            try:
                return self.serve(given)
            except UnsupportedError as error:
                return self._before(keys, args, options, f"{error.asked}: {error.wrong}")
        return self._before(keys, args, options, f"{', '.join(odd)} is given")

    def _before(self, keys: Any, args: Any, options: Any, why: str) -> Any:
        if self.before is None:
            raise UnsupportedError(
                f"torch's {self.name} on weft", f"{why}, and no implementation was there before",
                "call torch.nn.attention.restore_flash_attention_impl(), or leave that out",
            )  # fmt: skip
        if not self.said:
            self.said = True
            warnings.warn(f"weft: torch's {self.name} went to the implementation before weft: {why}", stacklevel=2)
        return self.before.call_boxed(keys, *args, **options)


# ---- calls -----------------------------------------------------------------------------------------------------------
def _attend(given: dict[str, Any], tensors: Tensors, layout: str) -> tuple[Tensor, Tensor]:
    """(out in the layout of q, lse (B, Hq, M), of packed documents (Hq, T))"""
    left, right = (given.get(f"window_size_{side}") for side in ("left", "right"))
    left, right = (None if x is None or x < 0 else int(x) for x in (left, right))
    if given.get("cum_seq_q") is not None:
        pattern = window_of(given["is_causal"], left, right)
        sums = given["cum_seq_q"], given["cum_seq_k"]
        out, lse = varlen_attention(
            *tensors, *sums, pattern, max_seqlen_q=int(given["max_q"]), max_seqlen_k=int(given["max_k"]),
            return_lse=True, scale=given.get("scale"),
        )  # fmt: skip
        return out, lse.transpose(0, 1)
    align = "top-left" if layout == "bhsd" else "bottom-right"  # as SDPA, and as flash-attn
    pattern = window_of(given["is_causal"], left, right, align)
    out, lse = attention(*tensors, pattern, scale=given.get("scale"), return_lse=True, layout=layout)
    return out, lse if layout == "bhsd" else lse.transpose(1, 2)


def _gradients(given: dict[str, Any], layout: str) -> tuple[Tensor, ...]:
    tensors = [given[name].detach().requires_grad_() for name in ("query", "key", "value")]
    key = torch._C.DispatchKey.AutogradFunctionality
    # an operator runs below autograd, and weft's gradients are autograd's
    with torch.enable_grad(), torch._C._SetExcludeDispatchKeyGuard(key, False):
        out, _ = _attend(given, (tensors[0], tensors[1], tensors[2]), layout)
        return torch.autograd.grad(out, tensors, given["grad_out"])


def _tensors(given: dict[str, Any]) -> Tensors:
    return given["query"], given["key"], given["value"]


def _rest(q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """State of random numbers, and the mask that dropout leaves: there is none."""
    state = torch.zeros((2,), dtype=torch.uint64, device=q.device)
    return state, torch.zeros((), dtype=torch.uint64, device=q.device), q.new_empty(0)


def _forward(given: dict[str, Any]) -> tuple[Tensor, ...]:
    out, lse = _attend(given, _tensors(given), "bshd")
    return out, lse.contiguous(), *_rest(out)


def _in_place(given: dict[str, Any]) -> Tensor:
    out, lse = _attend(given, _tensors(given), "bshd")
    given["out"].copy_(out)
    return lse.contiguous()


def _backward(given: dict[str, Any]) -> tuple[Tensor, ...]:
    return _gradients(given, "bshd")


def _sdpa(given: dict[str, Any]) -> tuple[Any, ...]:
    q, k, _ = tensors = _tensors(given)
    out, lse = _attend({"is_causal": False, **given}, tensors, "bhsd")
    state, unused, mask = _rest(q)
    return out, lse.contiguous(), None, None, q.shape[2], k.shape[2], state, unused, mask


def _sdpa_backward(given: dict[str, Any]) -> tuple[Tensor, ...]:
    return _gradients({**given, "cum_seq_q": None}, "bhsd")


SERVED = {
    "_flash_attention_forward": _forward,
    "_flash_attention_forward_no_dropout_inplace": _in_place,
    "_flash_attention_backward": _backward,
    "_scaled_dot_product_flash_attention": _sdpa,
    "_scaled_dot_product_flash_attention_backward": _sdpa_backward,
}
