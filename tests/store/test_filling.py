"""A store filled by many processes: each kernel once, and what is refused by name."""

import os
from dataclasses import replace

import pytest

pytest.importorskip("triton")

from weft.kernels.gpu.compile import compiler, filling, load
from weft.kernels.gpu.compile.filling import fill, target_of
from weft.settings import interpreted
from weft.store import opened

from .kernel_keys import AMD, HOPPER, SMALL

pytestmark = pytest.mark.skipif(interpreted(), reason="Triton interprets, and compiles nothing")
SOURCES = [load.source_of(replace(SMALL, warps=warps)) for warps in (2, 4, 8)]
WRONG = compiler.Source(
    "wrong", "import triton\n\n\n@triton.jit\ndef kernel(X):\n    unknown(X)\n", (("X", "i32"),), (), 4, 1
)


@pytest.fixture(autouse=True)
def own_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "weft"))


@pytest.mark.parametrize("jobs", [1, 2])
def test_each_kernel_is_compiled_once_and_found_afterwards(jobs):
    shown = []
    filled = fill([*SOURCES, WRONG, *SOURCES[:1]], HOPPER, jobs, lambda *at: shown.append(at))
    assert {one.name for one in filled.made} == {one.name for one in (*SOURCES, WRONG)} and filled.found == []
    assert list(filled.refused) == ["wrong"] and "unknown is not defined" in filled.refused["wrong"]
    assert shown == [(done, 4) for done in range(5)]
    assert len(opened().entries()) == len(SOURCES)
    again = fill(SOURCES, HOPPER, jobs)
    assert again.made == [] and again.found == [one.name for one in SOURCES]


@pytest.mark.more
def test_what_is_filled_is_what_is_compiled():
    fill(SOURCES[:2], HOPPER, 2)
    for one in SOURCES[:2]:
        assert compiler.stored(one, HOPPER).kernel == compiler.compile_for(one, HOPPER).kernel


def test_targets():
    assert target_of("sm_90") == HOPPER and target_of("gfx942") == AMD


def test_nothing_to_do():
    assert fill([], HOPPER).made == []


def test_a_kernel_that_is_not_kept_is_no_success(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE_MIB", "1")
    (tmp_path / "weft").mkdir()
    monkeypatch.setattr(type(opened()), "put", lambda *given: None)
    assert "did not keep it" in fill(SOURCES[:1], HOPPER).refused[SOURCES[0].name]


def test_as_many_processes_as_processors_and_no_more_than_kernels(monkeypatch):
    asked = []
    monkeypatch.setattr(filling, "_all_made", lambda sources, target, jobs: asked.append(jobs) or [])
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    fill(SOURCES, HOPPER)
    fill(SOURCES, HOPPER, 2)
    assert asked == [len(SOURCES), 2]


def test_processes_fill_the_store_that_the_settings_name_now(tmp_path, monkeypatch):
    """The server that starts them keeps the environment of its own first day."""
    fill(SOURCES[:2], HOPPER, 2)
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "another"))
    fill(SOURCES[:2], HOPPER, 2)
    assert len(opened().entries()) == 2
