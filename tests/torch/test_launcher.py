"""How kernels are launched past Triton's own Python: what its launchers are called with, for every version of it."""

from functools import partial
from unittest import mock

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.driver import CudaLauncher, wrap_handle_tensordesc
from triton.compiler.compiler import LazyDict

import weft
from weft.kernels.gpu.compile import load
from weft.kernels.gpu.layout import Layout, Options
from weft.kernels.gpu.program import POINTEES, Known, Launch, LaunchProgram, Pointer, Slot
from weft.kernels.gpu.programs.forward import forward_program
from weft.kernels.gpu.spec import KernelSpec
from weft.settings import interpreted
from weft.torch import bind, gpu, launcher
from weft.torch.bind import Bound

from .fake_gpu import CPU, STREAM, planned, pretended
from .test_bind import GRID, one_launch


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

    def __init__(self, scratch=0):
        self.calls, self.function, self.scratch = [], None, scratch

    @property
    def run(self):
        self.function = "function"  # as Triton does: loaded when it is first asked for
        return Launcher(self.calls, self.scratch)

    def __getitem__(self, grid):
        return lambda *args, stream: self.calls.append(("grid", grid, stream, *args))


def launching(kernel, **state):
    """Programs launch this kernel meanwhile, as on a GPU."""
    return pretended(kernel_of=lambda source, device: kernel, direct=launcher.direct, **state)


TOLD = ("metadata", None, None, None)
WAYS = {
    "launch": ("launch", *GRID, STREAM, "function", False, True, None, None, *TOLD),
    "run": ("run", *GRID, STREAM, "function", *TOLD),
    "grid": ("grid", GRID, STREAM),
}


@pytest.mark.skipif(interpreted(), reason="kernels are told tensors, not addresses")
@pytest.mark.parametrize(
    "version, scratch, way",
    [
        ("3.6.0", 0, "launch"), ("3.6.0", 64, "run"), ("3.7.1", 0, "run"), ("3.5.1", 0, "grid"), ("3.10.0", 0, "grid"),
        ("4.0.0", 0, "grid"),
    ],
)  # fmt: skip
def test_versions_of_triton(version, scratch, way):
    """A version that is not known to take a short way is launched as Triton's documents say."""
    kernel, x = Kernel(scratch=scratch), torch.zeros(3)
    with mock.patch.object(triton, "__version__", version), launching(kernel):
        bound = Bound(one_launch(), CPU)
        (y,) = bound((x,))
    assert kernel.calls == [(*WAYS[way], x.data_ptr(), y.data_ptr(), 7, 8.0)]
    assert bound.plain == (way != "grid")


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
    kernel, seen = load.compile_for(spec, GPUTarget("cuda", 90, 32)), []
    kernel.module, kernel.function, kernel._run = "module", "function", launcher_of(seen)
    source = load.source_of(spec)
    memory = {name: POINTEES[kind] for name, kind in source.types if kind[0] == "*"}
    slots = tuple(Slot.dense(name, "input", dtype, (16,)) for name, dtype in memory.items())
    told = tuple(Pointer(name) if name in memory else Known(1) for name, _ in source.types)
    tensors = [torch.zeros(16, dtype=getattr(torch, dtype)) for dtype in memory.values()]
    with launching(kernel):
        Bound(LaunchProgram("one", slots, (Launch(spec, source, GRID, told),)), CPU)(tensors)
    at = dict(zip(memory, tensors, strict=True))
    kernel[GRID](*(at[name].data_ptr() if name in at else 1 for name, _ in source.types), stream=STREAM)
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
class Driver:
    """Stands in for Triton's driver: descriptors are what they are made of."""

    def __init__(self):
        self.made, self.utils = [], self

    def fill_tma_descriptor(self, *facts):
        self.made.append(facts)
        return tuple(tuple(x) if isinstance(x, list | tuple) else x for x in facts)

    fill_tma_descriptor_tiled = fill_tma_descriptor


class Described:
    """A forward with descriptors of Out, Q, K and V. seen: what its kernel's C function is called with."""

    def __init__(self):
        plan = planned(weft.window(256, 256), heads=(16, 16), m=16384)
        dense = gpu.dense_strides(plan)[:3]
        self.program = forward_program(plan, Layout(dense, True), Options(0.1))
        (self.launch,) = self.program.launches
        self.kernel, self.seen = load.compile_for(self.launch.spec, GPUTarget("cuda", 90, 32)), []
        made = launcher_of(self.seen)
        facts = self.kernel.src.signature, self.kernel.metadata.tensordesc_meta
        made.launch = wrap_handle_tensordesc(made.launch, *facts)
        self.kernel.module, self.kernel.function, self.kernel._run = "module", "function", made
        self.out = [torch.zeros(16, dtype=torch.bfloat16), torch.zeros(16)]

    def bound(self):
        """The program; its results lie at the same addresses every time."""
        bound = Bound(self.program, CPU)
        bound._made = lambda: self.out
        return bound


@pytest.fixture
def driver():
    found = Driver()
    with mock.patch.object(triton.runtime.driver, "_active", found):
        yield found


@pytest.fixture
def one():
    found = Described()
    with launching(found.kernel):
        yield found


def qkv():
    return torch.zeros(3, 16, dtype=torch.bfloat16).unbind()


@pytest.mark.more
@pytest.mark.skipif(interpreted(), reason="nothing is compiled")
def test_descriptors_are_passed_as_triton_passes_them(driver, one):
    bound, tensors = one.bound(), qkv()
    assert bound.plain
    bound(tensors)
    (step,) = bound.steps
    mine = step.pick((*(x.data_ptr() for x in (*tensors, *one.out)), *bound.constants))
    placed = {at: box.at(mine[at]) for at, box in step.boxes.items()}
    assert {box.address for box in placed.values()} == {x.data_ptr() for x in (one.out[0], *tensors)}
    one.kernel[one.launch.grid](*(placed.get(at, x) for at, x in enumerate(mine)), stream=STREAM)
    first, its = plain(one.seen)
    assert first == its


@pytest.mark.more
@pytest.mark.skipif(interpreted(), reason="nothing is compiled")
def test_descriptors_are_made_once_for_an_address(driver, one, monkeypatch):
    """The last of three addresses has no room beside two, which are forgotten."""
    monkeypatch.setattr(launcher, "KEPT", 2)
    monkeypatch.setattr(bind, "KEPT", 1)
    bound, (x, y, z), (other, third, _) = one.bound(), qkv(), qkv()
    for tensors, made in (((x, y, z), 4), ((x, y, z), 4), ((x, other, z), 5), ((x, third, z), 6), ((x, y, z), 7)):
        bound(tensors)
        assert len(driver.made) == made
    first, again, unlike, _, last = plain(one.seen)
    assert first == again == last != unlike


@pytest.mark.more
@pytest.mark.skipif(interpreted(), reason="nothing is compiled")
def test_a_launcher_that_is_not_known_makes_them_itself(driver, one):
    known, tensors = one.bound(), qkv()
    one.kernel._run.launch = partial(one.kernel._run.launch)  # nothing of it can be seen
    itself = one.bound()
    assert known.plain and not itself.plain
    for bound in (known, itself, itself):
        bound(tensors)
    assert len(driver.made) == 12
    first, *others = plain(one.seen)
    assert others == [first, first]
