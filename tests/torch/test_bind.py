"""Programs bound to a device: what their launches are told and what goes between these."""

from types import SimpleNamespace
from unittest import mock

import pytest
import torch

import weft
from weft.kernels.gpu.compile.compiler import Source
from weft.kernels.gpu.layout import Options
from weft.kernels.gpu.program import Convert, Fill, Given, Known, Launch, LaunchProgram, Pointer, Slot
from weft.kernels.gpu.programs.split_kv import split_kv_program
from weft.kernels.options import Modifiers
from weft.planning.problem import Problem
from weft.planning.rowwise import decode_plan
from weft.settings import interpreted
from weft.torch import bind, gpu
from weft.torch.bind import Bound

from .fake_gpu import CPU, STREAM, planned, pretended, tensors_of

pytestmark = pytest.mark.skipif(interpreted(), reason="kernels are told tensors, not addresses")

HOW = Modifiers(0.1)
BAND = weft.causal() & weft.window(left=300)
STRIDED = weft.causal() & (weft.window(left=127) | weft.periodic_keys(128))
GRID = (3, 2, 1)


def one_launch(*more, slots=(), **arguments):
    """A program of x to y that launches a kernel of them, after other steps."""
    types = ("X", "*fp32"), ("Y", "*fp32"), ("n", "i32"), ("s", "fp32")
    told = {"X": Pointer("x"), "Y": Pointer("y"), "n": Known(7), "s": Known(8.0)} | arguments
    launch = Launch(None, Source("one", "", types, (), 4, 1), GRID, tuple(told[name] for name, _ in types))
    x, y = Slot.dense("x", "input", "float32", (3,)), Slot.dense("y", "output", "float32", (4,))
    return LaunchProgram("one", (x, y, *slots), (*more, launch))


# ---- one call --------------------------------------------------------------------------------------------------------
def test_a_launch_is_told_addresses_and_scalars():
    x = torch.zeros(3)
    with pretended() as launched:
        bound = Bound(one_launch(), CPU)
        (y,) = bound((x,))
    assert bound.plain
    assert launched == [("one", {"X": x.data_ptr(), "Y": y.data_ptr(), "n": 7, "s": 8.0}, STREAM, GRID)]
    assert (y.shape, y.dtype) == ((4,), torch.float32)


def test_steps_go_in_order():
    """What is filled and converted is there when the kernel begins; scalars of the host come at each call."""
    slots = Slot("wide", "input", "bfloat16", (2, 2), (1, 2)), Slot.dense("plain", "workspace", "float32", (2, 2))
    program = one_launch(
        Fill("y", -2.0), Convert("wide", "plain", 0.5), Convert("wide", "plain"), slots=slots,
        Y=Pointer("plain"), n=Given("length"),
    )  # fmt: skip
    seen = []

    def direct(kernel, boxes):
        found = launched.direct(kernel, boxes)

        def start(*told):
            seen.append(launched.made[-1].clone())
            found.start(*told)

        return found._replace(start=start)

    wide = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.bfloat16).mT
    with pretended() as launched, mock.patch.object(bind, "direct", direct):
        bound = Bound(program, CPU)
        for length in (5, 6):
            (y,) = bound((torch.zeros(3), wide), (length,))
    assert not bound.plain
    assert [told["n"] for _, told, *_ in launched] == [5, 6]
    assert all(torch.equal(one, wide.float()) for one in seen) and len(seen) == 2
    assert (y == -2).all()
    plain = launched.made[-1]
    assert launched[-1][1]["Y"] == plain.data_ptr() and plain.is_contiguous()


def test_a_conversion_scales():
    slots = Slot.dense("x", "input", "float32", (3,)), Slot.dense("y", "output", "bfloat16", (3,))
    with pretended():
        (y,) = Bound(LaunchProgram("scaled", slots, (Convert("x", "y", -0.5),)), CPU)((torch.arange(3.0),))
    assert torch.equal(y, torch.tensor([0.0, -0.5, -1.0], dtype=torch.bfloat16))


@pytest.mark.parametrize("name", ["launch_enter_hook", "launch_exit_hook"])
@pytest.mark.parametrize("chain", [True, False])
def test_profilers_are_told(name, chain):
    """Hooks may come after a program was bound, in Triton's chain or in its place: then Triton itself launches."""
    runtime = SimpleNamespace(launch_enter_hook=SimpleNamespace(calls=[]), launch_exit_hook=SimpleNamespace(calls=[]))
    hook, ways = mock.Mock(), []
    with (
        pretended(watched=bind.watched) as launched,
        mock.patch.object(bind.knobs, "runtime", runtime),
        mock.patch(
            "tests.torch.fake_gpu.Kernel.__getitem__", lambda self, grid: lambda *_, stream: ways.append(stream)
        ),
    ):
        bound = Bound(one_launch(), CPU)
        bound((torch.zeros(3),))
        setattr(runtime, name, SimpleNamespace(calls=[hook]) if chain else hook)
        bound((torch.zeros(3),))
        setattr(runtime, name, None)
        bound((torch.zeros(3),))
    assert len(launched) == 2
    assert ways == [STREAM]


def test_another_device_is_entered():
    entered = []
    with (
        pretended(gpu_of=lambda device: 1, _stream_of=lambda: lambda gpu: STREAM + gpu) as launched,
        mock.patch.object(torch.cuda, "device", lambda gpu: entered.append(gpu) or mock.MagicMock()),
    ):
        bound = Bound(one_launch(), CPU)
        entered.clear()
        bound((torch.zeros(3),))
        assert entered == [1]
        with mock.patch.object(bind, "current_gpu", lambda: 1):
            bound((torch.zeros(3),))
        assert entered == [1]
    assert [stream for *_, stream, _ in launched] == [STREAM + 1] * 2


@pytest.mark.parametrize("past", [True, False])
def test_what_is_written_is_allocated_past_the_dispatcher(past):
    """Where torch has that way. Outputs and workspaces alike, with their strides."""
    work = Slot("work", "workspace", "bfloat16", (2, 3), (1, 2))
    made = mock.Mock(side_effect=lambda size, stride, dtype, device=None: torch.zeros(size))
    wanted = [((4,), (1,), torch.float32), ((2, 3), (1, 2), torch.bfloat16)]
    with pretended(EMPTY=made if past else None), mock.patch.object(torch, "empty_strided", made):
        Bound(one_launch(slots=(work,)), CPU)((torch.zeros(3),))
    if past:
        assert made.call_args_list == [mock.call(*one) for one in wanted]
    else:
        asked = [mock.call(size, stride, dtype=dtype, device=CPU) for size, stride, dtype in wanted]
        assert made.call_args_list == asked


@pytest.mark.parametrize("kept", [3, 100])
def test_told_by_stream_and_addresses(kept, monkeypatch):
    """Which are kept for when they come again, not without end."""
    monkeypatch.setattr(bind, "KEPT", kept)
    stream, alive = STREAM, []
    first, *others = (torch.zeros(3) for _ in range(6))
    with pretended(_stream_of=lambda: lambda gpu: stream) as launched:
        bound = Bound(one_launch(), CPU)
        for x in (first, first, *others, first):
            for stream in (STREAM, STREAM + 1):
                launched.clear()
                alive += bound((x,))
                told = {"X": x.data_ptr(), "Y": alive[-1].data_ptr(), "n": 7, "s": 8.0}
                assert launched == [("one", told, stream, GRID)]
                assert 0 < len(bound.kept) <= kept


# ---- what attention is told ------------------------------------------------------------------------------------------
GIVEN = ("q", "k", "v", "out", "dout", "lse")
PLANS = {
    "one walk": lambda: planned(weft.causal() & weft.window(left=100)),
    "one walk of groups": lambda: planned(weft.causal() & weft.window(left=127), heads=(8, 1), m=2048),
    "few keys beside it": lambda: planned(STRIDED, heads=(16, 16), m=16384),
    "two kernels": lambda: planned(weft.causal(), dim=128),
    "two kernels, several terms": lambda: planned(weft.causal() & weft.window(left=300) | weft.prefix(20)),
    "sums of several launches": lambda: planned(STRIDED, m=4096, dim=128),
    "float16": lambda: planned(weft.causal(), dtype="float16"),
}
READ = {"Q": "q", "K": "k", "V": "v", "Out": "out", "DOut": "dout"}


@pytest.mark.parametrize("name", PLANS)
def test_gradients_read_what_is_given_and_write_what_is_returned(name):
    plan = PLANS[name]()
    q, k, v, out, dout, lse = tensors_of(plan)
    with pretended() as launched:
        dq, dk, dv, _ = gpu.backward((q, k, v), (out, dout, lse, None), plan, HOW, True, False)
    given = dict(zip(GIVEN, (q, k, v, out, dout, lse), strict=True))
    written, read_lse = set(), False
    for kernel, told in launched.named(**given, dq=dq, dk=dk, dv=dv):
        if not kernel.startswith("few"):  # which read some of it through descriptors alone
            assert {key: told[key] for key in READ if key in told} == {key: READ[key] for key in READ if key in told}
            assert told.get("Lse", "lse") == "lse"
        read_lse |= told.get("Lse") == "lse"
        written |= {told.get(f"{name}{form}") for name in ("DQ", "DK", "DV") for form in ("", "_box")} & {
            "dq",
            "dk",
            "dv",
            "made",
        }
    assert read_lse
    assert written >= {"dq", "dk", "dv"} or plan.by_rows or name == "sums of several launches"


def test_a_forward_reads_and_writes_so_too():
    plan = planned(weft.causal())
    q, k, v, *_ = tensors_of(plan)
    sinks, slopes = torch.zeros(2), torch.ones(1, 2)
    with pretended() as launched:
        out, lse = gpu.forward((q, k, v), plan, Modifiers(0.1, None, slopes), sinks)
    ((_, told),) = launched.named(q=q, k=k, v=v, out=out, lse=lse, sinks=sinks, slopes=slopes)
    wanted = {"Q": "q", "K": "k", "V": "v", "Out": "out", "Lse": "lse", "Sinks": "sinks", "Slopes": "slopes"}
    assert {key: told[key] for key in wanted} == wanted


ODD = {  # vectors as hooks of saved tensors, or callers, may leave them
    "off 16 bytes": lambda x: torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape),
    "apart": lambda x: torch.stack([x, -x], -1)[..., 0],
    "of another dtype": lambda x: x.double(),
}


@pytest.mark.parametrize("how", ODD)
def test_lse_that_lies_otherwise_is_copied(how):
    """Kernels are told that it is contiguous float32 on 16 bytes."""
    plan = planned(weft.causal())
    q, k, v, out, dout, lse = tensors_of(plan)
    lse = torch.randn(lse.shape)
    odd = ODD[how](lse)
    with pretended() as launched:
        gpu.backward((q, k, v), (out, dout, odd, None), plan, HOW)
        copies = {told["Lse"] for _, told, *_ in launched if "Lse" in told}
        assert len(copies) == 1 and not copies & {odd.data_ptr()}
        assert all(address % 16 == 0 for address in copies)
        (copy,) = [x for x in launched.made if x.data_ptr() in copies]
    assert copy.is_contiguous() and copy.dtype == torch.float32 and torch.equal(copy, lse)


@pytest.mark.parametrize("how", ["apart", "of another dtype"])
@pytest.mark.parametrize("what", ["dlse", "sinks", "slopes"])
def test_other_vectors_are_converted(what, how):
    """A vector off 16 bytes stays where it is: kernels load it number by number."""
    plan = planned(weft.causal())
    q, k, v, out, dout, lse = tensors_of(plan)
    plain = torch.randn(lse.shape if what == "dlse" else (2,))
    with pretended() as launched:
        found = []
        for x in (ODD[how](plain), ODD["off 16 bytes"](plain)):
            launched.clear()
            if what == "dlse":
                gpu.backward((q, k, v), (out, dout, lse, x), plan, HOW)
                found += [next(told["DLse"] for _, told, *_ in launched if "DLse" in told)]
            else:
                slopes = x.view(2, 1) if what == "slopes" else None
                gpu.forward((q, k, v), plan, Modifiers(0.1, None, slopes), x if what == "sinks" else None)
                found += [launched[-1][1][what.capitalize()]]
        (copy,) = [one for one in launched.made if one.data_ptr() == found[0]]
    assert copy.is_contiguous() and copy.dtype == torch.float32 and torch.equal(copy, plain)
    assert found[1] == x.data_ptr()


def test_a_step_of_decoding_is_two_launches_and_only_the_length_changes():
    problem = Problem(2, 32, 8, 1, 5000, 128, 128, "bfloat16", "cuda")
    plan = decode_plan(BAND.aligned("bottom-right"), problem)
    q, keys, values = (
        torch.zeros(2, heads, n, 128, dtype=torch.bfloat16) for heads, n in ((32, 1), (8, 5000), (8, 5000))
    )
    with pretended() as launched, mock.patch.object(gpu, "IMAGINED", 132):
        step = gpu.prepare_step(plan, gpu.layout_of((q, keys, values)), Options(0.1), CPU)
        for n in (4000, 4001, 5000):
            step((q, keys[:, :, :n], values[:, :, :n]))
    assert [name.split("_")[0] for name, *_ in launched] == ["split", "combine"] * 3
    told = [one for _, one, *_ in launched[::2]]
    changing = {name for name in told[0] if len({one[name] for one in told}) > 1}
    assert changing <= {"shift", "beside", "length", "Work", "Out", "Lse", "Sinks", "Slopes"}
    assert [(one["length"], one["shift"], one["beside"]) for one in told] == [
        (n, n - 1, n - 1) for n in (4000, 4001, 5000)
    ]
    assert len({(stream, grid) for *_, stream, grid in launched[::2]}) == 1
    assert all(
        told["Work"] == other["Work"]
        for (_, told, *_), (_, other, *_) in zip(launched[::2], launched[1::2], strict=True)
    )


def test_bound_once():
    plan = planned(weft.causal())
    q, k, v, out, dout, lse = tensors_of(plan)
    made = mock.Mock(side_effect=bind.Bound)
    with pretended() as launched, mock.patch.object(gpu, "Bound", made):
        for _ in range(5):
            gpu.forward((q, k, v), plan, HOW)
            gpu.backward((q, k, v), (out, dout, lse, None), plan, HOW)
    assert made.call_count == 2
    assert len(launched) == 5 * 3  # forward, dq, and dk with dv


def test_shares_need_no_host_scalars_with_a_plan_of_one_problem():
    """Only steady plans are told what grows."""
    plan = decode_plan(BAND.aligned("bottom-right"), Problem(1, 2, 2, 1, 400, 64, 64, "bfloat16", "cuda"))
    layout = gpu.layout_of([torch.zeros(1, 2, n, 64, dtype=torch.bfloat16) for n in (1, 400, 400)])
    assert split_kv_program(plan, layout, Options(0.1), 4).given == ("shift", "beside", "length")
