"""The oracle notices what a program or its tables get wrong, and refuses what it was not asked for."""

from dataclasses import replace

import numpy as np
import pytest

import weft
from weft.kernels.gpu.oracle import BrokenLaw, run_program
from weft.kernels.gpu.oracle.memory import Array, DescriptorView, Memory
from weft.kernels.gpu.oracle.run import kernel_of
from weft.kernels.gpu.program import Descriptor, Fill, Known, Launch, LaunchProgram, Pointer, Slot, Table

from .calls import GROUPS, hopper
from .checked import Call, given_to, programs

WINDOW = Call(weft.window(100, 100), 400, heads=(1, 1), batch=1)
SHORT = hopper(weft.causal() & weft.window(left=127), 600, fixed=GROUPS, heads=(1, 1))
LONG = hopper(weft.causal() & weft.window(left=200), 600, fixed=GROUPS, heads=(1, 1))
TWO = hopper(weft.causal() & (weft.window(left=127) | weft.periodic_keys(128)), 600, fixed=GROUPS, heads=(1, 1))
BLOCKS = Call(weft.random_blocks(16, 3, seed=1), 150, heads=(1, 1), batch=1)


def outcome(program, arrays, wanted):
    """What becomes of an altered program: "law", "other" results, or the "same"."""
    try:
        found = run_program(program, given_to(program, arrays))
    except BrokenLaw:
        return "law"
    same = all(np.allclose(found[name], x, rtol=1e-9, atol=1e-9) for name, x in wanted.items())
    return "same" if same else "other"


def altered(program, place, by):
    """A program with one integer of its first table changed; place: of the integer, by the arguments of its launch."""
    (name, table), *_ = program.tables.items()
    words, launch = table.words.copy(), program.launches[0]
    words[place(launch)] += by
    return replace(program, tables={**program.tables, name: Table(words)})


def of_item(number, field):
    """The place of an integer of an item."""
    return lambda launch: launch.value("items_at") + number * launch.value("record") + field


# Of an item of one part: its row and rows, then first, columns, tiles before the full ones, full tiles.
OF_TILES = [
    (of_item(3, field), by) for field, by in ((0, 1), (1, -1), (2, 1), (2, -1), (3, -1), (4, 1), (4, -1), (5, 1))
]
# Of a forward by groups also place and lane of queries and keys (6 to 9), then what each group sees: the first tile and
# the one after the last, from which and to which it masks, whether two tiles fold. See `tables.consumer_ranges`.
OF_GROUPS = [
    *((SHORT, of_item(1, field), by) for field, by in ((6, 1), (7, 1), (8, 1), (8, -1), (10, 1), (11, -1), (15, 1))),
    (SHORT, of_item(0, 14), 1),
    *((LONG, of_item(1, field), by) for field, by in ((6, -1), (9, 1), (10, 1), (11, -1), (12, -1), (13, 1), (23, 1))),
    (LONG, lambda launch: launch.value("blocks_at") + 2, -1),  # the first block once more
    *((TWO, of_item(0, field), by) for field, by in ((14, 1), (15, 1), (16, 1), (17, -1))),
]


@pytest.mark.parametrize("number", range(len(OF_TILES)))
def test_a_wrong_integer_of_a_tile(number):
    place, by = OF_TILES[number]
    (forward, _), arrays = programs(WINDOW), WINDOW.arrays()
    wanted = run_program(forward, given_to(forward, arrays))
    assert outcome(forward, arrays, wanted) == "same"
    assert outcome(altered(forward, place, by), arrays, wanted) != "same"


@pytest.mark.parametrize("number", range(len(OF_GROUPS)))
def test_a_wrong_integer_of_a_group(number):
    """The tile needs what the integer says: a group that passes over a live pair, or a box elsewhere, breaks a law."""
    call, place, by = OF_GROUPS[number]
    (forward, _), arrays = programs(call), call.arrays()
    assert forward.launches[0].spec.groups
    wanted = run_program(forward, given_to(forward, arrays))
    assert outcome(forward, arrays, wanted) == "same"
    assert outcome(altered(forward, place, by), arrays, wanted) == "law"


@pytest.mark.parametrize("call", [WINDOW, TWO, BLOCKS], ids=["window", "two terms by groups", "blocks"])
def test_wrong_rows_of_an_item(call):
    """Its first row or block."""
    for program in programs(call):
        arrays = call.arrays()
        arrays |= run_program(programs(call)[0], given_to(programs(call)[0], arrays))
        wanted = run_program(program, given_to(program, arrays))
        assert outcome(altered(program, of_item(0, 0), 1), arrays, wanted) != "same"


def test_a_wrong_bit_of_a_block():
    (forward, _), arrays = programs(BLOCKS), BLOCKS.arrays()
    wanted = run_program(forward, given_to(forward, arrays))
    bits = int(forward.tables["forward_tables_0"].words[2])
    assert outcome(altered(forward, lambda launch: bits, 1), arrays, wanted) != "same"


# ---- arguments -------------------------------------------------------------------------------------------------------
def with_arguments(program, **changed):
    """A program whose first launch has other arguments."""
    launch, *rest = program.launches
    names = [name for name, _ in launch.kernel.types]
    arguments = [changed.get(name, x) for name, x in zip(names, launch.arguments, strict=True)]
    return replace(program, steps=(replace(launch, arguments=tuple(arguments)), *rest))


def refuses(program, call, text):
    with pytest.raises(BrokenLaw, match=text):
        run_program(program, given_to(program, call.arrays()))


def test_a_wrong_stride():
    forward, _ = programs(WINDOW)
    assert forward.launches[0].value("K_row") == 2, "in 16 bytes"
    refuses(with_arguments(forward, K_row=Known(3)), WINDOW, "K_row is 24, and k has 16")


def test_a_wrong_descriptor():
    forward, _ = programs(SHORT)
    good = forward.launches[0].named["K_near"]
    batch, heads, places, *rest = good.shape
    for shape, strides, text in (
        ((batch, heads, places + 1, *rest), good.strides, "reaches token 600 of 600"),
        ((batch, heads, places - 1, *rest), good.strides, "other tokens"),
        (good.shape, (*good.strides[:2], 2 * good.strides[2], *good.strides[3:]), "reaches token 1198 of 600"),
        (good.shape, (*good.strides[:2], good.strides[2] + 1, *good.strides[3:]), "other strides"),
    ):
        refuses(with_arguments(forward, K_near=Descriptor(good.slot, shape, strides)), SHORT, text)


def test_a_slot_that_is_written_and_not_said_to_be():
    forward, _ = programs(WINDOW)
    refuses(with_arguments(forward, Lse=Pointer("lse")), WINDOW, "lse is written by a launch that does not say so")
    refuses(with_arguments(forward, Out=Pointer("v", writes=True)), WINDOW, "v is written, and is an input")


def test_a_grid_that_is_too_large():
    forward, _ = programs(WINDOW)
    launch = forward.launches[0]
    x, y, z = launch.grid
    refuses(replace(forward, steps=(replace(launch, grid=(x, y + 1, z)),)), WINDOW, "item 7 of 7 is launched")


# ---- memory ----------------------------------------------------------------------------------------------------------
def test_programs_of_a_launch_do_not_meet():
    array = Array("x", np.zeros((4, 2)), 1, written=True)
    array.store(np.ones(2), 1)
    array.store(np.ones(2), 1)  # the same numbers
    with pytest.raises(BrokenLaw, match="two programs of a launch store to x"):
        array.store(np.zeros(2), np.array([0, 1]))
    with pytest.raises(BrokenLaw, match="x is loaded where the same launch stores"):
        array.load(np.array([1, 2]))
    array.add(np.ones(2), np.array([3, 3]))
    assert array.load(3).tolist() == [2, 2]


@pytest.mark.parametrize("place", [-1, 4, np.array([0, 4])])
def test_nothing_outside_of_memory(place):
    with pytest.raises(BrokenLaw, match="outside of its memory"):
        Array("x", np.zeros((4, 2)), 1, written=True).load(place)


def test_boxes_read_zeros_and_drop_what_lies_beyond():
    """Places and lanes of a descriptor are tokens step * place + lane."""
    slot = Slot.dense("x", "workspace", "bfloat16", (1, 1, 10, 2))
    values = np.arange(20.0).reshape(1, 1, 10, 2) + 1
    box = DescriptorView(Array("x", values, 3, written=True), slot, Descriptor("x", (1, 1, 3, 3, 2), (20, 20, 6, 2, 1)))
    assert box.tokens(1, 2)[:3].tolist() == [5, 8, -1]
    assert box.tokens(-1, 0)[:3].tolist() == [-1, 0, 3]
    assert box.tokens(0, 3).max() == -1
    found = box.load(0, 0, 1, 2)
    assert found[:3].tolist() == [[11, 12], [17, 18], [0, 0]]
    box.store(np.full((64, 2), -1.0), 0, 0, 2, 0)
    assert (values < 0).sum() == 2
    assert values[0, 0, 6].tolist() == [-1, -1]


# ---- what is refused -------------------------------------------------------------------------------------------------
def test_inputs_and_scalars_by_name():
    forward, _ = programs(WINDOW)
    inputs = given_to(forward, WINDOW.arrays())
    with pytest.raises(ValueError, match=r"takes \['k', 'q', 'v'\], and was given \['k', 'q'\]"):
        run_program(forward, {name: inputs[name] for name in ("q", "k")})
    with pytest.raises(ValueError, match="and was given"):
        run_program(forward, inputs | {"sinks": np.zeros(1)})
    with pytest.raises(ValueError, match="k has shape"):
        run_program(forward, inputs | {"k": inputs["k"][:, :, 1:]})
    with pytest.raises(ValueError, match=r"takes the scalars \[\], and was given \['length'\]"):
        run_program(forward, inputs, {"length": 3})


def test_integers_are_integers():
    program = LaunchProgram("p", (Slot.dense("n", "input", "int32", (1,)),), ())
    with pytest.raises(ValueError, match="n holds int32, and was given float64"):
        Memory(program, {"n": np.zeros(1)})
    assert Memory(program, {"n": np.ones(1, np.int32)}).arrays["n"].dtype == np.int64


def test_inputs_are_not_changed():
    """A program works on copies."""
    program = LaunchProgram("p", (Slot.dense("x", "input", "float32", (3,)),), (Fill("x", 5.0),))
    given = np.zeros(3)
    run_program(program, {"x": given})
    assert (given == 0).all()


def test_a_kernel_without_an_oracle():
    launch = programs(WINDOW)[0].launches[0]
    with pytest.raises(NotImplementedError, match="the oracle has no kernel"):
        kernel_of(Launch("softmax", launch.kernel, launch.grid, launch.arguments))
