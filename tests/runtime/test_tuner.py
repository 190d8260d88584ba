"""The two stages, the budget, the final and its noise, interruption: on a card that is made up."""

import random
from collections import Counter
from dataclasses import replace

import pytest

import weft
from weft.errors import OptionError, UnsupportedError
from weft.kernels.backend import CpuBackend, Timing
from weft.planning.attention_plan import plan_attention
from weft.planning.candidates import LIMITS
from weft.planning.choose import offered
from weft.planning.families.base import Pass
from weft.planning.families.tile import menu
from weft.planning.problem import Problem
from weft.planning.resources import footprint
from weft.planning.tiling import DIRECTIONS, Tiling
from weft.runtime import evidence, tuner
from weft.runtime.rows import Decision, Measured
from weft.runtime.tuner import BATCH, SHAPES, Budget, candidates, draw, shape, shapes, tune
from weft.target import GPU, GPUS

from .fakes import CARD, PROBLEM, VERSIONS, FakeBackend, best_at

PATTERN = weft.causal() & weft.window(left=300)
PLAN = plan_attention(PATTERN, PROBLEM, GPU)
LARGE = Budget(3600, 10_000)


def forward(backend, budget=LARGE, **more):
    report = tune(PATTERN, PROBLEM, backend, budget, ("forward",), **more)
    assert backend.open == 0  # the meter was closed
    return report


def known():
    return evidence.rows_of(evidence.Subject.of(PATTERN, PROBLEM, CARD), VERSIONS)


# ---- candidates and stages -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_candidates_hold_the_untuned_choice_and_limits_of_registers(direction):
    untuned, predicted = candidates(direction, PLAN)
    assert untuned == PLAN.towards(direction)[0].plan.tiling and untuned in predicted
    assert list(predicted.values()) == sorted(predicted.values())
    assert {one.registers for one in predicted} >= {0, *LIMITS}
    rows = [(share.plan.acsr, 8) for share in PLAN.towards(direction)]
    compiled = offered(Pass(direction, rows, PROBLEM, GPU))
    limited = [one for one in predicted if one.registers and one not in compiled]
    assert all(footprint(direction, PROBLEM, one, GPU).registers <= one.registers for one in limited)


@pytest.mark.parametrize(
    ("pattern", "rank", "gpu"), [(weft.neighborhood((8, 16, 16), (3, 3, 3)), 3, GPU), (PATTERN, 1, GPUS["mi300x"])]
)
def test_no_limits_where_kernels_take_none(pattern, rank, gpu):
    """But those of what is offered, which are not heeded there, and those of warp groups."""
    _, predicted = candidates("forward", plan_attention(pattern, PROBLEM, gpu))
    others = [one for one in predicted if not one.groups and one not in menu("forward", PROBLEM, rank, gpu)]
    assert {one.registers for one in others} == {0}


def test_shapes_are_stood_for_by_their_best():
    _, predicted = candidates("dq", PLAN)
    found = shapes(predicted, 4)
    assert len(found) == len({shape(one) for one in found}) == 4
    for one in found:
        assert predicted[one] == min(s for t, s in predicted.items() if shape(t) == shape(one))
    assert [predicted[one] for one in found] == sorted(predicted[one] for one in found)
    assert len(shapes(predicted, 100)) == len({shape(one) for one in predicted})


def measured(predicted, tiling, factor):
    seconds = predicted[tiling] * factor
    return Measured("dq", tiling, predicted[tiling], Timing(seconds, seconds, seconds))


def test_draws_follow_rewards():
    _, predicted = candidates("dq", PLAN)
    first, second, *_ = shapes(predicted, 3)
    rows = {first: measured(predicted, first, 3.0), second: measured(predicted, second, 1.0)}
    dice = random.Random(1)
    one = Counter(shape(draw(predicted, rows, set(), 1, dice)[0]) for _ in range(200))
    assert set(one) <= {shape(first), shape(second)}  # nothing of a shape that was not measured
    assert one[shape(second)] > 190  # the other came out three times slower than predicted
    late = {t for t in predicted if shape(t) == shape(second)}
    rest = draw(predicted, rows, late, 1000, dice)
    assert len(rest) == len(set(rest)) and {shape(t) for t in rest} == {shape(first)}
    assert first not in rest and len(rest) == sum(shape(t) == shape(first) for t in predicted) - 1
    assert draw(predicted, {}, set(), 5, dice) == []


def test_two_stages_then_a_final():
    backend = FakeBackend()
    seen = []
    forward(backend, show=lambda direction, stage, rows: seen.append((stage, len(rows))))
    untuned, predicted = candidates("forward", PLAN)
    first, second, *draws, final = backend.tilings("forward")
    assert first == [untuned] and [untuned, *second] == list(dict.fromkeys([untuned, *shapes(predicted, SHAPES)]))
    assert [tiling for _, tiling in backend.prepared] == [*first, *second]
    visited = {shape(one) for one in (*first, *second)}
    drawn = [one for some in draws for one in some]
    assert all(len(some) <= BATCH for some in draws) and len(set(drawn)) == len(drawn)
    assert {*first, *second, *drawn} == {one for one in predicted if shape(one) in visited}  # until nothing is left
    assert final[0] == untuned and len(final) == 1 + tuner.FINALISTS
    assert [stage for stage, _ in seen] == ["structure"] * 2 + ["parameters"] * len(draws) + ["final"]
    assert [rounds for *_, rounds in backend.asked] == [2] * (len(draws) + 2) + [tuner.ROUNDS]


def test_the_budget_of_measurements():
    backend = FakeBackend()
    tune(PATTERN, PROBLEM, backend, Budget(3600, 11))
    for direction in DIRECTIONS:
        *before, final = backend.tilings(direction)
        assert sum(map(len, before)) == 11 and len(final) == 1 + tuner.FINALISTS


def test_without_time_the_untuned_choice_is_measured_all_the_same():
    backend = FakeBackend()
    report = tune(PATTERN, PROBLEM, backend, Budget(0.0))
    assert [(one.direction, [one.untuned]) for one in report.directions] == [
        (direction, tilings) for direction, tilings, _, _ in backend.asked
    ]
    assert all(waits for _, _, waits, _ in backend.asked) and all(one.winner is None for one in report.directions)


def test_where_the_best_of_a_shape_cannot_run_the_next_stands_for_it():
    _, predicted = candidates("forward", PLAN)
    first = shapes(predicted, SHAPES)[1]
    others = [one for one in predicted if shape(one) == shape(first)]
    backend = FakeBackend(lambda direction, tiling: "no room" if tiling in others[:2] else 1e-3)
    forward(backend)
    _, *structure = backend.tilings("forward")[:4]
    assert [one for some in structure for one in some if shape(one) == shape(first)] == others[:3]


def test_what_is_not_compiled_in_time_is_no_evidence_and_is_not_asked_for_again():
    untuned, predicted = candidates("forward", PLAN)
    slow = next(one for one in shapes(predicted, SHAPES) if one != untuned)
    backend = FakeBackend(slow=(slow,))
    (one,) = forward(backend).directions
    assert slow not in one.measured and slow not in {row.tiling for row in known() if isinstance(row, Measured)}
    assert sum(slow in some for some in backend.tilings("forward")) == 1


# ---- who wins --------------------------------------------------------------------------------------------------------
def test_the_best_wins():
    untuned, predicted = candidates("forward", PLAN)
    winner = next(one for one in reversed(predicted) if shape(one) == shape(untuned) and one != untuned)
    (one,) = forward(FakeBackend(best_at(winner))).directions
    assert one.winner == one.chosen == winner and one.gain == pytest.approx(1.5, rel=0.02)
    assert known()[-1] == Decision("forward", winner)


@pytest.mark.parametrize("gain", [1.0, 1.01])
def test_the_untuned_choice_stays_within_the_noise(gain):
    untuned, predicted = candidates("forward", PLAN)
    other = next(one for one in predicted if one != untuned)
    (one,) = forward(FakeBackend(best_at(other, gain), noise=0.02)).directions
    assert one.winner is None and one.chosen == untuned and one.gain == 1
    assert known()[-1] == Decision("forward", None)


def test_luck_in_a_stage_is_not_enough():
    _, predicted = candidates("forward", PLAN)
    lucky = shapes(predicted, SHAPES)[1]
    times = iter([0.5e-3])  # only when it is measured first

    def truth(direction, tiling):
        return next(times, 1e-3) if tiling == lucky else 1e-3

    backend = FakeBackend(truth)
    (one,) = forward(backend).directions
    assert lucky in backend.tilings("forward")[-1] and one.winner is None


def test_only_finalists_can_win():
    untuned, predicted = candidates("forward", PLAN)
    others = [one for one in predicted if one != untuned and shape(one) == shape(untuned)]
    fast = {one: 0.5e-3 * (1 + i / 100) for i, one in enumerate(others[: tuner.FINALISTS + 1])}
    met = Counter()

    def truth(direction, tiling):
        met[tiling] += 1
        return 1e-3 if met[tiling] > 1 else fast.get(tiling, 1e-3)  # all were lucky

    (one,) = forward(FakeBackend(truth)).directions
    assert one.winner is None


def test_kernels_that_cannot_run_are_evidence():
    def truth(direction, tiling):
        return "out of resource:\n  shared memory" + "." * 1000 if tiling.stages == 4 else 1e-3

    (one,) = forward(FakeBackend(truth)).directions
    failed = [row for row in one.measured.values() if row.timing is None]
    assert failed and all(
        row.tiling.stages == 4 and row.why.startswith("out of resource: shared memory.") and len(row.why) == 200
        for row in failed
    )
    assert {row.tiling for row in known() if isinstance(row, Measured) and row.timing is None} == {
        row.tiling for row in failed
    }


def test_whatever_runs_beats_what_does_not():
    untuned, _ = candidates("forward", PLAN)
    (one,) = forward(FakeBackend(lambda d, tiling: "no room" if tiling == untuned else 1e-3)).directions
    assert one.winner not in (None, untuned) and one.gain == float("inf")


def test_nothing_runs():
    (one,) = forward(FakeBackend(lambda direction, tiling: "no room")).directions
    assert one.winner is None and one.chosen == one.untuned and one.gain == 1


# ---- evidence --------------------------------------------------------------------------------------------------------
def test_what_is_known_is_not_measured_again():
    first, second = FakeBackend(), FakeBackend()
    forward(first, Budget(3600, 12))
    forward(second)
    *before, _ = first.tilings("forward")
    *after, final = second.tilings("forward")
    assert not {t for some in before for t in some} & {t for some in after for t in some}
    assert len(final) == 1 + tuner.FINALISTS  # what is decided is measured anew


@pytest.mark.parametrize("after", [0, 1, 3])
def test_interruption_keeps_what_was_measured(after):
    untuned, predicted = candidates("forward", PLAN)
    winner = shapes(predicted, SHAPES)[1 if shapes(predicted, SHAPES)[0] == untuned else 0]
    backend = FakeBackend(best_at(winner))
    backend.interrupt_after = after
    report = tune(PATTERN, PROBLEM, backend, LARGE)
    assert report.interrupted and report.kept and backend.open == 0
    rows = [row.tiling for row in known() if isinstance(row, Measured)]
    assert rows == [tiling for some in backend.tilings("forward") for tiling in some]
    assert [one.direction for one in report.directions] == (["forward"] if after else [])
    decisions = [row for row in known() if isinstance(row, Decision)]
    assert decisions == {0: [], 1: [Decision("forward", None)], 3: [Decision("forward", winner)]}[after]


def test_interruption_between_directions():
    backend = FakeBackend()
    backend.interrupt_after = 1
    report = tune(PATTERN, PROBLEM, backend, Budget(3600, 1))
    assert report.interrupted and [one.direction for one in report.directions] == ["forward"]
    assert known()[1:] == [Decision("forward", None)]


def test_a_device_that_breaks_leaves_what_was_measured(monkeypatch):
    backend, times = FakeBackend(), FakeBackend.times

    def breaks(self, direction, *rest):
        if direction == "dq":
            raise RuntimeError("the device is gone")
        return times(self, direction, *rest)

    monkeypatch.setattr(FakeBackend, "times", breaks)
    with pytest.raises(RuntimeError, match="the device is gone"):
        tune(PATTERN, PROBLEM, backend, LARGE)
    assert backend.open == 0 and known()[-1] == Decision("forward", None)


def test_it_is_the_same_search_every_time():
    one, other = FakeBackend(), FakeBackend()
    forward(one)
    evidence.opened().clear()
    forward(other)
    assert one.asked == other.asked


# ---- refusals --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("backend", "problem", "says"),
    [
        (CpuBackend(), replace(PROBLEM, device="cpu"), "offers no tilings"),
        (FakeBackend(card=None), PROBLEM, "no GPU at hand"),
    ],
)
def test_where_nothing_can_be_tuned(backend, problem, says):
    with pytest.raises(UnsupportedError, match=says) as raised:
        tune(PATTERN, problem, backend)
    assert raised.value.cure


def test_a_pattern_without_pairs():
    with pytest.raises(OptionError, match="no query sees a key"):
        tune(weft.nothing(), PROBLEM, FakeBackend())


def test_a_forward_by_rows_has_nothing_to_tune():
    pattern = weft.causal(align="bottom-right")
    step = Problem(1, 32, 8, 1, 1 << 16, 64, 64, "bfloat16", "cuda")
    report = tune(pattern, step, FakeBackend(), Budget(3600, 3), ("forward", "dq"))
    assert report.by_rows and [one.direction for one in report.directions] == ["dq"]
    with pytest.raises(OptionError, match="goes by rows"):
        tune(pattern, step, FakeBackend(), LARGE, ("forward",))
    assert not forward(FakeBackend()).by_rows


def test_where_nothing_is_kept(monkeypatch):
    monkeypatch.setenv("WEFT_CACHE_DIR", "off")
    backend = FakeBackend()
    with pytest.raises(OptionError, match="WEFT_CACHE_DIR=off"):
        forward(backend)
    assert backend.asked == []


def test_a_tiling_that_was_measured_and_is_no_candidate_any_more():
    row = Measured("forward", Tiling(16, 16, 1, 1), 1.0, Timing(1e-9, 1e-9, 1e-9))
    evidence.record(evidence.Subject.of(PATTERN, PROBLEM, CARD), "one", [row], VERSIONS)
    (one,) = forward(FakeBackend()).directions
    assert row.tiling not in one.measured and one.winner is None


# ---- gradients that an untuned call makes at once --------------------------------------------------------------------
SHORT = weft.causal() & weft.window(left=127)  # has one walk
WALKED = plan_attention(SHORT, PROBLEM, GPU)
FAST = {direction: list(candidates(direction, WALKED)[1])[5] for direction in ("dq", "dkdv")}


def together(apart, directions=DIRECTIONS, interrupt_after=None, fast=True):
    """(report, what is decided of each direction) where two kernels as they are tuned take `apart` of the one."""

    def truth(part, tiling):
        if part == "gradients":
            return 1e-3 * (apart if tiling else 1.0)
        return 0.5e-3 if fast and tiling == FAST.get(part) else 1e-3

    backend = FakeBackend(truth)
    backend.interrupt_after = interrupt_after
    report = tune(SHORT, PROBLEM, backend, LARGE, directions)
    rows = evidence.rows_of(evidence.Subject.of(SHORT, PROBLEM, CARD), VERSIONS)
    return report, {row.direction: row.winner for row in rows if isinstance(row, Decision)}


def plan_of():
    return plan_attention(SHORT, PROBLEM, GPU, evidence.winners(SHORT, PROBLEM, FakeBackend(), CARD))


def test_gradients_stay_together_where_two_tuned_kernels_are_not_faster():
    assert WALKED.gradients_together
    report, winners = together(1.0)
    assert {one.direction: one.winner for one in report.directions if one.direction != "forward"} == FAST
    assert winners == {"forward": None, "dq": None, "dkdv": None} and not report.together.apart
    assert plan_of().fused_backward is not None


def test_two_tuned_kernels_take_their_place_where_they_are_faster():
    report, winners = together(0.8)
    assert winners == {"forward": None, **FAST} and report.together.apart
    assert plan_of().fused_backward is None and dict(plan_of().fixed) == FAST


def test_two_untuned_kernels_do_where_they_are_faster_than_predicted():
    _, winners = together(0.8, fast=False)
    assert winners["dq"] == WALKED.queries[0].plan.tiling and plan_of().fused_backward is None


def test_what_is_decided_of_one_direction_holds_for_the_other():
    together(0.8)
    report, winners = together(0.8, ("dq",))
    assert winners["dkdv"] == FAST["dkdv"] and report.together.apart
    _, winners = together(1.0, ("dq",))  # which takes back what was decided of both
    assert winners["dq"] is None and winners["dkdv"] is None and plan_of().fused_backward is not None


def test_interrupted_before_gradients_are_timed_whole_nothing_is_decided_of_them():
    backend = FakeBackend()
    tune(SHORT, PROBLEM, backend, LARGE)
    assert [part for part, *_ in backend.asked][-1] == "gradients"
    evidence.opened().clear()
    report, winners = together(0.8, interrupt_after=len(backend.asked) - 1)
    assert report.interrupted and set(winners) == {"forward"} and report.together.one is None
    assert plan_of().fused_backward is not None


def test_a_forward_alone_leaves_gradients_together():
    report, _ = together(0.8, ("forward",))
    assert report.together is None
    fixed = (("forward", candidates("forward", WALKED)[0]),)
    assert plan_attention(SHORT, PROBLEM, GPU, fixed).fused_backward is not None
