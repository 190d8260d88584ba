"""Entries that were damaged or planted: a caller gets what was put, or nothing and a warning."""

import os
import random
import warnings

import pytest
from click.testing import CliRunner
from tests.outside.hostile import harmless
from tests.store.small import FILES, KEY, NO_LIMIT, OTHER, put
from tests.tiers import every

from weft.cli import main
from weft.store import Store

from . import damages

ROWS = [{"ms": 1.0}, {"ms": 2.0, "why": "because"}, {"ms": 3.0}]
CASES = 40  # of a batch, of which there are 50
NAMES = [*FILES, "facts.json", "SHA256SUMS", "timings.jsonl"]


@pytest.fixture
def whole(tmp_path):
    store = Store(tmp_path / "whole", NO_LIMIT)
    for key in (KEY, OTHER):
        put(store, key)
        for row in ROWS:
            store.record(key, [row])
    return store


@pytest.mark.parametrize("batch", every(50, range(50)))
def test_a_damaged_entry_says_so_or_is_as_it_was(whole, batch, tmp_path, monkeypatch):
    place = tmp_path / "cache"
    monkeypatch.setenv("WEFT_CACHE_DIR", str(place))
    for case in range(CASES):
        dice = random.Random(batch * CASES + case)
        damages.copied(whole.root, place)
        done = [_damaged(dice, place / KEY) for _ in range(dice.choice([1, 1, 2]))]
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            _look(dice, Store(place, NO_LIMIT), said, done)


def _damaged(dice, entry):
    names = [name for name in NAMES if (entry / name).is_file() and not (entry / name).is_symlink()]
    names = [name for name in names if (entry / name).stat().st_size < damages.LARGE]
    if not names:
        return "nothing left"
    name, kind = dice.choice(names), dice.choice(damages.KINDS)
    kind(dice, entry / name)
    if dice.random() < 0.2 and kind is not damages.shared:
        damages.refit(entry)
        return f"{kind.__name__} of {name}, sums refitted"
    return f"{kind.__name__} of {name}"


def _look(dice, store, said, done):
    if dice.random() < 0.3:
        for action in ("list", "verify", "size"):
            shown = CliRunner().invoke(main, ["cache", action])
            assert (shown.exit_code in (0, 1) and not shown.exception) or isinstance(shown.exception, SystemExit), done
            assert harmless(shown.output), done
    rows = store.timings(KEY)
    assert all(row in ROWS for row in rows), (done, rows)
    file = store.root / KEY / "timings.jsonl"
    if len(rows) < len(ROWS) and file.exists() and not said:  # nobody knows of lines that are gone whole
        assert len(file.read_bytes().split()) == 0 or any("cut of timings" in one for one in done), done
    path = store.get(KEY)
    planted = any("refitted" in one for one in done)
    if path is not None and not planted:
        assert {name: (path / name).read_bytes() for name in FILES} == FILES, done
    if path is None:
        assert said or not (store.root / KEY).exists(), done
        assert sum("damaged" in str(one.message) or "nothing is read" in str(one.message) for one in said) <= 3
    put(store)
    store.record(KEY, [ROWS[0]])
    assert store.get(OTHER) is not None, done  # its neighbour is as it was
    assert all(harmless(str(one.message)) for one in said), done


@pytest.mark.parametrize("batch", every(10, range(10)))
def test_a_damaged_directory_of_entries(whole, batch, tmp_path):
    """What stands beside entries: files, links, FIFOs and directories with names like theirs."""
    place = tmp_path / "cache"
    for case in range(20):
        dice = random.Random(1000 + batch * 20 + case)
        damages.copied(whole.root, place)
        for _ in range(5):
            key = dice.choice([KEY, "0" * 64, "f" * 64, f"{KEY}.new-{'0' * 32}", f"{KEY}.damaged-{'1' * 32}", "other"])
            path = place / f"{key}{dice.choice(['', '', 'x'])}"
            if not path.exists() and not path.is_symlink():
                make = dice.choice(
                    [path.touch, path.mkdir, lambda p=path: os.mkfifo(p), lambda p=path: p.symlink_to("/")]
                )
                make()
        store = Store(place, NO_LIMIT)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for key in (KEY, "0" * 64, "f" * 64):
                store.get(key)
                store.put(key, {"name": "a"}, FILES)
                store.record(key, ROWS)
            store.verify()
            assert store.get(OTHER) is not None
            store.clear()
