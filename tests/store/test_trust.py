"""Whose files are read: ours and root's, which nobody else may write, unless somebody stated another choice."""

import os
import shutil
import stat
import time
import warnings
from pathlib import Path

import pytest

from weft import settings
from weft.errors import OptionError
from weft.store import FACTS, TIMINGS, Store, opened, trust
from weft.store.store import Base

from .small import FILES, KEY, NO_LIMIT, OTHER, put, states

STRANGER = 54321  # no user of any machine


@pytest.fixture
def given(monkeypatch):
    """Gives a file to another user; who is not root becomes another user instead."""

    def away(path, group=-1):
        if os.geteuid() == 0:
            os.chown(path, STRANGER, group)
        else:
            monkeypatch.setattr(trust, "ME", STRANGER)

    return away


@pytest.fixture
def whole(kept):
    put(kept)
    kept.record(KEY, [{"ms": 1}])
    return Store(kept.root, NO_LIMIT)


def refused(store, said):
    """Nothing is read, with one warning that holds the command that mends it."""
    with pytest.warns(RuntimeWarning, match=said) as found:
        assert store.get(KEY) is None and store.get(KEY) is None
    assert len(found) == 1, [str(one.message) for one in found]
    assert any(command in str(found[0].message) for command in ("rm -r /", "chmod go-w /"))


PLACES = {"the directory": "", "an entry": KEY, "a file": f"{KEY}/kernel.cubin", "its facts": f"{KEY}/{FACTS}"}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_what_others_may_write_is_not_read(whole, place):
    path = whole.root / place
    for bit in (0o002, 0o022):
        path.chmod(path.stat().st_mode | bit)
        refused(Store(whole.root, NO_LIMIT), "may be written by anybody, so nothing is read")
    path.chmod(stat.S_IMODE(path.stat().st_mode) & ~0o022)
    assert Store(whole.root, NO_LIMIT).get(KEY) is not None and states(whole) == [""]


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_what_belongs_to_others_is_not_read(whole, place, given):
    given(whole.root / place)
    refused(Store(whole.root, NO_LIMIT), "belongs to user")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
def test_a_store_of_another_user_under_a_link(whole, tmp_path, monkeypatch):
    link = tmp_path / "mine"
    link.symlink_to(whole.root)
    monkeypatch.setenv("WEFT_CACHE_DIR", str(link))
    assert opened().get(KEY) is not None
    os.chown(whole.root, STRANGER, -1)
    monkeypatch.setenv("WEFT_CACHE_MIB", "7")  # another store of this process
    refused(opened(), "belongs to user")


def test_a_directory_above_that_others_may_write(whole, tmp_path):
    tmp_path.chmod(0o777)
    refused(Store(whole.root, NO_LIMIT), "may be written by anybody")
    tmp_path.chmod(0o1777)  # as /tmp: who may write there cannot exchange what others own
    assert Store(whole.root, NO_LIMIT).get(KEY) is not None
    tmp_path.chmod(0o700)


def test_a_group_that_has_one_member_may_write(whole, monkeypatch):
    """Many systems give everybody such a group, and a umask of 002."""
    (whole.root / KEY).chmod(0o775)
    trust._private.cache_clear()
    monkeypatch.setattr(trust, "_private", lambda group: True)
    assert Store(whole.root, NO_LIMIT).get(KEY) is not None
    monkeypatch.setattr(trust, "_private", lambda group: False)
    refused(Store(whole.root, NO_LIMIT), "may be written by group")


def test_timings_of_others_are_not_read_nor_written(whole, given):
    path = whole.root / KEY / TIMINGS
    path.chmod(0o666)
    with pytest.warns(RuntimeWarning, match="timings.jsonl may be written by anybody"):
        assert whole.timings(KEY) == [] and whole.record(KEY, [{"ms": 2}]) is False
    path.chmod(0o644)
    assert whole.timings(KEY) == [{"ms": 1}]


def test_verify_and_list_say_what_is_not_trusted(whole):
    (whole.root / KEY / "kernel.cubin").chmod(0o666)
    assert "kernel.cubin may be written by anybody, so it is not read: remove it (rm -r" in whole.verify()[KEY]
    (whole.root / KEY / FACTS).chmod(0o666)
    (entry,) = whole.entries()
    assert entry.facts() == {}


def test_nobody_else_may_write_what_is_put(tmp_path):
    old = os.umask(0)
    try:
        store = Store(tmp_path / "cache", NO_LIMIT)
        put(store)
        store.record(KEY, [{"ms": 1}])
    finally:
        os.umask(old)
    found = [store.root, *store.root.rglob("*")]
    assert not [path for path in found if path.stat().st_mode & 0o022 and path.name != "CACHEDIR.TAG"]
    assert store.get(KEY) is not None and store.timings(KEY) == [{"ms": 1}]


# ---- what stands in an entry -----------------------------------------------------------------------------------------
def fifo(path):
    os.mkfifo(path)


def device(path):
    os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 5))  # /dev/zero


def link(path):
    path.symlink_to("/dev/zero")


def large(path):
    with path.open("wb") as file:
        file.truncate(100 << 20)  # without a byte on disk


ODD = {"a FIFO": fifo, "a device": device, "a link": link, "bytes, more than": large}


@pytest.mark.parametrize("name", [*FILES, FACTS, "SHA256SUMS"])
@pytest.mark.parametrize(("said", "make"), ODD.items(), ids=ODD)
def test_odd_files_are_damage_and_take_no_time(whole, name, said, make):
    if make is device and os.geteuid() != 0:
        pytest.skip("only root makes devices")
    path = whole.root / KEY / name
    path.unlink()
    make(path)
    began = time.monotonic()
    assert said in whole.verify()[KEY]
    with pytest.warns(RuntimeWarning, match=f"damaged: {name}.*{said}"):
        assert whole.get(KEY) is None
    put(whole)
    assert whole.get(KEY) is not None and sorted(states(whole)) == ["", "damaged"]
    assert len(whole.entries()) == 2 and whole.clear()[0] == 2
    assert time.monotonic() - began < 2


@pytest.mark.parametrize("make", ODD.values(), ids=ODD)
def test_odd_timings_are_one_damaged_line(whole, make):
    if make is device and os.geteuid() != 0:
        pytest.skip("only root makes devices")
    path = whole.root / KEY / TIMINGS
    path.unlink()
    make(path)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        assert whole.timings(KEY) == [] and whole.record(KEY, [{"ms": 2}]) is False
    assert "damaged lines: 1" in str(found[0].message)
    assert whole.get(KEY) is not None


def test_many_files_are_damage(whole):
    for number in range(100):
        (whole.root / KEY / f"more{number}").touch()
    assert "should or should not be there" in whole.verify()[KEY]


# ---- choices that somebody states ------------------------------------------------------------------------------------
@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
def test_a_store_of_a_group(tmp_path):
    group = 54322
    root = tmp_path / "shared"
    root.mkdir()
    os.chown(root, STRANGER, group)
    root.chmod(0o2770)
    mine = Store(root, NO_LIMIT, shared=True)
    put(mine)
    assert mine.record(KEY, [{"ms": 1}])
    modes = {path.name: (stat.S_IMODE(path.stat().st_mode), path.stat().st_gid) for path in root.rglob("*")}
    assert modes[KEY] == (0o2775, group) and modes["kernel.cubin"] == modes[TIMINGS] == (0o664, group)
    for path in (root / KEY, *(root / KEY).iterdir()):  # as another member would have written it
        os.chown(path, STRANGER, -1)
    again = Store(root, NO_LIMIT, shared=True)
    assert again.get(KEY) is not None and again.timings(KEY) == [{"ms": 1}]
    refused(Store(root, NO_LIMIT), "belongs to user 54321")
    os.chown(root / KEY / "kernel.cubin", STRANGER, STRANGER)  # of no member
    refused(Store(root, NO_LIMIT, shared=True), "kernel.cubin belongs to user 54321")
    root.chmod(0o2777)
    refused(Store(root, NO_LIMIT, shared=True), "may be written by anybody")


def test_a_new_store_of_a_group_is_closed_to_others(tmp_path):
    store = Store(tmp_path / "cache", NO_LIMIT, shared=True)
    put(store)
    assert stat.S_IMODE(store.root.stat().st_mode) == 0o2770 and store.get(KEY) is not None


@pytest.fixture
def below(tmp_path):
    """A base with one entry, and an empty store above it."""
    base = Store(tmp_path / "base", NO_LIMIT)
    put(base)
    base.record(KEY, [{"ms": 1}])
    return Store(tmp_path / "cache", NO_LIMIT, Base(base.root))


def test_a_base_store_is_read_and_never_written(below, given):
    for path in (below.base.root, *below.base.root.rglob("*")):
        given(path)
    before = {path: path.stat().st_mtime_ns for path in below.base.root.rglob("*")}
    assert below.get(KEY) == below.base.root / KEY and below.get(OTHER) is None and below.own(KEY) is None
    put(below)
    assert below.get(KEY) == below.root / KEY  # one's own comes first
    below.record(KEY, [{"ms": 2}])
    assert below.timings(KEY) == [{"ms": 1}, {"ms": 2}]
    below.clear()
    assert {path: path.stat().st_mtime_ns for path in below.base.root.rglob("*")} == before


def test_a_damaged_base_is_passed_over(below):
    (below.base.root / KEY / "kernel.cubin").write_bytes(b"other")
    with pytest.warns(RuntimeWarning, match="kernel.cubin changed .*passed over"):
        assert below.get(KEY) is None
    assert states(below.base) == [""]
    put(below)
    assert below.get(KEY) == below.root / KEY


def test_a_base_that_others_may_write_is_not_read(below):
    below.base.root.chmod(0o777)
    refused(below, "may be written by anybody")


@pytest.mark.parametrize("value", ["1", "everybody", "group,other"])
def test_other_choices_are_refused(monkeypatch, value):
    monkeypatch.setenv("WEFT_CACHE_SHARED", value)
    with pytest.raises(OptionError, match="set WEFT_CACHE_SHARED=group"):
        opened()


def test_settings_of_the_base_and_the_group(monkeypatch, tmp_path):
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("WEFT_CACHE_BASE", str(tmp_path / "base"))
    monkeypatch.setenv("WEFT_CACHE_SHARED", "group")
    store = opened()
    assert store.shared and store.base.root == tmp_path / "base" and store.root == tmp_path / "cache"


# ---- settings that mean nothing --------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["WEFT_CACHE_MIB", "WEFT_PLANS_MIB"])
@pytest.mark.parametrize("value", ["9" * 5000, "٣", "-1", "1e3", "0", "0x10"])
def test_numbers_of_mebibytes(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    read = settings.cache_bytes if name == "WEFT_CACHE_MIB" else settings.plans_bytes
    with pytest.raises(OptionError, match="no whole number of MiB") as raised:
        read()
    assert len(str(raised.value)) < 300


def test_a_home_that_does_not_exist_is_not_made(monkeypatch, tmp_path):
    home = tmp_path / "nobody"
    for name in ("WEFT_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    store = Store(settings.cache_dir(), NO_LIMIT)
    with pytest.warns(RuntimeWarning, match="no home directory") as found:
        put(store)
        put(store, OTHER)
    assert len(found) == 1 and not home.exists() and not Path("~").exists()


def test_a_copy_of_the_store_keeps_its_trust(whole, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(whole.root, copy)
    assert Store(copy, NO_LIMIT).get(KEY) is not None
