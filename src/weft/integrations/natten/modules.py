"""NATTEN's modules: projections around neighbourhood attention, with NATTEN's state keys."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from weft.errors import InputError, OptionError
from weft.integrations.natten.checks import neighbourhood
from weft.integrations.natten.functional import neighborhood_attention


class NeighborhoodAttentionGeneric(nn.Module):
    """Projections to query, key and value, neighbourhood attention, and a projection back.

    embed_dim: num_heads * head_dim. kernel_size, stride, dilation, is_causal: one value, or one for each axis; see
    `na1d`. qk_scale: head_dim ** -0.5 if None. proj_drop: dropout after the last projection. The state is that of the
    linear layers `qkv` and `proj`.
    """

    na_dim: int

    def __init__(  # noqa: PLR0913 - NATTEN's signature
        self, embed_dim: int, num_heads: int, kernel_size: Any, stride: Any = 1, dilation: Any = 1,
        is_causal: Any = False, qkv_bias: bool = True, qk_scale: float | None = None, proj_drop: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__()
        arguments = neighbourhood(self.na_dim, kernel_size, stride, dilation, is_causal)
        if embed_dim % num_heads:
            raise OptionError(
                f"{type(self).__name__}(embed_dim={embed_dim}, num_heads={num_heads})",
                "heads do not divide the embedding", "pass embed_dim as a multiple of num_heads",
            )  # fmt: skip
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self.scale = qk_scale or self.head_dim**-0.5
        self.kernel_size, self.stride, self.dilation, self.is_causal = arguments
        self.qkv = nn.Linear(embed_dim, embed_dim * 3, bias=qkv_bias)
        self.proj = nn.Linear(embed_dim, embed_dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x: Tensor) -> Tensor:
        """(B, *grid, embed_dim) -> the same shape; raises InputError (a ValueError) for any other."""
        if x.dim() != self.na_dim + 2 or x.shape[-1] != self.embed_dim:
            grid = ", ".join("XYZ"[: self.na_dim])
            raise InputError(
                f"{type(self).__name__}(x)", f"x is {tuple(x.shape)}", f"pass (B, {grid}, {self.embed_dim})"
            )
        qkv = self.qkv(x).unflatten(-1, (3, self.num_heads, self.head_dim))
        arguments = self.kernel_size, self.stride, self.dilation, self.is_causal
        out = neighborhood_attention(qkv.unbind(-3), arguments, self.scale)
        projected: Tensor = self.proj_drop(self.proj(out.flatten(-2)))
        return projected

    def extra_repr(self) -> str:
        """The heads and the neighbourhood."""
        names = ("head_dim", "num_heads", "kernel_size", "stride", "dilation", "is_causal")
        return ", ".join(f"{name}={getattr(self, name)}" for name in names)


class NeighborhoodAttention1D(NeighborhoodAttentionGeneric):
    """`NeighborhoodAttentionGeneric` over (B, X, embed_dim). Example::

    y = NeighborhoodAttention1D(embed_dim=512, num_heads=4, kernel_size=64, is_causal=True)(x)
    """

    na_dim = 1


class NeighborhoodAttention2D(NeighborhoodAttentionGeneric):
    """`NeighborhoodAttentionGeneric` over (B, X, Y, embed_dim). Example::

    y = NeighborhoodAttention2D(embed_dim=512, num_heads=4, kernel_size=(8, 16), dilation=(2, 1))(x)
    """

    na_dim = 2


class NeighborhoodAttention3D(NeighborhoodAttentionGeneric):
    """`NeighborhoodAttentionGeneric` over (B, X, Y, Z, embed_dim). Example::

    y = NeighborhoodAttention3D(embed_dim=512, num_heads=4, kernel_size=(4, 8, 12), is_causal=(True, False, False))(x)
    """

    na_dim = 3
