"""The problems that rates of a GPU are fitted on, and those that predictions are judged on, which are drawn by chance.

A problem is named by its pattern and sizes alone, so that rows can be read back: see `Case.text`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from weft.pattern.algebra import Pattern
from weft.pattern.parse import parse
from weft.planning.problem import Problem
from weft.testing.workloads import WORKLOADS

DIMS = (64, 128)
OTHERS = (96, 160, 192, 256)  # head dimensions at which lines of one term are fitted
JUDGED = 60


@dataclass(frozen=True)
class Case:
    """A pattern, as text or as a named workload, and sizes (batch, heads, tokens, D)."""

    pattern: str
    batch: int
    heads: int
    tokens: int
    d: int

    @property
    def text(self) -> str:
        return f"{self.pattern} @ {self.batch},{self.heads},{self.tokens},{self.d}"

    @staticmethod
    def of(text: str) -> Case:
        """Back from `text`."""
        pattern, sizes = text.split(" @ ")
        return Case(pattern, *(int(x) for x in sizes.split(",")))

    @property
    def problem(self) -> Problem:
        h, n, d = self.heads, self.tokens, self.d
        return Problem(self.batch, h, h, n, n, d, d, "bfloat16", "cuda")

    def make(self) -> Pattern:
        """The pattern itself."""
        return WORKLOADS[self.pattern].make() if self.pattern in WORKLOADS else parse(self.pattern)


def core() -> list[Case]:
    """The core dozen."""
    found = [w for w in WORKLOADS.values() if "core" in w.tags]
    return [Case(w.name, w.batch, w.q_heads, w.m, w.d) for w in found]


def fitted() -> list[Case]:
    """Problems of every structure, from short to long runs, few to many programs."""
    sizes = [(d, some) for d in DIMS for some in _FITTED] + [(d, some) for d in OTHERS for some in _LINES]
    return [Case(pattern, 1, heads, tokens, d) for d, (pattern, heads, tokens) in sizes]


_FITTED = (
    ("full()", 16, 2048),
    ("full()", 8, 8192),
    ("full()", 12, 16384),
    ("causal()", 16, 2048),
    ("causal()", 16, 8192),
    ("causal()", 4, 16384),
    ("causal()", 12, 20480),
    ("causal() & window(left=63)", 16, 16384),
    ("causal() & window(left=255)", 16, 16384),
    ("causal() & window(left=1000)", 16, 16384),
    ("causal() & window(left=1000)", 8, 4096),
    ("causal() & window(left=4095)", 16, 16384),
    ("causal() & window(left=1500)", 16, 32768),
    ("window(left=100, right=100)", 16, 16384),
    ("window(left=500, right=500)", 8, 3000),
    ("window(left=700, right=700)", 16, 8192),
    ("dilated(left=800, right=800, step=4)", 16, 16384),
    ("chunks(500) & causal()", 16, 16384),
    ("chunks(2048)", 16, 16384),
    ("chunks(3000) & causal()", 16, 32768),
    ("documents([1000, 3000, 500, 7000, 2000, 1500, 900, 484]) & causal()", 16, 16384),
    ("documents([" + ", ".join(["300", "100", "50", "600"] * 8) + "]) & causal()", 16, 8400),
    ("documents([4000, 4000, 192])", 16, 8192),
    ("longformer(256, global_tokens=64)", 16, 8192),
    ("longformer(100, global_tokens=20)", 8, 12288),
    ("longformer(300, global_tokens=50)", 4, 8192),
    ("longformer(512, global_tokens=16)", 16, 16384),
    ("longformer(384, global_tokens=32)", 48, 16384),  # many programs beside those of the tokens that all see
    ("longformer(200, global_tokens=100)", 32, 16384),
    ("causal() & (strided(64) | window(left=63))", 16, 8192),
    ("causal() & (strided(128) | window(left=127))", 16, 16384),
    ("causal() & (window(left=99) | periodic_keys(100))", 16, 16384),  # columns beside a window
    ("causal() & (window(left=255) | periodic_keys(64))", 8, 8192),
    ("window(left=200, right=200) | periodic_keys(100)", 12, 12288),
    ("causal() & (window(left=1023) | global_tokens(4))", 16, 16384),
    ("prefix(1000) | causal() & window(left=500)", 16, 8192),
    ("neighborhood((64, 64), (7, 7))", 16, 4096),
    ("neighborhood((128, 128), (13, 13))", 16, 16384),
    ("neighborhood((128, 96), (40, 30))", 16, 12288),
    ("neighborhood((128, 128), (21, 21), dilation=2)", 8, 16384),
    ("neighborhood((16, 24, 32), (5, 9, 9))", 16, 12288),
    ("neighborhood((16, 32, 32), (8, 16, 16))", 16, 16384),
    ("neighborhood((24, 32, 32), (7, 7, 15))", 8, 24576),
    ("neighborhood((24, 40, 48), (12, 16, 20))", 12, 46080),
)


_LINES = (  # kept times have some of these at each head dimension
    ("full()", 8, 4096),
    ("causal()", 16, 4096),
    ("causal()", 16, 16384),
    ("causal()", 4, 8192),
    ("causal() & window(left=255)", 16, 8192),
    ("causal() & window(left=1000)", 16, 8192),
    ("window(left=100, right=100)", 16, 8192),
    ("window(left=700, right=700)", 8, 8192),
    ("chunks(1000) & causal()", 8, 8192),
)


def drawn(seed: str, count: int = JUDGED) -> list[Case]:
    """Problems drawn by chance: pattern x length x head dimension, the same ones for the same seed."""
    dice = random.Random(seed)
    return [_draw(dice) for _ in range(count)]


def _draw(dice: random.Random) -> Case:
    d, heads, batch = dice.choice(DIMS), dice.choice((4, 8, 12, 16)), dice.choice((1, 1, 2))
    tokens = int(2 ** dice.uniform(11.5, 15))
    kind = dice.choice(_KINDS)
    pattern, tokens = kind(dice, tokens)
    return Case(pattern, batch, heads, tokens, d)


def _width(dice: random.Random, tokens: int) -> int:
    return int(2 ** dice.uniform(5, 13)) % tokens


def _causal_window(dice: random.Random, tokens: int) -> tuple[str, int]:
    return f"causal() & window(left={_width(dice, tokens)})", tokens


def _window(dice: random.Random, tokens: int) -> tuple[str, int]:
    return f"window(left={_width(dice, tokens)}, right={_width(dice, tokens) // 2})", tokens


def _causal(dice: random.Random, tokens: int) -> tuple[str, int]:
    return dice.choice(("causal()", "full()")), min(tokens, 16384)


def _chunks(dice: random.Random, tokens: int) -> tuple[str, int]:
    return f"chunks({dice.randint(100, 6000)})" + dice.choice(("", " & causal()")), tokens


def _documents(dice: random.Random, tokens: int) -> tuple[str, int]:
    parts = [int(2 ** dice.uniform(5, 12)) for _ in range(dice.randint(3, 30))]
    return f"documents([{', '.join(map(str, parts))}])" + dice.choice(("", " & causal()")), sum(parts)


def _dilated(dice: random.Random, tokens: int) -> tuple[str, int]:
    step = dice.choice((2, 3, 4, 8))
    reach = step * (16 + _width(dice, tokens // step) // 2)
    return f"dilated(left={reach}, right={dice.choice((0, reach))}, step={step})", tokens


def _longformer(dice: random.Random, tokens: int) -> tuple[str, int]:
    return f"longformer({dice.randint(32, 1024)}, global_tokens={dice.randint(1, 128)})", tokens


def _sinks(dice: random.Random, tokens: int) -> tuple[str, int]:
    return f"causal() & (window(left={_width(dice, tokens)}) | global_tokens({dice.randint(1, 64)}))", tokens


def _strided(dice: random.Random, tokens: int) -> tuple[str, int]:
    step = dice.choice((32, 64, 100, 128, 200))
    return f"causal() & (strided({step}) | window(left={step - 1}))", tokens


def _plane(dice: random.Random, _: int) -> tuple[str, int]:
    grid = dice.randint(40, 160), dice.randint(40, 160)
    kernel = tuple(min(dice.randint(3, 48), side) for side in grid)
    return f"neighborhood({grid}, {kernel})", grid[0] * grid[1]


def _video(dice: random.Random, _: int) -> tuple[str, int]:
    grid = dice.randint(8, 24), dice.randint(16, 40), dice.randint(16, 40)
    kernel = tuple(min(dice.randint(3, 20), side) for side in grid)
    return f"neighborhood({grid}, {kernel})", grid[0] * grid[1] * grid[2]


_KINDS = (
    _causal_window, _window, _causal, _chunks, _documents, _dilated, _longformer, _sinks, _strided, _plane, _video,
)  # fmt: skip
