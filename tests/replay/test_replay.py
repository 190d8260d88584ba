"""The gate itself: its cases, its reference as text, and what it says of a difference."""

from dataclasses import replace

import pytest
import triton
from tests.triton.resources import TARGETS
from tests.triton.specs import launched

import weft
from weft.kernels.gpu.compile.load import source_of
from weft.kernels.gpu.spec import KernelSpec
from weft.settings import interpreted

from . import __main__ as command
from . import farm, reference
from .adapter import trace
from .cases import CASES, EVERYWHERE, LEFT_OUT, MOST, ONE_KERNEL, PART, SOMEWHERE, Case
from .measured import RECORDED, Measured, differences, from_record
from .plan_text import plan_lines
from .reference import State, read, report, write

pytestmark = pytest.mark.skipif(interpreted(), reason="Triton interprets, and launches other kernels")
KERNEL = Measured(128, 0, 1024, ((8, 2, 0),), (("IMAD", 20), ("LDG", 4)), "digest")
PLACE = "3.7.1", "sm_90"


# ---- cases -----------------------------------------------------------------------------------------------------------
def test_the_list_is_stated_and_short():
    assert len(CASES) <= MOST
    named = {*PART, *EVERYWHERE, *SOMEWHERE, *ONE_KERNEL}
    assert named <= CASES.keys()
    assert not CASES.keys() & set(LEFT_OUT)
    assert {target for case in CASES.values() for target in case.targets} < TARGETS.keys()
    assert not any(" | " in name for name in CASES)


def asked(*arguments):
    return command._wanted(command._arguments().parse_args(arguments))


def test_the_reference_has_what_is_looked_at():
    wanted, found = asked("--all"), read()
    assert found.plans.keys() == {key for keys in wanted.values() for key in keys}
    for version, keys in wanted.items():
        for target in {target for _, target in keys}:
            kernels = found.kernels[version, target]
            assert {case for case, _ in kernels} == {case for case, of in keys if of == target}
    assert {version for version, _ in found.kernels} == wanted.keys()


def test_a_part_is_for_the_card():
    part, everything = asked(), asked("--all")
    assert {target for keys in part.values() for _, target in keys} == {"sm_90"}
    assert all(set(keys) < set(everything[version]) for version, keys in part.items())
    assert asked("--record") == everything
    assert list(asked("--only", "^dense$", "--triton", "3.6.0").values()) == [[("dense", "sm_90")]]


# ---- what a case launches --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["longformer", "window, softcap, alibi, sinks"])
def test_a_trace_has_what_is_launched(name):
    """Compared with what other tests compile: forward and backward, the same bits every time."""
    found = trace(CASES[name], "sm_90").phases
    again = found.get("deterministic", found["backward"])
    wanted = [source_of(one) if isinstance(one, KernelSpec) else one for one in launched(CASES[name].call)]
    assert [one.kernel for one in (*found["forward"], *again)] == wanted


def test_a_plan_has_the_same_text_every_time():
    first, second = (plan_lines(trace(CASES["bigbird"], "sm_90")) for _ in range(2))
    assert first == second


def test_another_plan_has_another_text():
    call = CASES["window"].call
    before, after = (
        plan_lines(trace(Case("one", replace(call, pattern=weft.causal() & weft.window(left=left))), "sm_90"))
        for left in (300, 299)
    )
    launches = [[line for line in lines if line.startswith("launch")] for lines in (before, after)]
    assert all(a != b for a, b in zip(*launches, strict=True))  # tables differ
    key = "one", "sm_90"
    (text,) = report(State({key: before}), State({key: after}))
    assert text.startswith("one on sm_90: plan\n")


# ---- text ------------------------------------------------------------------------------------------------------------
def test_what_is_written_is_read_in_any_order(tmp_path):
    other = replace(KERNEL, registers=64, whole=(("IMAD.MOV", 20),))
    refused = Measured(refused="Triton translated it wrongly")
    kernels = {("b", "forward.0"): KERNEL, ("a", "step.0"): other, ("a", "forward.0"): KERNEL, ("c", "x.0"): refused}
    plans = {("b", "sm_90"): ["one", "  two"], ("a", "sm_90"): ["three"]}
    state = State(plans, {PLACE: kernels})
    turned = State(dict(reversed(plans.items())), {PLACE: dict(reversed(kernels.items()))})
    for one, folder in ((state, tmp_path / "x"), (turned, tmp_path / "y")):
        write(one, folder)
        assert read(folder) == state
    texts = [{path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in "xy"]
    assert texts[0] == texts[1]
    table = texts[0]["kernels-sm_90-triton-3.7.1.csv"].decode().splitlines()
    assert table[3] == "b | forward.0,a | forward.0,,,,,,,,"


def test_a_part_is_recorded_among_the_rest(tmp_path):
    every = {("a", "forward.0"): KERNEL, ("a", "gone.0"): KERNEL, ("b", "forward.0"): KERNEL}
    before = State({("a", "sm_90"): ["one"], ("b", "sm_90"): ["two"]}, {PLACE: every})
    changed = replace(KERNEL, registers=1)
    found = State({("a", "sm_90"): ["new"]}, {PLACE: {("a", "forward.0"): changed}})
    after = before.updated(found, {"3.7.1": [("a", "sm_90")]})
    assert after.plans == {("a", "sm_90"): ["new"], ("b", "sm_90"): ["two"]}
    assert after.kernels == {PLACE: {("a", "forward.0"): changed, ("b", "forward.0"): KERNEL}}


def test_an_older_record_is_refused():
    record = dict.fromkeys(RECORDED, "") | KERNEL.record()
    assert from_record(record) == KERNEL
    with pytest.raises(ValueError, match="--record"):
        from_record({name: record[name] for name in ("registers", "spilled")})


# ---- differences -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "changes, text",
    [
        ({"registers": 130}, "128 -> 130 registers"),
        ({"spilled": 8}, "0 -> 8 bytes of local memory"),
        ({"shared": 2048}, "1024 -> 2048 bytes of shared memory"),
        ({"loops": ((8, 3, 0),)}, "innermost loops: 2 waits for 8 products -> 3 waits for 8 products"),
        ({"loops": ()}, "innermost loops: 2 waits for 8 products -> none with products"),
        ({"opcodes": (("IMAD", 23), ("LDG", 3))}, "opcodes 24 -> 26: +3 IMAD -1 LDG"),
        ({"opcodes": (("IMAD", 20), ("LDS", 4))}, "opcodes 24 -> 24: -4 LDG +4 LDS"),
        ({"modifiers": "other"}, "the same opcodes with other modifiers (--dump writes them)"),
        ({"refused": "wrong"}, "compiled before, refused (wrong) now"),
    ],
)
def test_differences_are_said_in_words(changes, text):
    assert differences(KERNEL, replace(KERNEL, **changes)) == [text]


def test_kernels_that_differ_alike_are_named_together():
    places = ("a", "forward.0"), ("b", "forward.0")
    before = State({}, {PLACE: dict.fromkeys(places, KERNEL) | {("c", "step.0"): KERNEL}})
    after = State({}, {PLACE: dict.fromkeys(places, replace(KERNEL, registers=64)) | {("d", "step.0"): KERNEL}})
    assert report(before, before) == []
    assert report(before, after) == [
        "a forward.0, b forward.0 on sm_90 with Triton 3.7.1: kernel\n    128 -> 64 registers",
        "c step.0 on sm_90 with Triton 3.7.1: kernel\n    it is in the reference alone",
        "d step.0 on sm_90 with Triton 3.7.1: kernel\n    it is not in the reference",
    ]


# ---- the command -----------------------------------------------------------------------------------------------------
def test_a_version_that_is_not_there_is_refused():
    with pytest.raises(
        farm.NoTritonError, match=r"pip install --no-deps --target \.venv-triton-0\.0\.1 triton==0\.0\.1"
    ):
        farm.home_of("0.0.1")


@pytest.mark.more
@pytest.mark.skipif(triton.__version__ not in command.TRITONS, reason="the gate has no reference of this Triton")
def test_a_process_of_its_own_finds_what_the_reference_has():
    """All but the numbers, which are for the gate."""
    key, version = ("step", "sm_90"), triton.__version__
    with farm.farm(version, 1) as pool:
        plans, kernels = farm.gather(pool, [key])
    known = read().only({version: [key]})
    assert plans.keys() == known.plans.keys()
    assert {(case, launch) for case, _, launch in kernels} == known.kernels[version, "sm_90"].keys()
    assert all(one.opcodes and one.whole and not one.refused for one in kernels.values())


@pytest.mark.parametrize("registers, code, last", [(128, 0, "no differences"), (64, 1, "1 difference")])
def test_the_exit_code_says_whether_something_differs(registers, code, last, tmp_path, monkeypatch, capsys):
    def state(registers):
        kernels = {("dense", "forward.0"): replace(KERNEL, registers=registers)}
        return State({("dense", "sm_90"): ["one"]}, {PLACE: kernels})

    reference.write(state(128), tmp_path)
    monkeypatch.setattr(command, "_found", lambda wanted, asked: state(registers))
    words = ["replay", "--only", "^dense$", "--triton", "3.7.1", "--against", str(tmp_path)]
    monkeypatch.setattr("sys.argv", words)
    assert command.main() == code
    assert capsys.readouterr().out.splitlines()[-1].endswith(last)
    monkeypatch.setattr("sys.argv", [*words, "--record"])
    assert command.main() == 0
    assert reference.read(tmp_path) == state(registers)


def test_a_record_has_no_case_that_left_the_list(tmp_path, monkeypatch):
    key = "dense", "sm_90"
    listed = State({key: ["one"]}, {PLACE: {("dense", "forward.0"): KERNEL}})
    kernels = {("gone", "forward.0"): KERNEL, ("dense", "forward.0"): replace(KERNEL, registers=64)}
    write(State({("gone", "sm_90"): ["two"], key: ["zero"]}, {PLACE: kernels}), tmp_path)
    monkeypatch.setattr(command, "_found", lambda wanted, asked: listed)
    words = ["replay", "--record", "--only", "^dense$", "--triton", "3.7.1", "--against", str(tmp_path)]
    monkeypatch.setattr("sys.argv", words)
    assert command.main() == 0
    assert read(tmp_path) == listed
