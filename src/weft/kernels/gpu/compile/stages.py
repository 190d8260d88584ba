"""Triton's stages one after the other, as `triton.compile` runs them, but for its cache.

To enter that cache, a process reads all of Triton's library, 400 MB. And a kernel whose PTX is rewritten would have to
register a hook there, which other threads that compile would meet. So where nobody asked to watch Triton compile, weft
asks a backend for its stages itself.
"""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock, RLock
from typing import Any

import triton
from triton import knobs
from triton._C.libtriton import get_cache_invalidating_env_vars, ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, CompiledKernel
from triton.compiler.compiler import make_backend

VERSIONS = ("3.6.", "3.7.")  # of Triton, whose stages are known to be run so
Rewrite = Callable[[str], str]
_WALKING, _REWRITING = RLock(), RLock()


def watched() -> bool:
    """Whether somebody asked Triton to do or to show something while it compiles, which only `triton.compile` does."""
    asked = knobs.compilation
    looks = asked.always_compile or asked.dump_ir or asked.override or asked.use_ir_loc
    return bool(looks or knobs.runtime.add_stages_inspection_hook)


def run(
    described: ASTSource, target: GPUTarget, options: dict[str, Any], digest: str, rewrite: Rewrite | None = None
) -> CompiledKernel:
    """The kernel, compiled; any number of threads may do so at once.

    digest: what the kernel says of itself as its hash. rewrite: applied to PTX before it is assembled.
    """
    backend = make_backend(target)
    told = backend.parse_options(dict(options))
    stages: dict[str, Callable[..., Any]] = {}
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    backend.add_stages(stages, told, described.language)
    helpers = backend.get_codegen_implementation(told), backend.get_module_map()
    module = _walked(described, (target, told, *helpers, context))
    metadata = {"hash": digest, "target": target, **vars(told), **get_cache_invalidating_env_vars()}
    metadata["triton_version"] = triton.__version__
    files: dict[str, str | bytes] = {}
    for kind in list(stages)[list(stages).index(described.ext) :]:
        with _WITHOUT_LINES:
            module = stages[kind](module, metadata)
        if kind == "ptx" and rewrite is not None:
            module = rewrite(module)
        if isinstance(module, (str, bytes)) and kind != "llir":  # which is long; modules of MLIR take long to print
            files[kind] = module
    return _kernel(described, metadata, files)


@contextmanager
def rewriting(rewrite: Rewrite) -> Iterator[None]:
    """What Triton compiles meanwhile has its PTX rewritten; it does not come from Triton's own cache, which does not
    know of that.
    """
    with _REWRITING, knobs.compilation.scope():  # what is put back by hand hides the environment from then on
        hook = knobs.runtime.add_stages_inspection_hook

        def inspect(*given: Any) -> tuple[str, str] | None:
            if not given:
                return hook() if hook is not None else ("", "")
            if hook is not None:
                hook(*given)
            stages = given[1]
            translate = stages["ptx"]
            stages["ptx"] = lambda source, metadata: rewrite(translate(source, metadata))
            return None

        knobs.runtime.add_stages_inspection_hook, knobs.compilation.always_compile = inspect, True
        try:
            yield
        finally:
            knobs.runtime.add_stages_inspection_hook = hook


def _walked(described: ASTSource, given: tuple[Any, ...]) -> Any:
    """The kernel in Triton's first language, by a walk over its syntax tree: in one thread at a time.

    The walk changes the filters of warnings and puts them back, which two threads at once must not do. It is Python, so
    they would only share its time. It makes objects by the hundred thousand and none in cycles that matter.
    """
    with _WALKING, without_collection():
        return described.make_ir(*given)


@contextmanager
def without_collection() -> Iterator[None]:
    """Without Python's garbage collector, if it runs at all."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


class _WithoutLines:
    """While a stage runs, machine code is not told which line of a source it comes from, unless the user says so
    (TRITON_DISABLE_LINE_INFO). It is a quarter of LLVM's time and three quarters of the code's bytes.

    Triton asks a knob that all threads share, so the last thread to leave puts it back. It is set past the environment,
    which other threads may be reading.
    """

    KNOB = "disable_line_info"

    def __init__(self) -> None:
        self._lock = Lock()
        self._inside = 0
        self._ours = False

    def __enter__(self) -> None:
        with self._lock:
            told = vars(knobs.compilation)
            if self._inside == 0 and self.KNOB not in told and "TRITON_DISABLE_LINE_INFO" not in os.environ:
                told[self.KNOB] = self._ours = True
            self._inside += 1

    def __exit__(self, *_: Any) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0 and self._ours:
                vars(knobs.compilation).pop(self.KNOB, None)
                self._ours = False


_WITHOUT_LINES = _WithoutLines()


def _kernel(described: ASTSource, metadata: dict[str, Any], files: dict[str, str | bytes]) -> CompiledKernel:
    """As Triton has kernels, which it reads from files."""
    with TemporaryDirectory(prefix="weft-") as folder:
        paths = {}
        for kind, content in {**files, "json": json.dumps(metadata, default=vars)}.items():
            paths[f"kernel.{kind}"] = path = Path(folder, f"kernel.{kind}")
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return CompiledKernel(described, {name: str(path) for name, path in paths.items()}, metadata["hash"])
