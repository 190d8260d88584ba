"""The message of a launch, read back as protobuf has it."""

import struct
import zlib

import pytest

from weft.jax.gpu.message import Binary, TensorMap, array, message, scalar, varint

KERNEL = Binary("weft_fwd", b"\x7fELF and more", 20, 231384, 90)


def fields(data):
    """(field, value) pairs: integers, or bytes."""
    found, at = [], 0
    while at < len(data):
        tag, at = number(data, at)
        if tag & 7 == 0:
            value, at = number(data, at)
        elif tag & 7 == 2:
            size, at = number(data, at)
            value, at = data[at : at + size], at + size
        else:
            assert tag & 7 == 5
            value, at = data[at : at + 4], at + 4
        found.append((tag >> 3, value))
    return found


def number(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 128:
            return value, at


@pytest.mark.parametrize("x", [0, 1, 127, 128, 300, 2**31 - 1, 2**40, -1, -(2**31)])
def test_integers(x):
    value, end = number(varint(x), 0)
    assert (value, end) == (x % 2**64, len(varint(x)))


def test_a_launch():
    parameters = [array(16), array(0), scalar("i32", -5), scalar("i64", 1 << 40), scalar("fp32", 0.125)]
    call, name = fields(zlib.decompress(message(KERNEL, (3, 2, 1), parameters)))
    assert name == (4, b"weft_fwd") and call[0] == 1
    kernel, *rest = fields(call[1])
    assert rest[:3] == [(2, 3), (3, 2), (4, 1)]
    told = [fields(value)[0] for field, value in rest[3:] if field == 5]
    assert fields(told[0][1]) == [(1, 0), (2, 16)] and fields(told[1][1]) == [(1, 0), (2, 0)]
    assert told[2:4] == [(3, 2**64 - 5), (5, 1 << 40)]
    assert told[4] == (7, struct.pack("<f", 0.125))
    about = dict(fields(kernel[1]))
    assert (about[1], about[2], about[3], about[6], about[10]) == (b"weft_fwd", 20, 231384, 90, 1)
    assert about[4].startswith(b"cubin ") and dict(fields(about[11])) == {1: KERNEL.code, 2: b"weft_fwd", 3: 231384}


def test_a_descriptor_comes_with_its_sizes_and_strides():
    one = TensorMap(9, 3, (4, 12, 100, 1, 64), (76800, 6400, 64, 64, 1), (1, 1, 64, 1, 64))
    descriptor, *sizes = fields(one.parameters())
    about = dict(fields(dict(fields(dict(fields(descriptor[1]))[9]))[1]))
    assert (about[1], about[2], about[6]) == (9, 3, 0)
    assert about[5] == bytes([1, 1, 64, 1, 64])
    assert [fields(value)[0] for _, value in sizes] == [(3, x) for x in one.shape] + [(5, x) for x in one.strides]
