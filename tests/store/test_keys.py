"""A kernel's key: the same wherever the same kernel is compiled by the same compiler, and nowhere else."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("triton")

import triton
from tests.tiers import every
from triton.backends.compiler import GPUTarget
from triton.language import constexpr

import weft
from weft.kernels.gpu.compile import compiler, dedup, keys, load, miscompiles
from weft.kernels.gpu.compile.compiler import Source
from weft.kernels.gpu.hopper import fwd
from weft.kernels.gpu.hopper.ops import broadcast, mask
from weft.kernels.gpu.ops import bounds
from weft.kernels.gpu.ops.online_softmax import add_tile
from weft.kernels.gpu.split_kv.bounds import run_of
from weft.kernels.gpu.split_kv.combine import combine
from weft.kernels.gpu.split_kv.source import source_of as split_kv_source
from weft.settings import interpreted

from . import kernel_keys
from .kernel_keys import AMD, HOPPER, ROWS, SMALL, SPECS

pytestmark = pytest.mark.skipif(interpreted(), reason="Triton interprets, and compiles nothing")
THIS = Path(kernel_keys.__file__)


def key_of(spec, target=HOPPER):
    return compiler.key_of(load.source_of.__wrapped__(spec), target)  # emitted anew


@pytest.fixture(autouse=True)
def forgets(monkeypatch):
    """Contents are looked at anew, as in another process."""
    monkeypatch.setattr(keys, "_REACHED", {})


# ---- the same elsewhere ----------------------------------------------------------------------------------------------
def elsewhere(python, path, cwd):
    """The keys that another process finds."""
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(map(str, path))}
    command = [python, "-P", str(THIS)]
    done = subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def copy(package, into):
    """A package whose Python files are new files, and the rest of which is linked."""
    for folder, _, names in os.walk(package):
        to = into / package.name / Path(folder).relative_to(package)
        to.mkdir(parents=True)
        for name in names:
            file = Path(folder, name)
            if file.suffix == ".py":
                shutil.copyfile(file, to / name)
            elif file.suffix != ".pyc":
                (to / name).symlink_to(file)


def test_another_place_has_the_same_keys(tmp_path):
    """Neither paths nor dates of files matter, of weft, of Triton and of its tools."""
    for package in (Path(weft.__file__).parent, Path(triton.__file__).parent):
        copy(package, tmp_path)
    assert elsewhere(sys.executable, [tmp_path], tmp_path) == kernel_keys.keys()


@pytest.mark.skipif("WEFT_OTHER_PYTHON" not in os.environ, reason="WEFT_OTHER_PYTHON names no interpreter")
def test_another_python_has_the_same_keys(tmp_path):
    """It has the same version of Triton, and needs no torch."""
    path = [Path(weft.__file__).parents[1]]
    assert elsewhere(os.environ["WEFT_OTHER_PYTHON"], path, tmp_path) == kernel_keys.keys()


def test_the_key_of_the_same_kernel_is_the_same():
    assert key_of(SMALL) == key_of(replace(SMALL), GPUTarget("cuda", 90, 32))


def test_remarks_about_a_kernel_are_no_part_of_it():
    made = load.source_of(SMALL)
    other = replace(made, name="another", text=made.text.replace(SMALL.name, "another"), spec="{}")
    assert compiler.key_of(made, HOPPER) == compiler.key_of(other, HOPPER)


# ---- another one -----------------------------------------------------------------------------------------------------
def test_another_kernel_or_target_has_another_key():
    changes = {"dtype": "float16", "dv": 32, "aligned": False, "warps": 8, "stages": 2, "registers": 128}
    specs = [SMALL, *(replace(SMALL, **{name: value}) for name, value in changes.items())]
    found = [key_of(spec) for spec in specs]
    found += [key_of(SMALL, target) for target in (GPUTarget("cuda", 80, 32), AMD)]
    assert len(set(found)) == len(found)


def test_everything_that_changes_machine_code_changes_the_key(monkeypatch, tmp_path):
    """Each change alone: Triton's sources, its assembler, linked libraries, the environment, what is refused."""
    before, linked = key_of(SMALL), tmp_path / "libdevice.bc"
    linked.write_bytes(b"another")
    environment = {
        "DISABLE_LLVM_OPT": "1",
        "TRITON_OVERRIDE_ARCH": "sm100",
        "TRITON_LIBDEVICE_PATH": str(linked),
        "AMDGCN_SCALARIZE_PACKED_FOPS": "1",
    }
    for name, value in environment.items():
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert key_of(SMALL) != before, name
    backend = type(compiler.make_backend(HOPPER))
    for place, name, value in (
        (keys, "compiler", lambda: "other sources"),
        (backend, "hash", lambda self: "another assembler"),
        (miscompiles, "VERSION", miscompiles.VERSION + 1),
        (compiler, "LAYOUT", compiler.LAYOUT + 1),
        (load, "emit", lambda spec: "import triton\n\n\n@triton.jit\ndef kernel(Q):\n    pass\n"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, value)
            assert key_of(SMALL) != before, name
    assert key_of(SMALL) == before


def test_kernels_whose_code_is_rewritten_depend_on_how(monkeypatch):
    text = "nothing of the kind"
    before = [key_of(SPECS[name]) for name in ("short forward in groups", "forward in groups")]
    monkeypatch.setattr(compiler, "inspect", SimpleNamespace(getsource=lambda module: {dedup: text}[module]))
    after = [key_of(SPECS[name]) for name in ("short forward in groups", "forward in groups")]
    assert [one == other for one, other in zip(before, after, strict=True)] == [False, True]


def test_tritons_sources_count_by_name_and_content(monkeypatch, tmp_path):
    copy(Path(triton.__file__).parent, tmp_path)
    monkeypatch.setattr(keys, "triton", SimpleNamespace(__file__=str(tmp_path / "triton" / "__init__.py")))
    look = keys.compiler.__wrapped__
    monkeypatch.setattr(keys, "_file_digest", keys._file_digest.__wrapped__)
    assert look() == keys.compiler()
    file = tmp_path / "triton" / "language" / "semantic.py"
    file.write_bytes(file.read_bytes() + b"#\n")
    changed = look()
    file.rename(file.with_name("semantics.py"))
    assert len({keys.compiler(), changed, look()}) == 3
    (tmp_path / "triton" / "profiler" / "more.py").write_text("")  # which compiles nothing
    (tmp_path / "triton" / "_C" / "libtriton.so").unlink()  # which each Python version has of its own
    assert len({keys.compiler(), changed, look()}) == 3


# ---- what a kernel reaches -------------------------------------------------------------------------------------------
USES = """
import gc, json
from triton.runtime.jit import JITCallable
from weft.kernels.gpu.compile import keys, compiler
from tests.store.kernel_keys import sources
kernel = compiler.module_of(sources()[%r]).kernel
keys.reached(kernel)
kernel.cache_key
triton = {one.fn for one in gc.get_objects() if isinstance(one, JITCallable) and one.hash is not None}
theirs = {f"{one.__module__}.{one.__qualname__}" for one in triton if one.__module__.startswith("weft")}
print(json.dumps([sorted(theirs), sorted({f"{one.__module__}.{one.__qualname__}" for one in keys._REACHED})]))
"""


@pytest.mark.parametrize("name", every(8, [*SPECS, "split-KV", "combined shares", "joined sinks"]))
def test_it_reaches_what_triton_finds(name):
    """The functions that Triton's own walk over a kernel's syntax tree meets, and no others."""
    done = subprocess.run([sys.executable, "-c", USES % name], capture_output=True, text=True, check=True)
    theirs, ours = json.loads(done.stdout)
    assert ours == theirs and any(one.startswith("weft_emitted_") for one in ours)


# of what a forward in groups takes, directly and through others, and what it does not take
USED, UNUSED = (fwd.fwd, mask.mask_words, bounds.positions), (bounds.tanh, fwd.fwd_short)


def test_text_that_is_used_is_part_of_the_key_and_other_text_is_not(monkeypatch):
    spec = SPECS["forward in groups"]
    before = key_of(spec)
    for function in (*USED, *UNUSED):
        with monkeypatch.context() as patch:
            patch.setattr(keys, "_REACHED", {})
            patch.setattr(function, "_src", f"{function.src}    # and more\n")
            assert (key_of(spec) != before) == (function in USED), function.__name__


def test_the_body_and_the_configuration_of_split_kv_are_part_of_the_key(monkeypatch):
    """The text of an entry names functions; what these say, and what an entry tells them, decides the code."""

    def key(spec=ROWS):
        monkeypatch.setattr(keys, "_REACHED", {})
        return compiler.key_of(split_kv_source.__wrapped__(spec), HOPPER)

    before = key()
    assert key(replace(ROWS, cols=32)) != before
    for function, used in ((run_of, True), (add_tile, True), (combine, False)):
        with monkeypatch.context() as patch:
            patch.setattr(function, "_src", f"{function.src}    # and more\n")
            assert (key() != before) == used, function.__name__


def test_numbers_that_are_used_are_part_of_the_key_and_others_are_not(monkeypatch):
    spec = SPECS["forward in groups"]
    before = key_of(spec)
    for name, used in (("AXES", True), ("HALF", True), ("unused", False)):
        with monkeypatch.context() as patch:
            patch.setattr(keys, "_REACHED", {})
            patch.setattr(broadcast, name, constexpr(5), raising=False)
            assert (key_of(spec) != before) == used, name


# ---- what a name may stand for ---------------------------------------------------------------------------------------
WORDS = """
import types
from typing import NamedTuple
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton import constexpr_function
from triton.language.core import _aggregate as aggregate
from weft.kernels.gpu.ops import bounds as functions
LAYOUT, PAIR, WRONG = gl.SwizzledSharedLayout(1, 1, 1, [0]), gl.constexpr((1, 2.5)), object()
MORE = types.SimpleNamespace()
class Pair(NamedTuple):
    one: int
    other: int = 7
@aggregate
class Ring:
    count: gl.constexpr
    def __init__(self, count):
        self.count = gl.constexpr(COUNT)
    @gluon.jit
    def step(self, i):
        return i + STEP
COUNT, STEP = gl.constexpr(3), gl.constexpr(1)
@constexpr_function
def twice(x):
    return COUNT * x
@gluon.jit
def kernel(X, COUNT):
    %s
"""


def content(line, change="", place=""):
    """The hash of a kernel of one line, in a module that is changed."""
    text = (WORDS % line).replace(change or "\0", place)
    return keys.reached(compiler.module_of(Source("words", text, (), (), 4, 1)).kernel)


@pytest.mark.parametrize(
    ("line", "change", "place", "matters"),
    [
        ("return Ring(5)", "gl.constexpr(3)", "gl.constexpr(4)", True),
        ("return Ring(5)", "STEP = gl.constexpr(3), gl.constexpr(1)", "STEP = gl.constexpr(3), gl.constexpr(2)", True),
        ("return Ring(5)", "return i +", "return i -", True),
        ("return Ring(5)", "COUNT * x", "COUNT + x", False),
        ("return Pair(5)", "other: int = 7", "other: int = 8", True),
        ("return Pair(5)", "other", "another", True),
        ("return twice(5)", "COUNT * x", "COUNT + x", True),
        ("return twice(5)", "gl.constexpr(3)", "gl.constexpr(4)", True),
        ("return COUNT", "gl.constexpr(3)", "gl.constexpr(4)", False),  # an argument of that name
        ("return PAIR", "2.5", "2.75", True),
        ("return LAYOUT", "(1, 1, 1", "(1, 1, 2", True),
        ("return X", "(1, 1, 1", "(1, 1, 2", False),
    ],
)
def test_what_a_name_stands_for(line, change, place, matters):
    assert (content(line) != content(line, change, place)) == matters


def test_modules_are_looked_through(monkeypatch):
    line, other = "return functions.tanh(X)", "return functions.positions(X)"
    before = content(line), content(other)
    monkeypatch.setattr(keys, "_REACHED", {})
    monkeypatch.setattr(bounds.tanh, "_src", f"{bounds.tanh.src}    # and more\n")
    assert [one == two for one, two in zip(before, (content(line), content(other)), strict=True)] == [False, True]


@pytest.mark.parametrize("name", ["WRONG", "MORE"])
def test_a_value_whose_content_is_unknown_is_refused(name):
    with pytest.raises(TypeError, match="whose content no key can tell"):
        content(f"return {name}")
