"""How kernels are launched, on a GPU that is not there: what Triton is called with, where, and what a graph keeps."""

from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.driver import CudaLauncher, wrap_handle_tensordesc
from triton.compiler.compiler import LazyDict

import weft
from weft.errors import UnsupportedError, UnsupportedKernel
from weft.kernels.options import Modifiers
from weft.kernels.triton import launch, launcher, load, run
from weft.kernels.triton.configure import specs_of
from weft.kernels.triton.descriptors import Box
from weft.kernels.triton.emit import TENSORS
from weft.kernels.triton.spec import KernelSpec
from weft.planning.attention_plan import plan_attention
from weft.planning.problem import Problem
from weft.settings import interpreted
from weft.target import GPU
from weft.testing.refusals import refuse

from .specs import Call, launches

GRID, STREAM = (3, 2, 1), 5
CPU = torch.device("cpu")


class Launcher:
    """Stands in for Triton's CudaLauncher of a kernel that wants memory beside, or not."""

    launch_cooperative_grid, launch_pdl = False, True

    def __init__(self, calls, scratch):
        self.calls, self.global_scratch_size, self.profile_scratch_size = calls, scratch, 0

    def __call__(self, *args):
        self.calls.append(("run", *args))

    def launch(self, *args):
        self.calls.append(("launch", *args))


class Kernel:
    """Stands in for Triton's CompiledKernel; writes down how it is launched."""

    packed_metadata = "metadata"

    def __init__(self, spec=None, device=None, scratch=0):
        self.calls, self.function, self.scratch = [], None, scratch

    @property
    def run(self):
        self.function = "function"  # as Triton does: loaded when it is first asked for
        return Launcher(self.calls, self.scratch)

    def __getitem__(self, grid):
        return lambda *args, stream: self.calls.append(("grid", grid, stream, *args))


@contextmanager
def gpu(current=0, capturing=False):
    """As if there were GPUs, all on one stream."""
    entered = []
    with (
        mock.patch.object(launch, "current_gpu", lambda: current),
        mock.patch.object(launch, "is_capturing", lambda: capturing),
        mock.patch.object(torch.cuda, "device", lambda i: entered.append(i) or mock.MagicMock()),
        mock.patch.object(launch, "_stream_of", lambda: lambda i: STREAM + i),
    ):
        yield entered


def prepared(kernel, number=0):
    return launch.Prepared((launch.launch(kernel, GRID, (7, 8.0), number),), (), CPU, number)


TOLD = ("metadata", None, None, None)
WAYS = {
    "launch": ("launch", *GRID, STREAM, "function", False, True, None, None, *TOLD),
    "run": ("run", *GRID, STREAM, "function", *TOLD),
    "grid": ("grid", GRID, STREAM),
}


@pytest.mark.parametrize(
    "version, scratch, way",
    [
        ("3.6.0", 0, "launch"), ("3.6.0", 64, "run"), ("3.7.1", 0, "run"), ("3.5.1", 0, "grid"), ("3.10.0", 0, "grid"),
        ("4.0.0", 0, "grid"),
    ],
)  # fmt: skip
def test_versions_of_triton(version, scratch, way):
    """A version that is not known to take a short way is launched as Triton's documents say."""
    kernel, tensors = Kernel(scratch=scratch), (torch.zeros(3), torch.zeros(4))
    addresses = [x.data_ptr() for x in tensors]
    with mock.patch.object(triton, "__version__", version), gpu():
        launch.run((prepared(kernel), tensors))
    assert kernel.calls == [(*WAYS[way], *addresses, 7, 8.0)]


@pytest.mark.parametrize("name", ["launch_enter_hook", "launch_exit_hook"])
@pytest.mark.parametrize("chain", [True, False])
def test_profilers_are_told(name, chain):
    """Hooks may come after a kernel was prepared, in Triton's chain or in its place."""
    kernel = Kernel()
    one, hook = prepared(kernel), mock.Mock()
    runtime = SimpleNamespace(launch_enter_hook=SimpleNamespace(calls=[]), launch_exit_hook=SimpleNamespace(calls=[]))
    with mock.patch.object(launch.knobs, "runtime", runtime), gpu():
        launch.run((one, ()))
        setattr(runtime, name, SimpleNamespace(calls=[hook]) if chain else hook)
        launch.run((one, ()))
        setattr(runtime, name, None)
        launch.run((one, ()))
    assert [call[0] == "grid" for call in kernel.calls] == [False, True, False]


def test_another_device_is_entered():
    kernel, other = Kernel(), Kernel()
    with gpu(current=0) as entered:
        launch.run((prepared(kernel, 0), ()))
        assert entered == []
        launch.run((prepared(other, 1), ()))
        assert entered == [1]
    assert other.calls[0][4] == STREAM + 1


@pytest.mark.parametrize("current, past", [(0, True), (1, False)])
def test_what_is_written_is_allocated_past_the_dispatcher(current, past):
    """On the current GPU alone: that way takes no device."""
    made = ((2, 3), (3, 1), torch.float32), ((5,), (1,), torch.int32)
    one = launch.Prepared((), made, torch.device("cuda", 0), 0)
    with (
        gpu(current),
        mock.patch.object(launch, "EMPTY") as short,
        mock.patch.object(torch, "empty_strided") as usual,
    ):
        found = one.empty(one)
    assert found == [(short if past else usual).return_value] * 4
    if past:
        assert short.call_args_list == [mock.call(*made[0]), mock.call(*made[1])] * 2
    else:
        asked = [mock.call(size, stride, dtype=dtype, device=one.device) for size, stride, dtype in made]
        assert usual.call_args_list == asked * 2


def launcher_of(seen):
    """The installed Triton's launcher, whose C function writes down what it is called with."""
    made = object.__new__(CudaLauncher)
    made.launch = lambda *args: seen.append(args)
    made.global_scratch_size = made.profile_scratch_size = 0
    made.global_scratch_align = made.profile_scratch_align = made.num_ctas = 1
    made.launch_cooperative_grid, made.launch_pdl = False, True
    made.arg_annotations = made.kernel_signature = "its own"
    return made


@pytest.mark.skipif(interpreted(), reason="nothing is compiled")
def test_triton_is_called_as_it_calls_itself():
    """The installed Triton: what kernel[grid] would hand to the driver's side, less the hooks."""
    spec = KernelSpec("forward", "float16", 16, 16, 1, 64, 16, warps=4)
    kernel = load.compile_for(spec, GPUTarget("cuda", 90, 32))
    seen, tensors = [], [torch.zeros(16, dtype=torch.float16)] * len(TENSORS["forward"])
    kernel.module, kernel.function, kernel._run = "module", "function", launcher_of(seen)
    rest = (1,) * (len(load.arguments(spec)) - len(tensors))
    with gpu():
        launch.run((launch.Prepared((launch.launch(kernel, GRID, rest, 0),), (), CPU, 0), tensors))
    kernel[GRID](*(x.data_ptr() for x in tensors), *rest, stream=STREAM)
    mine, its = plain(seen)
    assert triton.__version__.startswith(launcher.VERSIONS), "if this passes, the short way knows this version too"
    assert mine == its


def plain(calls):
    """Their arguments one by one; hooks are nothing, which is what they are told."""
    runtime = triton.knobs.runtime
    hooks = type(runtime.launch_enter_hook), type(runtime.launch_exit_hook), LazyDict
    flat = [[y for x in call for y in (x if isinstance(x, list | tuple) else [x])] for call in calls]
    return [[None if isinstance(x, hooks) else x for x in call] for call in flat]


# ---- descriptors -----------------------------------------------------------------------------------------------------
BOXES = tuple(Box(i, 64 * i, (1, 4, 100 + i, 1, 64), (25600, 6400, 64, 64, 1)) for i in (0, 1, 2, 0))


class Driver:
    """Stands in for Triton's driver: descriptors are what they are made of."""

    def __init__(self):
        self.made, self.utils = [], self

    def fill_tma_descriptor(self, *facts):
        self.made.append(facts)
        return tuple(tuple(x) if isinstance(x, list | tuple) else x for x in facts)

    fill_tma_descriptor_tiled = fill_tma_descriptor


class Described:
    """A compiled kernel with descriptors of three tensors. seen: what its C function is called with."""

    def __init__(self):
        problem = Problem(1, 16, 16, 16384, 16384, 64, 64, "bfloat16", "cuda")
        (spec,) = specs_of(plan_attention(weft.window(256, 256), problem, GPU), "forward")
        self.kernel, self.seen = load.compile_for(spec, GPUTarget("cuda", 90, 32)), []
        signature, made = self.kernel.src.signature, launcher_of(self.seen)
        made.launch = wrap_handle_tensordesc(made.launch, signature, self.kernel.metadata.tensordesc_meta)
        self.kernel.module, self.kernel.function, self.kernel._run = "module", "function", made
        self.rest = (1,) * (sum(kind != "constexpr" for kind in signature.values()) - 3 - len(BOXES))

    def prepared(self):
        return launch.Prepared((launch.launch(self.kernel, GRID, self.rest, 0, BOXES),), (), CPU, 0)


@pytest.fixture
def driver():
    found = Driver()
    with mock.patch.object(triton.runtime.driver, "_active", found), gpu():
        yield found


@pytest.mark.skipif(interpreted(), reason="nothing is compiled")
def test_descriptors_are_passed_as_triton_passes_them(driver):
    one, tensors = Described(), torch.zeros(3, 16)
    launch.run((one.prepared(), tensors))
    addresses = [x.data_ptr() for x in tensors]
    boxes = (box.at(addresses[box.tensor]) for box in BOXES)
    one.kernel[GRID](*addresses, *one.rest, *boxes, stream=STREAM)
    mine, its = plain(one.seen)
    assert mine == its


@pytest.mark.skipif(interpreted(), reason="nothing is compiled")
def test_descriptors_are_made_once_for_an_address(driver, monkeypatch):
    """The last of three addresses has no room beside two, which are forgotten."""
    monkeypatch.setattr(launcher, "KEPT", 2)
    one, (x, y, z, other, third) = Described(), torch.zeros(5, 16)
    call = one.prepared()
    for tensors, made in (((x, y, z), 4), ((x, y, z), 4), ((x, other, z), 5), ((x, third, z), 6), ((x, y, z), 7)):
        launch.run((call, tensors))
        assert len(driver.made) == made
    first, again, unlike, _, last = plain(one.seen)
    assert first == again == last != unlike


@pytest.mark.skipif(interpreted(), reason="nothing is compiled")
def test_a_launcher_that_is_not_known_makes_them_itself(driver):
    one, tensors = Described(), torch.zeros(3, 16)
    known = one.prepared()
    one.kernel._run.launch = partial(one.kernel._run.launch)  # nothing of it can be seen
    itself = one.prepared()
    for call in (known, itself, itself):
        launch.run((call, tensors))
    assert len(driver.made) == 12
    first, *others = plain(one.seen)
    assert others == [first, first]


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
    q, k, v = (torch.empty_strided((2, 4, 256, 64), strides, dtype=torch.bfloat16, device="meta") for _ in range(3))
    with launches() as found, mock.patch.object(run, "gpu_of", lambda device: None):
        out, lse = run.forward((q, k, v), plan, Modifiers(0.1))
        run.backward((q, k, v), (out, out, lse, None), plan, Modifiers(0.1))
    assert [spec.aligned for spec in found] == [counted] * 3
    kinds = {kind for spec in found for name, kind in load.signature(spec).items() if name.endswith("_row")}
    assert kinds == {"i32" if counted else "i64"}


# ---- CUDA graphs -----------------------------------------------------------------------------------------------------
def attention(m=100, backward=True):
    """Forward and backward of a new plan."""
    problem = Problem(1, 2, 2, m, m, 64, 64, "bfloat16", "cuda")
    plan = plan_attention(weft.causal(), problem, GPU)

    def call():
        q, k, v = (torch.zeros(1, 2, m, 64, dtype=torch.bfloat16) for _ in range(3))
        out, lse = run.forward((q, k, v), plan, Modifiers(0.1))
        if backward:
            run.backward((q, k, v), (out, out, lse, None), plan, Modifiers(0.1))

    return call


@contextmanager
def kernels():
    """All kernels that are made meanwhile, one for each launch that is prepared; tensors pass for those of GPU 0."""
    made = []

    def kernel_of(spec, device):
        made.append(Kernel())
        return made[-1]

    with mock.patch.object(run, "kernel_of", kernel_of), mock.patch.object(run, "gpu_of", lambda device: 0):
        yield made


def test_a_cold_call_during_capture_is_refused():
    call = attention()
    with kernels() as made:
        with gpu(capturing=True):
            refuse(call, UnsupportedError, ("CUDA graph", "captured", "M=100", "once before the capture"))
        assert made == []
        with gpu():
            call()  # nothing is left of the refusal
    assert len(made) == 3
    assert all(len(kernel.calls) == 1 for kernel in made)


def test_a_backward_that_is_cold_is_refused():
    call, other = attention(90), attention(91, backward=False)
    with kernels():
        with gpu():
            call()
            other()
        with gpu(capturing=True):
            call()
            other()
            refuse(attention(91), UnsupportedError, ("captured",))


def test_a_graph_keeps_what_it_replays():
    """Tables whose addresses were captured live on, whatever leaves the caches."""
    call = attention()
    kept = set(launch.CAPTURED)
    with kernels():
        with gpu():
            call()
            assert kept == launch.CAPTURED
        with gpu(capturing=True):
            call()
            call()
    held = launch.CAPTURED - kept
    try:
        assert len(held) == 3  # forward, dq, and dk with dv
        addresses = {words.data_ptr() for one in held for _, words in one.tables.waves}
        assert addresses == {one.launches[0].rest[0] for one in held}
    finally:
        launch.CAPTURED -= held


def test_prepared_once():
    call = attention()
    with kernels() as made, gpu():
        for _ in range(5):
            call()
    assert len(made) == 3
    assert [len(kernel.calls) for kernel in made] == [5] * 3


# ---- the two forms of a backward -------------------------------------------------------------------------------------
@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("one_kernel", [True, False])
def test_dq_of_the_kernel_of_keys_only_where_order_is_free(one_kernel, deterministic):
    plan = plan_attention(weft.causal(), Problem(1, 2, 2, 100, 100, 64, 64, "bfloat16", "cuda"), GPU)
    q, k, v = (torch.zeros(1, 2, 100, 64, dtype=torch.bfloat16) for _ in range(3))
    with launches() as found, mock.patch.object(run, "in_one_kernel", lambda plan: one_kernel):
        run.backward((q, k, v), (q, q, q[..., 0].float(), None), plan, Modifiers(0.1), deterministic)
    together = one_kernel and not deterministic
    assert [(spec.direction, spec.with_dq) for spec in found] == [
        ("delta" if together else "dq", together),
        ("dkdv", together),
    ]


def test_rows_of_keys_may_be_several_items_of_one_kernel():
    """A few keys that thousands of queries see."""
    plan = plan_attention(weft.prefix(9), Problem(1, 2, 2, 2300, 20, 8, 8, "float32", "cuda"), GPU)
    q, k = torch.zeros(1, 2, 2300, 8), torch.zeros(1, 2, 20, 8)
    with launches() as found, mock.patch.object(run, "in_one_kernel", lambda plan: True):
        run.backward((q, k, k), (q, q, q[..., 0], None), plan, Modifiers(0.1), False)
    assert [(spec.split, spec.with_dq) for spec in found] == [(False, True), (True, True)]


def test_gradients_without_room_launch_nothing():
    """Of blocks of pairs at D=256 in float32, whose forward has room on an H200."""
    call = Call(weft.random_blocks(64, 3, seed=1), 200, 200, (256, 256), torch.float32)
    plan = plan_attention(call.pattern, call.problem(), GPU)
    q, k, v, out = (torch.zeros(2, heads, 200, 256) for heads in (4, 2, 2, 4))
    with launches() as found:
        run.forward((q, k, v), plan, Modifiers(0.1))
        assert [spec.direction for spec in found] == ["forward"]
        rows = out, out, out[..., 0].contiguous(), None
        refuse(lambda: run.backward((q, k, v), rows, plan, Modifiers(0.1)), UnsupportedKernel, ("gradients of",))
        assert [spec.direction for spec in found] == ["forward"]
