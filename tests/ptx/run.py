"""Weft's kernels as a GPU would be given them, run here: the real planner, the real entry points, the PTX of Triton."""

import os
import re
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from tempfile import TemporaryDirectory
from unittest import mock

import numpy as np
import torch
from tests.kernels.planned import forget
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend

from weft.kernels.gpu.compile import compiler, miscompiles
from weft.torch import bind
from weft.torch.launcher import Placed

from . import specialised
from .launch import Kernel, launch
from .memory import Global
from .parse import parse
from .threads import EAGER, Order


@contextmanager
def without_machine_code():
    """Triton compiles as far as PTX meanwhile, which takes half of the time; nobody else finds that in its cache."""
    with (
        TemporaryDirectory() as folder,
        mock.patch.dict(os.environ, TRITON_CACHE_DIR=folder),
        mock.patch.object(CUDABackend, "make_cubin", lambda *_, **__: b"none"),
        mock.patch.object(miscompiles, "disassembled", lambda cubin, *options: ""),
    ):
        yield


@lru_cache
def text_of(given, arch):
    """(PTX, bytes of shared memory) of a Source for sm_<arch>."""
    with without_machine_code():
        kernel = compiler.compile_for(given, GPUTarget("cuda", arch, 32))
    return kernel.asm["ptx"], kernel.metadata.shared


@lru_cache
def kernel_of(text, shared):
    return Kernel(parse(text), shared)


def storage(x, kind):
    """(address, bytes) of what a launch may touch through a tensor, or through a descriptor of a type."""
    if isinstance(x, Placed):
        last = sum((size - 1) * stride for size, stride in zip(x.shape, x.strides, strict=True))
        return x.address, element_of(kind).itemsize * (last + 1)
    whole = x.untyped_storage()
    return whole.data_ptr(), whole.nbytes()


@dataclass(frozen=True)
class Way:
    """How launches are run: of what was compiled for sm_<arch>, in an order. change(name, PTX): another PTX."""

    arch: int = 90
    order: Order = EAGER
    change: Callable[[str, str], str] = lambda name, text: text


@contextmanager
def emulated(way):
    """Launches run here meanwhile, and new tensors are not numbers; yields the names of the kernels as they run."""
    names, strict = [], torch.are_deterministic_algorithms_enabled()

    def kernel(given, device):
        """What `weft.torch.bind.kernel_of` returns."""
        return Launched(given, way, names)

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(bind, "kernel_of", kernel))
        torch.use_deterministic_algorithms(True)  # which fills them
        forget()
        try:
            yield names
        finally:
            forget()
            torch.use_deterministic_algorithms(strict)


@dataclass(frozen=True)
class Launched:
    """A kernel that is launched as Triton's are."""

    given: compiler.Source
    way: Way
    names: list[str]

    def __getitem__(self, grid):
        return lambda *values: self._launch(grid, values)

    def _launch(self, grid, values):
        text, shared = text_of(self.given, self.way.arch)
        kernel = kernel_of(self.way.change(self.given.name, text), shared)
        given = [(x, kind) for x, (_, kind) in zip(values, self.given.types, strict=True)]
        memory = Global([storage(*one) for one in given if isinstance(one[0], (torch.Tensor, Placed))])
        plain = [y for one in given for y in _plain(*one)]
        if self.given.gluon:
            specialised.launch(kernel.program, grid[0], plain, (memory, shared), self.way.order)
        else:
            launch(kernel, grid, plain, memory, self.way.order)
        self.names.append(self.given.name)


def element_of(kind):
    """The type of the numbers that a descriptor of a type reaches, or of their bits."""
    return np.dtype(np.float32 if kind.startswith("tensordesc<fp32") else np.int16)


def _plain(x, kind):
    """A value as PTX is given it; a descriptor with its sizes and strides. kind: its type."""
    if isinstance(x, Placed):
        box = [int(size) for size in re.match(r"tensordesc<\w+\[([\d, ]+)\]", kind)[1].split(",")]
        return specialised.Map.of(x.address, (x.shape, x.strides), box, element_of(kind)), *x.shape, *x.strides
    return (x.data_ptr() if isinstance(x, torch.Tensor) else x,)
