"""Source -> kernel: compiled for the card at hand, or run by Triton's interpreter where there is none.

What was compiled goes to the store (`weft.store`), whence other processes take it without compiling. Triton
keeps a cache of its own, which a process enters only after hashing Triton itself and walking the kernel's syntax tree.
"""

from __future__ import annotations

import json
import linecache
import sys
from dataclasses import asdict
from functools import cache, lru_cache
from hashlib import sha256
from pathlib import Path
from time import perf_counter
from types import ModuleType
from typing import Any

import torch
import triton
from triton import knobs
from triton._C import libtriton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, CompiledKernel
from triton.compiler.compiler import make_backend

from weft import store
from weft.kernels.triton import device as helpers
from weft.kernels.triton.emit import FLOATS, PLAIN, TENSORS, arguments, emit, unit
from weft.kernels.triton.spec import KernelSpec
from weft.settings import interpreted

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
        elif name == "Stats":
            kinds[name] = "*bf16"
        elif name in TENSORS[spec.direction]:
            wide = name in WIDE or (spec.accumulate and name in ("DQ", "DK", "DV"))
            kinds[name] = "*fp32" if wide else POINTERS[spec.dtype]
        elif name in FLOATS:
            kinds[name] = "fp32"
        else:
            kinds[name] = "i32" if name in PLAIN else "i64"
    return kinds


def _described(spec: KernelSpec) -> ASTSource:
    """The kernel as Triton wants it described."""
    return ASTSource(module_of(spec).kernel, signature(spec), {}, _divisible(spec))


def _divisible(spec: KernelSpec) -> dict[tuple[int], list[list[Any]]]:
    """Which pointers are multiples of 16 bytes, by place, in Triton's words."""
    return {
        (i,): [["tt.divisibility", 16]]
        for i, (name, kind) in enumerate(signature(spec).items())
        if kind[0] == "*" and (spec.aligned or name == "Tables")
    }


def _options(spec: KernelSpec, target: GPUTarget) -> dict[str, Any]:
    """What Triton's compiler is told."""
    amd = target.backend == "hip"  # 64 KB of shared memory, and no limit to registers
    stages = min(spec.stages, 2) if amd else spec.stages
    options = {"num_warps": spec.warps, "num_stages": stages, "enable_fp_fusion": True}
    if spec.registers and not amd:
        options["maxnreg"] = spec.registers
    return options


def compile_for(spec: KernelSpec, target: GPUTarget) -> CompiledKernel:
    """The kernel, compiled; needs no GPU."""
    return triton.compile(_described(spec), target=target, options=_options(spec, target))


# ---- the store -------------------------------------------------------------------------------------------------------
def stored(spec: KernelSpec, target: GPUTarget) -> CompiledKernel:
    """The kernel from the store, or compiled and put there; needs no GPU."""
    if not _storable():
        return compile_for(spec, target)
    key, kept = key_of(spec, target), store.opened()
    found = kept.get(key)
    kernel = None if found is None else _revived(spec, target, found)
    if kernel is None:
        began = perf_counter()
        kernel = compile_for(spec, target)
        facts = {
            "name": spec.name,
            "target": f"{target.backend} {target.arch}",
            "triton": triton.__version__,
            "compile_seconds": round(perf_counter() - began, 3),
        }
        kept.put(key, facts, _files(spec, target, kernel))
    return kernel


def _storable() -> bool:
    """Whether nobody interprets kernels, or asked Triton to do or to show something while it compiles."""
    asked = knobs.compilation
    looks = asked.always_compile or asked.dump_ir or asked.override or asked.use_ir_loc
    return not (interpreted() or looks or knobs.runtime.add_stages_inspection_hook)


def key_of(spec: KernelSpec, target: GPUTarget) -> str:
    """The hash of all that decides the machine code: source, types, options, Triton, its assembler, the environment."""
    backend = make_backend(target)
    options = backend.parse_options(_options(spec, target)).hash()  # with the libraries that are linked
    environment = sorted(libtriton.get_cache_invalidating_env_vars().items())
    content = [emit(spec), signature(spec), repr(_divisible(spec)), repr(target), backend.hash(), options, environment]
    return sha256(json.dumps([*content, *_toolchain()]).encode()).hexdigest()


@cache
def _toolchain() -> tuple[str | int, ...]:
    """What tells one compiler from another: our helpers, Triton's version, and when its library was written."""
    library = Path(libtriton.__file__).stat()
    return Path(helpers.__file__).read_text(), triton.__version__, library.st_size, library.st_mtime_ns


def _files(spec: KernelSpec, target: GPUTarget, kernel: CompiledKernel) -> dict[str, bytes]:
    """What the store keeps: spec and source for people; machine code and Triton's account of it."""
    return {
        "spec.json": json.dumps(asdict(spec), indent=1).encode(),
        "source.py": emit(spec).encode(),
        "kernel.json": json.dumps(kernel.metadata._asdict(), default=vars).encode(),
        _binary(target): kernel.kernel,
    }


def _revived(spec: KernelSpec, target: GPUTarget, entry: Path) -> CompiledKernel | None:
    """The kernel that `_files` wrote; None if another process removed it meanwhile."""
    files = {name: str(entry / name) for name in ("kernel.json", _binary(target))}
    try:
        digest = json.loads((entry / "kernel.json").read_bytes())["hash"]
        return CompiledKernel(_described(spec), files, digest)
    except FileNotFoundError:
        return None


def _binary(target: GPUTarget) -> str:
    """The file of the machine code."""
    return f"kernel.{make_backend(target).binary_ext}"


@lru_cache(maxsize=256)
def compiled(spec: KernelSpec, device: int) -> Any:
    """The kernel loaded on one device."""
    with torch.cuda.device(device):
        return stored(spec, triton.runtime.driver.active.get_current_target())


def kernel_of(spec: KernelSpec, device: torch.device) -> Any:
    """What `kernel[grid](*values)` runs on the current stream; values in the order of `arguments(spec)`."""
    return module_of(spec).kernel if device.type == "cpu" else compiled(spec, device.index or 0)


__all__ = ["arguments", "compile_for", "kernel_of", "key_of", "module_of", "signature", "stored", "unit"]
