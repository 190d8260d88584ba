"""Kernels that compile at the same time: each once, found by whoever asks, and refused where it is asked for."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

pytest.importorskip("triton")

from weft.errors import UnsupportedKernel
from weft.kernels.gpu.compile import ahead, compiler, load
from weft.settings import interpreted
from weft.store import opened

from .kernel_keys import HOPPER, SMALL

pytestmark = pytest.mark.skipif(interpreted(), reason="Triton interprets, and compiles nothing")
SOURCES = [
    load.source_of(replace(SMALL, warps=warps, dtype=dtype)) for warps in (4, 8) for dtype in ("bfloat16", "float16")
]
LONG = 60  # seconds, after which a test fails


@pytest.fixture(autouse=True)
def own_directories(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "weft"))
    monkeypatch.setattr(compiler, "UNDER_WAY", {})


@pytest.fixture
def compilations(monkeypatch):
    """Sources that are compiled, one for each time."""
    found, compile_for = [], compiler.compile_for
    monkeypatch.setattr(compiler, "compile_for", lambda one, target: found.append(one) or compile_for(one, target))
    return found


@pytest.mark.more
@pytest.mark.parametrize("store", ["on", "off"])
def test_each_is_compiled_once_and_then_found(compilations, store, monkeypatch):
    if store == "off":
        monkeypatch.setenv("WEFT_CACHE_DIR", "off")
    ahead.compile_all([*SOURCES, *SOURCES], HOPPER)
    assert len(compilations) == len(SOURCES) and set(compilations) == set(SOURCES)
    found = [compiler.stored(one, HOPPER).kernel for one in SOURCES]
    assert len(compilations) == len(SOURCES) and not compiler.UNDER_WAY
    assert found == [compiler.compile_for(one, HOPPER).kernel for one in SOURCES]
    assert len(opened().entries()) == (len(SOURCES) if store == "on" else 0)


def test_what_the_store_has_is_not_compiled(compilations):
    made = compiler.stored(SOURCES[0], HOPPER)
    ahead.compile_all(SOURCES[:2], HOPPER)
    assert compilations == SOURCES[:2]
    assert compiler.stored(SOURCES[0], HOPPER).kernel == made.kernel


@pytest.mark.more
def test_they_compile_at_the_same_time(monkeypatch):
    """None goes on before all have begun; as many as there are processors, and one more."""
    monkeypatch.setattr(ahead.os, "cpu_count", lambda: len(SOURCES) - 1)
    together, compile_for = threading.Barrier(len(SOURCES)), compiler.compile_for

    def meets(one, target):
        together.wait(LONG)
        return compile_for(one, target)

    monkeypatch.setattr(compiler, "compile_for", meets)
    ahead.compile_all(SOURCES, HOPPER)
    assert all(compiler.stored(one, HOPPER).kernel for one in SOURCES) and not together.broken


def test_whoever_asks_waits_for_what_is_under_way(compilations, monkeypatch):
    go, compile_for = threading.Event(), compiler.compile_for
    monkeypatch.setattr(compiler, "compile_for", lambda one, target: go.wait(LONG) and compile_for(one, target))
    jobs = ahead.begin(SOURCES[:1], HOPPER)
    assert ahead.begin(SOURCES[:1], HOPPER) == [] and not jobs[0].done()
    with ThreadPoolExecutor(3) as threads:
        asked = [threads.submit(compiler.stored, SOURCES[0], HOPPER) for _ in range(3)]
        assert not any(one.done() for one in asked)
        go.set()
        kernels = [one.result(LONG) for one in asked]
    assert compilations == SOURCES[:1]
    assert len({id(one) for one in kernels}) == 3  # each is loaded on a device of its own
    assert len({one.kernel for one in kernels}) == 1


def test_a_refusal_comes_to_whoever_asks_for_that_kernel(monkeypatch):
    compile_for = compiler.compile_for

    def refuses(one, target):
        if one == SOURCES[1]:
            raise UnsupportedKernel("one", "is wrong", "leave it")
        return compile_for(one, target)

    monkeypatch.setattr(compiler, "compile_for", refuses)
    ahead.compile_all(SOURCES[:3], HOPPER)
    assert compiler.stored(SOURCES[0], HOPPER) and compiler.stored(SOURCES[2], HOPPER)
    for _ in range(2):
        with pytest.raises(UnsupportedKernel, match="leave it"):
            compiler.stored(SOURCES[1], HOPPER)


def test_whoever_watches_triton_compile_sees_one_kernel_at_a_time(compilations, monkeypatch):
    monkeypatch.setenv("TRITON_KERNEL_DUMP", "1")
    ahead.compile_all(SOURCES, HOPPER)
    assert compilations == []
