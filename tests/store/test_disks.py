"""A disk that says no: nothing is kept, nothing fails, and there is one warning."""

import tempfile
from pathlib import Path

import pytest

from weft.store import Store
from weft.store.trust import Trust

from .small import KEY, NO_LIMIT, OTHER, child, put, states


def refuses(store, said):
    """Nothing is kept, nothing fails, and there is one warning."""
    with pytest.warns(RuntimeWarning, match=said) as found:
        put(store)
        put(store, OTHER)
        assert store.get(KEY) is None and store.record(KEY, [{"ms": 1}]) is False
    assert len(found) == 1 and "WEFT_CACHE_DIR" in str(found[0].message)


def test_a_file_where_the_directory_should_be(tmp_path):
    (tmp_path / "file").write_text("")
    refuses(Store(tmp_path / "file", NO_LIMIT), "cannot be written")
    refuses(Store(tmp_path / "file" / "below", NO_LIMIT), "cannot be written")


def test_no_home_directory():
    refuses(Store(Path("~/.cache/weft"), NO_LIMIT), "no home directory")
    assert not Path("~").exists()


def test_a_disk_that_fails_while_it_reads(kept, monkeypatch):
    put(kept)

    def broken(trust, path, most):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Trust, "read", broken)
    with pytest.warns(RuntimeWarning, match="cannot be read .*Input/output error"):
        assert kept.get(KEY) is None
    assert kept.get(KEY) is None and states(kept) == [""]  # may be whole: it is not set aside


READ_ONLY = """
import os, sys, warnings
from pathlib import Path
from weft.store import Store
store = Store(Path(sys.argv[1]), 1 << 30)
if os.geteuid() == 0:  # who may write anywhere
    os.setuid(65534)
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    assert store.get("0" * 64) is not None and len(store.entries()) == 1 and not found
    for _ in range(2):
        store.put("1" * 64, {}, {"a": b"."})
    assert not store.record("0" * 64, [{"ms": 1}]) and store.clear() == (0, 0)
    assert store.get("0" * 64) is not None and store.get("1" * 64) is None
    assert len(found) == 1 and "cannot be written" in str(found[0].message), found
"""


def test_a_directory_that_may_only_be_read():
    with tempfile.TemporaryDirectory() as above:  # not tmp_path, into which other users may not look
        store = Store(Path(above) / "cache", NO_LIMIT)
        put(store, "0" * 64)
        Path(above).chmod(0o755)
        for path in (store.root / ("0" * 64), store.root):
            path.chmod(0o555)
        done = child(READ_ONLY, store.root)
        store.root.chmod(0o755)
        (store.root / ("0" * 64)).chmod(0o755)
    assert done.returncode == 0, done.stderr


FULL = """
import resource, sys, warnings
from pathlib import Path
from weft.store import Store
store = Store(Path(sys.argv[1]), 1 << 30)
store.put("0" * 64, {}, {"a": b"small"})
resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    for _ in range(2):
        store.put("1" * 64, {}, {"a": bytes(30000)})
    assert store.get("0" * 64) is not None and store.get("1" * 64) is None
    assert len(found) == 1 and "cannot be written" in str(found[0].message), found
    row = {"why": "x" * 15000}
    assert store.record("0" * 64, [row]) and not store.record("0" * 64, [row, row])  # the second is cut short
    assert store.timings("0" * 64) == [row]
    assert "damaged lines: 1" in str(found[1].message) and len(found) == 2, found
assert len(store.entries()) == 1
"""


def test_a_disk_that_is_full(tmp_path):
    done = child(FULL, tmp_path / "c")
    assert done.returncode == 0, done.stderr


def test_no_store():
    store = Store(None, 0)
    put(store)
    assert store.get(KEY) is None and store.entries() == [] and store.verify() == {} and store.clear() == (0, 0)
    assert store.record(KEY, [{"ms": 1}]) is False and store.timings(KEY) == []
