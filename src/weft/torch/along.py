"""Tables that kernels read along k - q: made of what a score function reads there, one number for each distance.

A read that depends on b, h and k - q alone has few values. With these in memory as long as all distances are, a pair's
value is one load, whose address neighbouring pairs share: no index is computed, and none is clamped.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch

from weft.caching import cached
from weft.kernels.cpu import rules
from weft.kernels.gpu.layout import TableForm
from weft.kernels.options import Modifiers
from weft.planning.attention_plan import AttentionPlan
from weft.planning.problem import Problem
from weft.planning.tiles import TilePlan
from weft.planning.tiling import DIRECTIONS
from weft.score.evaluate import Rule
from weft.score.expression import Builder, Expression, Ref
from weft.score.reads import reads_of
from weft.score.text import SEPARATOR, written
from weft.torch.device_tables import is_capturing

BESIDE = 256  # distances on either side that tiles reach beyond the last token; a multiple of 4, for 16 bytes
MOST = 1 << 22  # numbers of one table: longer ones are read where they are
KEPT: dict[tuple[object, ...], torch.Tensor] = {}
LIMIT = 64  # of these
PLACE = frozenset(("b", "h", "q", "k", "shift"))


class Told(NamedTuple):
    """Score functions as kernels are told of them: text, tables, their forms, which gradients are wanted."""

    score: str = ""
    tables: tuple[torch.Tensor, ...] = ()
    forms: tuple[TableForm, ...] = ()
    wanted: tuple[bool, ...] = ()


class Rewritten(NamedTuple):
    """An expression whose reads along k - q have tables of their own. sources: of each table its number before, and
    the read that it holds along k - q, or None for a table that is read as it is.
    """

    expression: Expression
    sources: tuple[tuple[int, Ref | None], ...]


def told_of(how: Modifiers, plan: AttentionPlan) -> Told:
    """What kernels of a plan are told. Reads are numbered as in the functions themselves."""
    if not how.rules:
        return Told()
    texts: list[str] = []
    tables: list[torch.Tensor] = []
    forms: list[TableForm] = []
    wanted: list[bool] = []
    for rule in how.rules:
        found = rewritten(rule.expression) if in_single_tokens(plan) and _is_short(rule.expression, plan) else None
        if found is None:
            found = Rewritten(rule.expression, tuple((number, None) for number in range(len(rule.tables))))
        texts.append(written(found.expression))
        for number, read in found.sources:
            table = rule.tables[number] if read is None else _along(rule, read, plan.problem, how.shift)
            tables.append(table)
            forms.append(TableForm(str(table.dtype)[6:], tuple(table.shape), table.stride(), read is not None))
            wanted.append(bool(rule.wanted and rule.wanted[number]))
    return Told(SEPARATOR.join(texts), tuple(tables), tuple(forms), tuple(wanted) if any(wanted) else ())


@cached(512)
def in_single_tokens(plan: AttentionPlan) -> bool:
    """Whether neighbours in every tile are neighbouring tokens: on one line, without steps, lists and blocks."""
    return all(_is_plain(share.plan) for direction in DIRECTIONS for share in plan.unspecialised(direction))


def _is_plain(plan: TilePlan) -> bool:
    if plan.blocks is not None:
        return False
    return all(
        len(launch.box) == 1 and launch.q.order is None and part.k.order is None
        and part.rows.is_every and part.keys.is_every
        and all(axis.lanes.q_step == axis.lanes.k_step == 1 and axis.lanes.queries is None and axis.lanes.keys is None
                for axis in part.axes)
        for launch in plan.launches for part in launch.parts
    )  # fmt: skip


def _is_short(expression: Expression, plan: AttentionPlan) -> bool:
    p = plan.problem
    batch = p.batch if "b" in expression.leaves else 1
    return batch * p.q_heads * (p.m + p.n + 2 * BESIDE) <= MOST


# ---- the expression --------------------------------------------------------------------------------------------------
@lru_cache(256)
def rewritten(expression: Expression) -> Rewritten | None:
    """None where no read is along k - q."""
    reads = reads_of(expression)
    along = {read.step for read in reads if read.kind == "diagonals"}
    if not along:
        return None
    make, sources = Builder(), list[tuple[int, Ref | None]]()
    found: dict[Ref, Ref] = {}

    def table_of(source: tuple[int, Ref | None]) -> int:
        if source not in sources:
            sources.append(source)
        return sources.index(source)

    for ref in _needed(expression, along):
        step = expression.steps[ref]
        if ref in along:
            leaves = _leaves(expression, ref)
            zero, apart = make.const(0), make.binary("sub", make.leaf("k"), make.leaf("q"))
            at = tuple(make.leaf(name) if name in leaves else zero for name in "bh")
            found[ref] = make.step("read", step.kind, (*at, apart), table_of((step.value, ref)))
            continue
        value = step.value
        if step.op == "read":
            value = table_of((value, None))
        elif step.op == "size":
            value = table_of((value[0], None)), value[1]
        found[ref] = make.step(step.op, step.kind, tuple(found[a] for a in step.args), value)
    made = make.expression(found[expression.result])
    if [read.kind for read in reads_of(made)] != [read.kind for read in reads]:
        return None  # sums are told apart by the numbers of reads
    return Rewritten(made, tuple(sources))


def _needed(expression: Expression, ends: set[Ref]) -> list[Ref]:
    """Steps that the result needs, where some need no operands, in order."""
    needed: set[Ref] = set()
    waiting = [expression.result]
    while waiting:
        ref = waiting.pop()
        if ref not in needed:
            needed.add(ref)
            waiting += () if ref in ends else expression.steps[ref].args
    return sorted(needed)


def _leaves(expression: Expression, ref: Ref) -> frozenset[str]:
    """Leaves and reads that a step depends on."""
    ops = {expression.steps[one].op for one in _cone(expression, ref)}
    return frozenset(ops & (PLACE | {"read"}))


def _cone(expression: Expression, ref: Ref) -> set[Ref]:
    """The steps that the operands of a step need."""
    found: set[Ref] = set()
    waiting = list(expression.steps[ref].args)
    while waiting:
        one = waiting.pop()
        if one not in found:
            found.add(one)
            waiting += expression.steps[one].args
    return found


# ---- numbers ---------------------------------------------------------------------------------------------------------
def _along(rule: Rule, read: Ref, problem: Problem, shift: int) -> torch.Tensor:
    """What a read gives at all distances, (B or 1, Hq or 1, distances from 0 on), with those below 0 before it."""
    table = rule.tables[rule.expression.steps[read].value]
    number = problem.m + BESIDE + -problem.m % 4
    if table.numel():
        places = _places(rule, read, (problem, number, shift), table.device)
        found = table.reshape(-1)[places].to(torch.float32)
    else:
        found = torch.zeros((1, 1, number + problem.n + BESIDE), device=table.device)
    return found[..., number:]


def _places(rule: Rule, read: Ref, sizes: tuple[Problem, int, int], device: torch.device) -> torch.Tensor:
    """Where the entries lie that are read; kept where no table says it."""
    shapes = tuple(tuple(x.shape) for x in rule.tables)
    key = (rule.expression, read, shapes, sizes, device)
    if key in KEPT:
        return KEPT[key]
    problem, number, shift = sizes
    length = number + problem.n + BESIDE
    length += -length % 4
    at = torch.arange(length, device=device) - number
    env = {"q": (-at).clamp(min=0), "k": at.clamp(min=0), "shift": torch.tensor(shift, device=device)}
    b, h = torch.arange(problem.batch, device=device), torch.arange(problem.q_heads, device=device)
    env |= {"b": b[:, None, None], "h": h[:, None], "score": torch.zeros((), device=device)}
    applied, step = rules.Applied.to(rules.Rule(rule.expression, rule.tables), env), rule.expression.steps[read]
    places = torch.zeros((1, 1, length), dtype=torch.int64, device=device)
    for ref, size in zip(step.args, rule.tables[step.value].shape, strict=True):
        index = torch.as_tensor(applied.value(ref), device=device)
        places = places * size + index.clamp(0, size - 1)
    if "read" not in _leaves(rule.expression, read) and not (device.type == "cuda" and is_capturing()):
        if len(KEPT) >= LIMIT:
            KEPT.clear()
        KEPT[key] = places
    return places
