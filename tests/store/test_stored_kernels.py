"""Compiled kernels between processes: the second one compiles nothing, and nothing stale is ever taken."""

import ast
import importlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("triton")

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget

from weft.kernels.triton import load, rowwise, source
from weft.kernels.triton.configure import few_specs, walk_spec
from weft.kernels.triton.emit import emit
from weft.kernels.triton.row_spec import RowSpec
from weft.kernels.triton.spec import KernelSpec
from weft.planning.problem import Problem
from weft.settings import interpreted
from weft.store import opened

pytestmark = pytest.mark.skipif(interpreted(), reason="Triton interprets, and compiles nothing")


def key_of(spec, target):
    return source.key_of(load.source_of.__wrapped__(spec), target)  # emitted anew


HOPPER, AMD = GPUTarget("cuda", 90, 32), GPUTarget("hip", "gfx942", 64)
SMALL = KernelSpec("forward", "bfloat16", 16, 16, 0, 64, 64, warps=4)  # quick to compile


@pytest.fixture(autouse=True)
def own_directories(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "weft"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))


@pytest.fixture
def compilations(monkeypatch):
    """Specs that are compiled, one for each time."""
    found = []
    compile_for = source.compile_for

    def counted(one, target):
        found.append(KernelSpec(**json.loads(one.spec)))
        return compile_for(one, target)

    monkeypatch.setattr(source, "compile_for", counted)
    return found


# Prints the kernel as this process has it, and how often Triton was asked to compile.
CHILD = """
import json, triton
from hashlib import sha256
from triton.backends.compiler import GPUTarget
from weft.kernels.triton import load
from weft.kernels.triton.spec import KernelSpec
asked, compile = [], triton.compile
triton.compile = lambda *a, **k: asked.append(1) or compile(*a, **k)
spec = KernelSpec("forward", "bfloat16", 16, 16, 0, 64, 64, warps=4)
kernel = load.stored(spec, GPUTarget("cuda", 90, 32))
shared = kernel.metadata.shared, kernel.packed_metadata, kernel.name, kernel.hash, list(kernel.src.signature.values())
print(json.dumps([len(asked), sha256(kernel.kernel).hexdigest(), shared]))
"""


def test_the_second_process_compiles_nothing():
    first, second = (
        json.loads(subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True).stdout)
        for _ in range(2)
    )
    assert (first[0], second[0]) == (1, 0)
    assert first[1:] == second[1:]


@pytest.mark.parametrize("target", [HOPPER, AMD], ids=["cuda", "hip"])
def test_what_is_revived_is_what_was_compiled(target, compilations):
    made = load.stored(SMALL, target)
    found = load.stored(SMALL, target)
    assert compilations == [SMALL]
    assert found.kernel == made.kernel and found.packed_metadata == made.packed_metadata
    assert found.metadata.target == made.metadata.target == target
    assert found.src.signature == made.src.signature == load.signature(SMALL)
    (entry,) = opened().entries()
    facts = entry.facts()
    assert facts["name"] == SMALL.name and facts["triton"] == triton.__version__ and facts["compile_seconds"] > 0
    assert KernelSpec(**json.loads((entry.path / "spec.json").read_text())) == SMALL
    assert (entry.path / "source.py").read_text() == emit(SMALL)


def test_a_damaged_kernel_is_compiled_anew(compilations):
    made = load.stored(SMALL, HOPPER)
    (entry,) = opened().entries()
    (entry.path / "kernel.cubin").write_bytes(made.kernel[:-1] + b"\x00\x01")
    with pytest.warns(RuntimeWarning, match="kernel.cubin changed"):
        assert load.stored(SMALL, HOPPER).kernel == made.kernel
    assert load.stored(SMALL, HOPPER).kernel == made.kernel
    assert compilations == [SMALL, SMALL]


def test_an_entry_that_another_process_removes_just_now(compilations, monkeypatch):
    made = load.stored(SMALL, HOPPER)
    store = opened()
    get = store.get

    def removed_after(key):
        found = get(key)
        store.clear()
        return found

    monkeypatch.setattr(store, "get", removed_after)
    assert load.stored(SMALL, HOPPER).kernel == made.kernel
    assert compilations == [SMALL, SMALL]


def test_without_a_store_every_process_compiles(compilations, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE_DIR", "off")
    assert load.stored(SMALL, HOPPER).kernel == load.stored(SMALL, HOPPER).kernel
    assert compilations == [SMALL, SMALL]


@pytest.mark.parametrize(
    ("knob", "value"), [("TRITON_ALWAYS_COMPILE", "1"), ("TRITON_KERNEL_DUMP", "1"), ("USE_IR_LOC", "ttgir")]
)
def test_who_wants_to_see_the_compilation_sees_it(knob, value, monkeypatch):
    assert source._storable()
    monkeypatch.setenv(knob, value)
    assert not source._storable()


def test_kernels_that_are_interpreted_are_never_stored(monkeypatch):
    monkeypatch.setattr(source, "interpreted", lambda: True)
    assert not source._storable()


# ---- the key ---------------------------------------------------------------------------------------------------------
def test_the_key_of_the_same_kernel_is_the_same():
    assert key_of(SMALL, HOPPER) == key_of(replace(SMALL), GPUTarget("cuda", 90, 32))


SHORT = Problem(1, 2, 2, 4096, 4096, 64, 64, "bfloat16", "cuda")
IN_GROUPS_OF = {  # specs whose sources take functions of other files
    "forward": replace(SMALL, direction="forward", dtype="bfloat16", d=64, dv=64, groups=4, rows=256, cols=64),
    "dkdv": replace(SMALL, direction="dkdv", dtype="bfloat16", d=64, dv=64, groups=2, rows=128, cols=64),
    "gradients": walk_spec(SHORT),
    "few keys": few_specs(SHORT)[0],
    "sums of few keys": few_specs(SHORT)[1],
}


@pytest.mark.parametrize(
    "text",
    [
        *(emit(replace(SMALL, direction=one)) for one in ("forward", "dq", "dkdv")),
        *map(emit, IN_GROUPS_OF.values()),
        rowwise.emit(RowSpec("bfloat16", 64, 64, 16, 64)),
    ],
    ids=["forward", "dq", "dkdv", *(f"{one} in groups" for one in IN_GROUPS_OF), "by rows"],
)
def test_kernels_call_nothing_that_the_key_leaves_out(text):
    """What an emitted source imports of weft, and what files with functions of kernels do, is among the files that the
    key is made of.
    """
    known, wanted, seen = set(source.helpers()), [text], set()
    while wanted:
        for name in imported(wanted.pop()) - seen:
            seen.add(name)
            if name.startswith("weft"):
                path = Path(importlib.import_module(name).__file__)
                assert path in known, name
                if is_of_kernels(path.read_text()):
                    wanted.append(path.read_text())


def is_of_kernels(text):
    """Whether a file has functions of kernels."""
    return "@triton.jit" in text or "@gluon.jit" in text


def imported(text):
    """Modules, and those that come of packages."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            of_package = node.module in ("weft.kernels.triton", "weft.planning")
            found |= {f"{node.module}.{alias.name}" for alias in node.names} if of_package else {node.module}
    return found


def test_another_kernel_or_target_has_another_key():
    changes = {"dtype": "float16", "dv": 32, "aligned": False, "warps": 8, "stages": 2, "registers": 128}
    specs = [SMALL, *(replace(SMALL, **{name: value}) for name, value in changes.items())]
    keys = [key_of(spec, HOPPER) for spec in specs]
    keys += [key_of(SMALL, target) for target in (GPUTarget("cuda", 80, 32), AMD)]
    assert len(set(keys)) == len(keys)


def test_everything_that_changes_machine_code_changes_the_key(monkeypatch, tmp_path):
    """Each change alone: helpers, Triton's version, its library, its assembler, linked libraries, the environment."""
    before = key_of(SMALL, HOPPER)
    helpers, *rest = source._toolchain()
    for toolchain in ((helpers + "\n", *rest), *((helpers, *_changed(rest, i)) for i in range(len(rest)))):
        with monkeypatch.context() as patch:
            patch.setattr(source, "_toolchain", lambda toolchain=toolchain: toolchain)
            assert key_of(SMALL, HOPPER) != before
    linked = tmp_path / "libdevice.bc"
    linked.write_bytes(b"another")
    environment = {"DISABLE_LLVM_OPT": "1", "TRITON_OVERRIDE_ARCH": "sm100", "TRITON_LIBDEVICE_PATH": str(linked)}
    for name, value in environment.items():
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert key_of(SMALL, HOPPER) != before, name
    with monkeypatch.context() as patch:
        patch.setattr(type(source.make_backend(HOPPER)), "hash", lambda self: "another assembler")
        assert key_of(SMALL, HOPPER) != before
    with monkeypatch.context() as patch:
        patch.setattr(load, "emit", lambda spec: "another source")
        assert key_of(SMALL, HOPPER) != before
    assert key_of(SMALL, HOPPER) == before


def _changed(values, at):
    return [f"{value} " if i == at else value for i, value in enumerate(values)]


def test_a_hook_into_the_compiler_is_not_passed_by(monkeypatch):
    monkeypatch.setattr(knobs.runtime, "add_stages_inspection_hook", lambda *a: ("", ""))
    assert not source._storable()
