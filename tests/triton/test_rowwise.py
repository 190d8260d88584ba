"""Row-wise kernels without a GPU: compiled ahead of time for every card, and launched on one that is not there."""

import ast
import re
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from unittest import mock

import pytest
import torch

import weft
from weft import steps
from weft.errors import UnsupportedError
from weft.kernels.triton import decode, launch, source
from weft.kernels.triton.decode import prepare_step, source_of
from weft.kernels.triton.row_spec import Numbers, merging, row_spec
from weft.kernels.triton.source import compile_for
from weft.planning.problem import Problem
from weft.planning.row_choice import shape_of
from weft.planning.rowwise import decode_plan
from weft.settings import interpreted
from weft.testing.refusals import refuse

from .resources import REGISTERS, SHARED, TARGETS, resources

pytestmark = pytest.mark.skipif(interpreted(), reason="Triton interprets, and compiles nothing")
END = "bottom-right"
BAND = weft.causal() & weft.window(left=300)
STREAM = 5


@dataclass(frozen=True)
class Call:
    """A step of decoding. heads: (Hq, Hkv). options: softcap, alibi, sinks."""

    pattern: object = BAND
    heads: tuple[int, int] = (32, 8)
    m: int = 1
    dims: tuple[int, int] = (128, 128)
    dtype: str = "bfloat16"
    aligned: bool = True
    options: dict = field(default_factory=dict)

    def plan(self):
        problem = Problem(2, *self.heads, self.m, 5000, *self.dims, self.dtype, "cuda")
        return decode_plan(self.pattern.aligned(END), problem)

    def numbers(self):
        have = self.options
        return Numbers(0.1, have.get("softcap"), have.get("alibi", False), have.get("sinks", False))

    def specs(self):
        """Shares, all keys in one share, and the merge of shares."""
        spec = row_spec(self.plan(), shape_of(self.plan(), 132), self.aligned, self.numbers())
        spec = replace(spec, split=True)
        return [spec, replace(spec, split=False), merging(spec)]


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
    "float32, 256": Call(dims=(256, 256), dtype="float32", heads=(64, 1), m=4),
}


# ---- compiled --------------------------------------------------------------------------------------------------------
def cases():
    """(target, call); each call for one target unless all are asked for."""
    for i, call in enumerate(CALLS):
        for t, target in enumerate(TARGETS):
            marks = () if i % len(TARGETS) == t else pytest.mark.wide
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


@pytest.mark.parametrize("call", ["window", "two terms", "many queries of many heads"])
def test_keys_are_loaded_ahead(call, tmp_path, monkeypatch):
    """Copies to shared memory that nobody waits for at once: without them a step takes twice as long."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
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
    with mock.patch.object(source, "compile_for", side_effect=compile_for) as compiled:
        first, second = (source.stored(wanted, TARGETS["sm_90"]) for _ in range(2))
    assert compiled.call_count == 1
    assert first.kernel == second.kernel
    assert source.key_of(wanted, TARGETS["sm_90"]) != source.key_of(wanted, TARGETS["sm_80"])


# ---- launched --------------------------------------------------------------------------------------------------------
class Kernel:
    """Stands in for Triton's CompiledKernel; writes down what it is launched with."""

    packed_metadata = function = "known"

    def __init__(self, made, device):
        self.source, self.calls = made, []
        KERNELS.append(self)

    def run(self, *args):
        self.calls.append(args)


KERNELS = []
LAUNCHER = 9  # arguments before the kernel's own: grid, stream, handles


@contextmanager
def gpu(capturing=False, processors=132):
    """As if there were a GPU."""
    KERNELS.clear()
    with (
        mock.patch.object(decode, "kernel_of", Kernel),
        mock.patch.object(decode, "gpu_of", lambda device: 0),
        mock.patch.object(launch, "current_gpu", lambda: 0),
        mock.patch.object(torch.cuda, "device", lambda i: mock.MagicMock()),
        mock.patch.object(launch, "is_capturing", lambda: capturing),
        mock.patch.object(decode, "IMAGINED", processors),
        mock.patch.object(launch, "_stream_of", lambda: lambda i: STREAM),
    ):
        yield


def step_of(call, n=5000):
    q, k, v = (
        torch.zeros(2, heads, length, 128, dtype=torch.bfloat16)
        for heads, length in ((call.heads[0], call.m), (call.heads[1], n), (call.heads[1], n))
    )
    strides = {"Q": q.stride(), "K": k.stride(), "V": v.stride()}
    return prepare_step(call.plan(), strides, True, call.numbers(), q.device), (q, k, v)


def test_a_step_is_two_launches_and_only_the_length_changes():
    with gpu():
        step, (q, k, v) = step_of(CALLS["window"])
        for n in (4000, 4001, 5000):
            step((q, k[:, :, :n], v[:, :, :n]))
    rows, merge = KERNELS
    assert len(rows.calls) == len(merge.calls) == 3
    named = [dict(zip(dict(rows.source.types), args[LAUNCHER:], strict=True)) for args in rows.calls]
    changing = {name for name in named[0] if len({one[name] for one in named}) > 1}
    assert changing <= {"shift", "beside", "length", "Work", "Out", "Lse", "Sinks", "Slopes"}
    assert [one["length"] for one in named] == [4000, 4001, 5000]
    assert {args[:LAUNCHER] for args in rows.calls} == {rows.calls[0][:LAUNCHER]}


SPLITS = {  # (call, processors) -> (programs side by side, shares)
    "fills the machine": (Call(weft.causal()), 132, (16, 16)),
    "no more shares than a row has tiles": (Call(weft.causal() & weft.window(left=127)), 132, (16, 2)),
    "one share": (Call(weft.causal(), heads=(64, 64)), 30, (128, 1)),
    "tokens together": (Call(weft.causal(), m=16), 132, (16, 16)),
    "tokens of a lane together": (Call(weft.dilated(999, 0, 4), m=16), 132, (64, 4)),
    "tokens apart": (Call(weft.dilated(999, 0, 40), m=16), 132, (256, 1)),
    "more heads than a program holds": (Call(weft.causal(), heads=(256, 1)), 132, (8, 33)),
}


@pytest.mark.parametrize("name", SPLITS)
def test_splits(name):
    call, processors, grid = SPLITS[name]
    with gpu(processors=processors):
        step, _ = step_of(call)
    assert step.rows.grid == (*grid, 1)
    assert (step.merge is None) == (grid[1] == 1)


def test_a_capture_needs_a_prepared_step():
    with gpu(capturing=True):
        refuse(lambda: step_of(CALLS["window"]), UnsupportedError, ["captured"])


def test_a_captured_step_is_kept():
    with mock.patch.object(launch, "CAPTURED", set()) as captured:
        with gpu():
            step, tensors = step_of(CALLS["window"])
        with gpu(capturing=True):
            step(tensors)
        assert captured == {step}


# ---- what a compiler may drop ----------------------------------------------------------------------------------------
def carried(text):
    """How many values each outer loop of a function carries, in order."""
    loops = re.findall(r"^    (?:%\S+ = )?scf\.for .*iter_args\((.*?)\) ->", text, re.MULTILINE)
    return [loop.count(" = ") for loop in loops]


def test_loops_over_terms_carry_what_they_were_given():
    """Triton dropped one of two integers that grew alike, between its two representations, and counted terms twice."""
    spec, *_ = CALLS["two terms"].specs()
    assert spec.several
    kernel = compile_for(source_of(spec), TARGETS["sm_90"])
    assert carried(kernel.asm["ttgir"]) == carried(kernel.asm["ttir"]) == [1, 4]
