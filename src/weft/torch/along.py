"""Tables that kernels read by how far apart a pair is: made of what a score function reads there.

A read that depends on b, h and k - q alone has few values, and so has one of differences of coordinates on a grid. With
one number for each distance in memory, a pair's value is a load. No index is computed or clamped for each pair, and on
a line neighbouring pairs share their address.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import NamedTuple

import torch

from weft.caching import cached
from weft.kernels.cpu import rules
from weft.kernels.gpu.layout import TableForm
from weft.kernels.gpu.score.slots import in_single_tokens, walked_grid
from weft.kernels.options import Modifiers
from weft.planning.attention_plan import AttentionPlan
from weft.planning.problem import Problem
from weft.planning.tiling import DIRECTIONS
from weft.score.evaluate import Rule
from weft.score.expression import Builder, Expression, Ref
from weft.score.reads import reads_of
from weft.score.text import SEPARATOR, written
from weft.torch.kept_places import kept, leaves_of

BESIDE = 256  # distances on either side that tiles reach beyond the last token; a multiple of 4, for 16 bytes
MOST = 1 << 22  # numbers of one table: longer ones are read where they are


class Scores(NamedTuple):
    """Score functions as kernels take them: text, tables, their forms, which gradients are wanted."""

    score: str = ""
    tables: tuple[torch.Tensor, ...] = ()
    forms: tuple[TableForm, ...] = ()
    wanted: tuple[bool, ...] = ()


def as_they_are(how: Modifiers) -> Scores:
    """Score functions with the tables that a call gave."""
    tables = tuple(x for rule in how.rules for x in rule.tables)
    wanted = tuple(bool(w) for rule in how.rules for w in rule.wanted or (False,) * len(rule.tables))
    forms = tuple(_form(x, False) for x in tables)
    return Scores(
        SEPARATOR.join(written(rule.expression) for rule in how.rules), tables, forms, wanted if any(wanted) else ()
    )


def _form(table: torch.Tensor, along: bool) -> TableForm:
    return TableForm(str(table.dtype)[6:], tuple(table.shape), table.stride(), along)


class Rewritten(NamedTuple):
    """An expression some of whose reads have tables by distance.

    sources: of each table its number before, and the read that it holds by distance. That is None for a table that is
    read as it is.
    """

    expression: Expression
    sources: tuple[tuple[int, Ref | None], ...]


def scores_of(how: Modifiers, plan: AttentionPlan) -> Scores:
    """What kernels of a plan take. Reads are numbered as in the functions themselves."""
    if not how.rules:
        return Scores()
    texts: list[str] = []
    tables: list[torch.Tensor] = []
    forms: list[TableForm] = []
    wanted: list[bool] = []
    for rule in how.rules:
        distances = distances_of(plan)
        found = None if distances is None else rewritten(rule.expression, distances.grid)
        if found is None or not _is_short(rule.expression, plan, distances):
            found = Rewritten(rule.expression, tuple((number, None) for number in range(len(rule.tables))))
        texts.append(written(found.expression))
        for number, read in found.sources:
            table = rule.tables[number]
            if read is not None and distances is not None:
                table = _by_distance(rule, read, (plan.problem, distances, how.shift))
            tables.append(table)
            forms.append(_form(table, read is not None))
            wanted.append(bool(rule.wanted and rule.wanted[number]))
    return Scores(SEPARATOR.join(texts), tuple(tables), tuple(forms), tuple(wanted) if any(wanted) else ())


@dataclass(frozen=True)
class Distances:
    """All distances that tiles meet, one after the other. grid: of tokens, () for lines, where it is k - q. before:
    so many are below 0; after: from 0 on.
    """

    grid: tuple[int, ...]
    before: int
    after: int

    def ends(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """A query and a key so far apart, for each; beyond the last tokens any."""
        far = torch.arange(self.before + self.after, device=device) - self.before
        if not self.grid:
            return (-far).clamp(min=0), far.clamp(min=0)
        lengths = [2 * n - 1 for n in self.grid]
        rest = (far + prod(lengths) // 2).clamp(0, prod(lengths) - 1)
        q = k = torch.zeros_like(rest)
        for axis, (n, length) in enumerate(zip(self.grid, lengths, strict=True)):
            apart = rest // prod(lengths[axis + 1 :]) % length - (n - 1)
            q, k = q * n + (-apart).clamp(min=0), k * n + apart.clamp(min=0)
        return q, k


@cached(512)
def distances_of(plan: AttentionPlan) -> Distances | None:
    """Those of the tiles of a plan; None where kernels cannot tell them from places in tiles."""
    p = plan.problem
    if _in_single_tokens(plan):
        return Distances((), p.m + BESIDE + -p.m % 4, p.n + BESIDE + -p.n % 4)
    grids = {walked_grid(plan, direction) for direction in DIRECTIONS}
    grid = grids.pop() if len(grids) == 1 else ()
    if not grid:
        return None
    lengths, steps = [2 * n - 1 for n in grid], _steps(plan)  # boxes reach beyond the grid on every axis
    beside = sum(BESIDE * steps * prod(lengths[axis + 1 :]) for axis in range(len(grid)))
    half = prod(lengths) // 2 + beside
    return Distances(grid, half + -half % 4, half + 1 + (3 - half) % 4)


def _steps(plan: AttentionPlan) -> int:
    """The longest step from one column of a box to the next."""
    shares = [share for direction in DIRECTIONS for share in plan.unspecialised(direction)]
    nests = [nest for share in shares for nest in share.plan.nests]
    return max((axis.lanes.k_step for one in nests for part in one.parts for axis in part.axes), default=1)


def _in_single_tokens(plan: AttentionPlan) -> bool:
    shares = (share for direction in DIRECTIONS for share in plan.unspecialised(direction))
    return all(in_single_tokens(share.plan) for share in shares)


def _is_short(expression: Expression, plan: AttentionPlan, distances: Distances | None) -> bool:
    p = plan.problem
    batch = p.batch if "b" in expression.leaves else 1
    return distances is not None and batch * p.q_heads * (distances.before + distances.after) <= MOST


# ---- the expression --------------------------------------------------------------------------------------------------
@lru_cache(256)
def rewritten(expression: Expression, grid: tuple[int, ...] = ()) -> Rewritten | None:
    """None where no read is along k - q or, on a grid, of differences of its coordinates."""
    reads = reads_of(expression)
    along = {read.step for read in reads if (read.is_on(grid) if grid else read.kind == "diagonals")}
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
            leaves = leaves_of(expression, ref)
            zero, apart = make.const(0), _apart(make, grid)
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


def _apart(make: Builder, grid: tuple[int, ...]) -> Ref:
    """An index by distance: it says what the read depends on, and kernels compute it their own way."""
    k, q = make.leaf("k"), make.leaf("q")
    if not grid:
        return make.binary("sub", k, q)
    total = make.const(0)
    for axis, length in enumerate(grid):
        ends = []
        for token in (k, q):
            pace = prod(grid[axis + 1 :])
            at = make.step("floordiv", "int", (token, make.const(pace))) if pace > 1 else token
            ends.append(make.step("mod", "int", (at, make.const(length))) if axis else at)
        far = make.binary("sub", ends[0], ends[1])
        total = make.binary("add", make.binary("mul", total, make.const(2 * length - 1)), far)
    return total


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


# ---- numbers ---------------------------------------------------------------------------------------------------------
Asked = tuple[Problem, Distances, int]  # and what alignment adds to q


def _by_distance(rule: Rule, read: Ref, asked: Asked) -> torch.Tensor:
    """What a read gives at all distances, (B or 1, Hq or 1, distances from 0 on), with those below 0 before it."""
    table, distances = rule.tables[rule.expression.steps[read].value], asked[1]
    if table.numel():
        found = table.reshape(-1)[_places(rule, read, asked, table.device)].to(torch.float32)
    else:
        found = torch.zeros((1, 1, distances.before + distances.after), device=table.device)
    return found[..., distances.before :]


def _places(rule: Rule, read: Ref, asked: Asked, device: torch.device) -> torch.Tensor:
    """Where the entries lie that are read; kept where no table says it."""
    if "read" in leaves_of(rule.expression, read):
        return _made_places(rule, read, asked, device)
    key = rule.expression, read, tuple(tuple(x.shape) for x in rule.tables), asked
    return kept(key, device, lambda: _made_places(rule, read, asked, device))


def _made_places(rule: Rule, read: Ref, asked: Asked, device: torch.device) -> torch.Tensor:
    problem, distances, shift = asked
    q, k = distances.ends(device)
    b, h = torch.arange(problem.batch, device=device), torch.arange(problem.q_heads, device=device)
    env = {"q": q, "k": k, "b": b[:, None, None], "h": h[:, None], "shift": torch.tensor(shift, device=device)}
    env |= {"score": torch.zeros((), device=device)}
    applied, step = rules.Applied.to(rules.Rule(rule.expression, rule.tables), env), rule.expression.steps[read]
    places = torch.zeros((1, 1, q.numel()), dtype=torch.int64, device=device)
    for ref, size in zip(step.args, rule.tables[step.value].shape, strict=True):
        index = torch.as_tensor(applied.value(ref), device=device)
        places = places * size + index.clamp(0, size - 1)
    return places
