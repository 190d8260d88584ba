"""Instructions of one thread, beside numpy or by example."""

import numpy as np
import pytest

from .parse import Fault
from .small import Small, result

RANDOM = np.random.default_rng(7)
INTEGERS = RANDOM.integers(-(2**31), 2**31, (3, 32)).astype(np.int32)
A, B, C = INTEGERS
U = INTEGERS.view(np.uint32)
X, Y, Z = RANDOM.standard_normal((3, 32)).astype(np.float32)
NAN = np.float32(np.nan)
LONG = RANDOM.integers(-(2**62), 2**62, (2, 32))
MANY = [0, 1, 5, 31, 32, 33, 63, 64, 65, 255, 2**31]


def u32(*numbers):
    return np.resize(np.array(numbers, np.uint32), 32)


def i32(*numbers):
    return np.resize(np.array(numbers, np.int32), 32)


def f32(*numbers):
    return np.resize(np.array(numbers, np.float32), 32)


SAME = {
    "add.s32": (A, B, A + B),
    "sub.s64": (*LONG, LONG[0] - LONG[1]),
    "mul.lo.s32": (A, B, A * B),
    "mul.hi.s32": (A, B, (A.astype(np.int64) * B >> 32).astype(np.int32)),
    "mul.hi.u32": (U[0], U[1], (U[0].astype(np.uint64) * U[1] >> np.uint64(32)).astype(np.uint32)),
    "mul.wide.s32": (A, B, A.astype(np.int64) * B),
    "mul.wide.u32": (U[0], U[1], U[0].astype(np.uint64) * U[1]),
    "mad.lo.s32": (A, B, C, A * B + C),
    "mad.wide.s32": (A, B, LONG[0], A.astype(np.int64) * B + LONG[0]),
    "fma.rn.f32": (X, Y, Z, (X.astype(np.float64) * Y + Z).astype(np.float32)),
    "div.s32": (i32(7, -7, 7, -7), i32(2, 2, -2, -2), i32(3, -3, -3, 3)),
    "rem.s32": (i32(7, -7, 7, -7), i32(2, 2, -2, -2), i32(1, -1, 1, -1)),
    "div.u32": (U[0], u32(3), U[0] // 3),
    "min.f32": (f32(1, NAN, -0.5, NAN), f32(2, 3, NAN, NAN), f32(1, 3, -0.5, NAN)),
    "max.NaN.f32": (f32(1, NAN, -0.5), f32(2, 3, NAN), f32(2, NAN, NAN)),
    "min.relu.s32": (i32(5, -5, 7), i32(3, 9, -1), i32(3, 0, 0)),
    "min.s32": (A, B, np.minimum(A, B)),
    "max.u32": (U[0], U[1], np.maximum(U[0], U[1])),
    "ex2.approx.ftz.f32": (X, np.exp2(X)),
    "lg2.approx.f32": (abs(X), np.log2(abs(X))),
    "sqrt.rn.f32": (abs(X), np.sqrt(abs(X))),
    "rcp.approx.ftz.f32": (X, 1 / X),
    "tanh.approx.f32": (X, np.tanh(X)),
    "div.full.f32": (X, Y, X / Y),
    "neg.f32": (X, -X),
    "abs.s32": (A, abs(A)),
    "not.b32": (A, ~A),
    "xor.b64": (*LONG, LONG[0] ^ LONG[1]),
    "shf.l.wrap.b32": (U[0], U[1], u32(8), U[1] << 8 | U[0] >> 24),
    "shf.r.clamp.b32": (U[0], U[1], u32(40), U[1]),
    "popc.b32": (u32(0, 1, 0xFF, 0xFFFFFFFF), u32(0, 1, 8, 32)),
    "clz.b32": (u32(0, 1, 0xFF, 0xFFFFFFFF), u32(32, 31, 24, 0)),
    "mov.b64": (LONG[0], LONG[0]),
}  # fmt: skip


@pytest.mark.parametrize("opcode", SAME)
def test_arithmetic(opcode):
    *given, expected = SAME[opcode]
    np.testing.assert_array_equal(result(opcode, *given, kind=expected.dtype), expected)


@pytest.mark.parametrize("by", MANY)
def test_shifts_by_any_number(by):
    """By the width and beyond, zeros or signs are left; Python's integers do the same."""
    for kind, bits, given in (
        ("b32", 32, U[0]),
        ("u16", 16, U[0].astype(np.uint16)),
        ("b64", 64, LONG[0].view(np.uint64)),
    ):
        left = result(f"shl.b{bits}", given, u32(by))
        right = result(f"shr.u{bits}" if kind != "u16" else "shr.u16", given, u32(by))
        np.testing.assert_array_equal(left, [(int(x) << by) % 2**bits if by < 64 else 0 for x in given])
        np.testing.assert_array_equal(right, [int(x) >> by for x in given])
    np.testing.assert_array_equal(result("shr.s32", A, u32(by)), [int(x) >> by for x in A])
    np.testing.assert_array_equal(result("shr.s64", LONG[0], u32(by)), [int(x) >> by for x in LONG[0]])


@pytest.mark.parametrize(
    ("first", "count"), [(0, 8), (5, 3), (28, 4), (28, 9), (0, 32), (31, 1), (32, 4), (7, 0), (40, 40)]
)
def test_bits_taken_out(first, count):
    """With a sign, what is above is filled with the last bit that there is."""
    for kind, bits, given in (("32", 32, A), ("64", 64, LONG[0])):
        signed = result(f"bfe.s{kind}", given, u32(first), u32(count))
        plain = result(f"bfe.u{kind}", given.view(f"u{bits // 8}"), u32(first), u32(count))
        for x, s, u in zip(given.view(f"u{bits // 8}"), signed, plain, strict=True):
            field = int(x) >> first & (1 << count) - 1
            last = int(x) >> min(first + count - 1, bits - 1) & 1
            filled = field | (-1 << min(count, max(0, bits - first)) if count and last else 0)
            assert (int(s), int(u)) == ((filled + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1), field)


@pytest.mark.parametrize(("first", "count"), [(0, 8), (5, 3), (28, 4), (28, 9), (0, 32), (32, 4), (7, 0)])
def test_bits_put_in(first, count):
    mask = ((1 << count) - 1) << first & 0xFFFFFFFF
    expected = [(int(b) & ~mask) | (int(a) << first & mask) for a, b in zip(U[0], U[1], strict=True)]
    np.testing.assert_array_equal(result("bfi.b32", U[0], U[1], first, count), expected)


def test_bytes_picked():
    """Bytes 0 to 3 are a's, 4 to 7 b's; 8 more: the sign of a byte."""
    a, b = u32(0x83020100), u32(0x07060584)
    picks = u32(0x3210, 0x7654, 0x0426, 0xB0C0)
    np.testing.assert_array_equal(result("prmt.b32", a, b, picks)[:4], [0x83020100, 0x07060584, 0x00840206, 0xFF00FF00])


@pytest.mark.parametrize("table", [0x80, 0xFE, 0x96, 0xCA, 0x01])
def test_any_function_of_three_bits(table):
    found = result("lop3.b32", *U, table)
    for bit in (0, 7, 31):
        row = (U[0] >> bit & 1) * 4 + (U[1] >> bit & 1) * 2 + (U[2] >> bit & 1)
        np.testing.assert_array_equal(found >> bit & 1, table >> row & 1)


COMPARED = {
    "lt": [1, 0, 0, 0], "le": [1, 0, 1, 0], "eq": [0, 0, 1, 0], "ne": [1, 1, 0, 0], "gt": [0, 1, 0, 0],
    "ltu": [1, 0, 0, 1], "neu": [1, 1, 0, 1], "geu": [0, 1, 1, 1], "num": [1, 1, 1, 0], "nan": [0, 0, 0, 1],
}  # fmt: skip


@pytest.mark.parametrize("how", COMPARED)
def test_numbers_compared(how):
    """What is no number is neither less nor equal nor unequal, but for comparisons that end with u."""
    found = result(f"setp.{how}.f32", f32(1, 2, 3, NAN), f32(2, 1, 3, 3), kind=bool)
    np.testing.assert_array_equal(found[:4], COMPARED[how])


def bf16(*numbers):
    return (f32(*numbers).view(np.uint32) >> 16).astype(np.uint16)


@pytest.mark.parametrize("how", COMPARED)
def test_numbers_of_16_bits_compared(how):
    found = result(f"setp.{how}.bf16", bf16(1, 2, 3, NAN), bf16(2, 1, 3, 3), kind=bool)
    np.testing.assert_array_equal(found[:4], COMPARED[how])
    assert result("setp.eq.bf16", bf16(-0.0), bf16(0.0), kind=bool).all()


@pytest.mark.parametrize("kind", ["bf16", "f16"])
def test_two_numbers_in_a_register_have_two_results(kind):
    rounded = bf16 if kind == "bf16" else lambda *numbers: f32(*numbers).astype(np.float16).view(np.uint16)
    low, high = rounded(0.0, 1.0, NAN, -0.0).astype(np.uint32), rounded(0.0, 0.0, 1.0, 2.0).astype(np.uint32)
    lines = """
        ld.global.b32 %r20, [%rd10];
        setp.eq.KINDx2 %p1|%p2, %r20, 0;
        selp.b32 %r21, 1, 0, %p1;
        selp.b32 %r22, 2, 0, %p2;
        or.b32 %r23, %r21, %r22;
        st.global.b32 [%rd11], %r23;
    """
    found = Small(lines.replace("KIND", kind)).run(high << 16 | low, u32(0))
    lower, upper = found & 1, found >> 1
    np.testing.assert_array_equal(lower[:4], [1, 0, 0, 1])
    np.testing.assert_array_equal(upper[:4], [1, 1, 0, 0])


def test_arithmetic_of_16_bits_is_rounded():
    a, b = bf16(1.0, -2.0, 256.0), bf16(0.0078125, 2.0, 1.0)
    np.testing.assert_array_equal(result("sub.rn.bf16", a, b), bf16(0.9921875, -4.0, 255.0))
    np.testing.assert_array_equal(result("add.rn.bf16", a, b), bf16(1.0078125, 0.0, 256.0))
    both = [high.astype(np.uint32) << 16 | low for low, high in ((a, b), (b, a))]
    low, high = bf16(0.9921875, -4.0, 255.0), bf16(-0.9921875, 4.0, -255.0)
    np.testing.assert_array_equal(result("sub.rn.bf16x2", *both), high.astype(np.uint32) << 16 | low)
    np.testing.assert_array_equal(result("fma.rn.bf16", a, b, a), bf16(1.0078125, -6.0, 512.0))
    np.testing.assert_array_equal(result("neg.bf16", a), bf16(-1.0, 2.0, -256.0))


@pytest.mark.parametrize("what", ["max.bf16x2", "abs.f16x2", "setp.eq.and.bf16"])
def test_what_is_not_known_of_numbers_of_16_bits_is_refused(what):
    with pytest.raises(Fault, match="not known"):
        result(what, *((u32(0) if "x2" in what else bf16(0.0),) * (1 if what.startswith("abs") else 2)))


def test_signs_matter_in_comparisons_and_joins():
    a, b = i32(-1, 1, -5, 3), i32(1, -1, -4, 3)
    np.testing.assert_array_equal(result("setp.lt.s32", a, b, kind=bool), a < b)
    np.testing.assert_array_equal(result("setp.lt.u32", a, b, kind=bool), a.view(np.uint32) < b.view(np.uint32))
    other = np.resize([True, True, False, False], 32)
    np.testing.assert_array_equal(result("setp.lt.and.s32", a, b, other, kind=bool), (a < b) & other)
    np.testing.assert_array_equal(result("selp.b32", a, b, other), np.where(other, a, b))


ROUNDED = [
    ("bf16", 1.00390625, 0x3F80), ("bf16", 1.01171875, 0x3F82), ("bf16", 1.0039064, 0x3F81),
    ("bf16", -1.01171875, 0xBF82),
    ("bf16", 3.4e38, 0x7F80), ("bf16", 1e-40, 0x0001), ("f16", 1.00048828125, 0x3C00), ("f16", 1.00146484375, 0x3C02),
    ("f16", 65520.0, 0x7C00), ("f16", 2.0**-24, 0x0001),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "x", "bits"), ROUNDED)
def test_rounded_to_even(kind, x, bits):
    assert result(f"cvt.rn.{kind}.f32", f32(x), kind="u2")[0] == bits
    both = result(f"cvt.rn.{kind}x2.f32", f32(1.0), f32(x), kind="u4")[0]
    assert (both & 0xFFFF, both >> 16) == (bits, {"bf16": 0x3F80, "f16": 0x3C00}[kind])
    if np.isfinite(back := result(f"cvt.f32.{kind}", np.full(32, bits, np.uint16), kind="f4")[0]):
        assert back == pytest.approx(x, rel=2**-8, abs=1e-40)


CONVERTED = [
    ("cvt.rzi.s32.f32", f32(2.7, -2.7, 1e20, -1e20, NAN), i32(2, -2, 2**31 - 1, -(2**31), 0)),
    ("cvt.rni.s32.f32", f32(0.5, 1.5, 2.5, -0.5, 7.0), i32(0, 2, 2, 0, 7)),
    ("cvt.rn.f32.s32", A, A.astype(np.float32)),
    ("cvt.s64.s32", A, A.astype(np.int64)),
    ("cvt.u64.u32", U[0], U[0].astype(np.uint64)),
    ("cvt.u32.u64", LONG[0].view(np.uint64), LONG[0].astype(np.uint32)),
    ("cvt.s32.s8", U[0], U[0].astype(np.int8).astype(np.int32)),
    ("cvt.u16.u32", U[0], U[0].astype(np.uint16)),
    ("cvt.rna.tf32.f32", u32(0x3F801000, 0x3F800FFF), u32(0x3F802000, 0x3F800000)),
]


@pytest.mark.parametrize(("opcode", "given", "expected"), CONVERTED, ids=[case[0] for case in CONVERTED])
def test_converted(opcode, given, expected):
    period = 5 if "i.s32.f32" in opcode else 32
    np.testing.assert_array_equal(result(opcode, given, kind=expected.dtype)[:period], expected[:period])


def test_parts_of_registers():
    lines = """
        ld.global.b32 %r1, [%rd10];
        mov.b32 {%rs1, %rs2}, %r1;
        mov.b32 %r2, {%rs2, %rs1};
        st.global.b32 [%rd11], %r2;
    """
    np.testing.assert_array_equal(Small(lines).run(U[0].copy(), U[1].copy()), U[0] << 16 | U[0] >> 16)


@pytest.mark.parametrize(
    "line", ["brev.b32 %r1, %r0;", "add.sat.s32 %r1, %r0, 1;", "mov.u32 %r1, %clock;", "add.s64 %rd1, %r0, 1;"]
)
def test_the_unknown_is_a_fault_that_says_where(line):
    with pytest.raises(Fault, match=r"line \d+: " + line[:8].replace(".", r"\.")):
        Small(line).run(np.zeros(32, np.int32))
