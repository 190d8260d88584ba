"""Launches by NVIDIA's driver alone, told to a library that stands in for it; on a card, without a compiler."""

import ctypes
import os
import re
import struct
import subprocess
import sys
from unittest import mock

import pytest
import torch

pytest.importorskip("triton")

from triton.backends.compiler import GPUTarget
from triton.runtime.errors import OutOfResources

import weft
from weft.kernels.gpu.compile import load
from weft.kernels.gpu.layout import Layout, Options
from weft.kernels.gpu.programs.forward import forward_program
from weft.kernels.gpu.spec import KernelSpec
from weft.settings import interpreted
from weft.torch import driver, gpu
from weft.torch.launcher import DescriptorLayout

from .fake_gpu import planned

pytestmark = pytest.mark.skipif(interpreted(), reason="nothing is compiled")
SPEC = KernelSpec("forward", "float16", 16, 16, 1, 64, 16, warps=4)
SIZES = {"u64": 8, "b64": 8, "u32": 4, "b32": 4, "f32": 4}
ROOM = 227 << 10


def parameters_of(ptx):
    """(offset, size) of a kernel's parameters, as the driver says them."""
    entry = ptx[ptx.index(".entry") :]
    found, end = [], 0
    for align, kind, many in re.findall(
        r"\.param (?:\.align (\d+) )?\.(\w+)[^\[,\n]*(?:\[(\d+)\])?", entry[: entry.index("{")]
    ):
        size = int(many) if kind == "b8" else SIZES[kind]
        end += -end % int(align or size)
        found.append((end, size))
        end += size
    return found


class Library:
    """Stands in for libcuda and writes down what it is asked. Of a function it says what PTX does."""

    def __init__(self, parameters=(), room=ROOM):
        self.parameters, self.room, self.asked, self.launches = parameters, room, [], []
        self.cuLaunchKernelEx = Start(self)

    def __getattr__(self, name):
        if not name.startswith("cu"):
            raise AttributeError(name)
        return lambda *arguments: self.answer(name, arguments)

    def answer(self, name, arguments):
        self.asked.append(name)
        if name == "cuDeviceGetAttribute":
            arguments[0]._obj.value = self.room
        elif name == "cuModuleGetFunction":
            arguments[0]._obj.value = 77
        elif name == "cuFuncGetAttribute":
            arguments[0]._obj.value = 1024 if arguments[1] == driver.THREADS else 0
        elif name == "cuFuncGetParamInfo":
            at = arguments[1].value
            if at == len(self.parameters):
                return driver.INVALID_VALUE
            arguments[2]._obj.value, arguments[3]._obj.value = self.parameters[at]
        elif name == "cuGetErrorName":
            arguments[1]._obj.value = b"CUDA_ERROR_LAUNCH_FAILED"
        return 0


class Start:
    """cuLaunchKernelEx."""

    def __init__(self, library):
        self.library, self.code = library, 0

    def __call__(self, config, handle, parameters, extra):
        assert parameters is None
        config, size = config._obj, ctypes.c_size_t.from_address(extra[3]).value
        early = driver._Attribute.from_address(config.attributes) if config.count else None
        shape = tuple(config.grid), tuple(config.block), config.shared, config.stream
        told = None if early is None else (early.id, early.value)
        self.library.launches.append((handle, shape, told, ctypes.string_at(extra[1], size)))
        return self.errcheck(self.code, None, None)


@pytest.fixture
def cuda(monkeypatch):
    """A library in the place of libcuda."""

    def put(parameters=(), **facts):
        found = Library(parameters, **facts)
        monkeypatch.setattr(driver, "library", lambda: found)
        driver._start.cache_clear()
        return found

    yield put
    driver._start.cache_clear()


def kernel_and_kinds():
    return load.compile_for(SPEC, GPUTarget("cuda", 90, 32)), [kind for _, kind in load.source_of(SPEC).types]


def test_arguments_lie_where_the_kernel_reads_them(cuda):
    kernel, kinds = kernel_and_kinds()
    where = parameters_of(kernel.asm["ptx"])
    library = cuda(where)
    function = driver.function_of(kernel, 0)
    assert driver.function_of(kernel, 0) is function, "loaded once"
    launch = driver.launch_of(function, kinds, {}, ())
    given = [1000 + at if kind != "fp32" else at / 8 for at, kind in enumerate(kinds)]
    start, told = launch.invocation((5, 6, 7), 99, given)
    start(*told)
    ((handle, shape, early, memory),) = library.launches
    assert (handle, shape) == (77, ((5, 6, 7), (128, 1, 1), kernel.metadata.shared, 99))
    assert early == ((driver.EARLY, 1) if kernel.metadata.launch_pdl else None)
    forms = {"*": "Q", "i32": "i", "i64": "q", "fp32": "f"}
    for value, kind, (offset, size) in zip(given, kinds, where, strict=False):
        form = forms["*" if kind[0] == "*" else kind]
        assert struct.calcsize(form) == size
        assert struct.unpack_from(form, memory, offset) == (value,)
    spare = where[len(kinds) :]
    assert len(spare) == driver.SPARE, "this Triton has other memory beside"
    assert all(memory[offset : offset + size] == bytes(8) for offset, size in spare)


@pytest.mark.more
def test_descriptors_and_launches_that_begin_early(cuda):
    """A Hopper forward with descriptors of Q, K, V and Out: sizes and strides follow each."""
    plan = planned(weft.window(256, 256), heads=(16, 16), m=16384)
    (launch,) = forward_program(plan, Layout(gpu.dense_strides(plan)[:3], True), Options(0.1)).launches
    kernel = load.compile_for(launch.spec, GPUTarget("cuda", 90, 32))
    library = cuda(parameters_of(kernel.asm["ptx"]))
    kinds = [kind for _, kind in launch.kernel.types]
    boxes = {at: DescriptorLayout(x.shape, x.strides) for at, x in enumerate(launch.arguments) if hasattr(x, "shape")}
    assert len(boxes) == 4
    function = driver.function_of(kernel, 0)
    assert "cuFuncSetAttribute" in library.asked, "more shared memory than needs no consent"
    with mock.patch.object(driver, "encoded", lambda box, facts, address: bytes([address % 251]) * driver.DESCRIPTOR):
        made = driver.launch_of(function, kinds, boxes, kernel.metadata.tensordesc_meta)
        start, told = made.invocation(launch.grid, 0, [at + 1 for at in range(len(kinds))])
    start(*told)
    (_, shape, _, memory) = library.launches[0]
    assert shape[1] == (function.threads, 1, 1)
    whole = [(offset, size) for offset, size in function.parameters if size == driver.DESCRIPTOR]
    assert [memory[offset] for offset, _ in whole] == [at + 1 for at in boxes]
    for (offset, size), box in zip(whole, boxes.values(), strict=True):
        at = function.parameters.index((offset, size))
        numbers = [int.from_bytes(memory[a : a + b], "little") for a, b in function.parameters[at + 1 :]]
        assert tuple(numbers[: 2 * len(box.shape)]) == (*box.shape, *box.strides)


def test_a_function_of_other_parameters_is_left_to_triton(cuda):
    kernel, kinds = kernel_and_kinds()
    where = parameters_of(kernel.asm["ptx"])
    for other in (where[:-3], [*where, (where[-1][0] + 8, 8)], [(where[0][0], 4), *where[1:]]):
        cuda(other)
        driver._functions.clear()
        assert driver.launch_of(driver.function_of(kernel, 0), kinds, {}, ()) is None
    driver._functions.clear()
    with mock.patch.object(driver, "library", lambda: None):
        assert driver.function_of(kernel, 0) is None
    driver._functions.clear()


def test_what_has_no_room_is_refused_as_triton_does(cuda):
    kernel, _ = kernel_and_kinds()
    cuda(parameters_of(kernel.asm["ptx"]), room=kernel.metadata.shared - 1)
    driver._functions.clear()
    with pytest.raises(OutOfResources, match="shared memory"):
        driver.function_of(kernel, 0)


def test_errors_have_the_drivers_word(cuda):
    library = cuda()
    library.cuLaunchKernelEx.code = 719
    with pytest.raises(RuntimeError, match=r"CUDA_ERROR_LAUNCH_FAILED \(719\)"):
        driver._start()(
            mock.MagicMock(_obj=driver._Config()),
            1,
            None,
            driver._Extra(1, 0, 2, ctypes.addressof(ctypes.c_size_t(0)), 0),
        )


FIRST = """
import torch, weft
q, k, v = (torch.randn(1, 2, 300, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
weft.attention(q, k, v, weft.causal()).sum().backward()
print(all(x.grad.isfinite().all().item() for x in (q, k, v)))
"""


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_call_needs_no_compiler(tmp_path):
    environment = {"CC": "/bin/false", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", FIRST], env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "True", done.stderr
