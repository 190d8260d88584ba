"""Source -> kernel: compiled for the card at hand, or run by Triton's interpreter where there is none."""

from __future__ import annotations

import linecache
import sys
from functools import lru_cache
from hashlib import sha256
from types import ModuleType
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from weft.kernels.triton.emit import FLOATS, PLAIN, TENSORS, arguments, emit, unit
from weft.kernels.triton.spec import KernelSpec

POINTERS = {"float32": "*fp32", "bfloat16": "*bf16", "float16": "*fp16"}
WIDE = ("Lse", "DLse", "Delta", "Sum", "Sinks", "Slopes")  # always float32


@lru_cache(maxsize=256)
def module_of(spec: KernelSpec) -> ModuleType:
    """The emitted module. Its source is known to linecache, so that Triton, tools and tracebacks can read it."""
    source = emit(spec)
    digest = sha256(source.encode()).hexdigest()[:16]
    path = f"<weft {spec.name} {digest}>"
    linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)
    module = ModuleType(f"weft_emitted_{digest}")
    sys.modules[module.__name__] = module
    exec(compile(source, path, "exec"), module.__dict__)
    return module


def signature(spec: KernelSpec) -> dict[str, str]:
    """The type of every argument: integers have a declared width and are never specialised."""
    kinds = {}
    for name in arguments(spec):
        if name == "Tables":
            kinds[name] = "*i32"
        elif name in TENSORS[spec.direction]:
            wide = name in WIDE or (spec.accumulate and name in ("DQ", "DK", "DV"))
            kinds[name] = "*fp32" if wide else POINTERS[spec.dtype]
        elif name in FLOATS:
            kinds[name] = "fp32"
        else:
            kinds[name] = "i32" if name in PLAIN else "i64"
    return kinds


def compile_for(spec: KernelSpec, target: GPUTarget) -> Any:
    """The compiled kernel; needs no GPU."""
    kinds = signature(spec)
    aligned = {
        (i,): [["tt.divisibility", 16]]
        for i, (name, kind) in enumerate(kinds.items())
        if kind[0] == "*" and (spec.aligned or name == "Tables")
    }
    source = ASTSource(module_of(spec).kernel, kinds, {}, aligned)
    amd = target.backend == "hip"  # 64 KB of shared memory, and no limit to registers
    stages = min(spec.stages, 2) if amd else spec.stages
    options = {"num_warps": spec.warps, "num_stages": stages, "enable_fp_fusion": True}
    if spec.registers and not amd:
        options["maxnreg"] = spec.registers
    return triton.compile(source, target=target, options=options)


@lru_cache(maxsize=256)
def compiled(spec: KernelSpec, device: int) -> Any:
    """The kernel loaded on one device."""
    with torch.cuda.device(device):
        return compile_for(spec, triton.runtime.driver.active.get_current_target())


def kernel_of(spec: KernelSpec, device: torch.device) -> Any:
    """What `kernel[grid](*values)` runs on the current stream; values in the order of `arguments(spec)`."""
    return module_of(spec).kernel if device.type == "cpu" else compiled(spec, device.index or 0)


__all__ = ["arguments", "compile_for", "kernel_of", "module_of", "signature", "unit"]
