"""Rows and files of evidence that were damaged or planted: the winner that was measured, or none and a warning."""

import json
import random
import warnings
from dataclasses import replace

import pytest
from tests.runtime.fakes import CARD, PROBLEM, VERSIONS, FakeBackend
from tests.tiers import every

import weft
from weft import caching
from weft.errors import OptionError
from weft.kernels.backend import Timing
from weft.planning.candidates import may_win
from weft.planning.tiling import Tiling
from weft.runtime import evidence
from weft.runtime.evidence import Subject, adopt, record, rows_of, share, winners
from weft.runtime.rows import Decision, Measured
from weft.store import TIMINGS, opened

from . import damages

PATTERN = weft.causal() & weft.window(left=300)
SUBJECT = Subject.of(PATTERN, PROBLEM, CARD)
WINNER, BEFORE = Tiling(128, 64, 8, 2, 168, True), Tiling(64, 64, 4, 3, 0, True)
ROWS = [
    Measured("dq", WINNER, 1e-3, Timing(2e-3, 1.9e-3, 2.1e-3)),
    Measured("dq", Tiling(64, 32, 4, 4), 1e-3, None, "no room"),
    Decision("dq", WINNER),
]
CASES = 40


@pytest.fixture(autouse=True)
def _alone(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    caching.clear()


def kept():
    name = evidence.name_of(PATTERN, PROBLEM)
    assert record(SUBJECT, name, ROWS, VERSIONS)


@pytest.mark.parametrize("batch", every(50, range(50)))
def test_flipped_bits_of_rows_give_no_other_winner(batch, tmp_path, monkeypatch):
    kept()
    path = opened().root / SUBJECT.key / TIMINGS
    data = path.read_bytes()
    for case in range(CASES):
        dice = random.Random(batch * CASES + case)
        path.write_bytes(data)
        for _ in range(dice.choice([1, 1, 1, 3])):
            dice.choice([damages.flip, damages.flip, damages.flip, damages.cut, damages.grow, damages.shuffle])(
                dice, path
            )
        monkeypatch.setenv("WEFT_CACHE_MIB", str(100 + case))  # a store that warned of nothing yet
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            found = winners(PATTERN, PROBLEM, FakeBackend(), CARD)
            rows_of(SUBJECT, VERSIONS)
        assert found in ((), (("dq", WINNER),)), found
        assert found or said or path.read_bytes() in (data, b"") or not path.read_bytes().strip(), case


@pytest.mark.parametrize("batch", every(25, range(25)))
def test_planted_rows_whose_sums_fit(batch, monkeypatch):
    """Whoever may write lines may only choose among what the planner lists."""
    for case in range(CASES):
        dice = random.Random(5000 + batch * CASES + case)
        monkeypatch.setenv("WEFT_CACHE_MIB", str(100 + case))
        opened().clear()
        kept()
        line = dice.choice(opened().timings(SUBJECT.key))
        for _ in range(dice.choice([1, 2, 3])):
            line = damages.mutated(dice, line)
        planted = line if isinstance(line, dict) else {"row": line}
        opened().record(SUBJECT.key, [planted])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = winners(PATTERN, PROBLEM, FakeBackend(), CARD)
            assert rows_of(SUBJECT, VERSIONS)[: len(ROWS)] == ROWS
        for direction, tiling in found:
            assert may_win(direction, tiling, PATTERN, PROBLEM, CARD.gpu), planted


@pytest.mark.parametrize("batch", every(25, range(25)))
def test_files_that_somebody_changed(batch, tmp_path):
    kept()
    record(replace(SUBJECT, problem=replace(PROBLEM, m=1024, n=1024)), "another", ROWS, VERSIONS)
    path = tmp_path / "card.json"
    share(path, FakeBackend(), CARD, weft.__version__)
    data = path.read_bytes()
    said = json.loads(data)
    for case in range(CASES):
        dice = random.Random(9000 + batch * CASES + case)
        if dice.random() < 0.5:  # with a sum that fits
            content = {name: value for name, value in said.items() if name != "sha256"}
            for _ in range(dice.choice([1, 2])):
                content = damages.mutated(dice, content)
            if isinstance(content, dict):
                content["sha256"] = evidence._digest(content)
            path.write_bytes(damages.text_of(content))
        else:
            path.write_bytes(data)
            dice.choice([damages.flip, damages.cut, damages.grow, damages.replace, damages.huge])(dice, path)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                adopt(path, FakeBackend(), CARD)
        except OptionError as error:
            assert error.wrong and error.cure
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert all(
                may_win(*one, PATTERN, PROBLEM, CARD.gpu) for one in winners(PATTERN, PROBLEM, FakeBackend(), CARD)
            )
