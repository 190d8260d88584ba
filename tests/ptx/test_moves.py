"""Memory, copies under way, warps and blocks: what is moved, and what is refused."""

import numpy as np
import pytest

from .launch import FILL
from .parse import Fault
from .small import Small, result
from .threads import EAGER, LATE, REVERSED, Order

LANES = np.arange(32, dtype=np.uint32)
VALUES = LANES * 7 + 3
ORDERS = {"eager": EAGER, "late": LATE, "reversed": REVERSED}


def shuffled(how, by, inside):
    return result(f"shfl.sync.{how}.b32", VALUES, by, inside, -1)


def test_lanes_read_each_other():
    """The last number: in its lower byte the last lane of a segment (the first, upwards), then what makes segments."""
    np.testing.assert_array_equal(shuffled("bfly", 4, 31), VALUES[LANES ^ 4])
    np.testing.assert_array_equal(shuffled("idx", 5, 31), VALUES[[5] * 32])
    np.testing.assert_array_equal(shuffled("idx", 5, 0x181F), VALUES[LANES // 8 * 8 + 5])
    np.testing.assert_array_equal(shuffled("up", 3, 0), VALUES[np.where(LANES < 3, LANES, LANES - 3)])
    np.testing.assert_array_equal(shuffled("down", 3, 31), VALUES[np.where(LANES > 28, LANES, LANES + 3)])
    np.testing.assert_array_equal(shuffled("down", 3, 0x181F), VALUES[np.where(LANES % 8 > 4, LANES, LANES + 3)])


def test_a_lane_hears_whether_it_read_another_ones():
    lines = """
        shfl.sync.up.b32 %r1|%p1, %r0, 3, 0, -1;
        selp.b32 %r2, 1, 0, %p1;
        st.global.b32 [%rd10], %r2;
    """
    np.testing.assert_array_equal(Small(lines).run(np.zeros(32, np.uint32)), LANES >= 3)


def test_a_warp_reduces_and_votes():
    signed = (VALUES.astype(np.int32) - 90) * np.where(LANES % 2, -1, 1).astype(np.int32)
    for how, expected in (("min", signed.min()), ("max", signed.max()), ("add", signed.sum())):
        assert (result(f"redux.sync.{how}.s32", signed, -1) == expected).all()
    some = LANES % 3 == 0
    assert (result("vote.sync.ballot.b32", some, -1, kind="u4") == (some << LANES).sum()).all()
    assert result("vote.sync.any.pred", some, -1).all()
    assert not result("vote.sync.all.pred", some, -1).any()


def test_atomics_that_meet():
    """Every lane adds to one of three numbers, and hears a different sum."""
    lines = """
        rem.u32 %r1, %r0, 3;
        mul.wide.u32 %rd20, %r1, 4;
        add.s64 %rd21, %rd0, %rd20;
        atom.global.gpu.relaxed.add.u32 %r2, [%rd21], %r0;
        st.global.b32 [%rd11], %r2;
    """
    sums, heard = np.zeros(3, np.uint32), np.zeros(32, np.uint32)
    Small(lines).run(sums, heard)
    for place in range(3):
        mine = LANES[LANES % 3 == place]
        assert sums[place] == mine.sum()
        np.testing.assert_array_equal(heard[mine], np.cumsum(mine) - mine)


def test_wide_atomics():
    lines = "mov.b32 %r1, 0f3F800000; atom.global.gpu.relaxed.add.v2.f32 {%r2, %r3}, [%rd10], {%r1, %r1};"
    np.testing.assert_array_equal(Small(lines, each=8).run(np.ones(64, np.float32)), np.full(64, 2, np.float32))


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16])
def test_out_of_bounds_and_misaligned(width):
    """The last access fits and the next one does not; an address is a multiple of the width."""
    kind = {1: "b8", 2: "b16", 16: "v4.b32"}.get(width, f"b{8 * width}")
    to = {1: "%rs1", 2: "%rs1", 4: "%r1", 8: "%rd30", 16: "{%r1, %r2, %r3, %r4}"}[width]
    fits = np.zeros(32 * width, np.uint8)
    for line in (f"ld.global.{kind} {to}, [%rd10@];", f"st.global.{kind} [%rd10@], {to};"):
        Small(line.replace("@", ""), each=width).run(fits)
        with pytest.raises(Fault, match="which no tensor has"):
            Small(line.replace("@", f"+{width}"), each=width).run(fits)
        with pytest.raises(Fault, match="which no tensor has"):
            Small(line.replace("@", f"+-{width}"), each=width).run(fits)
        if width > 1:
            with pytest.raises(Fault, match=f"no multiple of {width}|no tensor"):
                Small(line.replace("@", "+1"), each=width).run(fits[: 31 * width + 1])


def test_shared_memory_has_an_end():
    line = "mov.b32 %r1, global_smem; st.shared.b32 [%r1+{}], %r0; ld.shared.b32 %r2, [%r1+{}];"
    Small(line.format(60, 60), shared=64).run(np.zeros(1))
    with pytest.raises(Fault, match="bytes 64 to 68 of shared memory, which has 64"):
        Small(line.format(64, 64), shared=64).run(np.zeros(1))


def test_narrow_loads_fill_wide_registers():
    lines = "ld.global.{} %r1, [%rd10]; st.global.b32 [%rd11], %r1;"
    x = VALUES.astype(np.int32) - 100
    given, out = x.copy(), np.zeros(32, np.int32)
    np.testing.assert_array_equal(Small(lines.format("s8")).run(given, out), x.astype(np.int8))
    np.testing.assert_array_equal(Small(lines.format("u16")).run(given, out), x.astype(np.uint16))


# 16 bytes of each thread: all, 8 of them, none (from an address that no tensor has).
COPY = """
    mov.b32 %r1, global_smem;
    mad.lo.s32 %r2, %r0, 16, %r1;
    setp.lt.u32 %p1, %r0, 24;
    selp.b32 %r3, 8, 0, %p1;
    setp.lt.u32 %p2, %r0, 16;
    selp.b32 %r3, 16, %r3, %p2;
    selp.b64 %rd20, %rd10, 4096, %p1;
    cp.async.cg.shared.global [%r2], [%rd20], 0x10, %r3;
    cp.async.commit_group;
    {}
    ld.shared.v4.b32 {{%r4, %r5, %r6, %r7}}, [%r2];
    st.global.v4.b32 [%rd11], {{%r4, %r5, %r6, %r7}};
"""


@pytest.mark.parametrize("order", ORDERS)
def test_copies_are_filled_up_with_zeros(order):
    given, out = np.arange(1, 129, dtype=np.uint32), np.zeros(128, np.uint32)
    found = Small(COPY.format("cp.async.wait_group 0;"), each=16).run(given, out, order=ORDERS[order]).reshape(32, 4)
    np.testing.assert_array_equal(found[:16], given.reshape(32, 4)[:16])
    np.testing.assert_array_equal(found[16:24, :2], given.reshape(32, 4)[16:24, :2])
    assert (found[16:24, 2:] == 0).all()
    assert (found[24:] == 0).all()


@pytest.mark.parametrize("wait", ["", "cp.async.wait_group 1;"])
def test_what_is_not_waited_for_is_not_there_when_copies_are_late(wait):
    given, out = np.arange(1, 129, dtype=np.uint32), np.zeros(128, np.uint32)
    late = Small(COPY.format(wait), each=16).run(given, out, order=Order(late_copies=True))
    assert (late == FILL * 0x01010101).all()


# Each thread reads what that of the other end of the block stored.
MIRROR = """
    mov.b32 %r1, global_smem;
    mad.lo.s32 %r2, %r0, 4, %r1;
    st.shared.b32 [%r2], %r0;
    {}
    sub.s32 %r3, 127, %r0;
    mad.lo.s32 %r4, %r3, 4, %r1;
    ld.shared.b32 %r5, [%r4];
    st.global.b32 [%rd10], %r5;
"""


def test_warps_meet_at_a_barrier():
    mirrored = np.arange(128, dtype=np.uint32)[::-1]
    for order in ORDERS.values():
        out = Small(MIRROR.format("bar.sync 0;"), threads=128).run(np.zeros(128, np.uint32), order=order)
        np.testing.assert_array_equal(out, mirrored)
    out = Small(MIRROR.format(""), threads=128).run(np.zeros(128, np.uint32), order=REVERSED)
    assert (out != mirrored).sum() == 64


BRANCH = """
    mov.u32 %r1, {};
    setp.gt.u32 %p1, %r1, 1;
    @%p1 bra $L1;
    {}
$L1:
    bar.sync 0;
"""


def test_threads_of_a_group_do_not_part():
    out = np.zeros(128, np.uint32)
    for register, order in (("%laneid", REVERSED), ("%tid.x", EAGER)):
        for between in ("bar.sync 0;", "st.global.b32 [%rd10], %r1;", "bra $L1;"):
            with pytest.raises(Fault, match=f"of one block part before {between[:3]}"):
                Small(BRANCH.format(register, between), threads=128).run(out, order=order)
    warp = BRANCH.format("%tid.x", "").replace("%r1, 1;", "%r1, 31;")
    Small(warp, threads=128).run(out, order=REVERSED)
    with pytest.raises(Fault, match="others wait at a barrier"):
        Small(warp.replace("$L1;\n    \n", "$L1;\n    ret;\n"), threads=128).run(out, order=REVERSED)


@pytest.mark.parametrize("order", [EAGER, REVERSED])
def test_but_for_arithmetic_of_their_own(order):
    """As where a logarithm of libdevice looks for what is infinite."""
    lines = BRANCH.format("%laneid", "add.s32 %r1, %r1, 100;\n@!%p1 add.s32 %r1, %r1, 7;\n@%p1 mov.u32 %r1, 0;")
    out = Small(f"{lines} st.global.b32 [%rd10], %r1;", threads=128).run(np.zeros(128, np.uint32), order=order)
    lanes = np.arange(128) % 32
    np.testing.assert_array_equal(out, np.where(lanes > 1, lanes, lanes + 107))


# Block b goes b times through a loop, with a copy under way, and writes where it stands.
LOOP = """
    mov.u32 %r1, %ctaid.x;
    mov.b32 %r2, global_smem;
    mov.b32 %r3, 0;
    mov.b32 %r4, 100;
    mad.lo.s32 %r5, %r0, 4, %r2;
    cp.async.ca.shared.global [%r5], [%rd10], 0x4;
    cp.async.commit_group;
$L1:
    setp.ge.u32 %p1, %r3, %r1;
    @%p1 bra $L2;
    add.s32 %r3, %r3, 1;
    add.s32 %r4, %r4, %r3;
    bar.sync 0;
    bra.uni $L1;
$L2:
    cp.async.wait_all;
    ld.shared.b32 %r6, [%r5];
    add.s32 %r4, %r4, %r6;
    mad.lo.s32 %r7, %r1, 64, %r0;
    mad.wide.u32 %rd20, %r7, 4, %rd1;
    st.global.b32 [%rd20], %r4;
"""


@pytest.mark.parametrize("order", ORDERS)
def test_blocks_go_their_own_ways(order):
    given, out = np.arange(64, dtype=np.uint32), np.zeros((5, 64), np.uint32)
    Small(LOOP, threads=64, blocks=5).run(given, out, order=ORDERS[order])
    through = np.arange(5)
    np.testing.assert_array_equal(out, (100 + through * (through + 1) // 2)[:, None] + given)
