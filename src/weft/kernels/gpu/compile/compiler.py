"""Emitted source -> kernel: compiled for the card at hand, or run by Triton's interpreter where there is none.

What was compiled goes to the store (`weft.store`), whence other processes take it without compiling. Triton
keeps a cache of its own, which a process enters only after hashing Triton itself and walking the kernel's syntax tree.
"""

from __future__ import annotations

import inspect
import json
import linecache
import os
import sys
from concurrent.futures import Future, wait
from contextlib import nullcontext
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from time import perf_counter
from types import ModuleType
from typing import Any

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, CompiledKernel
from triton.compiler.compiler import make_backend
from triton.experimental.gluon._runtime import GluonASTSource

from weft import store
from weft.errors import UnsupportedKernel
from weft.kernels.gpu.compile import adding, dedup, keys, miscompiles, stages
from weft.kernels.gpu.compile.source import Source
from weft.outside import parsed
from weft.settings import interpreted

LAYOUT = 3  # of what an entry holds; raised whenever `_revived` would read an older one wrongly
# Kernels that `compile.ahead` compiles, by their keys, until somebody takes them. Threads end with a fork.
UNDER_WAY: dict[str, Future[CompiledKernel]] = {}
os.register_at_fork(after_in_child=UNDER_WAY.clear)


@lru_cache(maxsize=256)
def module_of(source: Source) -> ModuleType:
    """The emitted module. Its source is known to linecache, so that Triton, tools and tracebacks can read it."""
    digest = sha256(source.text.encode()).hexdigest()[:16]
    path = f"<weft {source.name} {digest}>"
    linecache.cache[path] = (len(source.text), None, source.text.splitlines(keepends=True), path)
    module = ModuleType(f"weft_emitted_{digest}")
    sys.modules[module.__name__] = module
    exec(compile(source.text, path, "exec"), module.__dict__)
    return module


def _described(source: Source) -> ASTSource:
    """The kernel as Triton wants it described."""
    attributes = {(i,): [["tt.divisibility", 16]] for i in source.aligned}
    language = GluonASTSource if source.gluon else ASTSource
    return language(module_of(source).kernel, dict(source.types), {}, attributes)


def _options(source: Source, target: GPUTarget) -> dict[str, Any]:
    """What Triton's compiler is told."""
    amd = target.backend == "hip"  # 64 KB of shared memory, and no limit to registers
    depth = min(source.stages, 2) if amd else source.stages
    options = {"num_warps": source.warps, "num_stages": depth, "enable_fp_fusion": True}
    options["sanitize_overflow"] = False  # checks that nobody reads unless Triton debugs: a tenth of a walk's time
    if source.registers and not amd:
        options["maxnreg"] = source.registers
    if source.early:
        options["launch_pdl"] = True
    return options


def compile_for(source: Source, target: GPUTarget) -> CompiledKernel:
    """The kernel, compiled; needs no GPU. Raises UnsupportedKernel where that went wrong without a word."""
    kernel = _compiled(source, target)
    with stages.without_collection():
        wrong = miscompiles.mistake(kernel, target)
    if wrong:
        raise UnsupportedKernel(
            f"the kernel {source.name} for {target.arch}",
            f"Triton {triton.__version__} translated it wrongly: {wrong}",
            "use another version of Triton, and report this kernel",
        )
    return kernel


def _compiled(source: Source, target: GPUTarget) -> CompiledKernel:
    """What Triton makes of a source, by `triton.compile` where somebody watches it or `stages` does not know it."""
    described, options = _described(source), _options(source, target)
    rewriter = _rewriter(source)
    rewrite = None if rewriter is None else rewriter.rewritten
    if stages.watched() or knobs.compilation.listener or not triton.__version__.startswith(stages.VERSIONS):
        with nullcontext() if rewrite is None else stages.rewriting(rewrite):
            return triton.compile(described, target=target, options=options)
    return stages.run(described, target, options, key_of(source, target), rewrite)


def _rewriter(source: Source) -> ModuleType | None:
    """The module whose `rewritten` changes a kernel's PTX before it is assembled."""
    if source.shared:
        return dedup
    return adding if source.adds else None


# ---- the store -------------------------------------------------------------------------------------------------------
def stored(source: Source, target: GPUTarget) -> CompiledKernel:
    """The kernel from the store, or compiled and put there; needs no GPU. What is under way is waited for."""
    if not storable():
        return compile_for(source, target)
    key = key_of(source, target)
    ahead = UNDER_WAY.get(key)
    if ahead is not None:
        wait([ahead])
        if UNDER_WAY.pop(key, None) is ahead:  # for one caller, since it will be loaded on one device
            return ahead.result()
    return found_or_made(key, source, target)


def found_or_made(key: str, source: Source, target: GPUTarget) -> CompiledKernel:
    """The kernel of a key: from the store, or compiled and put there."""
    kept = store.opened()
    found = kept.get(key)
    try:
        kernel = None if found is None else _revived(source, target, found)
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
    ) as error:  # its sums fit, so nothing but weft's habits changed
        kept.reject(key, f"kernel.json is none that weft wrote ({type(error).__name__})")
        kernel = None
    if kernel is None:
        began = perf_counter()
        kernel = compile_for(source, target)
        facts = {
            "name": source.name,
            "target": f"{target.backend} {target.arch}",
            "triton": triton.__version__,
            "compile_seconds": round(perf_counter() - began, 3),
        }
        kept.put(key, facts, _files(source, target, kernel))
    return kernel


def storable() -> bool:
    """Whether nobody interprets kernels, or asked Triton to do or to show something while it compiles."""
    return not (interpreted() or stages.watched())


def key_of(source: Source, target: GPUTarget) -> str:
    """The hash of all that decides the machine code, and of what is refused: see `weft.kernels.gpu.compile.keys`."""
    kernel = keys.reached(module_of(source).kernel), source.types, source.aligned, source.gluon
    rewriter = _rewriter(source)
    rewritten = "" if rewriter is None else inspect.getsource(rewriter)
    told = keys.target_content(target, _options(source, target))
    return keys.digest([LAYOUT, kernel, rewritten, told, keys.compiler(), keys.environment(), miscompiles.VERSION])


def _files(source: Source, target: GPUTarget, kernel: CompiledKernel) -> dict[str, bytes]:
    """What the store keeps: spec and source for people; machine code and Triton's account of it, without paths."""
    said = kernel.metadata._asdict()
    said["extern_libs"] = [[name, Path(path).name] for name, path in said.get("extern_libs") or ()]
    return {
        "spec.json": source.spec.encode(),
        "source.py": source.text.encode(),
        "kernel.json": json.dumps(said, default=vars).encode(),
        _binary(target): kernel.kernel,
    }


def _revived(source: Source, target: GPUTarget, entry: Path) -> CompiledKernel | None:
    """The kernel that `_files` wrote; None if another process removed it meanwhile."""
    files = {name: str(entry / name) for name in ("kernel.json", _binary(target))}
    try:
        digest = parsed((entry / "kernel.json").read_bytes())["hash"]
        return CompiledKernel(_described(source), files, digest)
    except FileNotFoundError:
        return None


def _binary(target: GPUTarget) -> str:
    """The file of the machine code."""
    return f"kernel.{make_backend(target).binary_ext}"
