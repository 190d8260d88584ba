"""Row-wise kernels without a GPU: compiled ahead of time for every card."""

import ast
import re
from dataclasses import dataclass, field, replace
from unittest import mock

import pytest
from tests.tiers import sample

import weft
from weft import steps
from weft.kernels.gpu.compile import compiler
from weft.kernels.gpu.compile.compiler import compile_for
from weft.kernels.gpu.split_kv.source import source_of
from weft.kernels.gpu.split_kv.spec import HOST, Counts, ScoreOptions, combining, split_kv_spec
from weft.planning.families.split_kv import shape_of
from weft.planning.problem import Problem
from weft.planning.rowwise import decode_plan
from weft.settings import interpreted

from .resources import REGISTERS, SHARED, TARGETS, resources

pytestmark = pytest.mark.skipif(interpreted(), reason="Triton interprets, and compiles nothing")
END = "bottom-right"
BAND = weft.causal() & weft.window(left=300)


@dataclass(frozen=True)
class Call:
    """A step of decoding. heads: (Hq, Hkv). options: softcap, alibi, sinks. counts: of keys."""

    pattern: object = BAND
    heads: tuple[int, int] = (32, 8)
    m: int = 1
    dims: tuple[int, int] = (128, 128)
    dtype: str = "bfloat16"
    aligned: bool = True
    options: dict = field(default_factory=dict)
    counts: Counts = HOST

    def plan(self):
        problem = Problem(2, *self.heads, self.m, 5000, *self.dims, self.dtype, "cuda")
        return decode_plan(self.pattern.aligned(END), problem)

    def asked(self):
        have = {name: bool(value) for name, value in self.options.items()}
        return ScoreOptions(**have, counts=self.counts)

    def specs(self):
        """Shares, all keys in one share, and the merge of shares."""
        spec = split_kv_spec(self.plan(), shape_of(self.plan(), 132), self.aligned, self.asked())
        spec = replace(spec, split=True)
        return [spec, replace(spec, split=False), combining(spec, 33)]


CALLS = {
    "window": Call(),
    "window, 64, all options": Call(
        heads=(8, 8), dims=(64, 64), dtype="float16", options={"softcap": 5.0, "alibi": True, "sinks": True}
    ),
    "window, 256": Call(dims=(256, 256), heads=(64, 8), m=16),
    "many queries of many heads": Call(heads=(64, 1), m=16),
    "two terms": Call(weft.strided(64)),
    "many bounds": Call(BAND & weft.padding(400, rows=True) & weft.causal(offset=-2), dims=(80, 96)),
    "rows anywhere": Call(dims=(33, 40), aligned=False, dtype="float16"),
    "step functions": Call(steps("before", [2, 150, 2000, 4900], [3, 4, 400, 1700, 4800]), m=16),
    "float32": Call(dtype="float32"),
    "counts from the device": Call(weft.strided(64), counts=Counts("int64", per_batch=True, offset=True)),
    "a ring, a window": Call(m=16, counts=Counts("int32", ring=True, window=True)),
    "pages of 16": Call(counts=Counts("int32", per_batch=True, page=16)),
    "pages of 256, many queries": Call(m=16, counts=Counts("int32", per_batch=True, offset=True, page=256)),
    "float32, 256": Call(dims=(256, 256), dtype="float32", heads=(64, 1), m=4),
}


# ---- compiled --------------------------------------------------------------------------------------------------------
def cases():
    """(target, call): each call for one target, the first in `make test`; the rest is wide."""
    for i, call in enumerate(CALLS):
        for t, target in enumerate(TARGETS):
            narrow = i % len(TARGETS) == t
            marks = pytest.mark.wide if not narrow else () if i < 1 else pytest.mark.more
            yield pytest.param(target, call, id=f"{target}-{call}", marks=marks)


@pytest.mark.parametrize(("target", "call"), cases())
def test_compiles_and_fits(target, call, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))  # what is measured is compiled here
    for spec in CALLS[call].specs():
        taken = resources(compile_for(source_of(spec), TARGETS[target]), target)
        assert taken.shared <= SHARED[target] * 1024, f"{spec.name} takes {taken.shared} bytes of shared memory"
        assert taken.registers <= REGISTERS[target], spec.name
        assert taken.inside == 0, f"{spec.name} spills in its loop"
        assert taken.spilled <= 32, f"{spec.name} spills {taken.spilled} bytes a thread"


@pytest.mark.parametrize("call", sample(["window", "two terms", "many queries of many heads"], "two terms"))
def test_keys_are_loaded_ahead(call, tmp_path, monkeypatch):
    """Copies to shared memory that nobody waits for at once: without them a step takes twice as long."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_ALWAYS_COMPILE", "1")  # Triton then keeps every language in between
    kernel = compile_for(source_of(CALLS[call].specs()[0]), TARGETS["sm_90"])
    assert "ttg.async_copy_global_to_local" in kernel.asm["ttgir"]


@pytest.mark.parametrize("call", CALLS)
def test_sources_are_read_easily(call):
    for spec in CALLS[call].specs():
        text = source_of(spec).text
        ast.parse(text)
        assert max(map(len, text.splitlines())) <= 140
        assert text.count("\n") < 140


def test_the_store_keeps_them(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "store"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    wanted = source_of(CALLS["window"].specs()[2])
    with mock.patch.object(compiler, "compile_for", side_effect=compile_for) as compiled:
        first, second = (compiler.stored(wanted, TARGETS["sm_90"]) for _ in range(2))
    assert compiled.call_count == 1
    assert first.kernel == second.kernel
    assert compiler.key_of(wanted, TARGETS["sm_90"]) != compiler.key_of(wanted, TARGETS["sm_80"])


# ---- what a compiler may drop ----------------------------------------------------------------------------------------
def carried(text):
    """How many values each outer loop of a function carries, in order."""
    loops = re.findall(r"^    (?:%\S+ = )?scf\.for .*iter_args\((.*?)\) ->", text, re.MULTILINE)
    return [loop.count(" = ") for loop in loops]


def test_loops_over_terms_carry_what_they_were_given(tmp_path, monkeypatch):
    """Triton dropped one of two integers that grew alike, between its two representations, and counted terms twice."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_ALWAYS_COMPILE", "1")
    spec, *_ = CALLS["two terms"].specs()
    assert spec.several
    kernel = compile_for(source_of(spec), TARGETS["sm_90"])
    assert carried(kernel.asm["ttgir"]) == carried(kernel.asm["ttir"]) == [1, 4]
