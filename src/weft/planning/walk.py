"""What one walk over queries makes gradients of: a short window, and beside it keys that are few."""

from __future__ import annotations

from dataclasses import dataclass, replace

from weft.planning import few_keys, short
from weft.planning.few_keys import FewKeys
from weft.planning.problem import Problem
from weft.planning.short import ShortWindow
from weft.planning.tiles import TilePlan
from weft.target import Gpu


@dataclass(frozen=True)
class Walk:
    """term: the window's; beside: what each other term has, in their order."""

    window: ShortWindow
    term: int
    beside: tuple[tuple[int, FewKeys], ...] = ()

    @property
    def launches(self) -> list[FewKeys]:
        """The keys beside the window, as many at a time as a launch takes."""
        return [one for _, few in self.beside for one in few.launches()]

    def seconds(self, problem: Problem, gpu: Gpu) -> float:
        """What all launches take."""
        beside = (few_keys.seconds(few, problem, gpu) for _, few in self.beside)
        return short.seconds(self.window, problem, gpu) + sum(beside)


def walk_of(plan: TilePlan, problem: Problem) -> Walk | None:
    """The walk of a plan of queries; None where its terms are others."""
    if plan.blocks is not None:
        return None
    parts = [(launch, part) for launch in plan.launches for part in launch.parts]
    windows = [(short.short_window(replace(launch, parts=(part,)), problem.n), part.term) for launch, part in parts]
    found = next(((window, term) for window, term in windows if window is not None), None)
    if found is None:
        return None
    others = [part.term for _, part in parts if part.term != found[1]]
    beside = [(other, few_keys.few_keys(plan.acsr.terms[other], problem.n)) for other in others]
    if any(few is None for _, few in beside):
        return None
    return Walk(*found, tuple((other, few) for other, few in beside if few is not None))
