"""Evidence in the store, in the pipeline, in another process, and in files."""

import json
import os
import subprocess
import sys
from dataclasses import astuple, replace
from pathlib import Path

import pytest

import weft
from weft.errors import OptionError
from weft.kernels import backend as backends
from weft.kernels.backend import Card, Timing
from weft.planning.attention_plan import plan_attention
from weft.planning.candidates import may_win
from weft.planning.tiling import DIRECTIONS, Tiling
from weft.runtime import evidence
from weft.runtime.evidence import Subject, adopt, record, rows_of, share, winners
from weft.runtime.pipeline import arrived, compiled
from weft.runtime.rows import Decision, Measured
from weft.runtime.tuner import candidates
from weft.store import opened
from weft.target import GPU, GPUS

from .fakes import CARD, PROBLEM, VERSIONS, FakeBackend

ROOT = Path(__file__).resolve().parents[2]
PATTERN = weft.causal() & weft.window(left=300)
SUBJECT = Subject.of(PATTERN, PROBLEM, CARD)
WINNER = Tiling(128, 64, 8, 2, 168, True)
FORWARD = Tiling(128, 64, 8, 2)
ROWS = [
    Measured("dq", WINNER, 1e-3, Timing(2e-3, 1.9e-3, 2.1e-3)),
    Measured("dq", Tiling(64, 32, 4, 4), 1e-3, None, "no room"),
    Decision("forward", None),
    Decision("dq", WINNER),
]


def keep(rows=ROWS, subject=SUBJECT, versions=VERSIONS):
    return record(subject, evidence.name_of(PATTERN, subject.problem), rows, versions)


@pytest.fixture
def gpu(monkeypatch):
    """The backend that a GPU's problems are given, on a made-up card."""
    fake = FakeBackend()
    monkeypatch.setattr(backends, "BACKENDS", (fake,))
    return fake


# ---- rows ------------------------------------------------------------------------------------------------------------
def test_rows_come_back_as_they_were():
    assert rows_of(SUBJECT, VERSIONS) == []
    assert keep() and keep([Decision("dkdv", WINNER)])
    assert rows_of(SUBJECT, VERSIONS) == [*ROWS, Decision("dkdv", WINNER)]


@pytest.mark.parametrize("name", list(VERSIONS))
def test_rows_of_other_versions_say_nothing(name):
    keep(versions=VERSIONS | {name: "other"})
    assert rows_of(SUBJECT, VERSIONS) == [] and winners(PATTERN, PROBLEM, FakeBackend(), CARD) == ()
    keep()
    assert rows_of(SUBJECT, VERSIONS) == ROWS


@pytest.mark.parametrize(
    "change",
    [
        {"direction": "sideways"}, {"direction": ["dq"]}, {"direction": None},
        {"tiling": [64, 64, 4]}, {"tiling": None},
        {"tiling": [63, 64, 4, 2, 0, False, 0]}, {"tiling": ["64", 64, 4, 2, 0, False, 0]},
        {"tiling": [64, 64, 4, 2.5, 0, False, 0]}, {"tiling": [64, 64, 4, 0, 0, False, 0]},
        {"tiling": [64, 64, 4, 2, -1, False, 0]}, {"tiling": [64, 64, 64, 2, 0, False, 0]},
        {"tiling": [64, 64, 4, 99, 0, False, 0]}, {"tiling": [64, 64, 4, 2, 256, False, 0]},
        {"tiling": [64, 64, 4, 2, 0, 1, 0]}, {"tiling": [64, 64, True, 2, 0, False, 0]},
        {"tiling": [64, 64, 4, 2, 0, False, 99]}, {"tiling": [10**20, 64, 4, 2, 0, False, 0]},
        {"timing": "soon"}, {"timing": [1]}, {"timing": [2.0, 3.0, 1.0]}, {"timing": [-1, -1, -1]},
        {"timing": [1e300, 1e300, 1e300]}, {"timing": {}}, {"predicted": None}, {"predicted": True},
        {"predicted": -1.0}, {"why": 7}, {"why": "x" * 201}, {"more": 1}, {"winner": list(astuple(WINNER))},
    ],
    ids=str,
)  # fmt: skip
def test_rows_that_nobody_wrote_are_passed_over_and_said(change):
    keep()
    line = opened().timings(SUBJECT.key)[0] | change
    opened().record(SUBJECT.key, [line])
    with pytest.warns(RuntimeWarning, match=f"timings of {SUBJECT.key} hold a row that the tuner never wrote") as found:
        assert rows_of(SUBJECT, VERSIONS) == ROWS == rows_of(SUBJECT, VERSIONS)
    assert len(found) == 1


@pytest.mark.parametrize("winner", ["64x64", [8, 8, 4, 2, 0, False, 0], {}, 7, [], [[]] * 7])
def test_winners_that_nobody_wrote_leave_the_one_before(winner):
    keep()
    opened().record(SUBJECT.key, [{**VERSIONS, "direction": "dq", "winner": winner}])
    with pytest.warns(RuntimeWarning, match="the tuner never wrote"):
        assert winners(PATTERN, PROBLEM, FakeBackend(), CARD) == (("dq", WINNER),)


@pytest.mark.parametrize(
    "one", [Tiling(256, 256, 16, 2), Tiling(128, 64, 8, 2, 167, True), Tiling(64, 64, 4, 2, groups=2)]
)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_winner_that_is_no_candidate_is_passed_over_and_said(gpu, direction, one):
    keep([Decision(direction, one)])
    with pytest.warns(RuntimeWarning, match=f"names {one} for {direction} .*no candidate on Made-up 9000") as found:
        assert compiled(PATTERN, PROBLEM)[0].fixed == ()
    assert len(found) == 1


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("pattern", [PATTERN, weft.neighborhood((32, 64), (7, 7)), weft.strided(64)], ids=str)
def test_every_candidate_may_win(direction, pattern):
    _, predicted = candidates(direction, plan_attention(pattern, PROBLEM, GPU))
    assert all(may_win(direction, one, pattern, PROBLEM, GPU) for one in predicted)


@pytest.mark.parametrize(
    "other",
    [
        Subject.of(weft.causal() & weft.window(left=301), PROBLEM, CARD),
        Subject.of(weft.causal() | weft.window(left=300), PROBLEM, CARD),
        Subject.of(PATTERN, replace(PROBLEM, m=2047), CARD),
        Subject.of(PATTERN, PROBLEM, Card("another", GPU)),
    ],
)
def test_a_subject_is_exactly_one_pattern_problem_and_card(other):
    keep()
    assert rows_of(other, VERSIONS) == []


def test_the_last_decision_holds():
    keep()
    assert winners(PATTERN, PROBLEM, FakeBackend(), CARD) == (("dq", WINNER),)
    keep([Decision("forward", FORWARD), Decision("dq", None)])
    assert winners(PATTERN, PROBLEM, FakeBackend(), CARD) == (("forward", FORWARD),)


def test_a_damaged_entry_is_set_aside_with_a_warning():
    keep()
    (opened().root / SUBJECT.key / evidence.FILE).write_text("{")
    with pytest.warns(RuntimeWarning, match="damaged"):
        assert winners(PATTERN, PROBLEM, FakeBackend(), CARD) == ()
    assert keep() and rows_of(SUBJECT, VERSIONS) == ROWS


def test_weft_cache_lists_it():
    keep()
    (entry,) = opened().entries()
    assert entry.facts()["name"] == f"tuning {PATTERN} {PROBLEM}" and entry.facts()["target"] == CARD.name
    long = evidence.name_of(weft.documents(list(range(1, 200))), PROBLEM)
    assert len(long) < 120 and "..." in long


# ---- plans -----------------------------------------------------------------------------------------------------------
def test_the_pipeline_plans_with_the_winner(gpu):
    assert compiled(PATTERN, PROBLEM)[0].fixed == ()
    keep()
    compiled.cache_clear()
    plan, chosen = compiled(PATTERN, PROBLEM)
    assert chosen is gpu and plan.fixed == (("dq", WINNER),)
    assert plan.queries[0].plan.tiling == WINNER != plan.forward[0].plan.tiling
    plan.verify()
    crossed = arrived(PATTERN.structure, PATTERN.numbers.tobytes(), PROBLEM, "auto")[0]
    assert crossed.fixed == plan.fixed


def test_the_pipeline_plans_for_the_card_at_hand(gpu):
    gpu.made = Card("small", GPUS["rtx4090"])
    keep()
    plan, _ = compiled(PATTERN, PROBLEM)
    assert plan.target == GPUS["rtx4090"] and plan.fixed == ()  # what another card measured says nothing
    gpu.made = None
    compiled.cache_clear()
    assert compiled(PATTERN, PROBLEM)[0].target == GPU


def test_without_evidence_the_versions_are_not_asked_for(gpu, monkeypatch):
    monkeypatch.setattr(gpu, "versions", lambda: pytest.fail("they were asked for"))
    assert compiled(PATTERN, PROBLEM)[0].fixed == ()


def test_a_pattern_that_cannot_cross_has_no_evidence():
    assert winners(weft.causal().body, PROBLEM, FakeBackend(), CARD) == ()


def test_another_process_finds_it():
    keep()
    code = (
        "import weft\n"
        "from weft.kernels import backend\n"
        "from weft.runtime.pipeline import compiled\n"
        "from tests.runtime.fakes import PROBLEM, FakeBackend\n"
        "backend.BACKENDS = (FakeBackend(),)\n"
        "print(compiled(weft.causal() & weft.window(left=300), PROBLEM)[0].fixed)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == str((("dq", WINNER),)), done.stderr


# ---- files -----------------------------------------------------------------------------------------------------------
@pytest.fixture
def shared(tmp_path):
    """A file with two problems; the store is empty then."""
    keep()
    keep([Decision("forward", FORWARD)], replace(SUBJECT, problem=replace(PROBLEM, m=1024, n=1024)))
    keep(subject=replace(SUBJECT, card="another"))
    keep([Decision("dkdv", WINNER)], versions=VERSIONS | {"triton": "9.8"})
    path = tmp_path / "card.json"
    assert share(path, FakeBackend(), CARD, weft.__version__) == 2
    opened().clear()
    return path


def test_share_and_adopt(shared):
    said = json.loads(shared.read_text())
    assert said["card"] == CARD.name and said["versions"] == VERSIONS and said["weft"] == weft.__version__
    assert adopt(shared, FakeBackend(), CARD) == 2
    assert rows_of(SUBJECT, VERSIONS) == ROWS
    assert winners(PATTERN, replace(PROBLEM, m=1024, n=1024), FakeBackend(), CARD) == (("forward", FORWARD),)
    again = shared.with_name("again.json")
    share(again, FakeBackend(), CARD)
    assert sorted(map(str, json.loads(again.read_text())["entries"])) == sorted(map(str, said["entries"]))


def test_what_was_adopted_is_not_adopted_twice(shared):
    for _ in range(2):
        assert adopt(shared, FakeBackend(), CARD) == 2
    assert rows_of(SUBJECT, VERSIONS) == ROWS


def test_adopting_adds_to_what_is_there(shared):
    mine = [Measured("dq", Tiling(32, 32, 4, 2), 1.0, Timing(2.0, 2.0, 2.0)), Decision("dq", None)]
    keep(mine)
    adopt(shared, FakeBackend(), CARD)
    assert rows_of(SUBJECT, VERSIONS) == [*mine, *ROWS]
    assert winners(PATTERN, PROBLEM, FakeBackend(), CARD) == (("dq", WINNER),)


@pytest.mark.parametrize(
    ("backend", "card", "says"),
    [
        (FakeBackend(), Card("another", GPU), "measured on Made-up 9000, and this is another"),
        (FakeBackend(versions=VERSIONS | {"kernels": "4567"}), CARD, "kernels 0123, here 4567"),
        (FakeBackend(versions=VERSIONS | {"triton": "10"}), CARD, "triton 9.9, here 10"),
    ],
)
def test_what_is_not_adopted(shared, backend, card, says):
    with pytest.raises(OptionError, match=says) as raised:
        adopt(shared, backend, card)
    assert raised.value.cure and opened().entries() == []


def truncated(text):
    return text[: len(text) // 2]


def faster(text):
    return text.replace("0.002", "0.001")


def changed(change):
    """A file whose sum fits, and which nobody shared."""

    def damage(text):
        said = json.loads(text)
        del said["sha256"]
        change(said)
        return json.dumps({**said, "sha256": evidence._digest(said)})

    return damage


def first(**values):
    return changed(lambda said: said["entries"][0].update(values))


def subject(**values):
    return changed(lambda said: said["entries"][0]["subject"].update(values))


def problem(**values):
    return changed(lambda said: said["entries"][0]["subject"]["problem"].update(values))


def row(**values):
    return changed(lambda said: said["entries"][0]["rows"][0].update(values))


MALFORMED = {
    "truncated": truncated, "faster": faster, "a list": lambda text: "[]", "nothing in it": lambda text: "{}",
    "empty": lambda text: "", "deep": lambda text: "[" * 100_000, "deep and closed": lambda text: "[" * 50 + "]" * 50,
    "a number": lambda text: "1" * 5000, "not a number": lambda text: '{"sha256": NaN}', "bytes": lambda text: "\0\x1b",
    "no rows": changed(lambda said: said["entries"][1].pop("rows")), "no card": changed(lambda said: said.pop("card")),
    "more": changed(lambda said: said.update(more=1)), "entries": changed(lambda said: said.update(entries={})),
    "an entry": changed(lambda said: said["entries"].append(7)), "rows": first(rows={}),
    "a row": first(rows=[7]),
    "versions": changed(lambda said: said.update(versions=[])), "weft": changed(lambda said: said.update(weft=7)),
    "format": changed(lambda said: said.update(format=10**30)), "name": first(name=["x"]),
    "long": first(name="x" * 501),
    "numbers": subject(numbers="zz"), "structure": subject(structure=7), "card": subject(card="another"),
    "dtype": problem(dtype="evil"), "device": problem(device="rm -rf"), "heads": problem(q_heads=0),
    "group": problem(q_heads=3, kv_heads=2), "size": problem(m=10**30), "negative": problem(batch=-1),
    "true": problem(m=True), "half": problem(d=64.5), "another field": problem(evil=1),
    "direction": row(direction="sideways"), "tiling": row(tiling="evil"), "timing": row(timing=[1, 2]),
    "predicted": row(predicted=1e300), "why": row(why=None), "row of others": row(kernels="4567"),
}  # fmt: skip


@pytest.mark.parametrize("damage", MALFORMED.values(), ids=MALFORMED)
def test_damaged_files_are_refused_whole(shared, damage):
    text = shared.read_text()
    assert damage(text) != text
    shared.write_text(damage(text))
    with pytest.raises(OptionError) as raised:
        adopt(shared, FakeBackend(), CARD)
    assert raised.value.wrong and raised.value.cure and opened().entries() == []


def test_files_that_cannot_be_read_or_written(shared, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    large = tmp_path / "large"
    large.touch()
    os.truncate(large, 1 << 40)
    for name in ("none.json", "fifo", "large", "", "/dev/zero"):
        with pytest.raises(OptionError, match="name a file that can be read"):
            adopt(tmp_path / name, FakeBackend(), CARD)
    adopt(shared, FakeBackend(), CARD)
    with pytest.raises(OptionError, match="name a file that can be written"):
        share(tmp_path / "none" / "card.json", FakeBackend(), CARD)
    assert not (tmp_path / "none").exists()


def test_nothing_to_share_and_nowhere_to_adopt(shared, tmp_path, monkeypatch):
    with pytest.raises(OptionError, match="nothing was tuned on this card"):
        share(tmp_path / "new.json", FakeBackend(), CARD)
    assert not (tmp_path / "new.json").exists()
    monkeypatch.setenv("WEFT_CACHE_DIR", "off")
    with pytest.raises(OptionError, match="WEFT_CACHE_DIR=off"):
        adopt(shared, FakeBackend(), CARD)
