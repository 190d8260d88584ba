"""The store: what is put is found again whole, by many processes at once, or not at all."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from hashlib import sha256
from pathlib import Path

import pytest

from weft import settings
from weft.errors import OptionError
from weft.store import ABANDONED, FACTS, SUMS, TIMINGS, Store, opened

from .small import FILES, KEY, NO_LIMIT, OTHER, THIRD, child, put, states


# ---- one entry -------------------------------------------------------------------------------------------------------
def test_what_is_put_is_found(kept):
    assert kept.get(KEY) is None and kept.entries() == []
    put(kept)
    again = Store(kept.root, NO_LIMIT)
    path = again.get(KEY)
    assert {name: (path / name).read_bytes() for name in FILES} == FILES
    (entry,) = again.entries()
    assert entry.facts()["name"] == "kernel" and entry.facts()["made"] > 0
    assert entry.nbytes == sum(file.stat().st_size for file in path.iterdir())
    assert again.get(OTHER) is None


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="needs sha256sum")
def test_checksums_are_those_of_coreutils(kept):
    put(kept)
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", SUMS], cwd=kept.get(KEY), check=True)


def test_who_puts_a_key_first_wins(kept):
    put(kept)
    put(kept, files={"source.py": b"another"})
    assert (kept.get(KEY) / "source.py").read_bytes() == FILES["source.py"]
    assert states(kept) == [""]


@pytest.mark.parametrize("key", ["", "abc", "../" + "0" * 61, "A" * 64, "0" * 64 + "\n"])
def test_only_hashes_are_keys(kept, key):
    for call in (kept.get, kept.timings, lambda key: kept.put(key, {}, {}), lambda key: kept.record(key, [])):
        with pytest.raises(ValueError, match="SHA-256"):
            call(key)


def flip(path):
    data = bytearray((path / "kernel.cubin").read_bytes())
    data[1000] ^= 1
    (path / "kernel.cubin").write_bytes(data)


DAMAGES = {
    "a bit is flipped": (flip, "kernel.cubin changed"),
    "a file is cut short": (lambda path: os.truncate(path / "kernel.cubin", 5), "kernel.cubin changed"),
    "a file is gone": (lambda path: (path / "source.py").unlink(), "source.py"),
    "a file is a directory": (lambda path: ((path / "source.py").unlink(), (path / "source.py").mkdir()), "source.py"),
    "a file was added": (lambda path: (path / "more").touch(), "more"),
    "no checksums": (lambda path: (path / SUMS).unlink(), SUMS),
    "checksums are empty": (lambda path: (path / SUMS).write_bytes(b""), "source.py"),
    "checksums are noise": (lambda path: (path / SUMS).write_bytes(b"\xff\x00\n"), SUMS),
    "nothing is left": (lambda path: [file.unlink() for file in path.iterdir()], SUMS),
    "facts are gone": (lambda path: (path / FACTS).unlink(), FACTS),
    "facts never were": (
        lambda path: ((path / FACTS).unlink(), (path / SUMS).write_bytes(b""), [(path / x).unlink() for x in FILES]),
        FACTS,
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_entry_is_set_aside_reported_once_and_made_anew(kept, name):
    spoil, said = DAMAGES[name]
    put(kept)
    spoil(kept.root / KEY)
    assert said in kept.verify()[KEY]
    with pytest.warns(RuntimeWarning, match=f"{KEY} is damaged: .*{said}"):
        assert kept.get(KEY) is None
    assert states(kept) == ["damaged"] and kept.verify() == {}
    put(kept)
    assert kept.get(KEY) is not None and sorted(states(kept)) == ["", "damaged"]
    spoil(kept.root / KEY)
    assert kept.get(KEY) is None  # and no second warning, which would be an error


def test_an_entry_that_was_copied_to_another_name_is_damaged(kept):
    put(kept)
    shutil.copytree(kept.root / KEY, kept.root / OTHER)
    assert list(kept.verify()) == [OTHER]
    with pytest.warns(RuntimeWarning, match=f"{OTHER} is damaged: it is a copy of the entry {KEY}"):
        assert kept.get(OTHER) is None
    assert kept.get(KEY) is not None and sorted(states(kept)) == ["", "damaged"]
    put(kept, OTHER)
    assert kept.get(OTHER) is not None and kept.verify() == {}


def rewritten(path, facts):
    """The entry with other facts, and sums that hold of them."""
    (path / FACTS).write_text(facts)
    lines = (f"{sha256((path / name).read_bytes()).hexdigest()}  {name}\n" for name in (FACTS, *FILES))
    (path / SUMS).write_text("".join(lines))


@pytest.mark.parametrize("facts", ['{"name": "kernel", "made": 1.5}', "[]", "{", ""])
def test_an_entry_of_an_older_layout_is_replaced_without_a_word(kept, facts):
    put(kept)
    rewritten(kept.root / KEY, facts)
    assert kept.verify() == {}
    assert kept.get(KEY) is None and kept.entries() == []  # a warning would be an error
    put(kept)
    assert kept.get(KEY) is not None and states(kept) == [""]


@pytest.mark.parametrize("key", [OTHER, "", None, 7, [KEY]])
def test_only_its_own_key_will_do(kept, key):
    put(kept)
    rewritten(kept.root / KEY, json.dumps({"key": key}))
    with pytest.warns(RuntimeWarning, match="it is a copy"):
        assert kept.get(KEY) is None


def test_whoever_puts_an_entry_does_not_choose_its_key(kept):
    kept.put(KEY, {"name": "kernel", "key": OTHER}, FILES)
    assert kept.get(KEY) is not None


def test_a_writer_that_fails_leaves_nothing(kept, monkeypatch):
    put(kept, OTHER)
    write = Path.write_bytes

    def interrupted(path, data):
        if path.name == "kernel.cubin":
            raise KeyboardInterrupt
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", interrupted)
    with pytest.raises(KeyboardInterrupt):
        put(kept)
    assert [one.path.name for one in kept.entries()] == [OTHER]


DYING = """
import os, signal, sys
from pathlib import Path
from weft.store import Store
write = Path.write_bytes
def dies(path, data):
    write(path, data[: len(data) // 2] if path.name == "b" else data)
    if path.name == "b":
        os.kill(os.getpid(), signal.SIGKILL)
Path.write_bytes = dies
Store(Path(sys.argv[1]), 1 << 30).put(sys.argv[2], {}, {"a": b"...", "b": b"......", "c": b"..."})
"""


def test_a_writer_that_is_killed_leaves_no_entry(kept):
    assert child(DYING, kept.root, KEY).returncode == -signal.SIGKILL
    assert states(kept) == ["new"] and kept.get(KEY) is None
    put(kept)
    assert kept.get(KEY) is not None and kept.verify() == {} and sorted(states(kept)) == ["", "new"]
    assert kept.clear()[0] == 2 and kept.entries() == []


# ---- many at once ----------------------------------------------------------------------------------------------------
# Works on a few keys in a store that has room for some of them, so that each is put, found and removed all the time.
# Says a line for each step; fails if it finds other bytes than belong to a key, or has anything to warn of.
WORKER = """
import random, sys
from hashlib import sha256
from pathlib import Path
from weft.store import Store
root, seed, steps = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
store, rng = Store(root, 5 * 64000), random.Random(seed)
for step in range(steps):
    name = str(rng.randrange(8)).encode()
    key, data = sha256(name).hexdigest(), name * 60000
    found = store.get(key)
    if found is None:
        store.put(key, {"name": name.decode()}, {"a": data, "b": data[:100]})
    else:
        try:
            assert (found / "a").read_bytes() == data
        except FileNotFoundError:
            pass
        store.record(key, [{"seed": seed, "step": step}] * 3)
        rows = store.timings(key)
        assert all(rows[i] == rows[i + 1] == rows[i + 2] for i in range(0, len(rows), 3)), rows
    print(step, flush=True)
"""


def worker(root, seed, steps):
    command = [sys.executable, "-W", "error", "-c", WORKER, str(root), str(seed), str(steps)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_processes_that_share_a_store_and_are_killed(tmp_path):
    root = tmp_path / "cache"
    ended = [worker(root, seed, 150) for seed in range(2)]
    for seed in range(2, 8):  # these are killed after some steps, wherever they are then
        doomed = worker(root, seed, 1000000)
        for _ in range(5 * seed):
            assert doomed.stdout.readline(), doomed.stderr.read()
        doomed.kill()
        doomed.communicate()
    for process in ended:
        _, said = process.communicate()
        assert process.returncode == 0, said
    store = Store(root, NO_LIMIT)
    assert "" in states(store) and "damaged" not in states(store) and store.verify() == {}
    assert sum(one.nbytes for one in store.entries() if one.state == "") < 7 * 64000


def test_threads_that_share_a_store(kept):
    wrong = []

    def work(seed):
        for step in range(20):
            key = (KEY, OTHER, THIRD)[(seed + step) % 3]
            put(kept, key)
            if (kept.get(key) / "kernel.cubin").read_bytes() != FILES["kernel.cubin"]:
                wrong.append(key)
            kept.record(key, [{"seed": seed}])

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not wrong and states(kept) == ["", "", ""]
    assert sum(len(kept.timings(key)) for key in (KEY, OTHER, THIRD)) == 6 * 20


# ---- timings ---------------------------------------------------------------------------------------------------------
def test_timings(kept):
    assert kept.record(KEY, [{"ms": 1}]) is False and kept.timings(KEY) == []
    put(kept)
    assert kept.timings(KEY) == []
    assert kept.record(KEY, [{"ms": 1.5, "plan": "64 x 64"}, {"ms": 2}]) and kept.record(KEY, iter([{"ms": 3}]))
    assert kept.timings(KEY) == [{"ms": 1.5, "plan": "64 x 64"}, {"ms": 2}, {"ms": 3}]
    assert kept.get(KEY) is not None and kept.verify() == {}
    with pytest.raises(ValueError, match="JSON"):
        kept.record(KEY, [{"ms": float("nan")}])


@pytest.mark.parametrize("cut", range(1, 30, 4))
def test_timings_that_were_cut_short_spoil_no_others(kept, cut):
    put(kept)
    kept.record(KEY, [{"ms": 1}])
    kept.record(KEY, [{"ms": 2}, {"ms": 3, "why": "cut"}])
    path = kept.root / KEY / TIMINGS
    os.truncate(path, path.stat().st_size - cut)
    with path.open("ab") as file:
        file.write(b"\n12\n{}\n\xff")  # and whatever else may lie there
    kept.record(KEY, [{"ms": 4}])
    with pytest.warns(RuntimeWarning, match="timings.jsonl has damaged lines: 4"):
        assert kept.timings(KEY) == [{"ms": 1}, {"ms": 4}]
    assert kept.timings(KEY) == [{"ms": 1}, {"ms": 4}]  # and no second warning, which would be an error
    assert kept.verify() == {KEY: "timings.jsonl has damaged lines: 4"}


def test_a_line_of_another_entry_says_nothing(kept):
    put(kept)
    put(kept, OTHER)
    kept.record(KEY, [{"ms": 1}])
    shutil.copy(kept.root / KEY / TIMINGS, kept.root / OTHER / TIMINGS)
    with pytest.warns(RuntimeWarning, match="damaged lines: 1"):
        assert kept.timings(OTHER) == []


# ---- room ------------------------------------------------------------------------------------------------------------
def test_what_was_not_used_for_longest_makes_room(kept):
    put(kept)
    (entry,) = kept.entries()
    small = Store(kept.root, 2 * entry.nbytes + 20)
    put(small, OTHER)
    for age, key in enumerate((KEY, OTHER)):
        os.utime(kept.root / key, (age, age))
    assert small.get(KEY) is not None  # used just now, so it is the other one that goes
    put(small, THIRD)
    assert {one.path.name for one in small.entries()} == {KEY, THIRD}


def test_an_entry_larger_than_all_room_is_not_kept(tmp_path):
    small = Store(tmp_path, 1000)
    put(small)
    assert small.entries() == []


def test_what_dead_processes_left_is_removed(kept):
    put(kept)
    fresh, dead, removed = (
        f"{OTHER}.{state}-{digit * 32}" for state, digit in (("new", "0"), ("new", "1"), ("old", "2"))
    )
    for name in (fresh, dead, removed):
        (kept.root / name).mkdir()
        (kept.root / name / "kernel.cubin").write_bytes(b"...")
    now = kept.root.stat().st_mtime
    for name in (dead, removed):
        os.utime(kept.root / name, (now - ABANDONED - 60,) * 2)
    put(kept, THIRD)
    assert {one.path.name for one in kept.entries()} == {KEY, THIRD, fresh}


def test_clear_removes_what_is_ours_and_nothing_else(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "precious").write_text("kept")
    root = tmp_path / "cache"
    root.mkdir()
    (root / "notes.txt").write_text("kept")
    (root / KEY[:63]).mkdir()
    (root / THIRD).symlink_to(tmp_path / "elsewhere")
    store = Store(root, NO_LIMIT)
    put(store)
    put(store, OTHER)
    (root / f"{OTHER}.new-{'0' * 32}").mkdir()
    flip(root / OTHER)
    with pytest.warns(RuntimeWarning, match="damaged"):
        store.get(OTHER)
    assert len(store.entries()) == 3
    count, nbytes = store.clear()
    assert count == 3 and nbytes > 2 * len(FILES["kernel.cubin"])
    assert {path.name for path in root.iterdir()} == {"notes.txt", KEY[:63], THIRD}  # nor was a tag put there
    assert (tmp_path / "elsewhere" / "precious").read_text() == "kept"


def test_a_directory_that_we_make_is_tagged(kept):
    put(kept)
    assert (kept.root / "CACHEDIR.TAG").read_text().startswith("Signature: 8a477f597d28d172789f06886806bc55")
    assert kept.root.stat().st_mode & 0o777 == 0o700
    assert len(kept.entries()) == 1


# ---- settings --------------------------------------------------------------------------------------------------------
def test_where_it_is(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("WEFT_CACHE_DIR", "")
    assert settings.cache_dir().name == "weft" and settings.cache_dir().is_absolute()
    if sys.platform == "linux":
        assert settings.cache_dir() == tmp_path / "xdg" / "weft"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WEFT_CACHE_DIR", "here")
    assert opened().root == tmp_path / "here"
    assert opened() is opened()
    monkeypatch.setenv("WEFT_CACHE_DIR", "off")
    assert opened().root is None
    monkeypatch.setenv("WEFT_CACHE_DIR", "~nobody-of-this-name/weft")
    with pytest.raises(OptionError, match="in full"):
        opened()


def test_how_much_it_keeps(monkeypatch):
    monkeypatch.delenv("WEFT_CACHE_MIB", raising=False)
    assert settings.cache_bytes() == 1 << 30
    monkeypatch.setenv("WEFT_CACHE_MIB", "3")
    assert opened().limit == 3 << 20
    for bad in ("0", "-1", "1.5", "much"):
        monkeypatch.setenv("WEFT_CACHE_MIB", bad)
        with pytest.raises(OptionError, match="WEFT_CACHE_DIR=off"):
            opened()
