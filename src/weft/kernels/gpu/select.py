"""Which of the kernels that a plan lists computes a call: what depends on strides, alignment and options is asked here,
and nothing else. `weft.planning.choose` says what a plan lists.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from weft.kernels.gpu.constants import STATS
from weft.kernels.gpu.descriptors import batch_axis
from weft.kernels.gpu.layout import Layout, Options, dense_rows
from weft.kernels.gpu.score.slots import under
from weft.kernels.gpu.tables.batches import Waves
from weft.planning.attention_plan import AttentionPlan
from weft.planning.boxes import whole_boxes
from weft.planning.families import components, fused_backward, one_kernel, split_kv, tile
from weft.planning.heads import Share
from weft.planning.problem import Problem
from weft.planning.tiling import Direction
from weft.score.reads import added_to_score
from weft.score.value import composed
from weft.settings import interpreted

MOST_SUMS = 1 << 28  # of pairs of components over all batch rows, of which programs leave a part


class Tiles(NamedTuple):
    """What the kernels of one direction walk. groups: warp groups specialise, as those of the hopper family do."""

    shares: tuple[Share, ...]
    groups: bool


def forward(plan: AttentionPlan, layout: Layout, options: Options) -> str:
    """The family that computes the forward: what the plan takes, but for options that it does not have.

    The name of tiles also stands for warp groups, which `tiles` may give them to.
    """
    if by_components(plan, layout, options):
        return components.NAME
    return tile.NAME if options.by_pairs or plan.by_rows is None else split_kv.NAME


def gradients(plan: AttentionPlan, layout: Layout, options: Options) -> str:
    """The family that makes gradients: the first that the plan lists and that layout and options allow.

    Under score functions and dropout two kernels of tiles make them, or that of components.
    """
    if by_components(plan, layout, options):
        return components.NAME
    if options.by_pairs:
        return tile.NAME
    if plan.fused_backward and may_specialise(layout, options, plan.problem):
        return fused_backward.NAME
    summing = not options.deterministic and lists_one_kernel(plan) and may_sum(plan, layout, options)
    return one_kernel.NAME if summing else tile.NAME


def by_components(plan: AttentionPlan, layout: Layout, options: Options) -> bool:
    """Whether layout and options allow the kernels of components: score functions that only add, and the same to all
    batch rows. Without any they were not timed.
    """
    if not options.score or isinstance(plan.components, str):
        return False
    others = options.softcap is not None or options.dropout or options.rescaled or options.with_delta or options.tf32
    if others or layout.sinks is not None or layout.slopes is not None or any(form.along for form in layout.tables):
        return False
    problem, expression = plan.problem, composed(options.score)
    if not added_to_score(expression) or "b" in expression.leaves:
        return False
    if not (layout.aligned and dense_rows(layout.named, problem.dtype)):
        return False
    far = max(problem.m, problem.n) * max(stride[2] for stride in layout.strides)
    sums = sum(options.wanted) * problem.batch * problem.q_heads * plan.components.count * components.SIZE**2
    return far < 1 << 31 and sums <= MOST_SUMS


def may_sum(plan: AttentionPlan, layout: Layout, options: Options) -> bool:
    """Whether layout and options allow the kernel that adds to dQ in memory: where warp groups do, theirs."""
    allowed = may_specialise(layout, options, plan.problem) and _reach(plan.summing, layout, plan.problem)
    return not plan.sums_by_groups or allowed


def lists_one_kernel(plan: AttentionPlan) -> bool:
    """Whether one kernel of tiles makes dQ beside dK and dV, where the order of sums is free."""
    return plan.in_one is not None


def tiles(direction: Direction, plan: AttentionPlan, layout: Layout, options: Options) -> Iterator[Tiles]:
    """The tiles of one direction that layout and options allow, in the order of preference; see `are_near` too."""
    specialised = plan.specialised(direction)
    allowed = specialised is not None and may_specialise(layout, options, plan.problem)
    if specialised is not None and allowed and _reach(specialised, layout, plan.problem):
        yield Tiles(specialised, True)
    yield Tiles(plan.unspecialised(direction, under(options)), False)


def may_specialise(layout: Layout, options: Options, problem: Problem) -> bool:
    """Whether kernels whose warp groups specialise compute such options, for tensors that lie so."""
    return not why_unspecialised(layout, options, problem)


def why_unspecialised(layout: Layout, options: Options, problem: Problem) -> str:
    """Why they do not; "" where they do."""
    if options.softcap or layout.slopes or options.rescaled or options.by_pairs:
        return "its scores are more than a product and a scale"
    if not layout.aligned or not dense_rows(layout.named, problem.dtype):
        return "descriptors want rows of consecutive numbers that begin at multiples of 16 bytes"
    if not all(all(stride[:3]) for stride in layout.strides):
        return "descriptors of rows that are one are not known to work"
    return "kernels are interpreted" if interpreted() else ""


def _reach(shares: tuple[Share, ...], layout: Layout, problem: Problem) -> bool:
    """Whether descriptors reach the tokens of shares, and no others: on three axes batch rows have no axis of their own
    (`descriptors.batch_axis`).
    """
    nests = [nest for share in shares for nest in share.plan.nests if len(nest.box) > 2]
    sizes = problem.batch, problem.q_heads
    found = {batch_axis(nest.q.shape, sizes, s[:3]) for nest in nests for s in layout.strides}
    if found != {"places"}:
        return found <= {"heads"}
    alike = all(part.k.shape == nest.q.shape for nest in nests for part in nest.parts)
    # a box that ends beyond the first axis would reach the next batch row
    return alike and all(nest.q.shape[0] % nest.box[0] == 0 and whole_boxes(nest) is not None for nest in nests)


def are_near(waves: Waves, layout: Layout) -> bool:
    """Whether no tile spans 2^31 elements."""
    widest = max(STATS, *(stride[2] for stride in layout.strides))
    return all(wave.span * widest < 1 << 31 for wave in waves.waves)
