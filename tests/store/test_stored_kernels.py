"""Compiled kernels between processes: the second one compiles nothing, and nothing stale is ever taken."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget

import weft
from weft.kernels.gpu.compile import compiler, load
from weft.kernels.gpu.compile.emit import emit
from weft.kernels.gpu.spec import KernelSpec
from weft.settings import interpreted
from weft.store import opened

pytestmark = pytest.mark.skipif(interpreted(), reason="Triton interprets, and compiles nothing")


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
    compile_for = compiler.compile_for

    def counted(one, target):
        found.append(spec_of(one.spec))
        return compile_for(one, target)

    monkeypatch.setattr(compiler, "compile_for", counted)
    return found


# Prints the kernel as this process has it, and how often Triton was asked to compile.
CHILD = """
import json
from hashlib import sha256
from triton.backends.compiler import GPUTarget
from weft.kernels.gpu.compile import load, compiler
from weft.kernels.gpu.spec import KernelSpec
asked, compiled = [], compiler.compile_for
compiler.compile_for = lambda *a: asked.append(1) or compiled(*a)
spec = KernelSpec("forward", "bfloat16", 16, 16, 0, 64, 64, warps=4)
kernel = load.stored(spec, GPUTarget("cuda", 90, 32))
shared = kernel.metadata.shared, kernel.packed_metadata, kernel.name, kernel.hash, list(kernel.src.signature.values())
print(json.dumps([len(asked), sha256(kernel.kernel).hexdigest(), shared]))
"""


def spec_of(text):
    """A KernelSpec from its JSON, which has lists for tuples."""
    fields = json.loads(text)
    return KernelSpec(**fields | {"boxes": tuple(map(tuple, fields["boxes"]))})


def said_by(python):
    """What such a process of that interpreter prints."""
    env = os.environ | {"PYTHONPATH": str(Path(weft.__file__).parents[1])}
    return json.loads(subprocess.run([python, "-P", "-c", CHILD], env=env, capture_output=True, check=True).stdout)


def test_the_second_process_compiles_nothing():
    first, second = said_by(sys.executable), said_by(sys.executable)
    assert (first[0], second[0]) == (1, 0)
    assert first[1:] == second[1:]


@pytest.mark.skipif("WEFT_OTHER_PYTHON" not in os.environ, reason="WEFT_OTHER_PYTHON names no interpreter")
def test_another_python_compiles_nothing():
    """It has the same version of Triton, and needs no torch."""
    first, second = said_by(sys.executable), said_by(os.environ["WEFT_OTHER_PYTHON"])
    assert (first[0], second[0]) == (1, 0)
    assert first[1:] == second[1:]


@pytest.mark.more
def test_compiling_takes_no_torch():
    """Nor does what is compiled say where its compiler lies."""
    code = f"import sys; sys.modules['torch'] = None\n{CHILD}"
    subprocess.run([sys.executable, "-P", "-c", code], check=True)
    (entry,) = opened().entries()
    here = str(Path(triton.__file__).parent)
    for file in entry.path.iterdir():
        assert file.suffix == ".cubin" or here not in file.read_text(), file.name


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
    assert spec_of((entry.path / "spec.json").read_text()) == SMALL
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
    assert compiler.storable()
    monkeypatch.setenv(knob, value)
    assert not compiler.storable()


def test_kernels_that_are_interpreted_are_never_stored(monkeypatch):
    monkeypatch.setattr(compiler, "interpreted", lambda: True)
    assert not compiler.storable()


def test_a_hook_into_the_compiler_is_not_passed_by(monkeypatch):
    monkeypatch.setattr(knobs.runtime, "add_stages_inspection_hook", lambda *a: ("", ""))
    assert not compiler.storable()
