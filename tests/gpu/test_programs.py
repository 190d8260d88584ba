"""Programs of attention: which memory they name, what goes before and after their launches, and which launches."""

from dataclasses import dataclass, replace
from math import inf
from unittest import mock

import pytest
import torch
from tests.triton.specs import CALLS, WITH_MORE, Call, programs_of

import weft
from weft.errors import UnsupportedKernel
from weft.kernels.gpu import select
from weft.kernels.gpu.compile import load
from weft.kernels.gpu.layout import Layout, Options, Vector, dense_rows, rows_like
from weft.kernels.gpu.program import Convert, Descriptor, Fill, Given, Known, Launch, OnDevice, Pointer, row_major
from weft.kernels.gpu.programs.backward import backward_program
from weft.kernels.gpu.programs.forward import forward_program
from weft.kernels.gpu.programs.sinks import sink_gradient_program
from weft.kernels.gpu.programs.split_kv import Cache, split_kv_program
from weft.kernels.gpu.sinks import ALONE, TILE
from weft.kernels.gpu.spec import KernelSpec
from weft.kernels.gpu.split_kv.spec import Counts
from weft.kernels.options import rows_in_order_of
from weft.planning.attention_plan import plan_attention
from weft.planning.problem import Problem
from weft.planning.rowwise import decode_plan
from weft.settings import interpreted
from weft.target import GPU
from weft.testing.refusals import refuse

END, PLAIN = "bottom-right", Options(0.1)
STRIDED = weft.causal() & (weft.window(left=127) | weft.periodic_keys(128))
MEET = weft.bigbird(16)  # launches that meet the same rows, of queries and of keys
HOLES = weft.causal() & weft.window(left=300) & ~weft.global_tokens(64, columns=False)  # rows that no launch writes


def planned(pattern, heads=(2, 2), m=200, dim=64, dtype="bfloat16"):
    return plan_attention(pattern, Problem(1, *heads, m, m, dim, dim, dtype, "cuda"), GPU)


def layout_of(plan, gradients=False, **vectors):
    """Contiguous tensors of a plan."""
    p = plan.problem
    q, k, v = (p.batch, p.q_heads, p.m, p.d), (p.batch, p.kv_heads, p.n, p.d), (p.batch, p.kv_heads, p.n, p.dv)
    out = (*q[:3], p.dv)
    return Layout(tuple(map(row_major, (q, k, v, out, out) if gradients else (q, k, v))), True, **vectors)


def forward(plan, **vectors):
    return forward_program(plan, layout_of(plan, **vectors), Options(0.1))


def gradients(plan, options=PLAIN, **vectors):
    return backward_program(plan, layout_of(plan, True, **vectors), options)


def named(program, role):
    return [slot.name for slot in program.of_role(role)]


def before(program, launch=0):
    """The steps before a launch, and after the one before it."""
    at = [number for number, step in enumerate(program.steps) if isinstance(step, Launch)] + [len(program.steps)]
    return list(program.steps[(at[launch - 1] + 1 if launch else 0) : at[launch]])


def after(program):
    """The steps after the last launch."""
    return before(program, len(program.launches))


def vector(dtype="float32", *strides):
    return Vector(dtype, strides or (1,))


# ---- forward ---------------------------------------------------------------------------------------------------------
def test_a_forward_of_one_launch_is_that_launch():
    program = forward(planned(weft.causal()))
    assert (named(program, "input"), named(program, "output")) == (["q", "k", "v"], ["out", "lse"])
    assert named(program, "workspace") == []
    assert [type(step) for step in program.steps] == [Launch]
    assert set(program.tables) == set(named(program, "table")) == {"forward_tables_0"}
    assert program.by_name["lse"].dtype == "float32" and program.by_name["out"].dtype == "bfloat16"


def test_sinks_and_slopes_join_the_launch():
    program = forward(planned(weft.causal()), sinks=vector(), slopes=vector())
    assert named(program, "input") == ["q", "k", "v", "sinks", "slopes"]
    (launch,) = program.launches
    assert (launch.named["Sinks"], launch.named["Slopes"]) == (Pointer("sinks"), Pointer("slopes"))
    assert launch.spec.sinks and launch.spec.alibi


def test_kernels_take_no_memory_that_they_do_not_look_at():
    (launch,) = forward(planned(weft.causal())).launches
    assert not {"Sum", "Sinks", "Slopes"} & launch.named.keys()
    assert launch.written == ("out", "lse")


@pytest.mark.parametrize("options", [{}, {"sinks": True, "alibi": True}, {"lse": True}], ids=str)
@pytest.mark.parametrize("name", ["window", "window, by groups", "longformer", "random blocks", "2-D", "bigbird"])
def test_what_is_written_comes_after_what_is_read(name, options):
    """So a front that knows a kernel by its operands and its results can pass memory in this order."""
    for program in programs_of(replace((CALLS | WITH_MORE)[name], options=options)):
        for launch in program.launches:
            writes = [x.writes for x in launch.arguments if isinstance(x, (Pointer, Descriptor))]
            assert writes == sorted(writes) and any(writes)


@pytest.mark.parametrize("form", [vector("bfloat16"), vector("float32", 2), vector("float64")], ids=str)
def test_vectors_become_contiguous_float32(form):
    program = forward(planned(weft.causal()), sinks=form)
    assert before(program) == [Convert("sinks", "sinks_float32")]
    wide = program.by_name["sinks_float32"]
    assert (wide.role, wide.dtype, wide.strides) == ("workspace", "float32", (1,))
    assert program.launches[0].named["Sinks"] == Pointer("sinks_float32")


def test_rows_that_no_launch_writes_begin_as_nothing():
    program = forward(planned(HOLES), sinks=vector())
    assert before(program) == [Fill("out", 0.0), Fill("lse", -inf)]
    *launches, join = program.launches
    assert join.kernel.name.startswith("join_sinks")
    assert join.named["Sinks"] == Pointer("sinks") and not any(launch.spec.sinks for launch in launches)


def test_launches_that_meet_the_same_rows_sum_on_nothing():
    program = forward(planned(MEET))
    assert len(program.launches) > 1
    assert before(program) == [Fill("lse", -inf), Fill("sum", 0.0)]
    total = program.by_name["sum"]
    assert (total.role, total.dtype, total.shape) == ("workspace", "float32", program.by_name["out"].shape)
    assert not any(launch.kernel.name.startswith("join") for launch in program.launches), "there are no sinks"


# ---- gradients -------------------------------------------------------------------------------------------------------
def test_gradients_of_two_kernels():
    program = gradients(planned(weft.causal(), dim=128))
    assert named(program, "input") == ["q", "k", "v", "out", "dout", "lse"]
    assert named(program, "output") == ["dq", "dk", "dv"]
    assert named(program, "workspace") == ["stats"], "which the second kernel reads of the first"
    assert [launch.spec.direction for launch in program.launches] == ["dq", "dkdv"]
    assert [type(step) for step in program.steps] == [Launch, Launch]


def test_gradients_of_one_walk():
    program = gradients(planned(weft.causal() & weft.window(left=100)))
    assert [launch.spec.direction for launch in program.launches] == ["fused"] or interpreted()
    assert named(program, "output") == ["dq", "dk", "dv"]
    with_delta = gradients(planned(weft.causal() & weft.window(left=100)), Options(0.1, with_delta=True))
    assert named(with_delta, "output") == ["dq", "dk", "dv", "delta"]


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("one_kernel", [True, False])
def test_dq_of_the_kernel_of_keys_only_where_order_is_free(one_kernel, deterministic):
    plan = planned(weft.causal(), m=100)
    with mock.patch.object(select, "lists_one_kernel", lambda plan: one_kernel):
        program = gradients(plan, Options(0.1, deterministic=deterministic))
    together = one_kernel and not deterministic
    first, keys, *others = program.launches
    assert [(launch.spec.direction, launch.spec.with_dq) for launch in (first, keys)] == [
        ("delta" if together else "dq", together),
        ("dkdv", together),
    ]
    assert [(x.named["Sums"].slot, x.value("scale"), x.written) for x in others] == (
        [("dq_float32", 0.1, ("dq",))] if together else []
    )
    assert after(program) == []
    assert ("dq_float32" in named(program, "workspace")) == together


def test_rows_of_keys_may_be_several_items_of_one_kernel():
    """A few keys that thousands of queries see."""
    plan = plan_attention(weft.prefix(9), Problem(1, 2, 2, 2300, 20, 8, 8, "float32", "cuda"), GPU)
    with mock.patch.object(select, "lists_one_kernel", lambda plan: True):
        program = gradients(plan, Options(0.1, deterministic=False))
    assert [(x.spec.split, x.spec.with_dq) for x in program.launches] == [(False, True), (True, True)]


def test_sums_of_several_launches_are_float32_until_the_end():
    program = gradients(planned(MEET))
    fills = [step for step in program.steps if isinstance(step, Fill)]
    sums = {step.slot for step in fills}
    assert "dq_float32" in sums and all(step.value == 0.0 for step in fills)
    for slot in sums:
        assert (program.by_name[slot].role, program.by_name[slot].dtype) == ("workspace", "float32")
        adding = [at for at, x in enumerate(program.steps) if isinstance(x, Launch) and slot in x.written]
        assert program.steps.index(Convert(slot, slot.removesuffix("_float32"))) > max(adding)
    kinds = [type(step) for step in gradients(planned(MEET, dtype="float32")).steps]
    assert Convert not in kinds, "in float32 they are what is returned"


def test_one_launch_adds_what_others_left_of_shared_keys():
    program = gradients(planned(STRIDED, m=4096, dim=128))
    *left, last = [launch for launch in program.launches if launch.spec.direction == "dkdv"]
    assert left and last.spec.adds_shared
    assert [step for step in program.steps if not isinstance(step, Launch)] == [Fill("key_sums", 0.0)]
    sums = program.by_name["key_sums"]
    assert (sums.role, sums.dtype, sums.shape[3]) == ("workspace", "float32", 256)
    for launch in (*left, last):
        assert (launch.named["Sums"].slot, launch.named["Slots"]) == ("key_sums", Pointer("sum_rows"))
    rows = program.tables["sum_rows"].words
    assert (rows.size, rows.max() + 1) == (4096, sums.shape[2])


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("pattern", [MEET, STRIDED, HOLES, weft.causal(), weft.longformer(30, 20)], ids=str)
def test_nothing_is_added_to_before_it_begins_as_nothing(pattern, deterministic):
    program = gradients(planned(pattern, m=500), Options(0.1, deterministic=deterministic))
    begun, written = set(), {"dq": ("DQ",), "dkdv": ("DK", "DV", "Sums")}
    for step in program.steps:
        if isinstance(step, Fill):
            begun.add(step.slot)
        elif isinstance(step, Launch) and isinstance(step.spec, KernelSpec) and step.spec.accumulate:
            names = written[step.spec.direction]
            added = {step.named[name].slot for name in names if name in step.named}
            assert added & begun and (added <= begun or "key_sums" in added)


@dataclass(frozen=True)
class Empty:
    """What rows without keys leave. options: of gradients; fills and converts: of delta and stats."""

    dlse: bool
    with_delta: bool
    steps: tuple


EMPTY = (
    Empty(False, False, (Fill("stats", 0.0), Fill("delta", 0.0))),
    Empty(False, True, (Fill("stats", 0.0), Fill("delta", 0.0))),
    Empty(True, False, (Fill("stats", 0.0), Fill("delta", 0.0))),
    Empty(True, True, (Fill("stats", 0.0), Convert("dlse", "delta", -1.0))),
)


@pytest.mark.parametrize("asked", EMPTY, ids=str)
def test_rows_without_keys_have_no_gradient_but_that_of_their_lse(asked):
    plan = planned(HOLES)
    dlse = vector("float32", 400, 200, 1) if asked.dlse else None
    program = gradients(plan, Options(0.1, with_delta=asked.with_delta), dlse=dlse)
    steps = [step for step in asked.steps if step[1 if isinstance(step, Convert) else 0] in program.by_name]
    assert steps
    assert before(program) == [Fill("dq", 0.0), *steps]


@pytest.mark.parametrize("name", ["lse", "dlse", "slopes"])
def test_vectors_of_gradients_become_contiguous_float32(name):
    plan = planned(weft.causal())
    plain = {"lse": (400, 200, 1), "dlse": (400, 200, 1), "slopes": (1,)}[name]
    for form in (vector("float64", *plain), vector("float32", *(2 * x for x in plain))):
        program = gradients(plan, **{name: form})
        assert program.steps.count(Convert(name, f"{name}_float32")) == 1
        reading = {"lse": "Lse", "dlse": "DLse", "slopes": "Slopes"}[name]
        told = {launch.named[reading] for launch in program.launches if reading in launch.named}
        assert Pointer(f"{name}_float32") in told and Pointer(name) not in told


@pytest.mark.parametrize("pattern", [weft.causal(), HOLES, MEET, STRIDED], ids=str)
def test_nothing_stands_between_launches_that_overlap(pattern):
    """A launch that begins early follows a launch."""
    program = gradients(planned(pattern, m=500), slopes=vector("float64"))
    for at, step in enumerate(program.steps):
        if isinstance(step, Launch) and step.pdl:
            assert isinstance(program.steps[at - 1], Launch)


def test_lse_off_16_bytes_is_copied():
    """A layout that names its form says that it is not as kernels leave it, whatever the form is."""
    program = gradients(planned(weft.causal()), lse=vector("float32", 400, 200, 1))
    assert Convert("lse", "lse_float32") in program.steps
    assert Convert("lse", "lse_float32") not in gradients(planned(weft.causal())).steps


def test_gradients_without_room_are_refused():
    """Of blocks of pairs at D=256 in float32, whose forward has room on an H200."""
    call = Call(weft.random_blocks(64, 3, seed=1), 200, 200, (256, 256), torch.float32)
    plan = plan_attention(call.pattern, call.problem(), GPU)
    assert [launch.spec.direction for launch in forward(plan).launches] == ["forward"]
    refuse(lambda: gradients(plan), UnsupportedKernel, ("gradients of",))


# ---- layouts ---------------------------------------------------------------------------------------------------------
# Of (2, 4, 256, 64) in bfloat16: kernels count strides in 16 bytes and 32 bits, and places inside a tile in elements.
@pytest.mark.parametrize(
    "strides, counted",
    [
        ((65536, 16384, 64, 1), True),
        (((1 << 34) - 8, 16384, 64, 1), True),
        ((1 << 34, 16384, 64, 1), False),
        ((65536, (1 << 34) - 8, 64, 1), True),
        ((65536, 1 << 34, 64, 1), False),
        ((65536, 64, (1 << 25) - 8, 1), True),
        ((65536, 64, 1 << 25, 1), False),
    ],
)
def test_strides_that_32_bits_hold(strides, counted):
    """Others take kernels for rows anywhere, which count elements in 64 bits."""
    plan = plan_attention(weft.causal(), Problem(2, 4, 4, 256, 256, 64, 64, "bfloat16", "cuda"), GPU)
    rows = Layout((strides,) * 3, True), Layout((strides,) * 5, True)
    programs = forward_program(plan, rows[0], Options(0.1)), backward_program(plan, rows[1], Options(0.1))
    found = [launch.spec for program in programs for launch in program.launches]
    assert [spec.aligned for spec in found] == [counted] * 3
    kinds = {kind for spec in found for name, kind in load.signature(spec).items() if name.endswith("_row")}
    assert kinds == {"i32" if counted else "i64"}


@pytest.mark.parametrize("aligned", [True, False])
def test_memory_that_begins_anywhere_takes_other_kernels(aligned):
    plan = planned(weft.causal(), dim=128)
    for make, gradient in ((forward_program, False), (backward_program, True)):
        program = make(plan, layout_of(plan, gradient)._replace(aligned=aligned), Options(0.1))
        assert {launch.spec.aligned for launch in program.launches} == {aligned}


def test_rows_that_are_not_dense():
    rows = {"q": (25600, 12800, 64, 1)}
    assert dense_rows(rows, "bfloat16")
    for strides in ((25600, 12800, 64, 2), (25600, 12800, 65, 1), (25600, 12804, 64, 1)):
        assert not dense_rows(rows | {"k": strides}, "bfloat16")
    assert dense_rows({"q": (25600, 12804, 64, 1)}, "float32")


ORDERS = [(0, 1, 2), (0, 2, 1), (1, 0, 2), (2, 1, 0), (2, 0, 1), (1, 2, 0)]


@pytest.mark.parametrize("shape", [(2, 3, 5), (1, 3, 5), (2, 1, 1), (2, 3, 0)], ids=str)
@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_results_lie_as_queries_do(order, shape):
    """As operators' fake tensors say they do."""
    q = torch.empty_permuted((*shape, 7), (*order, 3))
    assert rows_like(q.stride(), shape, 9) == rows_in_order_of(q, 9, torch.float32).stride()


def test_gradients_lie_as_what_they_are_of():
    plan = planned(weft.causal(), heads=(4, 2), dim=128)
    dense = layout_of(plan, True)
    turned = (4 * 200 * 128, 128, 4 * 128, 1)
    program = backward_program(plan, dense._replace(strides=(turned, *dense.strides[1:])), Options(0.1))
    assert program.by_name["dq"].strides == turned
    assert program.by_name["dk"].strides == dense.strides[1]


# ---- a few rows against many keys ------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Step:
    """A step of decoding. grid: programs side by side and shares, on so many processors."""

    pattern: object
    grid: tuple[int, int]
    processors: int = 132
    heads: tuple[int, int] = (32, 8)
    m: int = 1

    def program(self, cache=None, **vectors):
        problem = Problem(2, *self.heads, self.m, 5000, 128, 128, "bfloat16", "cuda")
        plan = decode_plan(self.pattern.aligned(END), problem)
        shapes = [
            (2, heads, n, 128) for heads, n in zip((*self.heads, self.heads[1]), (self.m, 5000, 5000), strict=True)
        ]
        layout = Layout(tuple(map(row_major, shapes)), True, **vectors)
        return split_kv_program(plan, layout, Options(0.1), self.processors, cache)


SPLITS = {
    "fills the machine": Step(weft.causal(), (16, 16)),
    "no more shares than a row has tiles": Step(weft.causal() & weft.window(left=127), (16, 2)),
    "one share": Step(weft.causal(), (128, 1), 30, heads=(64, 64)),
    "tokens together": Step(weft.causal(), (16, 16), m=16),
    "tokens of a lane together": Step(weft.dilated(999, 0, 4), (64, 4), m=16),
    "tokens apart": Step(weft.dilated(999, 0, 40), (256, 1), m=16),
    "more heads than a program holds": Step(weft.causal(), (8, 33), heads=(256, 1)),
}


@pytest.mark.parametrize("name", SPLITS)
def test_splits(name):
    step = SPLITS[name]
    program = step.program()
    rows, *merge = program.launches
    assert rows.grid == (*step.grid, 1)
    assert len(merge) == (step.grid[1] > 1) == ("work" in program.by_name)
    assert all(one.grid == (2 * step.heads[0] * step.m, 1, 1) and one.spec.combine for one in merge)


def test_the_number_of_keys_is_given_by_the_host():
    program = SPLITS["fills the machine"].program()
    assert program.given == ("shift", "beside", "length")
    rows, merge = program.launches
    assert {name for name, x in rows.named.items() if isinstance(x, Given)} == {"shift", "beside", "length"}
    assert not any(isinstance(x, Given) for x in merge.arguments)
    assert named(program, "input") == ["q", "k", "v"]


def test_the_number_of_keys_is_read_by_the_kernel():
    """The host never learns it, and grids depend on the capacity alone."""
    counts = Counts("int64", per_batch=True, offset=True, window=True)
    program = SPLITS["fills the machine"].program(Cache(777, counts), sinks=vector("bfloat16"))
    assert program.given == ()
    assert named(program, "input") == ["q", "k", "v", "sinks", "key_count", "offset", "window"]
    assert program.by_name["k"].shape == (2, 8, 777, 128)
    rows, merge = program.launches
    on_device = {name: x.slot for name, x in rows.named.items() if isinstance(x, OnDevice)}
    assert on_device == {"KeyCount": "key_count", "Offset": "offset", "Window": "window"}
    assert rows.named["capacity"] == Known(777)
    assert merge.named["Sinks"] == Pointer("sinks_float32") and "Sinks" not in rows.named
    assert [launch.grid for launch in program.launches] == [
        launch.grid for launch in SPLITS["fills the machine"].program().launches
    ]
    alone = SPLITS["fills the machine"].program(Cache(777, Counts("int32")))
    assert (alone.by_name["key_count"].shape, alone.by_name["key_count"].dtype) == ((1,), "int32")


# ---- the gradient of sinks -------------------------------------------------------------------------------------------
def test_few_rows_are_summed_by_one_launch():
    program = sink_gradient_program((2, 4, 100), vector())
    assert (named(program, "input"), named(program, "output")) == (["sinks", "lse", "delta"], ["dsinks"])
    assert [(x.kernel.name, x.grid) for x in program.launches] == [("sink_gradient", (4, 1, 1))]
    assert program.launches[0].named["Sums"] == Pointer("dsinks", writes=True)


def test_many_rows_are_summed_in_parts():
    program = sink_gradient_program((ALONE + 1, 4, TILE), vector())
    first, second = program.launches
    assert (first.kernel.name, second.kernel.name) == ("sink_gradient", "sink_gradient_sum")
    assert first.grid == (4, ALONE + 1, 1) and program.by_name["sums"].shape == (4, ALONE + 1)
    assert second.value("parts") == ALONE + 1 and second.named["Total"] == Pointer("dsinks", writes=True)


def test_sinks_of_another_dtype_have_gradients_of_it():
    program = sink_gradient_program((2, 4, 100), vector("bfloat16", 3))
    assert program.by_name["dsinks"].dtype == "bfloat16"
    first, launch, last = program.steps
    assert (first, last) == (Convert("sinks", "sinks_float32"), Convert("dsinks_float32", "dsinks"))
    assert launch.named["Sinks"] == Pointer("sinks_float32")


def test_no_heads_no_steps():
    assert sink_gradient_program((5, 0, 5), vector()).steps == ()
