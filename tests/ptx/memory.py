"""Memory as bytes: the storages of tensors, and what the threads of a block share."""

import ctypes

import numpy as np

from .parse import Fault

BASE = 1024  # where shared memory begins: as aligned as swizzled tiles want it
CHUNK = 16  # bytes of the widest access of one thread, which is aligned to its width


class Global:
    """The storages of tensors, each (address, bytes) from a multiple of CHUNK on; what lies outside is a Fault."""

    def __init__(self, storages):
        assert all(address % CHUNK == 0 for address, size in storages if size)
        known = sorted({(address, size) for address, size in storages if size})
        self.starts = np.array([address for address, _ in known], np.uint64)
        self.ends = np.array([address + size for address, size in known], np.uint64)
        self.bytes = [np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address)) for address, size in known]

    def load(self, addresses, width):
        """(threads, width) bytes of (threads,) addresses."""
        found = np.empty((addresses.size, width), np.uint8)
        for storage, offsets, threads in self._split(addresses, width):
            found[threads] = _units(storage, width)[offsets].view(np.uint8).reshape(-1, width)
        return found

    def store(self, addresses, values):
        """values: (threads, width) bytes."""
        width = values.shape[1]
        for storage, offsets, threads in self._split(addresses, width):
            _units(storage, width)[offsets] = np.ascontiguousarray(values[threads]).view(f"V{width}")[:, 0]

    def _split(self, addresses, width):
        """(bytes, offsets in units of width, threads) of each storage that is met."""
        check_aligned(addresses, width)
        places = np.searchsorted(self.starts, addresses, "right") - 1
        outside = (places < 0) | (addresses + np.uint64(width) > self.ends[places])
        if outside.any():
            raise Fault(f"{width} bytes of global memory at {int(addresses[outside][0]):#x}, which no tensor has")
        for place in np.unique(places):
            threads = places == place
            offsets = (addresses[threads] - self.starts[place]) // np.uint64(width)
            yield self.bytes[place], offsets.astype(np.int64), threads


def _units(storage, width):
    """The bytes as units of that width; what is left at the end belongs to none."""
    return storage[: storage.size // width * width].view(f"V{width}")


def check_aligned(addresses, width):
    """Raise unless all are multiples of width, as the hardware wants it."""
    if (addresses & addresses.dtype.type(width - 1)).any():
        raise Fault(f"an address that is no multiple of {width}")


class Shared:
    """Shared memory of several blocks, `size` bytes each, between addresses BASE and BASE + size.

    unfenced: for each CHUNK, 1 + the warp that wrote it by an ordinary store, which products do not see before a
    fence; PASSED if a barrier came between.
    """

    PASSED = 255

    def __init__(self, blocks, size, fill):
        self.size = size
        self.pitch = -(-(BASE + size) // BASE) * BASE  # from one block to the next
        self.bytes = np.full(blocks * self.pitch, fill, np.uint8)
        self.unfenced = np.zeros((blocks, self.pitch // CHUNK), np.uint8)

    def load(self, blocks, addresses, width):
        """(threads, width) bytes; blocks: whose memory each thread reads."""
        return _units(self.bytes, width)[self._places(blocks, addresses, width)].view(np.uint8).reshape(-1, width)

    def store(self, blocks, addresses, values, writers=0):
        """values: (threads, width) bytes. writers: 1 + the warp of each thread, 0 where no fence is wanted."""
        width = values.shape[1]
        places = self._places(blocks, addresses, width)
        _units(self.bytes, width)[places] = np.ascontiguousarray(values).view(f"V{width}")[:, 0]
        self.unfenced[blocks, addresses // CHUNK] = writers

    def numbers(self, blocks, addresses, size):
        """(blocks, ...) numbers of `size` bytes, as unsigned, at addresses of any shape."""
        self._check(addresses, size)
        return self.bytes.view(f"u{size}").reshape(-1, self.pitch // size)[blocks[:, None, None], addresses // size]

    def check_fenced(self, blocks, addresses):
        """Raise where a product would read what was stored without a fence."""
        if self.unfenced.any() and self.unfenced[blocks[:, None, None], addresses // CHUNK].any():
            raise Fault("a product reads shared memory that was stored without a fence")

    def fence(self, blocks, warps):
        """What these warps stored, and what lies behind a barrier, is seen by products from now on."""
        marks = self.unfenced[blocks]
        self.unfenced[blocks] = np.where(np.isin(marks, [*(1 + warps), self.PASSED]), 0, marks)

    def barrier(self):
        """All blocks stand at one."""
        self.unfenced[self.unfenced > 0] = self.PASSED

    def _places(self, blocks, addresses, width):
        check_aligned(addresses, width)
        self._check(addresses, width)
        return (addresses + blocks * self.pitch) // width

    def _check(self, addresses, width):
        if addresses.size and (addresses.min() < BASE or addresses.max() + width > BASE + self.size):
            low, high = int(addresses.min()) - BASE, int(addresses.max()) - BASE + width
            raise Fault(f"bytes {low} to {high} of shared memory, which has {self.size}")
