"""Matrices moved and multiplied, beside numpy's product of the same numbers."""

import numpy as np
import pytest

from .formats import TF32, narrowed, widened
from .layouts import descriptor, image, of_first, of_second, of_sums
from .memory import BASE
from .parse import Fault
from .small import Small
from .threads import EAGER, LATE, REVERSED, Order

RANDOM = np.random.default_rng(11)
ORDERS = {"eager": EAGER, "late": LATE, "reversed": REVERSED}
KINDS = {"bf16": (16, "u2"), "f16": (16, "u2"), "tf32": (8, "u4")}  # K of a product, bits of a number
COLUMNS = 64
SUMS = [f"%r{100 + i}" for i in range(COLUMNS // 2)]


def drawn(kind, *shape):
    """(the bits, the numbers) of a matrix."""
    x = RANDOM.standard_normal(shape).astype(np.float32)
    bits = x.view(np.uint32) & TF32 if kind == "tf32" else narrowed(x, kind)
    return bits, widened(bits, kind).astype(np.float64)


# ---- one warp --------------------------------------------------------------------------------------------------------
def loaded(first, count, pointer):
    return "\n".join(f"ld.global.b32 %r{first + i}, [%rd{pointer}+{4 * i}];" for i in range(count))


def braces(names):
    return "{" + ", ".join(names) + "}"


@pytest.mark.parametrize(("kind", "k"), [("bf16", 16), ("f16", 16), ("bf16", 8), ("tf32", 8), ("tf32", 4)])
def test_products_of_a_warp(kind, k):
    (a, x), (b, y), c = drawn(kind, 16, k), drawn(kind, k, 8), RANDOM.standard_normal((16, 8)).astype(np.float32)
    first, second = of_first(a), of_second(b)
    sums = _sums_of(c)
    names = [
        [f"%r{at + i}" for i in range(count)] for at, count in ((10, first.shape[1]), (20, second.shape[1]), (30, 4))
    ]
    shape = f"m16n8k{k}.row.col.f32.{kind}.{kind}.f32"
    lines = [
        *(f"mad.wide.u32 %rd{30 + i}, %r0, {4 * x.shape[1]}, %rd{i};" for i, x in enumerate((first, second, sums))),
        loaded(10, first.shape[1], 30), loaded(20, second.shape[1], 31), loaded(30, 4, 32),
        f"mma.sync.aligned.{shape} {braces(names[2])}, {braces(names[0])}, {braces(names[1])}, {braces(names[2])};",
        f"st.global.v4.b32 [%rd32], {braces(names[2])};",
    ]  # fmt: skip
    if k == 4:
        with pytest.raises(Fault, match="m16n8k4"):
            Small("\n".join(lines)).run(first, second, sums)
        return
    found = Small("\n".join(lines)).run(first, second, sums)
    np.testing.assert_array_equal(found, _sums_of((x @ y + c).astype(np.float32)))


def _sums_of(c):
    """(32, 4) of a matrix of sums (16, 8)."""
    return np.stack([[c[lane // 4 + 8 * (i // 2), lane % 4 * 2 + i % 2] for i in range(4)] for lane in range(32)])


@pytest.mark.parametrize("there", ["", ".trans"])
@pytest.mark.parametrize("back", ["", ".trans"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_matrices_there_and_back(there, back, count):
    """Rows of 16 bytes, eight of a matrix; lane 8 i + r knows where row r of matrix i lies."""
    tiles = RANDOM.integers(0, 2**16, (count, 8, 8)).astype(np.uint16)
    names = braces([f"%r{10 + i}" for i in range(count)])
    lines = f"""
        mov.b32 %r1, global_smem;
        mad.lo.s32 %r2, %r0, 16, %r1;
        setp.lt.u32 %p1, %r0, {8 * count};
        @%p1 ld.global.v4.b32 {{%r3, %r4, %r5, %r6}}, [%rd10];
        @%p1 st.shared.v4.b32 [%r2], {{%r3, %r4, %r5, %r6}};
        ldmatrix.sync.aligned.m8n8.x{count}{there}.shared.b16 {names}, [%r2];
        stmatrix.sync.aligned.m8n8.x{count}{back}.shared.b16 [%r2+1024], {names};
        @%p1 ld.shared.v4.b32 {{%r3, %r4, %r5, %r6}}, [%r2+1024];
        @%p1 st.global.v4.b32 [%rd11], {{%r3, %r4, %r5, %r6}};
    """
    found = Small(lines, each=16).run(tiles, np.zeros_like(tiles))
    np.testing.assert_array_equal(found, tiles if there == back else tiles.swapaxes(1, 2))


def test_a_lane_has_two_numbers_of_a_row():
    tile = np.arange(64, dtype=np.uint16)
    lines = """
        mov.b32 %r1, global_smem;
        mad.lo.s32 %r2, %r0, 16, %r1;
        setp.lt.u32 %p1, %r0, 8;
        @%p1 ld.global.v4.b32 {%r3, %r4, %r5, %r6}, [%rd10];
        @%p1 st.shared.v4.b32 [%r2], {%r3, %r4, %r5, %r6};
        ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r7}, [%r2];
        mad.wide.u32 %rd20, %r0, 4, %rd1;
        st.global.b32 [%rd20], %r7;
    """
    np.testing.assert_array_equal(Small(lines, each=16).run(tile, np.zeros(64, np.uint16)), tile)


# ---- four warps ------------------------------------------------------------------------------------------------------
SECOND = 32768  # where the second factor begins
FILL = """
    mov.b32 %r1, global_smem;
    mad.lo.s32 %r2, %r0, 16, %r1;
    mov.b32 %r3, 0;
$COPY:
    ld.global.v4.b32 {%r4, %r5, %r6, %r7}, [%rd10];
    st.shared.v4.b32 [%r2], {%r4, %r5, %r6, %r7};
    add.s64 %rd10, %rd10, 2048;
    add.s32 %r2, %r2, 2048;
    add.s32 %r3, %r3, 1;
    setp.lt.u32 %p1, %r3, 32;
    @%p1 bra $COPY;
"""
FENCED = "fence.proxy.async.shared::cta; bar.sync 0; wgmma.fence.sync.aligned;"
WAITED = "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"
KEPT = "\n".join(f"st.global.b32 [%rd11+{4 * i}], {name};" for i, name in enumerate(SUMS))


def product(kind, first, second, flips=""):
    """sums += first @ second. first: a number (a descriptor) or names of registers."""
    opcode = f"wgmma.mma_async.sync.aligned.m64n{COLUMNS}k{KINDS[kind][0]}.f32.{kind}.{kind}"
    return f"{opcode} {braces(SUMS)}, {first}, {second}, %p2, 1, 1{flips};"


def program(middle, before=""):
    """Fill shared memory; sums begin as ones and are kept. `middle` in between."""
    ones = "\n".join(f"mov.b32 {name}, 0f3F800000;" for name in SUMS)
    each = f"mad.wide.u32 %rd10, %r0, 16, %rd0; mad.wide.u32 %rd11, %r0, {2 * COLUMNS}, %rd1; mov.pred %p2, -1;"
    return Small("\n".join([each, before, FILL, ones, middle, KEPT]), threads=128)


def shared_of(*images):
    """The first 64 KB of shared memory; the second image at SECOND."""
    found = np.full(1 << 16, 0xFF, np.uint8)
    for at, one in zip((0, SECOND), images, strict=False):
        found[at : at + one.size] = one
    return found


def run_four(small, memory, *more, order=EAGER):
    return of_sums(small.run(memory, np.zeros((128, COLUMNS // 2), np.float32), *more, order=order).copy())


LAYOUTS = [
    *((kind, mode, False) for kind in KINDS for mode in (0, 1, 2, 3)),
    *((kind, mode, True) for kind in ("bf16", "f16") for mode in (0, 1, 2, 3)),
]


@pytest.mark.parametrize(("kind", "mode", "flipped"), LAYOUTS)
def test_products_of_four_warps_in_every_layout(kind, mode, flipped):
    k = KINDS[kind][0]
    steps = {(0, False): (256, 1024), (0, True): (4096, 256)}.get(
        (mode, flipped), (1024, 8192) if flipped else (16, 1024)
    )
    how = (mode, flipped, *steps)
    (a, x), (b, y) = drawn(kind, 64, k), drawn(kind, COLUMNS, k)
    flips = "" if kind == "tf32" else f", {int(flipped)}, {int(flipped)}"
    ask = product(kind, descriptor(BASE, how), descriptor(BASE + SECOND, how), flips)
    memory = shared_of(image(a, how), image(b, how))
    expected = (x @ y.T + 1).astype(np.float32)
    for order in ORDERS.values():
        found = run_four(program(FENCED + ask + WAITED), memory, order=order)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", ORDERS)
def test_a_first_factor_in_registers(kind, order):
    """And a second one that begins within a row of a swizzled tile."""
    k, how = KINDS[kind][0], (1, False, 16, 1024)
    (a, x), (b, y) = drawn(kind, 64, k), drawn(kind, COLUMNS, 4 * k)
    y = y[:, 2 * k : 3 * k]
    registers = np.concatenate([of_first(a, warp) for warp in range(4)])
    begin = BASE + SECOND + 2 * k * b.itemsize
    ask = product(kind, "{%r50, %r51, %r52, %r53}", descriptor(begin, how), "" if kind == "tf32" else ", 0")
    before = "mad.wide.u32 %rd12, %r0, 16, %rd2; ld.global.v4.b32 {%r50, %r51, %r52, %r53}, [%rd12];"
    out = np.zeros((128, COLUMNS // 2), np.float32)
    program(FENCED + ask + WAITED, before).run(
        shared_of(np.zeros(0, np.uint8), image(b, how)), out, registers, order=ORDERS[order]
    )
    np.testing.assert_array_equal(of_sums(out), (x @ y.T + 1).astype(np.float32))


HOW = (1, False, 16, 1024)
ASK = product("bf16", descriptor(BASE, HOW), descriptor(BASE + SECOND, HOW), ", 0, 0")
HELD = product("bf16", "{%r50, %r51, %r52, %r53}", descriptor(BASE + SECOND, HOW), ", 0")
REFUSED = {
    "a sum is read": (ASK + "mov.b32 %r60, %r100;", "%r100 is read before the product"),
    "a sum is written": (ASK + "mov.b32 %r100, 0;", "%r100 is written before the product that has it as a sum"),
    "a factor is written": (HELD + "mov.b32 %r51, 0;", "%r51 is written before the product that has it as a factor"),
    "a sum is a factor": (ASK + HELD.replace("%r50", "%r100"), "%r100 is a factor, and a sum"),
    "too few are waited for": (ASK + WAITED.replace("group.sync.aligned 0", "group.sync.aligned 1"), "is read before"),
    "no groups": (ASK + "wgmma.wait_group.sync.aligned 0;", "is read before"),
    "of another sign": (ASK.replace("1, 1, 0, 0", "1, -1, 0, 0"), "only products"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_under_way_is_left_alone(case):
    """In every order: whether a product is done early is no excuse."""
    lines, fault = REFUSED[case]
    before = "mov.b32 %r50, 0; mov.b32 %r51, 0; mov.b32 %r52, 0; mov.b32 %r53, 0;"
    (a, _), (b, _) = drawn("bf16", 64, 16), drawn("bf16", COLUMNS, 16)
    memory = shared_of(image(a, HOW), image(b, HOW))
    for order in ORDERS.values():
        with pytest.raises(Fault, match=fault):
            run_four(program(FENCED + lines, before), memory, order=order)


def test_products_add_up_one_after_the_other():
    (a, x), (b, y) = drawn("bf16", 64, 16), drawn("bf16", COLUMNS, 16)
    memory = shared_of(image(a, HOW), image(b, HOW))
    once = (x @ y.T + 1).astype(np.float32)
    for order in ORDERS.values():
        found = run_four(program(FENCED + ASK + ASK + WAITED), memory, order=order)
        np.testing.assert_array_equal(found, (once + x @ y.T).astype(np.float32))
    fresh = "setp.ne.u32 %p2, %r1, %r1;"
    np.testing.assert_array_equal(
        run_four(program(FENCED + fresh + ASK + WAITED), memory), (x @ y.T).astype(np.float32)
    )


@pytest.mark.parametrize(
    "fence", ["", "fence.proxy.async.shared::cta; bar.sync 0;", "bar.sync 0; fence.proxy.async.shared::cta;"]
)
def test_what_is_stored_is_fenced(fence):
    (a, _), (b, _) = drawn("bf16", 64, 16), drawn("bf16", COLUMNS, 16)
    memory = shared_of(image(a, HOW), image(b, HOW))
    for order in ORDERS.values():
        if fence:
            run_four(program(fence + ASK + WAITED), memory, order=order)
            continue
        with pytest.raises(Fault, match="stored without a fence"):
            run_four(program("bar.sync 0;" + ASK + WAITED), memory, order=order)


def test_a_factor_that_is_overwritten_too_early():
    """Done early the product has the old numbers, done late the new ones."""
    (a, x), (b, y) = drawn("bf16", 64, 16), drawn("bf16", COLUMNS, 16)
    memory = shared_of(image(a, HOW), image(b, HOW))
    spoil = "mov.b32 %r60, 0; @%p2 st.shared.b32 [%r1], %r60;"
    small = program(FENCED + ASK + spoil + WAITED)
    np.testing.assert_array_equal(run_four(small, memory), (x @ y.T + 1).astype(np.float32))
    assert (run_four(small, memory, order=Order(late_products=True)) != (x @ y.T + 1).astype(np.float32)).any()
