"""LaunchProgram by itself: what it refuses, how two become one, and what it prints."""

import pytest
import torch

from weft.kernels.gpu.compile.compiler import Source
from weft.kernels.gpu.program import (
    Convert,
    Descriptor,
    Fill,
    Given,
    Known,
    Launch,
    LaunchProgram,
    OnDevice,
    Pointer,
    Slot,
    Table,
    row_major,
)

BOX = "tensordesc<bf16[1, 1, 64, 1, 64]>"
TYPES = (("X", "*fp32"), ("Y", "*bf16"), ("Words", "*i32"), ("n", "i32"), ("Box", BOX))
X, Y = Slot.dense("x", "input", "float32", (2, 3)), Slot.dense("y", "output", "bfloat16", (2, 3))
WORDS = Slot.dense("words", "table", "int32", (4,))
ARGUMENTS = (Pointer("x"), Pointer("y"), Pointer("words"), Known(3), Descriptor("y", (2, 3), (3, 1)))


def table():
    return Table(torch.arange(4, dtype=torch.int32).numpy())


def launch(*arguments, types=TYPES, early=False):
    source = Source("kernel", "", types, (), 4, 1, early=early)
    return Launch(None, source, (2, 1, 1), arguments or ARGUMENTS)


def program(*steps, slots=(X, Y, WORDS), tables=None):
    return LaunchProgram("test", slots, steps, {"words": table()} if tables is None else tables)


# ---- what is refused -------------------------------------------------------------------------------------------------
def swapped(at, argument):
    """The launch with another argument in one place."""
    return launch(*ARGUMENTS[:at], argument, *ARGUMENTS[at + 1 :])


WRONG_STEPS = {
    "a fill of no slot": (Fill("z", 0.0), "z is no slot"),
    "a conversion of no slot": (Convert("z", "x"), "z is no slot"),
    "a conversion to no slot": (Convert("x", "z"), "z is no slot"),
    "a conversion to another shape": (Convert("x", "words"), "x and words have different shapes"),
    "a pointer to no slot": (swapped(0, Pointer("z")), "z, which kernel takes as X, is no slot"),
    "another dtype": (swapped(0, Pointer("y")), "X of kernel is *fp32, and y has bfloat16"),
    "a table for numbers": (swapped(1, Pointer("words")), "Y of kernel is *bf16, and words has int32"),
    "a count of another width": (swapped(2, OnDevice("x")), "Words of kernel is *i32, and x has float32"),
    "a scalar for memory": (swapped(0, Known(1)), "X of kernel is memory, and is told a scalar"),
    "a given scalar for memory": (swapped(2, Given("n")), "Words of kernel is memory"),
    "a scalar for a descriptor": (swapped(4, Known(1)), "Box of kernel is memory, and is told a scalar"),
    "a descriptor for a pointer": (swapped(1, ARGUMENTS[4]), "Y of kernel is no descriptor"),
    "a descriptor of no slot": (swapped(4, Descriptor("z", (1,), (1,))), "z, which kernel takes as Box, is no slot"),
    "a pointer for a scalar": (swapped(3, Pointer("x")), "n of kernel is i32, and x has float32"),
}


@pytest.mark.parametrize("name", WRONG_STEPS)
def test_steps_that_do_not_fit_are_refused(name):
    step, says = WRONG_STEPS[name]
    with pytest.raises(ValueError) as caught:
        program(step)
    assert "test: " in str(caught.value) and says in str(caught.value)


def test_a_kernel_takes_as_many_arguments_as_it_has():
    with pytest.raises(ValueError):
        program(launch(*ARGUMENTS[:-1]))


def test_slots_of_one_name_are_refused():
    with pytest.raises(ValueError, match="two slots have one name"):
        program(slots=(X, X, WORDS))


@pytest.mark.parametrize("tables", [{}, {"words": table(), "more": table()}], ids=["missing", "without a slot"])
def test_tables_have_slots(tables):
    with pytest.raises(ValueError, match="slots of tables are"):
        program(tables=tables)


def test_what_fits_is_taken():
    made = program(
        Fill("y", 0.0),
        Convert("x", "y", 2.0),
        launch(),
        launch(ARGUMENTS[0], Pointer("y", writes=True), ARGUMENTS[2], Given("length"), ARGUMENTS[4]),
        launch(*ARGUMENTS[:2], OnDevice("words"), Given("length"), ARGUMENTS[4]),
    )
    assert len(made.launches) == 3
    assert made.given == ("length",)
    assert made.launches[0].value("n") == 3
    assert made.launches[0].named["Box"] == ARGUMENTS[4]
    assert [one.written for one in made.launches] == [(), ("y",), ()]
    assert [slot.name for slot in made.of_role("output", "table")] == ["y", "words"]


# ---- two programs in turn --------------------------------------------------------------------------------------------
def test_two_programs_become_one():
    """What the second reads of the first is one slot; what is no longer returned is gone after both."""
    between, last = Slot.dense("between", "output", "float32", (2, 3)), Slot.dense("last", "output", "float32", (2, 3))
    first = LaunchProgram("both", (X, between, Y), (Convert("x", "between"), Fill("y", 0.0)))
    read = Slot.dense("between", "input", "float32", (2, 3))
    second = LaunchProgram("second", (read, last, WORDS), (Convert("between", "last"),), {"words": table()})
    made = first.then(second, ("last", "y"))
    assert made.name == "both"
    assert made.steps == (*first.steps, *second.steps)
    assert [slot.name for slot in made.of_role("input")] == ["x"]
    assert [slot.name for slot in made.of_role("output")] == ["last", "y"], "in the order that was asked for"
    assert [slot.name for slot in made.of_role("workspace")] == ["between"]
    assert made.tables == second.tables
    assert made.nbytes == 2 * 3 * 4


def test_slots_of_the_first_win_and_inputs_of_the_second_join():
    """A workspace of the first that the second names is the same memory; an input of both is one input."""
    work = Slot.dense("work", "workspace", "float32", (5,))
    first = LaunchProgram("first", (X, work), (Fill("work", 0.0),))
    more = Slot.dense("more", "input", "float32", (5,))
    second = LaunchProgram(
        "second", (X, more, Slot.dense("work", "input", "float32", (5,))), (Convert("more", "work"),)
    )
    made = first.then(second, ())
    assert [(slot.name, slot.role) for slot in made.slots] == [("x", "input"), ("work", "workspace"), ("more", "input")]


# ---- the rest --------------------------------------------------------------------------------------------------------
def test_a_program_is_printed():
    early = launch(*ARGUMENTS[:3], Given("length"), ARGUMENTS[4], early=True)
    steps = Fill("y", 0.0), Convert("x", "y"), Convert("x", "y", -1.0), launch(), early
    assert str(program(*steps)).splitlines() == [
        "test",
        "  input     x: float32[2, 3] strides [3, 1]",
        "  output    y: bfloat16[2, 3] strides [3, 1]",
        "  table     words: int32[4] strides [1]",
        "  fill y with 0.0",
        "  convert x to y",
        "  convert x to y, times -1.0",
        "  launch kernel (2, 1, 1): X=x, Y=y, Words=words, Box=Descriptor(y)",
        "  launch kernel (2, 1, 1) early: X=x, Y=y, Words=words, n=Given(length), Box=Descriptor(y)",
    ]


@pytest.mark.parametrize("shape", [(), (5,), (2, 3, 4), (2, 0, 4), (0,)], ids=str)
def test_strides_are_those_of_torch(shape):
    assert row_major(shape) == torch.empty(shape).stride()


def test_bytes_of_workspaces():
    kinds = {"float32": 4, "bfloat16": 2, "float16": 2, "int32": 4, "int64": 8}
    slots = [Slot.dense(dtype, "workspace", dtype, (3, 5)) for dtype in kinds]
    assert LaunchProgram("test", (X, Y, *slots), ()).nbytes == 15 * sum(kinds.values())
