"""Where the numbers of a matrix lie, written down by rows and units of 16 bytes, as the PTX manual draws it.

`matrix.addresses` finds the same by bits of addresses; the tests hold one against the other.
"""

import numpy as np

WIDTHS = {0: 16, 1: 128, 2: 64, 3: 32}  # mode of swizzling -> bytes of a row
MIXED = {0: 8, 1: 1, 2: 2, 3: 4}  # -> rows that are mixed alike


def place(row, column, size, how):
    """The byte of a number. row: of the factor; column: what is summed over; how: (mode, flipped, leading, stride)."""
    mode, flipped, leading, stride = how
    along, across = (row, column) if flipped else (column, row)  # within 16 bytes, and from line to line
    line, unit, inside = across % 8, along * size // 16, along * size % 16
    if mode == 0:
        beside, below = (stride, leading) if flipped else (leading, stride)
        return across // 8 * below + unit * beside + line * 16 + inside
    units = WIDTHS[mode] // 16
    return (
        across // 8 * stride
        + unit // units * leading
        + line * WIDTHS[mode]
        + (unit % units ^ line // MIXED[mode]) * 16
        + inside
    )


def image(x, how):
    """The bytes of shared memory that hold a matrix (rows, k) of unsigned numbers; elsewhere 0xFF."""
    size = x.itemsize
    places = np.array([[place(r, c, size, how) for c in range(x.shape[1])] for r in range(x.shape[0])])
    found = np.full((places.max() + size + 15) // 16 * 16, 0xFF, np.uint8)
    found[places[..., None] + np.arange(size)] = x[..., None].view(np.uint8)
    return found


def descriptor(address, how):
    """64 bits for an address, of a factor in shared memory."""
    mode, _, leading, stride = how
    return address >> 4 | (leading >> 4) << 16 | (stride >> 4) << 32 | mode << 62


def of_sums(registers):
    """(64, N) of the sums of 128 threads: (threads, N / 2)."""
    found = np.empty((64, 2 * registers.shape[1]), registers.dtype)
    for thread in range(128):
        for i in range(registers.shape[1]):
            row = thread // 32 * 16 + thread % 32 // 4 + 8 * (i // 2 % 2)
            found[row, i // 4 * 8 + thread % 4 * 2 + i % 2] = registers[thread, i]
    return found


def of_first(x, warp=0):
    """(32, registers) of the rows of a warp of the first factor, (rows, k) as unsigned of 2 bytes or 4."""
    each = 4 // x.itemsize
    found = np.empty((32, x.shape[1] // 4 // each * 2, each), x.dtype)
    for lane in range(32):
        for i in range(found.shape[1]):
            row, column = lane // 4 + 8 * (i % 2), lane % 4 * each + i // 2 * 4 * each
            found[lane, i] = x[16 * warp + row, column : column + each]
    return found.reshape(32, -1).view(np.uint32)


def of_second(x):
    """(32, registers) of a second factor (k, 8) of a product of one warp."""
    each = 4 // x.itemsize
    found = np.empty((32, x.shape[0] // 4 // each, each), x.dtype)
    for lane in range(32):
        for i in range(found.shape[1]):
            row = lane % 4 * each + i * 4 * each
            found[lane, i] = x[row : row + each, lane // 4]
    return found.reshape(32, -1).view(np.uint32)
