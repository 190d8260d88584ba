"""Triton's stages, run without its cache: what comes out, and that threads may do it at once."""

import gc
import os
import re
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from unittest import mock

import pytest

pytest.importorskip("triton")

import triton
from tests.tiers import every
from triton import knobs

from weft.kernels.gpu.compile import compiler, dedup, load, stages
from weft.kernels.gpu.configure import fused_spec
from weft.kernels.gpu.spec import KernelSpec
from weft.planning.problem import Problem
from weft.settings import interpreted

from .resources import TARGETS

pytestmark = pytest.mark.skipif(interpreted(), reason="Triton interprets, and compiles nothing")
SMALL = KernelSpec("forward", "bfloat16", 16, 16, 0, 64, 64, warps=4)
LINES = "TRITON_DISABLE_LINE_INFO"
WALK = fused_spec(Problem(1, 2, 2, 4096, 4096, 64, 64, "bfloat16", "cuda"))  # in Gluon, and its groups share their code


@pytest.fixture(autouse=True)
def own_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def of_triton(spec, target):
    """What `triton.compile` makes of it, without lines."""
    with mock.patch.object(stages, "VERSIONS", ()), mock.patch.dict(os.environ, {LINES: "1"}):
        return load.compile_for(spec, TARGETS[target])


@pytest.mark.parametrize(
    "spec, target",
    every(2, [(SMALL, "sm_90"), (SMALL, "gfx942"), (replace(SMALL, registers=128), "sm_80"), (WALK, "sm_90")]),
)
def test_it_is_what_triton_compiles(spec, target):
    theirs, ours = of_triton(spec, target), load.compile_for(spec, TARGETS[target])
    assert ours.kernel == theirs.kernel
    said, told = ours.metadata._asdict(), theirs.metadata._asdict()
    assert said | {"hash": "", LINES: told[LINES]} == told | {"hash": ""}
    assert ours.packed_metadata == theirs.packed_metadata and ours.name == theirs.name
    assert ours.asm == {kind: theirs.asm[kind] for kind in ours.asm}
    assert (spec is WALK) == (dedup.MINE in ours.asm.get("ptx", ""))


def test_nothing_goes_to_tritons_cache(tmp_path):
    load.compile_for(SMALL, TARGETS["sm_90"])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("watch", ["TRITON_ALWAYS_COMPILE", "listener", "add_stages_inspection_hook"])
def test_who_watches_triton_is_shown_its_own_way(watch, monkeypatch):
    seen = []
    if watch == "listener":
        monkeypatch.setattr(knobs.compilation, watch, lambda **given: seen.append(given))
    elif watch == "add_stages_inspection_hook":
        monkeypatch.setattr(knobs.runtime, watch, lambda *given: seen.append(given) or ("", ""))
    else:
        monkeypatch.setenv(watch, "1")
        seen.append("nothing to be told")
    with mock.patch.object(triton, "compile", wraps=triton.compile) as asked:
        load.compile_for(SMALL, TARGETS["sm_90"])
    assert asked.call_count == 1 and seen


def test_a_version_that_is_not_known_compiles_as_it_does(monkeypatch):
    monkeypatch.setattr(triton, "__version__", "9.0.0")
    with mock.patch.object(triton, "compile", wraps=triton.compile) as asked:
        load.compile_for(SMALL, TARGETS["sm_90"])
    assert asked.call_count == 1


@pytest.mark.more
def test_threads_compile_at_once():
    """Each what it would compile alone, and what Python has for the whole process stays as it was."""
    specs = [replace(SMALL, warps=warps, direction=one) for warps in (4, 8) for one in ("forward", "dq")] + [WALK]
    alone = [load.compile_for(spec, TARGETS["sm_90"]).kernel for spec in specs]
    before = list(warnings.filters)
    with ThreadPoolExecutor(len(specs)) as threads:
        together = list(threads.map(lambda spec: load.compile_for(spec, TARGETS["sm_90"]).kernel, specs))
    assert together == alone
    assert warnings.filters == before and gc.isenabled()
    assert knobs.runtime.add_stages_inspection_hook is None and "disable_line_info" not in vars(knobs.compilation)


@pytest.mark.parametrize("asked", every(3, [None, "0", "1"]))
def test_lines_are_left_out_unless_they_are_asked_for(asked, monkeypatch):
    if asked is not None:
        monkeypatch.setenv(LINES, asked)
    before = dict(os.environ)
    ptx = load.compile_for(SMALL, TARGETS["sm_90"]).asm["ptx"]
    assert (".loc" in ptx) == (asked == "0")
    assert dict(os.environ) == before and "disable_line_info" not in vars(knobs.compilation)


def test_a_knob_that_was_set_stays(monkeypatch):
    monkeypatch.setitem(vars(knobs.compilation), "disable_line_info", False)
    assert ".loc" in load.compile_for(SMALL, TARGETS["sm_90"]).asm["ptx"]
    assert vars(knobs.compilation)["disable_line_info"] is False


def test_a_kernel_that_does_not_compile_says_why_and_leaves_nothing_behind(monkeypatch):
    wrong = compiler.Source(
        "wrong", "import triton\n\n\n@triton.jit\ndef kernel(X):\n    unknown(X)\n", (("X", "i32"),), (), 4, 1
    )
    with pytest.raises(triton.CompilationError, match=re.escape("NameError('unknown is not defined')")):
        compiler.compile_for(wrong, TARGETS["sm_90"])
    assert gc.isenabled()
