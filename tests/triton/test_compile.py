"""Every kind of kernel compiled ahead of time, without a GPU: it compiles, fits the card, and keeps to its registers.

`make test` compiles each direction for each target, `make test-more` each kernel for one target; the rest is wide.
"""

import json
import os
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path

import pytest
import triton
from tests.tiers import sample

import weft
from weft.kernels.gpu.compile.load import compile_for
from weft.kernels.gpu.programs.backward import summing_program
from weft.planning.attention_plan import plan_attention
from weft.planning.tiling import chunks
from weft.settings import interpreted

from .resources import REGISTERS, SHARED, TARGETS, resources
from .specs import (
    BESIDE,
    DIRECTIONS,
    SHORT,
    WITH_MORE,
    Call,
    card,
    gradients_of,
    has_room_for_dq,
    layout_of,
    options_of,
    ordinary,
    specs_towards,
    square,
)
from .specs import CALLS as COMMON
from .specs import specs_of as specs_of_call

pytestmark = pytest.mark.skipif(interpreted(), reason="Triton interprets, and compiles nothing")

CALLS = COMMON | WITH_MORE

# For which target each of DIRECTIONS is not wide: each for each target of three calls at least, and what
# exists for Hopper alone for that; else where it takes least time. Calls that are left out are like others, and slow;
# "-": another call has kernels of these kinds.
NARROW = {
    "window": "gfx942 sm_90 sm_80 sm_80",
    "window, by groups": "sm_90 sm_100 sm_90 gfx942",
    "window, 128, by groups": "sm_90 - - -",
    "two terms, 128, by groups": "sm_90 - - -",
    "window, 256, by groups": "sm_90 sm_90 sm_90",
    "window, float32": "gfx942 gfx942 sm_100",
    "window, sinks": "sm_90 sm_80 gfx942 sm_80",
    "window, softcap, alibi, sinks": "sm_90 sm_80 sm_80 sm_90",
    "window, scale below 0": "gfx942 gfx942 sm_80 sm_100",
    "rows anywhere": "sm_80 gfx942 gfx942 sm_100",
    "documents": "sm_100 sm_80 sm_100 sm_80",
    "longformer": "gfx942 sm_80 gfx942 sm_90",
    "dilation by head": "sm_100 sm_90 sm_90 sm_80",
    "listed tokens": "sm_80 gfx942 sm_90 sm_80",
    "random blocks": "sm_80 sm_90 sm_80 sm_100",
    "2-D": "sm_100 sm_80 sm_100 gfx942",
    "2-D, by groups": "sm_90 - - sm_90",
    "2-D, ungrouped": "gfx942 sm_80 sm_80 gfx942",
    "3-D": "sm_90 sm_100 sm_80 sm_80",
    "two terms, by groups": "sm_90 sm_100 sm_80 sm_90",
    "chunks, gradient of lse": "sm_90 sm_80 gfx942 sm_100",
    "tf32, gradient of lse": "sm_90 sm_80 sm_100",
    "rows anywhere, 192, softcap, alibi": "sm_100 sm_80 sm_90",
    "two terms": "sm_90 - - -",
    "two terms, listed bounds": "sm_80 sm_100 - gfx942",
    "three terms": "sm_90 gfx942 sm_90 sm_80",
    "longformer, one loop": "sm_90 sm_80 sm_90 sm_100",
    "longformer, packed": "gfx942 sm_90 - -",
    "longformer, one token": "- - sm_100 -",
    "strided": "sm_100 sm_80 - -",
    "sparse transformer": "- - sm_80 gfx942",
    "sparse transformer, fixed": "sm_80 sm_100 gfx942 sm_90",
    "bigbird": "sm_90 sm_80 gfx942 sm_80",
    "text and image": "sm_90 sm_100 sm_80 gfx942",
}
QUICK = {  # which of these calls `make test` compiles for a target, in the same order; "-": none
    "sm_80": ("rows anywhere", "-", "-", "window, sinks"),
    "sm_90": ("-", "window", "window, by groups", "-"),
    "sm_100": ("documents", "window, by groups", "-", "-"),
    "gfx942": ("-", "-", "window, sinks", "window, by groups"),
}
# version of Triton -> bytes of local memory of a thread, as it is today; 0 if absent
SPILLED = Path(__file__).with_name("spilled.json")

# (direction, call) whose innermost loops spill on sm_90, with either version of Triton or with one. Wide tiles of keys
# at D=192 are the fastest all the same (benchmarks/notes/triton.md, T53).
VERSION = tuple(map(int, triton.__version__.split(".")[:2]))
CROWDED = {(3, 6): (("keys", "window, float32"), ("keys", "text and image")), (3, 7): (("forward", "bigbird"),)}
INSIDE = {
    *(("forward", call) for call in ("strided", "sparse transformer, fixed")),
    *(("keys", call) for call in ("random blocks", "window, 192x128", "bigbird")),
    *(("one kernel", call) for call in ("random blocks", "listed tokens", "rows anywhere", "longformer, packed")),
    *((direction, "rows anywhere, 192, softcap, alibi") for direction in ("forward", "dq", "keys")),
    *(("keys", call) for call in ("two terms, listed bounds", "longformer, one token")),
    *(("forward", call) for call in ("window, 256", "window, 256, by groups")),  # in the loop of rows that go again
    *CROWDED.get(VERSION, CROWDED[3, 7]),
}
SERIALISED = {("keys", "bigbird")}  # whose products run one by one: those of blocks whose results are added to others


def narrow_targets(call):
    """direction -> the target for which it is not wide."""
    return dict(zip(DIRECTIONS, NARROW.get(call, "").split(), strict=False))


def marks_of(target, direction, call):
    if narrow_targets(call).get(direction) != target:
        return [pytest.mark.wide]
    quick = QUICK[target][list(DIRECTIONS).index(direction)] == call
    return [] if quick else [pytest.mark.more]


def cases():
    """(target, direction, call) of everything, marked."""
    for call in CALLS:
        for direction in DIRECTIONS:
            if direction == "one kernel" and not has_room_for_dq(CALLS[call]):
                continue
            for target in TARGETS:
                case = target, direction, call
                yield pytest.param(case, id="-".join(case), marks=marks_of(*case))


def narrow_cases():
    """(target, direction, call) of what is not wide."""
    return [case.values[0] for case in cases() if pytest.mark.wide not in case.marks]


def test_each_direction_is_compiled_for_each_target():
    """Three times at least, and once what any call but those that are left out has. `make test` has each twice."""
    quick = [case.values[0] for case in cases() if not case.marks]
    assert all(sum(one in case for case in quick) == 2 for one in (*TARGETS, *DIRECTIONS))
    narrow = narrow_cases()
    assert {call for _, _, call in narrow} == set(NARROW)
    every = {(direction, call) for _, direction, call in (case.values[0] for case in cases()) if call in NARROW}
    wanted = [(direction, call) for direction, call in every if narrow_targets(call)[direction] != "-"]
    assert sorted((direction, call) for _, direction, call in narrow) == sorted(wanted)
    assert all(
        sum((target, direction) == one[:2] for one in narrow) >= 3 for target in TARGETS for direction in DIRECTIONS
    )


# What makes a kernel of another kind all together, and what does so alone, in each direction. Not how large tiles are.
TOGETHER = (
    "direction", "rank", "terms", "more", "listed", "several", "groups", "short", "packed", "with_dq", "accumulate",
    "adds_shared", "leaves_shared", "makes", "formula", "lines",
)  # fmt: skip
ALONE = (
    "dtype", "aligned", "whole", "grouped", "split", "lse_gradient", "with_delta", "held", "no_maximum", "softcap",
    "alibi", "sinks", "rescaled", "tf32", "chained", "fast_log", "partial", "apart",
)  # fmt: skip


def kinds(specs):
    """The kinds of kernels, and what these have beside."""
    found = {tuple(getattr(spec, name) for name in TOGETHER) for spec in specs}
    return found | {(spec.direction, name, getattr(spec, name)) for spec in specs for name in ALONE}


def compiled_here():
    """The KernelSpecs that tests of this file compile, but for what is wide."""
    for target, direction, call in narrow_cases():
        yield from specs_towards(CALLS[call], direction, target)
    for call in (*BY_WALKS.values(), OF_BLOCKS, SMALL_GRID):
        yield from specs_of_call(call, card("sm_90"))
    yield from (replace(gradients_of(SHORT)[0], **wanted) for wanted in WALKS)


@pytest.fixture(scope="module")
def known():
    return kinds(list(compiled_here()))


@pytest.mark.parametrize("target", sample(["sm_90", "gfx942"], "sm_90"))
def test_ordinary_calls_launch_no_other_kinds(target, known):
    """A kernel of a new kind is not left uncompiled: a call that launches it belongs into CALLS and NARROW."""
    for call in ordinary():
        for one_kernel in {False, has_room_for_dq(call)}:
            for spec in specs_of_call(replace(call, one_kernel=one_kernel), card(target)):
                assert kinds([spec]) <= known, f"{spec.name} of {call}"


def compile_one(target, specs):
    """[Resources] of kernels."""
    return [resources(compile_for(spec, TARGETS[target]), target) for spec in specs]


@pytest.fixture(scope="module")
def compiled(request, tmp_path_factory):
    """case -> [Resources], each compiled once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))  # what is measured is compiled here
        if "PYTEST_XDIST_WORKER" in os.environ:  # each of whose workers has one core
            yield cache(lambda case: compile_one(*asked(case)))
        else:
            with compiling_at_once(request) as found:
                yield found


def asked(case):
    target, direction, call = case
    return target, specs_towards(CALLS[call], direction, target)


@contextmanager
def compiling_at_once(request):
    """All cases of this file that will be asked for, begun on two cores."""
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        started = {}
        for item in request.session.items:
            params = item.callspec.params if hasattr(item, "callspec") else {}
            if item.path == request.path and "case" in params and params["case"] not in started:
                started[params["case"]] = pool.submit(compile_one, *asked(params["case"]))
        yield lambda case: started[case].result()
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("case", cases())
def test_compiles_and_fits(case, compiled):
    target, direction, call = case
    found = compiled(case)
    assert found
    for spec, taken in zip(specs_towards(CALLS[call], direction, target), found, strict=True):
        assert taken.shared <= SHARED[target] * 1024, f"{spec.name} takes {taken.shared} bytes of shared memory"
        asked = spec.registers if target.startswith("sm") else 0  # AMD's compiler takes no such wish
        assert taken.registers <= (asked or REGISTERS[target]), spec.name
    check_spilled("-".join(case), max(taken.spilled for taken in found))


BY_WALKS = {"short window": SHORT, "few keys beside it": BESIDE}  # calls whose gradients one walk makes, on Hopper
WALKS = [{}, {"with_delta": True}, {"with_delta": True, "lse_gradient": True}]


@pytest.mark.parametrize("wanted", sample(WALKS, {}), ids=str)
def test_fused_backward_compiles_and_fits(wanted, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    (spec,) = gradients_of(SHORT)
    assert spec.direction == "fused"
    (taken,) = compile_one("sm_90", [replace(spec, **wanted)])
    assert taken.shared <= SHARED["sm_90"] * 1024
    assert taken.registers == spec.registers == 128  # with others some warps would wait for registers for ever
    check_spilled("-".join(("sm_90-gradients-short window", *wanted)), taken.spilled)


@pytest.mark.more
def test_sparse_keys_beside_a_window_compile_and_fit(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    walk, *specs = gradients_of(BESIDE)
    assert [walk.direction, *(spec.direction for spec in specs)] == ["fused", "sparse_keys", "reduce_partials"]
    assert walk.with_delta
    for spec, taken in zip(specs, compile_one("sm_90", specs), strict=True):
        assert taken.shared <= SHARED["sm_90"] * 1024
        assert spec.direction == "reduce_partials" or taken.registers == spec.registers == 168
        check_spilled(f"sm_90-{spec.direction}-short window", taken.spilled)


OF_BLOCKS = Call(weft.random_blocks(64, 3), 1024, 1024, (128, 128), heads=(4, 2))  # a list of whole blocks
RESERVED = 1024  # bytes of shared memory that a program takes beside its own


@pytest.mark.more
def test_two_programs_of_a_list_of_blocks_fit_side_by_side(tmp_path, monkeypatch):
    """Registers of a program are eight warps' at most; nothing spills inside a loop but what is known."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    plan = plan_attention(OF_BLOCKS.pattern, OF_BLOCKS.problem(), card("sm_90"))
    gradients = summing_program(plan, layout_of(OF_BLOCKS, "gradients"), options_of(OF_BLOCKS))
    specs = [*specs_towards(OF_BLOCKS, "forward"), gradients.launches[1].spec]
    assert [spec.direction for spec in specs if spec.groups == 1] == ["forward", "dkdv"]
    forward, gradients = compile_one("sm_90", specs)
    for taken in (forward, gradients):
        assert 2 * (taken.shared + RESERVED) <= (SHARED["sm_90"] + 1) * 1024
        assert taken.registers == 128 and taken.waits < 0.2
    assert forward.inside == 0 and gradients.inside <= 6


SMALL_GRID = square(weft.neighborhood((64, 64), (7, 7)), length=4096, heads=(8, 8), batch=8)  # programs compute one box


@pytest.mark.more
@pytest.mark.parametrize("direction", ["forward", "dq", "keys"])
def test_programs_of_one_box_fit_side_by_side(direction, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    (spec,) = specs_towards(SMALL_GRID, direction)
    assert spec.groups == 1 and spec.rank == 2
    (taken,) = compile_one("sm_90", [spec])
    assert 3 * (taken.shared + RESERVED) <= (SHARED["sm_90"] + 1) * 1024
    assert taken.registers <= 80 and taken.inside == 0


@pytest.mark.more
@pytest.mark.parametrize("name", sample(BY_WALKS, "short window"))
def test_forwards_of_short_windows_compile_and_fit(name, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    specs = specs_towards(BY_WALKS[name], "forward")
    assert all(spec.short for spec in specs)
    for spec, taken in zip(specs, compile_one("sm_90", specs), strict=True):
        assert taken.shared <= SHARED["sm_90"] * 1024
        assert taken.registers <= spec.registers
        check_spilled(f"sm_90-forward-{name}", taken.spilled)


def test_totals_of_spills_are_known():
    if triton.__version__ not in (tables := json.loads(SPILLED.read_text())):
        pytest.skip(f"with Triton {triton.__version__} no totals of spills are asserted: known are {', '.join(tables)}")


def check_spilled(case, spilled):
    """Whether this version of Triton spills no more than it did; with one that is not known, anything will do."""
    tables = json.loads(SPILLED.read_text())
    table = tables.get(triton.__version__, {})
    if os.environ.get("WEFT_GOLDEN") == "write":
        tables[triton.__version__] = {name: count for name, count in (table | {case: spilled}).items() if count}
        SPILLED.write_text(json.dumps(tables, indent=1, sort_keys=True) + "\n")
    elif triton.__version__ in tables and spilled > table.get(case, 0):
        pytest.fail(
            f"{case} spills {spilled} bytes a thread, and {table.get(case, 0)} before. If that is worth it: "
            "WEFT_GOLDEN=write pytest tests/triton/test_compile.py -m 'wide or not wide'"
        )


ON_HOPPER = [param for param in cases() if param.values[0][0] == "sm_90"]


@pytest.mark.parametrize("case", ON_HOPPER)
def test_innermost_loops_do_not_spill(case, compiled, request):
    if case[1:] in INSIDE:
        request.applymarker(pytest.mark.xfail(raises=AssertionError, strict=True, reason="registers do not suffice"))
    assert [taken.inside for taken in compiled(case) if taken.inside] == []


@pytest.mark.parametrize("case", [case for case in ON_HOPPER if case.values[0][1] in ("dq", "keys")])
def test_what_is_held_is_read_from_registers(case, compiled):
    """Of the rows that stay, the loops over tiles read from shared memory what is not held, and nothing else."""
    _, direction, call = case
    for spec, taken in zip(specs_towards(CALLS[call], direction), compiled(case), strict=True):
        if spec.dtype == "float32" or spec.rows * 4 != spec.warps * 64:  # other instructions, or more of them
            continue
        sizes = {"q": spec.d, "do": spec.dv} if direction == "dq" else {"k": spec.d, "v": spec.dv}
        rest = [size for name, size in sizes.items() if name not in spec.factors and (name, spec.makes) != ("v", "dv")]
        wanted = sum(width // 16 for size in rest for _, width, _ in chunks(size))
        assert set(taken.read) == {wanted}, spec.name


@pytest.mark.parametrize("case", ON_HOPPER)
def test_products_are_not_serialised(case, compiled, request):
    """On grids at D=64 that cost up to a third of dK and dV, and a quarter of dQ (benchmarks/notes/triton.md, T48)."""
    if case[1:] in SERIALISED:
        request.applymarker(pytest.mark.xfail(raises=AssertionError, strict=True, reason="ptxas is not sure of them"))
    assert all(taken.waits < 0.7 for taken in compiled(case))
