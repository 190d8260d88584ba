"""Tables on a device: their memory is given back when no kernel may read it any more, and not before."""

import gc
import threading

import numpy as np
import pytest
import torch

import weft
from weft import caching
from weft.kernels.gpu.program import Table
from weft.kernels.gpu.programs.launches import packed
from weft.planning.attention_plan import plan_attention
from weft.planning.problem import Problem
from weft.settings import interpreted
from weft.target import GPU
from weft.torch import device_tables
from weft.torch.device_tables import on_device

META = torch.device("meta")  # as a GPU, it is another device than the CPU
WORDS = np.arange(5, dtype=np.int32)


@pytest.fixture
def waits(monkeypatch):
    """The devices that were waited for, and how much was idle then."""
    found = []
    monkeypatch.setattr(device_tables, "_idle", [])
    monkeypatch.setattr(device_tables, "MANY", 3)
    monkeypatch.setattr(device_tables, "is_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "synchronize", found.append)
    return found


def put(device):
    """Words that a device has not got yet."""
    return on_device(Table(WORDS), device)


def test_words_are_put_as_they_are(waits):
    there = put(torch.device("cpu"))
    assert torch.equal(there, torch.from_numpy(WORDS))
    del there
    assert not device_tables._idle  # nothing that others could take


def test_memory_that_nobody_holds_is_kept_until_there_is_much(waits):
    held = [put(META) for _ in range(5)]
    addresses = [one.untyped_storage()._cdata for one in held]
    del held[:2]
    assert {one._cdata for one in device_tables._idle} == {*addresses[:2]}
    put(META)  # which nobody holds either
    assert len(device_tables._idle) == 3 and not waits
    put(META)
    assert waits == [META] and len(device_tables._idle) == 1
    assert len(held) == 3


def test_large_tables_are_given_back_at_once(waits, monkeypatch):
    monkeypatch.setattr(device_tables, "LARGE", WORDS.nbytes)
    put(META)
    assert len(device_tables._idle) == 1 and not waits
    held = put(META)
    assert not device_tables._idle and waits == [META] and held is not None


def test_a_capture_is_not_waited_for(waits, monkeypatch):
    monkeypatch.setattr(device_tables, "is_capturing", lambda: True)
    for _ in range(5):
        put(META)
    assert len(device_tables._idle) == 5 and not waits


def test_memory_is_asked_for_apart(waits):
    """By no thread whose memory goes to a pool, as inductor's does before it captures a graph."""
    asked = []

    def copy():
        asked.append(threading.get_ident())
        return torch.empty(3, device=META)

    assert device_tables.kept(copy, META).device == META and asked[0] != threading.get_ident()


def test_what_a_copy_raises_is_raised(waits):
    with pytest.raises(MemoryError):
        device_tables.kept(lambda: (_ for _ in ()).throw(MemoryError), META)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_pool_of_the_caller_gets_no_table():
    device, pool = torch.device("cuda", torch.cuda.current_device()), torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        mine, there = torch.empty(5, device=device), put(device)
    within = [(one["address"], one["address"] + one["total_size"]) for one in pool.snapshot()]
    inside = [any(first <= x.data_ptr() < last for first, last in within) for x in (mine, there)]
    assert inside == [True, False] and there.tolist() == WORDS.tolist()


def test_a_table_is_copied_once(waits):
    """To each device, for as long as the table lives."""
    table, other = Table(WORDS), Table(WORDS)
    there = on_device(table, META)
    assert on_device(table, META) is there
    assert on_device(other, META) is not there
    assert on_device(table, torch.device("cpu")).device.type == "cpu"
    del there
    assert not device_tables._idle  # the table holds it
    del table
    gc.collect()
    assert len(device_tables._idle) == 1


def test_plans_that_are_forgotten_leave_their_tables(waits):
    plan = plan_attention(weft.causal(), Problem(1, 1, 1, 100, 100, 64, 64, "bfloat16", "cuda"), GPU)
    found = [on_device(table, META) for table in packed(plan.forward, plan.problem, False).tables]
    tables = len(found)
    caching.clear()
    gc.collect()
    assert tables and not device_tables._idle  # someone holds them
    del found
    gc.collect()
    assert len(device_tables._idle) == tables


@pytest.mark.gpu
@pytest.mark.skipif(interpreted() or not torch.cuda.is_available(), reason="needs a GPU")
def test_tables_stay_for_kernels_of_another_stream():
    """A kernel waits on one stream while its plan is forgotten, and another stream takes all memory that is free."""
    q, k, v = (torch.randn(1, 2, 512, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    mask = weft.documents(lengths=[100, 28, 300, 84])  # whose bounds are in a table
    truth = weft.attention(q, k, v, mask)
    other = torch.cuda.Stream()
    torch.cuda.synchronize()
    for _ in range(3):
        with torch.cuda.stream(other):
            torch.cuda._sleep(200_000_000)
            found = weft.attention(q, k, v, mask)
        caching.clear()
        gc.collect()
        taken = [torch.full((size,), -1, device="cuda", dtype=torch.int32) for size in range(1, 2000, 16)]
        torch.cuda.synchronize()
        assert torch.equal(found, truth)
        assert len(taken) == 125
        truth = weft.attention(q, k, v, mask)  # planned anew, on the first stream
        torch.cuda.synchronize()
