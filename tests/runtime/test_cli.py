"""`weft tune`: what it prints, keeps and refuses, on a card that is made up."""

import json
import sys

import pytest
from click.testing import CliRunner

pytest.importorskip("torch")
pytest.importorskip("triton")

from weft.cli import main
from weft.cli.tune import Progress
from weft.kernels.backend import Card, Timing, TritonBackend
from weft.planning.tiling import Tiling
from weft.runtime.rows import Measured
from weft.store import opened
from weft.target import GPU

from .fakes import CARD, VERSIONS, FakeBackend

PATTERN = "causal() & window(left=300)"
SHAPE = ("--shape", "1,4,2048,64")


def truth(direction, tiling):
    """What kernels of a tiling take; of all gradients, by one kernel or by two, as long."""
    if direction == "gradients":
        return 1e-3
    return "no room" if tiling.stages == 4 else tiling.stages * 1e-4


@pytest.fixture(autouse=True)
def card(tmp_path, monkeypatch):
    """The Triton backend of a machine with a made-up card."""
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    fake = FakeBackend(truth)
    monkeypatch.setattr(TritonBackend, "card", lambda self, device: fake.card(device))
    monkeypatch.setattr(TritonBackend, "versions", lambda self: fake.versions())
    monkeypatch.setattr(TritonBackend, "meter", lambda self, plan: fake.meter(plan))
    return fake


def run(*args, code=0):
    done = CliRunner().invoke(main, ["tune", *args])
    assert done.exit_code == code, done.output
    return done.stdout if code in (0, 130) else done.output


def test_the_table(card):
    card.noise = 0
    lines = run(PATTERN, *SHAPE, "--direction", "forward").splitlines()
    assert lines[:2] == [f"{PATTERN}  B=1 H=4 M=2048 N=2048 D=64 bfloat16 on cuda", f"on {CARD.name}"]
    assert lines[3].startswith("forward: ") and "of them cannot run" in lines[3]
    assert lines[4].split() == ["candidate", "predicted", "measured", "ratio"]
    chosen, untuned = (next(line for line in lines if line.endswith(word)) for word in ("chosen", "untuned"))
    assert ", 2 stages" in chosen and " 0.2000 ms ±0.0% " in chosen
    assert "64x64, 4 warps, 3 stages, 128 registers" in untuned
    assert lines[-1] == "  1.50 times as fast as the untuned choice"


def test_a_forward_by_rows():
    shape = ("--shape", "1,32,1,64", "--kv-heads", "8", "--keys", "65536", "--budget", "0")
    lines = run('causal(align="bottom-right")', *shape).splitlines()
    assert lines[2:5] == ["", "forward", "  goes by rows, which have no tilings: nothing was measured"]
    assert json.loads(run('causal(align="bottom-right")', *shape, "--json"))["by_rows"]


def test_json():
    said = json.loads(run(PATTERN, *SHAPE, "--json"))
    assert said["card"] == CARD.name and not said["interrupted"] and said["kept"]
    assert list(said["directions"]) == ["forward", "dq", "dkdv"]
    for one in said["directions"].values():
        assert one["chosen"]["stages"] == 2 and one["gain"] == pytest.approx(1.5, rel=0.05)
        assert len(one["measured"]) <= one["candidates"]
        times = [row["seconds"] for row in one["measured"] if row["seconds"] is not None]
        assert times == sorted(times) and len(times) < len(one["measured"])
        assert all(row["why"] == "no room" for row in one["measured"] if row["seconds"] is None)


def test_nothing_gained(card):
    card.truth = lambda direction, tiling: 1e-3
    said = run(PATTERN, *SHAPE)
    assert said.count("the untuned choice stays") == 3 and said.count("chosen, untuned") == 3


@pytest.mark.parametrize(
    ("apart", "says"),
    [(1.0, "0.2000 ms\n  that stays, and no tiling above is used"), (0.5, "0.1000 ms\n  two kernels make")],
)
def test_gradients_that_an_untuned_call_makes_at_once(card, apart, says):
    card.noise = 0
    card.truth = lambda part, tiling: 2e-4 * (apart if part == "gradients" and tiling else 1)
    args = ("causal() & window(left=127)", *SHAPE, "--budget", "0")
    said = run(*args)
    assert "together, as an untuned call makes them: 0.2000 ms; by the two chosen kernels: " + says in said
    assert json.loads(run(*args, "--json"))["together"]["apart"] == (apart < 1)
    assert "gradients\n" not in run(*args, "--direction", "forward")


def test_gradients_that_were_not_timed_whole(card):
    card.interrupt_after = 3
    said = run("causal() & window(left=127)", *SHAPE, "--budget", "0", code=130)
    assert "by two kernels they were not timed: an untuned call makes them together, and that stays" in said
    assert "the winners so far are used from now on, but of gradients as said above" in said


def test_the_untuned_choice_cannot_run(card):
    card.truth = lambda direction, tiling: "no room" if tiling.registers else 1e-3
    said = run(PATTERN, *SHAPE, "--direction", "forward")
    assert "the untuned choice cannot run" in said and "untuned: no room" in said
    assert json.loads(run(PATTERN, *SHAPE, "--direction", "forward", "--json"))["directions"]["forward"]["gain"] is None


def test_interruption(card):
    card.interrupt_after = 2
    said = run(PATTERN, *SHAPE, code=130)
    assert "interrupted: what was measured is kept, and the winners so far are used from now on" in said
    assert len(opened().entries()) == 1
    card.interrupt_after = 0
    assert "is kept, and nothing is decided yet" in run("causal()", *SHAPE, code=130)


def test_progress_is_for_terminals(capsys, monkeypatch):
    assert CliRunner().invoke(main, ["tune", PATTERN, *SHAPE]).stderr == ""
    rows = [
        Measured("dq", Tiling(64, 64, 4, 2), 1.0, Timing(2e-3, 1e-3, 3e-3)),
        Measured("dq", Tiling(64, 64, 4, 3), 1.0, None),
    ]
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    progress = Progress(100)
    progress.show("dq", "structure", rows)
    progress.show("dq", "parameters", rows[:1])
    progress.wipe()
    first, second, third, blank, end = capsys.readouterr().err.split("\r")[1:]
    assert first.startswith("compiling") and second.startswith("dq, structure: 2 measured, best 2.0000 ms, ")
    assert third.startswith("dq, parameters: 3 measured") and blank.strip() == end == ""


def test_the_cache_shows_it():
    run(PATTERN, *SHAPE)
    said = CliRunner().invoke(main, ["cache", "list"]).output
    assert f"tuning {PATTERN} B=1 H=4 M=2048" in said and CARD.name in said and VERSIONS["triton"] in said


def test_share_and_adopt(card, tmp_path):
    run(PATTERN, *SHAPE)
    path = str(tmp_path / "card.json")
    assert run("--share", path) == f"{CARD.name}: shared 1 problem, {path}\n"
    opened().clear()
    assert json.loads(run("--adopt", path, "--json")) == {
        "card": CARD.name, "file": path, "adopted": 1, **VERSIONS,
    }  # fmt: skip
    assert len(opened().entries()) == 1
    card.made = Card("another", GPU)
    assert "this is another" in run("--adopt", path, code=2)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "pass exactly one"),
        ([PATTERN, "--share", "x.json", *SHAPE], "pass exactly one"),
        (["--share", "x.json", "--adopt", "x.json"], "pass exactly one"),
        ([PATTERN], "add --shape B,H,M,D"),
        (["causl()", *SHAPE], "did you mean causal"),
        ([PATTERN, *SHAPE, "--device", "cpu"], "there is nothing to tune"),
        ([PATTERN, *SHAPE, "--dtype", "float64"], "float64 is not a type it computes in"),
        (["nothing()", *SHAPE], "no query sees a key"),
        (["--adopt", "none.json"], "name a file that can be read"),
        (["--share", "x.json"], "nothing was tuned on this card"),
    ],
)
def test_refused(args, says):
    said = run(*args, code=2)
    assert says in said and "wrong:" in said and "do:" in said


@pytest.mark.parametrize("args", [(PATTERN, *SHAPE), ("--share", "x.json"), ("--adopt", "x.json")])
def test_without_a_gpu(card, args):
    card.made = None
    assert "there is no GPU at hand" in run(*args, code=2)


@pytest.mark.parametrize("command", ["plan", "explain"])
def test_plans_for_a_named_card(command):
    args = [command, PATTERN, *SHAPE, "--target"]
    done = CliRunner().invoke(main, [*args, "a100", "--device", "cuda", *(["--json"] if command == "plan" else [])])
    assert done.exit_code == 0
    if command == "explain":
        assert "predicted on a100" in done.output and "predicted on h200" not in done.output
    refused = CliRunner().invoke(main, [*args, "a100"])
    assert refused.exit_code == 2 and "add --device cuda" in refused.output
    assert CliRunner().invoke(main, [*args, "a1000", "--device", "cuda"]).exit_code == 2
