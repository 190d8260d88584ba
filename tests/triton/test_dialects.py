"""Pointwise fragments are written once: they compile inside Triton and inside Gluon, its dialect with layouts."""

import pytest
from tests.tiers import every

pytest.importorskip("triton")

from weft.kernels.gpu.compile import compiler
from weft.kernels.gpu.compile.source import Source
from weft.settings import interpreted

from .resources import TARGETS, resources

pytestmark = pytest.mark.skipif(interpreted(), reason="Triton interprets, and compiles nothing")
TYPES = (("X", "*fp32"), ("Slopes", "*fp32"), ("scale", "fp32"), ("Out", "*fp32"))
HEAD = """
from collections import namedtuple

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from weft.kernels.gpu.ops.epilogue import Rest, lse_of, merged_lse, output, with_sink
from weft.kernels.gpu.ops.mask import replace
from weft.kernels.gpu.ops.scores import Scaling, exponent, score, scores_of, through_score
from weft.kernels.gpu.ops.softmax import online_weights, weights
from weft.kernels.gpu.tile.config import Config

# Of rows, and of columns: what scores are made with.
Tokens = namedtuple("Tokens", "token")


@{dialect}.jit
def kernel(X, Slopes, scale, Out):
    C: tl.constexpr = Config(direction="forward", d=((0, 64, 64),), dv=((0, 64, 64),), rows=64, cols=32, {options})
    {ranges}
    at = rows[:, None] * 32 + columns[None, :]
    scores = scores_of(C, Scaling(scale, scale, 3, Slopes, (), ()), 0, 1)
    s, capped = score(C, tl.load(X + at), scores, Tokens(rows), Tokens(columns))
    s = replace((s,), (columns[None, :] <= rows[:, None]), float("-inf"))[0]
    p, largest, kept = online_weights(C, s, scores, tl.load(X + rows))
    rest = Rest((p + weights(C, s, scores),), largest, tl.sum(p, 1), kept)
    rest = with_sink(rest, scale, True)
    merging = merged_lse(lse_of(rest, True, False), largest)
    ds = through_score(C, output(rest)[0] * merging.mine[:, None], p, capped)
    tl.store(Out + at, ds + exponent(C, s, scores))


"""
RANGES = {
    "triton": "rows, columns = tl.arange(0, 64), tl.arange(0, 32)",
    "gluon": (
        "L: gl.constexpr = gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])\n"
        "    rows, columns = gl.arange(0, 64, gl.SliceLayout(1, L)), gl.arange(0, 32, gl.SliceLayout(0, L))"
    ),
}
OPTIONS = {
    "linear": "linear=True",
    "softcap and ALiBi": "softcap=True, alibi=True",
    "of keys": "alibi=True, of_keys=True",
}


@pytest.mark.parametrize("dialect", RANGES)
@pytest.mark.parametrize("options", every(3, OPTIONS))
def test_they_compile_in(dialect, options):
    text = HEAD.format(dialect=dialect, ranges=RANGES[dialect], options=OPTIONS[options])
    source = Source(f"{dialect}_{options}".replace(" ", "_"), text, TYPES, (0, 3), 4, 1, gluon=dialect == "gluon")
    taken = resources(compiler.compile_for(source, TARGETS["sm_90"]), "sm_90")
    assert taken.spilled == 0
