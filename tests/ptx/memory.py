"""Memory as bytes: the storages of tensors, and what the threads of a block share."""

import ctypes
from bisect import bisect_right
from dataclasses import dataclass, field

import numpy as np

from .parse import Fault

BASE = 1024  # where shared memory begins: as aligned as swizzled tiles want it
PAGE = 1024  # bytes, of which is known when some were written last
CHUNK = 16  # bytes of the widest access of one thread, which is aligned to its width


class Global:
    """The storages of tensors, each (address, bytes) from a multiple of CHUNK on; what lies outside is a Fault."""

    def __init__(self, storages):
        assert all(address % CHUNK == 0 for address, size in storages if size)
        self.known = known = sorted({(address, size) for address, size in storages if size})
        self.units = {}  # (which storage, width) -> it as units of that width
        self.starts = np.array([address for address, _ in known], np.uint64)
        self.ends = np.array([address + size for address, size in known], np.uint64)
        self.bytes = [np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address)) for address, size in known]

    def load(self, addresses, width):
        """(threads, width) bytes of (threads,) addresses."""
        units, offsets = self._whole(addresses, width)
        if units is not None:
            return units[offsets].view(np.uint8).reshape(-1, width)
        found = np.empty((addresses.size, width), np.uint8)
        for units, offsets, threads in self._split(addresses, width):
            found[threads] = units[offsets].view(np.uint8).reshape(-1, width)
        return found

    def store(self, addresses, values):
        """values: (threads, width) bytes."""
        width = values.shape[1]
        values = np.ascontiguousarray(values).view(f"V{width}")[:, 0]
        units, offsets = self._whole(addresses, width)
        if units is not None:
            units[offsets] = values
            return
        for units, offsets, threads in self._split(addresses, width):
            units[offsets] = values[threads]

    def _whole(self, addresses, width):
        """(a storage as units of that width, their numbers), if all addresses are of one storage; else (None, None)."""
        if not addresses.size:
            return None, None
        low, high = int(addresses.min()), int(addresses.max())
        place = bisect_right(self.known, (low, np.inf)) - 1
        if place < 0 or high + width > sum(self.known[place]):
            return None, None
        offsets = (addresses - np.uint64(self.known[place][0])).view(np.int64)
        check_aligned(offsets, width)
        return self._units(place, width), offsets // width

    def _units(self, place, width):
        if (place, width) not in self.units:
            self.units[place, width] = _units(self.bytes[place], width)
        return self.units[place, width]

    def _split(self, addresses, width):
        """(units of that width, numbers of them, threads) of each storage that is met."""
        check_aligned(addresses, width)
        places = np.searchsorted(self.starts, addresses, "right") - 1
        outside = (places < 0) | (addresses + np.uint64(width) > self.ends[places])
        if outside.any():
            raise Fault(f"{width} bytes of global memory at {int(addresses[outside][0]):#x}, which no tensor has")
        for place in np.unique(places):
            threads = places == place
            offsets = (addresses[threads] - self.starts[place]) // np.uint64(width)
            yield self._units(place, width), offsets.astype(np.int64), threads


def _units(storage, width):
    """The bytes as units of that width; what is left at the end belongs to none."""
    return storage[: storage.size // width * width].view(f"V{width}")


def check_aligned(addresses, width):
    """Raise unless all are multiples of width, as the hardware wants it."""
    if (addresses & addresses.dtype.type(width - 1)).any():
        raise Fault(f"an address that is no multiple of {width}")


@dataclass(frozen=True, eq=False)
class Lies:
    """Where a matrix lies. addresses: of its numbers, of `size` bytes each. chunks, pages: that it lies in."""

    addresses: np.ndarray
    size: int
    chunks: np.ndarray = field(init=False)
    pages: np.ndarray = field(init=False)
    places: np.ndarray = field(init=False)
    low: int = field(init=False)
    high: int = field(init=False)

    def __post_init__(self):
        vars(self).update(
            chunks=np.unique(self.addresses // CHUNK), pages=np.unique(self.addresses // PAGE),
            places=self.addresses // self.size, low=int(self.addresses.min()), high=int(self.addresses.max()),
        )  # fmt: skip


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
        self.stores, self.stored = 0, np.zeros((blocks, self.pitch // PAGE), np.int64)  # how many, and the last of each
        self.kept = {}  # numbers as they were read: see `numbers`

    def load(self, blocks, addresses, width):
        """(threads, width) bytes; blocks: whose memory each thread reads."""
        places = self._places(blocks, addresses, width) // width
        return _units(self.bytes, width)[places].view(np.uint8).reshape(-1, width)

    def store(self, blocks, addresses, values, writers=0):
        """values: (threads, width) bytes. writers: 1 + the warp of each thread, 0 where no fence is wanted."""
        width = values.shape[1]
        places = self._places(blocks, addresses, width)
        _units(self.bytes, width)[places // width] = np.ascontiguousarray(values).view(f"V{width}")[:, 0]
        self.unfenced.reshape(-1)[places // CHUNK] = writers
        self.stores += 1
        self.stored.reshape(-1)[places // PAGE] = self.stores

    def numbers(self, blocks, lies, convert):
        """(blocks, ...) numbers that lie there, as unsigned ones, converted; those of one block are kept until some are
        written again.
        """
        self._check_within(lies.low, lies.high + lies.size)
        if blocks.size > 1:
            return convert(self._rows(lies.size)[blocks[:, None, None], lies.places])
        block, last = int(blocks[0]), self.stored[blocks[0], lies.pages].max()
        when, found = self.kept.get((block, lies, convert), (-1, None))
        if when < last:
            found = convert(self._rows(lies.size)[block][lies.places])[None]
            self.kept[block, lies, convert] = self.stores, found
        return found

    def _rows(self, size):
        """(blocks, numbers)"""
        return self.bytes.view(f"u{size}").reshape(-1, self.pitch // size)

    def check_fenced(self, blocks, chunks):
        """Raise where a product would read what was stored without a fence; chunks: numbers of them."""
        if self.unfenced.any() and self.unfenced[blocks[:, None], chunks].any():
            raise Fault("a product reads shared memory that was stored without a fence")

    def fence(self, blocks, warps):
        """What these warps stored, and what lies behind a barrier, is seen by products from now on."""
        after = np.arange(256, dtype=np.uint8)
        after[[*(1 + warps), self.PASSED]] = 0
        self.unfenced[blocks] = after[self.unfenced[blocks]]

    def barrier(self):
        """All blocks stand at one."""
        self.unfenced[self.unfenced > 0] = self.PASSED

    def _places(self, blocks, addresses, width):
        """The bytes of all blocks that these are."""
        check_aligned(addresses, width)
        if addresses.size:
            self._check_within(int(addresses.min()), int(addresses.max()) + width)
        return addresses if len(self.unfenced) == 1 else addresses + blocks * self.pitch

    def _check_within(self, low, high):
        if low < BASE or high > BASE + self.size:
            raise Fault(f"bytes {low - BASE} to {high - BASE} of shared memory, which has {self.size}")
