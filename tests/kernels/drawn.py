"""Drawn problems of attention beside dense attention: patterns, shapes, types, options, layouts, magnitudes, tilings,
NaN behind a padded length, gradients of two kernels and of one.

`python -m tests.kernels.drawn [--seconds S] [--seed SEED] [--ptx]`, from the root of the repository. On a
GPU its kernels run there; with TRITON_INTERPRET=1 their sources are interpreted, and with `--ptx` what LLVM made of
them in bfloat16, both as planned for drawn cards; else the CPU's backend is compared. Prints how many were, and every
problem that failed; exits with 1 if one did. Of some thousands in float32 one may miss the policy by a few per cent,
whose floors are for as much luck as tests of fixed problems have.
"""

import argparse
import sys
import time
import traceback
from collections import Counter
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st
from tests.ptx.run import Way, emulated
from triton.runtime.errors import OutOfResources

import weft
from weft.errors import WeftError
from weft.planning.tiling import DIRECTIONS
from weft.runtime import tuner
from weft.settings import interpreted
from weft.target import GPUS
from weft.testing.strategies import problems
from weft.testing.tolerance import assert_close
from weft.torch.card import at_hand

from .compare import BACKENDS, Case, check, generator, normal, qkv
from .layouts import LAYOUTS
from .planned import planned, results

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
DIMS = ((16, 16), (64, 64), (33, 33), (80, 17), (16, 40), (96, 96), (128, 128))
HEADS = ((2, 1), (1, 1), (2, 2), (3, 1))
OPTIONS = ("scale", "softcap", "sinks", "alibi_slopes")
# What q is multiplied by, and what is added to every score: sums of exponentials beyond what goes without a maximum.
# But for the first, only out and lse are held to the policy, which is for data of unit order: gradients are finite.
USUAL = (1.0, 0.0)
MAGNITUDES = (USUAL, USUAL, USUAL, (3.0, 0.0), (0.01, 0.0), (1.0, 100.0), (1.0, -100.0))
EMULATED = ("sm_80", "sm_90")
BATCH = 20  # problems of one seed: Hypothesis repeats little among them


@dataclass
class Padded(Case):
    """given: what weft gets instead of the tensors: the same but for NaN in keys and values behind the length."""

    given: Any = None

    def weft(self):
        return self.computed() if self.given is None else replace(self, tensors=self.given).computed()

    def computed(self):
        """{name: tensor} of weft's results, on the CPU."""
        return super().weft()


@dataclass
class OnCard(Padded):
    """Computed as planned for a card. ptx: by what was compiled for it, run here."""

    gpu: Any = None
    fixed: tuple = ()
    ptx: bool = False

    def computed(self):
        if not self.ptx:
            return results(self, self.gpu, self.fixed, BACKENDS["triton"])
        with emulated(Way(int(self.gpu.architecture.removeprefix("sm_")))):
            return results(self, self.gpu, self.fixed)


# ---- drawing ---------------------------------------------------------------------------------------------------------
@st.composite
def cases(draw, ptx=False):
    """(Case, whether its scores are of the usual order, what it is in words)."""
    pattern, m, n = draw(problems(3, 100 if ptx else 200))
    length = draw(st.none() | st.none() | st.integers(0, n))  # of keys
    if length is not None:
        pattern = pattern & weft.padding(length)
    dtype = torch.bfloat16 if ptx else draw(st.sampled_from(DTYPES))
    dims, heads, batch = draw(st.sampled_from(DIMS)), draw(st.sampled_from(HEADS)), draw(st.sampled_from((1, 1, 2)))
    layout, (size, more) = draw(st.sampled_from([*LAYOUTS])), draw(st.sampled_from(MAGNITUDES))
    words = (
        f"{pattern} at {m} x {n}, {batch} x {heads} heads, {dims} {dtype}, {layout}, scores times {size:g} {more:+g}"
    )
    random = generator(words)
    q, k, v = qkv(random, (m, n), dtype, heads, dims, batch)
    if more:  # through one dimension
        q[..., 0], k[..., 0] = 8.0, more / 8 * dims[0] ** 0.5
    places = LAYOUTS[layout]
    tensors = [place(x) for place, x in zip(places, (q * size, k, v), strict=True)]
    options, shift = _options(draw, pattern, (m, n), heads[0], dims[0], random)
    case = Padded(pattern, tensors, options=options, shift=shift, with_lse=draw(st.booleans()))
    if length is not None and _on_lines(case):
        seen = (torch.arange(n) < length)[:, None]
        behind = (place(x.where(seen, torch.nan)) for place, x in zip(places[1:], (k, v), strict=True))
        case.given = [tensors[0], *behind]
    if ptx or "triton" in BACKENDS:
        case = OnCard(**vars(case), gpu=_card(draw, ptx), ptx=ptx)
        case.fixed, case.deterministic = _tilings(draw, case), draw(st.booleans())
        words += f", {case.gpu.name}, {dict(case.fixed)}, {'two kernels' if case.deterministic else 'one kernel'}"
    return case, (size, more) == USUAL, f"{words}, {sorted(options)}"


def _on_lines(case):
    """Whether boxes of no grid may reach behind the length."""
    try:
        shares = planned(case, GPUS["h200"])[0].forward
    except WeftError:
        return False
    return all(term.rank == 1 for share in shares for term in share.plan.acsr.terms)


def _options(draw, pattern, at, heads, d, random):
    """(options of a call, what alignment adds to a query's index)."""
    m, n = at
    names = draw(st.sampled_from((*[()] * len(OPTIONS), *((name,) for name in OPTIONS), OPTIONS)))
    alignments = {*pattern.alignments()}
    if "alibi_slopes" in names and m != n and alignments not in ({"top-left"}, {"bottom-right"}):
        names = ()
    known = {"scale": 1.7 * d**-0.5, "softcap": 4.0, "sinks": normal((heads,), random, torch.float32)}
    known["alibi_slopes"] = torch.rand(heads, generator=random)
    return {name: known[name] for name in names}, n - m if alignments == {"bottom-right"} else 0


def _card(draw, ptx):
    """The one at hand, or any."""
    if at_hand() and not ptx:
        return at_hand().gpu
    return draw(st.sampled_from([gpu for gpu in GPUS.values() if not ptx or gpu.architecture in EMULATED]))


def _tilings(draw, case):
    """Some directions under a tiling by chance, the others as a call chooses."""
    try:
        plan = planned(case, case.gpu)[0]
    except WeftError:
        return ()
    if plan.by_rows is not None or not plan.nnz:
        return ()
    some = draw(st.sets(st.sampled_from(DIRECTIONS)))
    return tuple((name, draw(st.sampled_from([*tuner.candidates(name, plan)[1]]))) for name in sorted(some))


# ---- comparing -------------------------------------------------------------------------------------------------------
def run(seconds, seed, ptx):
    """How many of what; prints what failed."""
    until, tally = time.monotonic() + seconds, Counter()

    @settings(
        max_examples=BATCH, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(cases(ptx))
    def each(drawn):
        if time.monotonic() < until:
            tally[outcome(*drawn)] += 1

    for batch in count():
        if time.monotonic() >= until:
            return tally
        seeded(f"{seed} {batch}")(each)()


def compare(case, usual):
    """What came of one problem; raises AssertionError, or whatever went wrong."""
    try:
        (check if usual else check_forward)(case)
    except OutOfResources:
        return "beyond this card"
    except WeftError as error:
        return f"refused ({type(error).__name__})"
    return "right"


def check_forward(case):
    """Raise AssertionError unless out and lse are right, and gradients finite."""
    found, truth, plain = case.weft(), case.dense(torch.float64), case.dense(case.tensors[0].dtype)
    for name, x in found.items():
        if name in ("out", "lse"):
            assert_close(name, x, truth[name], plain[name])
        else:
            assert x.isfinite().all(), name


def outcome(case, usual, words):
    """What came of one problem; prints it if it failed."""
    try:
        return compare(case, usual)
    except Exception:
        print(f"FAILED: {words}\n{traceback.format_exc()}", flush=True)
        return "failed"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ptx", action="store_true")
    asked = parser.parse_args()
    if asked.ptx and interpreted():
        parser.error("--ptx runs what was compiled: leave TRITON_INTERPRET out")
    tally = run(**vars(asked))
    print(", ".join(f"{count} {what}" for what, count in tally.most_common()))
    return int(tally["failed"] > 0)


if __name__ == "__main__":
    sys.exit(main())
