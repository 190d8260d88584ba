"""The message that jaxlib's own custom call for Triton kernels reads, written by hand.

jaxlib registers the target `triton_kernel_call_ffi`. Its attribute `opaque` is a compressed protobuf message,
AnyKernelCall of jaxlib/gpu/triton.proto. From jaxlib 0.11.1 on it may carry machine code, so nothing is assembled where
it runs. It may carry TMA descriptors, which jaxlib encodes for the buffers at hand. Twenty lines write it; a protobuf
package would be a dependency for these alone.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256

TARGET = "triton_kernel_call_ffi"
VARINT, TEXT, FIXED = 0, 2, 5  # how protobuf writes a field


def varint(number: int) -> bytes:
    """An integer, seven bits a byte; negative ones as 64 bits."""
    number &= (1 << 64) - 1
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def integer(field: int, number: int) -> bytes:
    """A field with an integer."""
    return varint(field << 3 | VARINT) + varint(number)


def text(field: int, content: bytes) -> bytes:
    """A field with bytes, or with a message."""
    return varint(field << 3 | TEXT) + varint(len(content)) + content


def integers(field: int, numbers: Iterable[int]) -> bytes:
    """A field with a list of integers."""
    return text(field, b"".join(map(varint, numbers)))


# ---- parameters of a kernel ------------------------------------------------------------------------------------------
def array(divisibility: int) -> bytes:
    """The next buffer's address, a multiple of so many bytes; 0: whatever it is."""
    return text(5, text(1, integer(1, 0) + integer(2, divisibility)))


def scalar(kind: str, value: float) -> bytes:
    """A number; kind: "i32", "i64" or "fp32", as kernels declare it."""
    if kind == "fp32":
        return text(5, varint(7 << 3 | FIXED) + struct.pack("<f", value))
    return text(5, integer({"i32": 3, "i64": 5}[kind], int(value)))


@dataclass(frozen=True)
class TensorMap:
    """A TMA descriptor of the next buffer. shape, strides: in elements, outermost first; box: of a tile.

    element: the driver's number of the element type; swizzle: of shared memory, as Triton counts it.
    """

    element: int
    swizzle: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]

    def parameters(self) -> bytes:
        """The descriptor, then its sizes and strides, as kernels of Triton take it."""
        about = integer(1, self.element) + integer(2, self.swizzle) + integers(3, self.shape)
        about += integers(4, self.strides) + integers(5, self.box) + integer(6, 0)  # beyond its end it reads zeros
        sizes = b"".join(scalar("i32", x) for x in self.shape)
        return text(5, text(9, text(1, about))) + sizes + b"".join(scalar("i64", x) for x in self.strides)


# ---- a launch --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Binary:
    """A compiled kernel. warps: the total of a block, warp groups that specialise counted in. shared: bytes of a block.

    capability: of the card, as 90.
    """

    name: str
    code: bytes
    warps: int
    shared: int
    capability: int


def message(kernel: Binary, grid: tuple[int, int, int], parameters: Iterable[bytes]) -> bytes:
    """The attribute `opaque` of a launch; parameters in the order of the kernel's arguments."""
    name, shared = kernel.name.encode(), integer(3, kernel.shared)
    key = b"cubin " + sha256(kernel.code).hexdigest().encode()  # where PTX would be: jaxlib's cache is found by it
    image = text(11, text(1, kernel.code) + text(2, name) + shared)
    about = text(1, name) + integer(2, kernel.warps) + integer(10, 1) + shared + text(4, key)
    about += integer(6, kernel.capability) + image
    call = text(1, about) + b"".join(integer(2 + i, size) for i, size in enumerate(grid)) + b"".join(parameters)
    return zlib.compress(text(1, call) + text(4, name), 1)
