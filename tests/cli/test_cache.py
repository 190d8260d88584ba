"""`weft cache`: what it says, what it asks, how it exits."""

import json
import os
import time
from hashlib import sha256

import pytest
from click.testing import CliRunner

from weft.cli import main
from weft.store import opened

KEYS = [sha256(bytes([i])).hexdigest() for i in range(3)]


@pytest.fixture(autouse=True)
def kept(tmp_path, monkeypatch):
    """A store with two kernels, the first of which was used an hour ago and measured twice."""
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    store = opened()
    for number, key in enumerate(KEYS[:2]):
        facts = {"name": f"kernel_{number}", "target": "cuda 90", "triton": "3.7.1", "compile_seconds": 1.25}
        store.put(key, facts, {"kernel.cubin": bytes(5000)})
    store.record(KEYS[0], [{"ms": 1}, {"ms": 2}])
    os.utime(store.root / KEYS[0], (time.time() - 3700,) * 2)
    return store


def run(*args, code=0, **more):
    done = CliRunner().invoke(main, ["cache", *args], **more)
    assert done.exit_code == code, done.output
    return done.output


def facts(*args, code=0):
    return json.loads(run(*args, "--json", code=code))


def spoil(store, key=KEYS[0]):
    (store.root / key / "kernel.cubin").write_bytes(b"")


def test_list(kept):
    first, second = run("list").splitlines()[2:]
    assert first.split()[:4] == ["kernel_0", "cuda", "90", "3.7.1"] and "1 h ago" in first and "1.2 s" in first
    assert first.split()[-1] == "2" and second.split()[-1] == "0"
    found = facts("list")
    assert found["directory"] == str(kept.root)
    assert [one["key"] for one in found["entries"]] == KEYS[:2]
    assert found["entries"][0]["timings"] == [{"ms": 1}, {"ms": 2}] and found["entries"][0]["bytes"] > 5000


def test_list_of_what_cannot_be_read(kept):
    (kept.root / KEYS[0] / "facts.json").write_text("{")
    assert f"{KEYS[0][:12]}, damaged" in run("list")


def test_size(kept):
    found = facts("size")
    assert (found["entries"], found["set_aside"], found["limit"]) == (2, 0, kept.limit)
    assert found["bytes"] == sum(one.nbytes for one in kept.entries())
    assert "2 entries, " in run("size") and "1.0 GiB at most" in run("size")
    spoil(kept)
    with pytest.warns(RuntimeWarning, match="damaged"):
        kept.get(KEYS[0])
    assert "1 entry, 1 damaged and set aside" in run("size")


def test_verify(kept):
    assert "2 entries, none damaged" in run("verify") and facts("verify")["damaged"] == {}
    spoil(kept)
    said = run("verify", code=1)
    assert f"{KEYS[0]}: kernel.cubin changed" in said and "1 of 2 entries" in said
    assert list(facts("verify", code=1)["damaged"]) == [KEYS[0]]
    assert len(kept.entries()) == 2  # it only looks


def test_clear_asks(kept):
    assert "Remove" in run("clear", input="n\n", code=1) and len(kept.entries()) == 2
    (kept.root / "notes.txt").write_text("not ours")
    assert "removed 2 directories" in run("clear", input="y\n")
    assert kept.entries() == [] and (kept.root / "notes.txt").exists()
    assert "no entries" in run("list")


def test_clear_does_not_ask_where_it_was_told(kept):
    assert "nobody confirms it" in run("clear", "--json", code=2) and len(kept.entries()) == 2
    assert facts("clear", "--yes")["removed"] == 2 and kept.entries() == []
    assert facts("clear")["removed"] == 0  # nothing is there, so nothing is asked


def test_yes_is_for_clear_alone():
    assert "leave --yes out" in run("list", "--yes", code=2)


@pytest.mark.parametrize("action", ["list", "size", "verify", "clear"])
def test_where_nothing_is_kept(action, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE_DIR", "off")
    assert "WEFT_CACHE_DIR=off" in run(action)
    assert facts(action)["directory"] is None


def test_a_limit_that_is_none(monkeypatch):
    monkeypatch.setenv("WEFT_CACHE_MIB", "much")
    assert "WEFT_CACHE_MIB=much" in run("size", code=2)


def test_the_doctor_names_it(kept):
    done = CliRunner().invoke(main, ["doctor"])
    assert f"cache        {kept.root}: 2 entries" in done.output
    assert json.loads(CliRunner().invoke(main, ["doctor", "--json"]).output)["cache"]["entries"] == 2
