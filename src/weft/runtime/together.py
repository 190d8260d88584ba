"""Gradients that come of one kernel or one walk where no tiling is asked for: are two tuned kernels faster?

A tiling that is asked for of dQ, or of dK and dV, has a call make gradients by two kernels. So what was chosen of
either counts only if the two beat the one, timed as a call has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf

from weft.kernels.backend import Meter, Timing
from weft.planning.attention_plan import AttentionPlan, plan_attention
from weft.planning.tiling import OF_GRADIENTS, Direction, Tiling
from weft.runtime.rows import Decision, Row


@dataclass(frozen=True)
class Together:
    """All gradients, by the one and by the two kernels; None: they cannot run, or were not timed."""

    one: Timing | None = None
    two: Timing | None = None

    @property
    def apart(self) -> bool:
        """Whether two kernels make gradients from now on."""
        return self.two is not None and self.two.clearly_below(self.one)

    def decisions(self, chosen: Mapping[Direction, Tiling]) -> list[Decision]:
        """chosen: what was tuned. That gradients stay together takes back what was decided of either before."""
        if self.apart:
            return [Decision(direction, tiling) for direction, tiling in chosen.items()]
        return [Decision(direction, None) for direction in OF_GRADIENTS]


def settled(plan: AttentionPlan, chosen: Mapping[Direction, Tiling], meter: Meter, rounds: int) -> Together:
    """Whether one kernel or two make gradients of an untuned plan, by the card at hand; they take turns."""
    apart = plan_attention(plan.pattern, plan.problem, plan.target, tuple(chosen.items()))
    found = meter.times("gradients", [plan, apart], inf, rounds)
    one, two = (timing if isinstance(timing, Timing) else None for timing in found)
    return Together(one, two)


def in_force(known: Iterable[Row]) -> dict[Direction, Tiling]:
    """The tilings of gradients that hold by evidence."""
    last = {row.direction: row.winner for row in known if isinstance(row, Decision)}
    return {one: tiling for one in OF_GRADIENTS if (tiling := last.get(one)) is not None}
