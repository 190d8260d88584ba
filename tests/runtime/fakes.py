"""A backend whose card is made up: what kernels take on it is a function of the tiling, with noise."""

import random
import time
from contextlib import contextmanager

from weft.kernels.backend import Card, Timing
from weft.planning.problem import Problem
from weft.planning.tiling import Tiling
from weft.target import GPU

CARD = Card("Made-up 9000", GPU)
VERSIONS = {"kernels": "0123", "triton": "9.9"}
PROBLEM = Problem(1, 4, 4, 2048, 2048, 64, 64, "bfloat16", "cuda")


def even(direction, tiling):
    """Every kernel takes the same."""
    return 1e-3


def best_at(winner: Tiling, gain=1.5):
    """All take 1 ms but for one."""
    return lambda direction, tiling: 1e-3 / (gain if tiling == winner else 1)


class FakeBackend:
    """truth: seconds of (direction, tiling), or a sentence why it cannot run, of gradients as they are called of all
    tilings that are asked for; noise: half the middle half of calls, as a share. slow: tilings that are not compiled
    before the end. asked: what was timed, call by call.
    """

    name, target = "triton", GPU

    def __init__(self, truth=even, noise=0.01, card=CARD, versions=VERSIONS, slow=()):
        self.truth, self.noise, self.made, self.said, self.slow = truth, noise, card, versions, slow
        self.asked, self.prepared, self.open = [], [], 0
        self.dice = random.Random(0)
        self.interrupt_after = None

    def reasons_against(self, problem, options=()):
        return ()

    def card(self, device):
        return self.made if device == "cuda" else None

    def versions(self):
        return self.said

    @contextmanager
    def meter(self, plan):
        self.open += 1
        try:
            yield self
        finally:
            self.open -= 1

    def prepare(self, direction, plans):
        self.prepared += [(direction, plan.candidate(direction).tilings[0]) for plan in plans]

    def times(self, part, plans, until, rounds=2):
        if self.interrupt_after is not None and len(self.asked) >= self.interrupt_after:
            raise KeyboardInterrupt
        whole = part == "gradients"
        tilings = [plan.fixed if whole else plan.candidate(part).tilings[0] for plan in plans]
        self.asked.append((part, tilings, until > time.monotonic(), rounds))
        return [self._time(part, tiling) for tiling in tilings]

    def _time(self, direction, tiling):
        found = self.truth(direction, tiling)
        if tiling in self.slow or isinstance(found, str):
            return None if tiling in self.slow else found
        middle = found * (1 + self.dice.uniform(-self.noise, self.noise) / 4)
        return Timing(middle, middle * (1 - self.noise), middle * (1 + self.noise))

    def tilings(self, direction):
        """Everything that was timed in one direction, call by call."""
        return [tilings for one, tilings, _, _ in self.asked if one == direction]
