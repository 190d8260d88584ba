"""Loaders: what a producer asks for, by cp.async or by tensor descriptors (TMA)."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from weft.kernels.gpu.hopper.ops.values import UNIT


@gluon.jit
def copy_rows(to, tensor, at, rows, d):
    """Ask by cp.async for rows of a tensor. rows: how far each is from `at`, in rows; d: the dims of each."""
    async_copy.async_copy_global_to_shared(to, at + (gl.expand_dims(rows * (tensor.per_row * UNIT), 1) + d))
