"""What work is predicted to take, and the rates that say so."""

from dataclasses import replace

import pytest

import weft
from weft.napkin.formulas import attention_memory
from weft.planning.attention_plan import plan_attention
from weft.planning.cost import FLOORS, converting, cost, moved, read, waiting
from weft.planning.families.base import Pass
from weft.planning.families.tile import legal, menu, usual
from weft.planning.rates import Rates, measured, rates
from weft.planning.resources import footprint
from weft.planning.tiling import DIRECTIONS, Tiling
from weft.planning.work import Work
from weft.target import GPU, GPUS

from .helpers import problem, rows_of

WINDOW = weft.causal() & weft.window(left=1023)


def test_more_work_takes_longer():
    tiling = usual("forward", problem())
    small = Work("formula", 1000, 2000, 8000, (2, 8))
    for more in (replace(small, edge=3000), replace(small, full=9000), replace(small, programs=1500)):
        assert cost([more], "forward", problem(), tiling, GPU).seconds > cost(
            [small], "forward", problem(), tiling, GPU
        ).seconds  # fmt: skip
    assert cost([small, small], "forward", problem(), tiling, GPU).launches == 2 * GPU.launch_seconds


def test_causes_add_up_and_nothing_is_below_the_floor():
    for direction in DIRECTIONS:
        plan = plan_attention(WINDOW, problem(), GPU)
        asked = Pass(direction, rows_of(plan, direction), problem(), GPU)
        for tiling in legal(direction, problem(), 1, GPU):
            c = asked.alike(tiling).cost
            assert c.seconds == pytest.approx(c.starts + c.edges + c.full + c.uneven + c.merging + c.launches)
            assert c.seconds > max(getattr(c, name) for name in FLOORS) == getattr(c, c.bound)


def test_rounds():
    """Programs of one length, two at a time on each processor: a round more costs more than an even share of it."""
    rate, at_a_time = Rates(0.0, 1.0, 100.0), GPU.processors * 2

    def takes(programs):
        work = Work("formula", programs, 0, 10 * programs, (0, 10))
        return programs * 1000 / GPU.processors + waiting(work, rate, 2, GPU)

    assert takes(3 * at_a_time) == pytest.approx(3 * takes(at_a_time))
    assert takes(3 * at_a_time) < takes(3 * at_a_time + 1) <= takes(4 * at_a_time)


def test_one_program_far_longer_than_the_rest_bounds_the_whole():
    rate = Rates(0.0, 1.0, 100.0)
    alone = waiting(Work("formula", 1000, 0, 10_000, (0, 10)), rate, 2, GPU)
    assert waiting(Work("formula", 1000, 0, 10_000, (0, 5000)), rate, 2, GPU) > alone + 500_000


def test_gradients_added_in_float32_are_converted():
    """Once, however many launches added to them; outputs of the forward are not."""
    once, twice = Work("formula", 8, 8, 0, (1, 0)), Work("formula", 8, 8, 0, (1, 0), merged=True)
    assert converting([once], "dq", problem(), GPU) == 0
    assert converting([twice, twice], "forward", problem(), GPU) == 0
    assert converting([twice, twice], "dq", problem(), GPU) == 6 * 8 * 8192 * 64 / GPU.bandwidth
    assert converting([twice, twice], "dkdv", problem(), GPU) == 2 * converting([twice], "dq", problem(), GPU)


def test_bytes_of_each_direction():
    """Forward reads q, k, v and writes out and lse; D=64, bfloat16."""
    p = problem(tokens=1000, heads=1)
    assert moved("forward", p) == 2 * 1000 * 4 * 64 + 4 * 1000
    assert moved("dq", p) < moved("dkdv", p) + 2 * 1000 * 64


def test_what_a_forward_tile_holds_is_the_napkin_s_memory():
    """Less the sums of the output, which stay in registers; chunks in flight count as one."""
    for tiling in legal("forward", problem(), 1, GPU):
        chunk = tiling.stages * tiling.cols
        whole = attention_memory(d=64, v=64, g_q=tiling.rows, s_x=chunk, nbytes=2)
        assert footprint("forward", problem(), tiling, GPU).shared == whole - 2 * 64 * tiling.rows


def test_bytes_read_of_a_dense_forward():
    """Queries and output once, keys and values once for each group of queries."""
    work, tiling = Work("formula", 16, 0, 16 * 16, (0, 16)), Tiling(64, 64, 4, 3)
    assert read(work, "forward", problem(1024, heads=1), tiling) == 2 * (2 * 1024 * 64 + 16 * 2 * 1024 * 64)
    assert read(work, "dkdv", problem(1024, heads=1), tiling) > read(work, "forward", problem(1024, heads=1), tiling)


# ---- rates -----------------------------------------------------------------------------------------------------------
def test_measured_rates_are_used_as_they_are():
    table = measured("h200")
    assert len(table) > 500
    (d, direction, kind, tiling), known = next(iter(table.items()))
    assert rates(kind, direction, problem(d=d), tiling, GPU) == known


@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_what_is_offered_was_measured(d, direction):
    for rank, kind in ((1, "formula"), (1, "table"), (2, "plane"), (3, "space")):
        for tiling in menu(direction, problem(d=d), rank):
            assert (d, direction, kind, tiling) in measured("h200")


def test_what_was_not_measured_lies_between_what_was():
    tiling = Tiling(64, 64, 4, 3)
    tile = {d: rates("formula", "forward", problem(d=d), tiling, GPU).full for d in (64, 80, 128)}
    assert tile[64] < tile[80] < tile[128]


def test_a_card_without_a_table_is_estimated():
    found = rates("formula", "forward", problem(), Tiling(64, 64, 4, 3), GPUS["a100"])
    assert measured("a100") == {}
    assert found.edge > found.full > 0
    assert found.start > 0
