"""CUDA graphs of launch programs: what a captured program keeps, and what is refused while one is captured."""

import gc
import weakref
from unittest import mock

import pytest
import torch

import weft
from weft import caching
from weft.errors import UnsupportedError
from weft.kernels.gpu.layout import Options
from weft.kernels.gpu.program import Fill
from weft.kernels.gpu.programs.forward import forward_program
from weft.planning.problem import Problem
from weft.planning.rowwise import decode_plan
from weft.settings import interpreted
from weft.testing.refusals import refuse
from weft.torch import bind, gpu
from weft.torch.bind import Bound

from .fake_gpu import CPU, planned, pretended, tensors_of
from .test_bind import BAND, HOW, PLANS, one_launch

pytestmark = pytest.mark.skipif(interpreted(), reason="kernels are told tensors, not addresses")


def attention(m=100, backward=True):
    """Forward and backward of a new plan."""
    plan = planned(weft.causal(), m=m)
    q, k, v, out, dout, lse = tensors_of(plan)

    def call():
        gpu.forward((q, k, v), plan, HOW)
        if backward:
            gpu.backward((q, k, v), (out, dout, lse, None), plan, HOW)

    return call


@pytest.fixture
def captured():
    """What graphs keep from now on."""
    with mock.patch.object(bind, "CAPTURED", set()) as found:
        yield found


def capturing():
    """Launches go into a graph meanwhile."""
    return mock.patch.object(bind, "is_capturing", lambda: True)


def test_a_cold_call_during_capture_is_refused(captured):
    call = attention()
    with pretended() as launched, mock.patch.object(gpu, "gpu_of", lambda device: 0):
        with capturing():
            refuse(call, UnsupportedError, ("CUDA graph", "captured", "M=100", "once before the capture"))
        assert launched == [] and not captured
        call()  # nothing is left of the refusal
    assert len(launched) == 3


def test_programs_themselves_are_refused_too():
    """Whoever binds one: tables cannot be copied then."""
    with pretended(), capturing():
        refuse(lambda: Bound(one_launch(), CPU), UnsupportedError, ("one while", "captured"))


def test_a_backward_that_is_cold_is_refused(captured):
    call, other = attention(90), attention(91, backward=False)
    with pretended(), mock.patch.object(gpu, "gpu_of", lambda device: 0):
        call()
        other()
        with capturing():
            call()
            other()
            refuse(attention(91), UnsupportedError, ("captured",))


def test_a_graph_keeps_what_it_replays(captured):
    """Tables whose addresses were captured live on, whatever leaves the caches."""
    call = attention()
    with pretended() as launched:
        call()
        assert not captured
        launched.clear()
        with capturing():
            call()
            call()
    assert len(captured) == 2  # forward, and gradients
    addresses = {words.data_ptr() for one in captured for words in one.tables.values()}
    assert addresses == {told["Tables"] for _, told, *_ in launched}


def test_a_program_with_more_than_launches_is_kept_too(captured):
    with pretended():
        bound = Bound(one_launch(Fill("y", 0.0)), CPU)
        with capturing():
            bound((torch.zeros(3),))
    assert captured == {bound}


def test_a_captured_step_is_kept(captured):
    problem = Problem(2, 32, 8, 1, 5000, 128, 128, "bfloat16", "cuda")
    plan = decode_plan(BAND.aligned("bottom-right"), problem)
    tensors = [torch.zeros(2, heads, n, 128, dtype=torch.bfloat16) for heads, n in ((32, 1), (8, 5000), (8, 5000))]
    with pretended(), mock.patch.object(gpu, "gpu_of", lambda device: 0):
        with capturing():
            layout = gpu.layout_of(tensors)
            refuse(lambda: gpu.prepare_step(plan, layout, Options(0.1), CPU), UnsupportedError, ["captured"])
        step = gpu.prepare_step(plan, layout, Options(0.1), CPU)
        with capturing():
            step(tensors)
    assert captured == {step.bound}


@pytest.mark.parametrize("name", ["one walk", "two kernels"])
def test_tables_live_as_long_as_what_was_bound(name):
    """Launches know their addresses."""
    plan = PLANS[name]()
    q, k, v, out, dout, _ = tensors_of(plan)
    with pretended():
        bound = gpu.bound_backward(plan, gpu.layout_of((q, k, v, out, dout)), gpu.options_of(HOW, plan), CPU)
        tables = [weakref.ref(x) for x in bound.tables.values()]
        plan = None
        caching.clear()
        gc.collect()
        assert all(table() is not None for table in tables)
        assert tables or name == "one walk"
        del bound
        gc.collect()
        assert all(table() is None for table in tables)


def test_directions_of_one_plan_share_tables():
    """And so do layouts: they are copied once."""
    plan = planned(weft.documents([100, 28, 72]))
    with pretended():
        layouts = [(tensors_of(plan)[0],) * 3, (torch.zeros(1, 200, 2, 64, dtype=torch.bfloat16).transpose(1, 2),) * 3]
        first, second = (Bound(forward_program(plan, gpu.layout_of(x), Options(0.1)), CPU) for x in layouts)
    assert [x.data_ptr() for x in first.tables.values()] == [x.data_ptr() for x in second.tables.values()] != []
