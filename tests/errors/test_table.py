"""Every refusal that a user can meet, as one table: each row is triggered, and its message is held to the contract.

A row's id begins with the public entry point. What must have a row: every exception class, every function of `weft`,
every command, and every pair of (module, exception class) that the sources raise, unless ELSEWHERE names its tests.
"""

import ast
import inspect
import warnings
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from click import ClickException
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention.flex_attention import BlockMask
from torch.utils.flop_counter import FlopCounterMode

import weft
from weft import errors, plot
from weft.acsr.packed import packed
from weft.cli import COMMANDS, main
from weft.errors import (
    AlignmentError,
    InputError,
    IrregularError,
    LengthError,
    OptionError,
    PatternError,
    RelabelError,
    UnsupportedError,
    UnsupportedKernel,
    VerificationError,
    WeftError,
)
from weft.napkin.builders import attention as attention_diagram
from weft.napkin.machine import machine, rate
from weft.napkin.relabel import Derivation
from weft.napkin.span import Span
from weft.pattern.pieces import bits
from weft.recognition import load_mask
from weft.testing.refusals import refused
from weft.torch import SparseAttention

ROOT = Path(__file__).resolve().parents[2]
CLASSES = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, WeftError)]
NOTHING_TO_REFUSE = {"full", "nothing"}  # take no arguments

# (module, class) that no row reaches -> the tests that do.
ELSEWHERE = {
    ("weft.recognition.pace", "InputError"): "tests/recognition/test_pace.py",  # while a compiler traces
    ("weft.torch.card", "UnsupportedKernel"): "tests/runtime/test_card.py",  # an old card
    ("weft.torch.gpu", "UnsupportedKernel"): "tests/torch/test_decode.py",
    ("weft.runtime.evidence", "OptionError"): "tests/runtime/test_evidence.py",
    ("weft.runtime.tuner", "OptionError"): "tests/runtime/test_tuner.py",
    ("weft.runtime.tuner", "UnsupportedError"): "tests/runtime/test_tuner.py",
    ("weft.torch.bind", "InputError"): "tests/torch/test_bind.py",
    ("weft.torch.bind", "UnsupportedError"): "tests/torch/test_graphs_of_programs.py",  # while a CUDA graph is captured
    ("weft.kernels.gpu.compile.dedup", "UnsupportedKernel"): "tests/triton/test_shared_code.py",
    ("weft.kernels.gpu.compile.compiler", "UnsupportedKernel"): "tests/triton/test_translated.py",
    ("weft.kernels.gpu.tables.pack", "UnsupportedKernel"): "",  # a plan of 2^30 integers: no test is that patient
    ("weft.jax.gpu.attention", "UnsupportedError"): "tests/jax/test_gpu.py",
    ("weft.jax.gpu.bind", "UnsupportedKernel"): "tests/jax/test_bind.py",
    ("weft.jax.gpu.front", "AlignmentError"): "tests/jax/test_bind.py",
    ("weft.jax.gpu.front", "UnsupportedError"): "tests/jax/test_bind.py",
    ("weft.torch.key_cache", "InputError"): "tests/kernels/test_key_cache.py",
    ("weft.torch.key_cache", "UnsupportedError"): "tests/kernels/test_key_cache.py",
    ("weft.jax.dot_product", "InputError"): "tests/jax/test_dot_product.py",
    ("weft.jax.dot_product", "OptionError"): "tests/jax/test_dot_product.py",
    ("weft.jax.dot_product", "UnsupportedError"): "tests/jax/test_dot_product.py",
    ("weft.jax.equinox", "OptionError"): "tests/jax/test_equinox.py",
    ("weft.jax.implementations", "OptionError"): "tests/jax/test_refusals.py",
    ("weft.jax.implementations", "UnsupportedKernel"): "tests/jax/test_refusals.py",
    ("weft.jax.inputs", "AlignmentError"): "tests/jax/test_refusals.py",
    ("weft.jax.inputs", "InputError"): "tests/jax/test_refusals.py",
    ("weft.jax.inputs", "OptionError"): "tests/jax/test_refusals.py",
    ("weft.jax.inputs", "UnsupportedError"): "tests/jax/test_refusals.py",
    ("weft.jax.mask", "InputError"): "tests/jax/test_tables.py",
    ("weft.jax.nnx", "InputError"): "tests/jax/test_nnx.py",
    ("weft.jax.nnx", "OptionError"): "tests/jax/test_nnx.py",
    ("weft.jax.nnx", "UnsupportedError"): "tests/jax/test_nnx.py",
    ("weft.jax.operator", "UnsupportedError"): "tests/jax/test_transforms.py",
    ("weft.jax.partition", "UnsupportedError"): "tests/jax/test_sharding.py",
    ("weft.jax.sizes", "InputError"): "tests/jax/test_tables.py",
    ("weft.jax.tables", "InputError"): "tests/jax/test_tables.py",
    ("weft.napkin.execute", "RelabelError"): "tests/napkin/test_relabel.py",
    ("weft.napkin.hierarchy", "RelabelError"): "tests/napkin/test_hierarchy.py",
    ("weft.napkin.schedule", "RelabelError"): "tests/napkin/test_relabel.py",
    ("weft.napkin.sketch", "RelabelError"): "tests/napkin/test_sketch.py",
    ("weft.bench.plots", "UnsupportedError"): "tests/bench/test_rows_and_report.py",
    ("weft.bench.report", "OptionError"): "tests/bench/test_rows_and_report.py",
    ("weft.bench.run", "UnsupportedError"): "tests/bench/test_cli.py",
}


def tokens(m=8, n=None, *, heads=(4, 2), dims=(8, 8), batch=2, **how):
    """q, k, v."""
    n = m if n is None else n
    return [torch.zeros(batch, h, length, d, **how) for h, length, d in
            ((heads[0], m, dims[0]), (heads[1], n, dims[0]), (heads[1], n, dims[1]))]  # fmt: skip


def attend(mask=None, /, *, qkv=None, **options):
    return lambda: weft.attention(*(qkv or tokens()), mask if mask is not None else weft.causal(), **options)


def command(*args):
    """The weft error behind what the command line says."""

    def call():
        try:
            main(list(map(str, args)), standalone_mode=False)
        except (ClickException, SystemExit) as said:
            assert isinstance(said, SystemExit) or str(said.__context__) in said.message
            raise said.__context__ from None

    return call


@contextmanager
def absent(*modules):
    with mock.patch.dict("sys.modules", dict.fromkeys(modules)):
        yield


def without(modules, call):
    def less():
        with absent(*modules):
            call()

    return less


def verified(**changes):
    """verify() of a plan that was tampered with; `tiles`: what to change in its tiles."""
    plan = weft.plan(weft.causal() & weft.window(3), *tokens(64))
    if "tiles" in changes:
        share = plan.forward[0]
        changes = {"forward": (replace(share, plan=replace(share.plan, **changes["tiles"])),)}
    return replace(plan, **changes).verify


def differentiated_twice():
    q, k, v = (x.requires_grad_() for x in tokens())
    (first,) = torch.autograd.grad(weft.attention(q, k, v, weft.causal()).square().sum(), q, create_graph=True)
    first.sum().backward()


def in_place(q, k):
    q += 1
    return q >= k


def scalar_only(q, k):
    return bool(q >= k) and k % 7 < 3


def unruly(q, k):
    return (q * q * k) % 1013 < 5


def unseen(q, k):
    return q - k < globals()["SMALL_WINDOW"]


def no_blocks(length):
    none = torch.zeros(1, 1, length // 8, dtype=torch.int32)
    return BlockMask.from_kv_blocks(
        none, none[..., None], BLOCK_SIZE=8, seq_lengths=(length, length), mask_mod=lambda b, h, q, k: q >= k
    )


def attend_captured():
    with mock.patch("weft.torch.masks.is_capturing", lambda: True):
        weft.attention(*tokens(), torch.ones(8, 8, dtype=torch.bool))


class Traced(torch.nn.Module):
    def __init__(self, mask):
        super().__init__()
        self.mask = mask

    def forward(self, q, k, v):
        return weft.attention(q, k, v, self.mask)


def counted_by_fakes():
    with FakeTensorMode(), FlopCounterMode(display=False):
        torch.ops.weft.attention(*tokens(), "causal()", torch.empty(13, dtype=torch.int64), None, None, None, None,
                                 "auto", False, False)  # fmt: skip


def packed_by(queries, keys=None, pattern=None, device="cpu"):
    sums = [None if x is None else torch.tensor(x, device=device) for x in (queries, keys)]
    q, k, v = (x[0].transpose(0, 1) for x in tokens())
    return lambda: weft.varlen_attention(q, k, v, *sums, FULL if pattern is None else pattern)


def masked_tensors():
    with warnings.catch_warnings(action="ignore"):  # a prototype, and says so
        q = torch.masked.masked_tensor(tokens()[0], torch.ones(tokens()[0].shape, dtype=torch.bool))
    weft.attention(q, *tokens()[1:], weft.causal())


def failing(q, k):
    raise RuntimeError("a table is missing")


def at_limits(variable, value):
    from weft import settings

    with mock.patch.dict("os.environ", {variable: value}):
        settings.cache_bytes()
        settings.plans_bytes()


def text_file(folder):
    path = folder / "notes.npy"
    path.write_text("q sees k")
    return path


def other_columns(folder):
    path = folder / "rows.csv"
    path.write_text("date,case\n")
    return path


CAUSAL, FULL = weft.causal(), weft.full()
HALVES = tokens(dtype=torch.float16)
SMALL = ("--shape", "1,4,64,32")
CARD = ("--target", "h200")
BITS = weft.recognize(np.random.default_rng(0).random((40, 40)) < 0.5).pattern  # noise: no affine form
MANY = weft.global_tokens(list(range(0, 1 << 21, 7)))
DIAGRAM = Derivation(attention_diagram())

# (id, exception, words that must be in the message, call); a call that takes `folder` gets an empty one.
TABLE = [
    # ---- patterns --------------------------------------------------------------------------------------------------
    ("causal: offset", PatternError, ("causal", "offset", "2.5"), lambda: weft.causal(offset=2.5)),
    ("causal: far offset", PatternError, ("causal", "between -2**31 and 2**31"), lambda: weft.causal(offset=1 << 40)),
    ("causal: align", PatternError, ("align", "middle", "bottom-right"), lambda: weft.causal(align="middle")),
    ("window: neither side", PatternError, ("left", "right"), weft.window),
    ("window: left", PatternError, ("window", "left", "-1"), lambda: weft.window(left=-1)),
    ("window: far right", PatternError, ("right", "2**31", "use None"), lambda: weft.window(0, 1 << 40)),
    ("chunks: far size", PatternError, ("size", "between 1 and 2**31"), lambda: weft.chunks(1 << 40)),
    ("dilated: step", PatternError, ("dilated", "step", "0"), lambda: weft.dilated(1, 1, 0)),
    ("periodic_keys: phase", PatternError, ("periodic_keys", "phase", "4"), lambda: weft.periodic_keys(4, 4)),
    ("strided: stride", PatternError, ("strided", "stride", "0"), lambda: weft.strided(0)),
    ("fixed: summary", PatternError, ("fixed", "summary", "5"), lambda: weft.fixed(4, summary=5)),
    ("sparse_transformer: kind", PatternError, ("kind", "spiral"), lambda: weft.sparse_transformer(4, 2, "spiral")),
    ("chunks: size", PatternError, ("chunks", "size", "'8'"), lambda: weft.chunks("8")),
    ("blocks: pairs", PatternError, ("blocks", "pairs"), lambda: weft.blocks(64, 3)),
    ("blocks: block", PatternError, ("blocks", "block"), lambda: weft.blocks((4, 4, 4), [(0, 1)])),
    ("keys: stop", PatternError, ("keys", "stop", "str"), lambda: weft.keys(0, "x")),
    ("queries: stop", PatternError, ("queries", "stop", "str"), lambda: weft.queries(0, "x")),
    ("diagonals: first", PatternError, ("diagonals", "first", "str"), lambda: weft.diagonals("x", 3)),
    ("staircase: step", PatternError, ("staircase", "step"), lambda: weft.staircase("from", "x")),
    ("steps: breaks", PatternError, ("steps", "breaks"), lambda: weft.steps("from", "x", [1])),
    ("sized: m", PatternError, ("sized", "m", "str"), lambda: weft.sized(weft.causal(), "x", 3)),
    ("decode_attention: key_count", InputError, ("decode_attention", "key_count", "9"),
     lambda: weft.decode_attention(*tokens(4), weft.causal(align="bottom-right"), 9)),
    ("decode_attention: pages", InputError, ("block_table", "page has 4 tokens", "transpose(1, 2)"),
     lambda: weft.decode_attention(*tokens(4), weft.causal(align="bottom-right"), 3, block_table=torch.zeros(2, 1))),
    ("documents: none", PatternError, ("lengths", "ids", "cu_seqlens"), weft.documents),
    ("documents: cu_seqlens", PatternError, ("cu_seqlens", "1"), lambda: weft.documents(cu_seqlens=[0, 5, 3])),
    ("documents: ids", PatternError, ("documents(ids[1]=0.5)",), lambda: weft.documents(ids=[0, 0.5])),
    ("documents: ragged", PatternError, ("documents", "lengths"), lambda: weft.documents([[1], [2, 3]])),
    ("documents: keys of their own", PatternError, ("1 documents of queries and 2 of keys",),
     lambda: weft.documents([3], key_lengths=[3, 4])),
    ("documents: packed", PatternError, ("1 lengths of queries", "2 of keys"), lambda: packed(FULL, [3], [3, 4])),
    ("documents: packed length", LengthError, ("3 queries and 4 keys",), lambda: packed(FULL, [3], [4]).acsr(3)),
    ("documents: length", LengthError, ("documents", "8", "9"), lambda: weft.documents([3, 5]).acsr(9)),
    ("documents: mixed ids", LengthError, ("ids", "4"), lambda: weft.documents(ids=[0, 1, 0, 1]).to_dense(5)),
    ("padding: no rows", PatternError, ("padding", "lengths"), lambda: weft.padding([])),
    ("prefix: negative", PatternError, ("prefix", "-2"), lambda: weft.prefix([3, -2])),
    ("global_tokens: nothing", PatternError, ("rows", "columns"), lambda: weft.global_tokens(3, False, False)),
    ("random_blocks: block", PatternError, ("random_blocks", "block"), lambda: weft.random_blocks(0, 2)),
    ("segments: rows", PatternError, ("segments", "2"), lambda: weft.segments([3, 5], [[True, False]])),
    ("segments: cell", PatternError, ("segments", "causal"), lambda: weft.segments([3], [["causal"]])),
    ("segments: length", LengthError, ("3 tokens", "M=4"), lambda: weft.segments([3], [[True]]).acsr(4)),
    ("longformer: window", PatternError, ("longformer", "window"), lambda: weft.longformer(-2)),
    ("bigbird: random", PatternError, ("bigbird", "random"), lambda: weft.bigbird(random=-1)),
    ("neighborhood: size", PatternError, ("size=9", "axis 1"), lambda: weft.neighborhood((16, 8), 9)),
    ("neighborhood: stride", PatternError, ("stride", "4"), lambda: weft.neighborhood(8, 3, stride=4)),
    ("neighborhood: rank", PatternError, ("shape", "3 axes"), lambda: weft.neighborhood((2, 2, 2, 2), 1)),
    ("neighborhood: causal", PatternError, ("causal", "neighborhood"), lambda: weft.neighborhood(8, 3, causal="yes")),
    ("neighborhood: length", LengthError, ("64", "60"), lambda: weft.neighborhood((8, 8), 3).acsr(60)),
    ("per_head: none", PatternError, ("per_head",), lambda: weft.per_head([])),
    ("per_batch: no pattern", PatternError, ("per_batch", "None"), lambda: weft.per_batch([FULL, None])),
    ("product: shape", PatternError, ("product", "shape"), lambda: weft.product([FULL], 4)),
    ("block_diffusion: block", PatternError, ("block_diffusion", "block", "0"), lambda: weft.block_diffusion(8, 0)),
    ("shared_prefix: order", PatternError, ("document 0", "after it"), lambda: weft.shared_prefix([3, 4], [1, 1])),
    ("shared_prefix: number", PatternError, ("1 prefixes", "2 documents"), lambda: weft.shared_prefix([3, 4], [0])),
    ("streaming_chunks: left", PatternError, ("left", "-1"), lambda: weft.streaming_chunks(4, -1)),
    ("sliding_tile: tile", PatternError, ("tiles", "shape"), lambda: weft.sliding_tile((8, 8), (3, 2), 1)),
    ("sliding_tile: window", PatternError, ("sliding_tile", "5"), lambda: weft.sliding_tile((8, 8), 2, 5)),
    ("svg_spatial: frame", PatternError, ("svg_spatial", "frame"), lambda: weft.svg_spatial(0)),
    ("svg_temporal: frames", PatternError, ("svg_temporal", "frames"), lambda: weft.svg_temporal(8, 0)),
    ("radial: sink", PatternError, ("radial", "sink"), lambda: weft.radial(4, 4, sink=2)),
    ("rotating_anchors: every", PatternError, ("every", "0"), lambda: weft.rotating_anchors(4, 1, 0)),
    ("block_table: shape", PatternError, ("1 x 1", "2 x 1"), lambda: weft.block_table([3, 4], [7], [[True]])),
    ("block_table: numbers", PatternError, ("booleans",), lambda: weft.block_table([3], [7], [[1]])),
    ("block_table: length", LengthError, ("7 queries", "M=8"), lambda: weft.block_table([7], [7], [[True]]).acsr(8)),
    ("tree: order", PatternError, ("node 1", "parents come first"), lambda: weft.tree([-1, 2, 0])),
    ("tree: lengths", PatternError, ("1 lengths", "2 nodes"), lambda: weft.tree([-1, 0], lengths=[3])),
    ("keys: step", PatternError, ("keys", "step"), lambda: weft.keys(0, 9, step=0)),
    ("queries: align", PatternError, ("queries", "align"), lambda: weft.queries(0, 9, align="left")),
    ("diagonals: width", PatternError, ("diagonals", "width"), lambda: weft.diagonals(0, 9, 4, 0)),
    ("staircase: side", PatternError, ("staircase", "side", "up"), lambda: weft.staircase("up", 4)),
    ("steps: order", PatternError, ("sorted",), lambda: weft.steps("from", [4, 2], [0, 1, 2])),
    ("coarse: block", PatternError, ("coarse", "block"), lambda: weft.coarse(FULL, 0)),
    ("folded: width", PatternError, ("folded", "width"), lambda: weft.folded(FULL, FULL, 0)),
    ("bits: words", PatternError, ("3 words",), lambda: weft.bits([1, 2, 3], 2, 70)),
    ("sized: length", LengthError, ("4 x 4", "5 x 5"), lambda: weft.sized(FULL, 4, 4).acsr(5)),
    # ---- what one asks of patterns -----------------------------------------------------------------------------------
    ("Pattern: truth", PatternError, ("&", "|", "~"), lambda: CAUSAL and FULL),
    ("Pattern: negative length", PatternError, ("m=-1",), lambda: FULL.to_dense(-1)),
    ("Pattern: length", PatternError, ("2.5",), lambda: FULL.acsr(2.5)),
    ("Pattern: head", PatternError, ("head", "2"), lambda: weft.per_head([FULL] * 2).acsr(8, head=2)),
    ("Pattern: unlike heads", PatternError, ("2 and 3", "heads"),
     lambda: (weft.per_head([FULL] * 2) & weft.per_head([FULL] * 3)).to_dense(4)),
    ("Pattern: shift", PatternError, ("shift", "q=0.5"), lambda: CAUSAL.shift(q=0.5)),
    ("Pattern: alignment", AlignmentError, ("align", "M=3", "N=8"), lambda: CAUSAL.to_dense(3, 8)),
    ("Pattern: no affine form", IrregularError, ("1048576",), lambda: (~weft.strided(1000)).acsr(1 << 20)),
    # ---- recognition -------------------------------------------------------------------------------------------------
    ("recognize: numbers", InputError, ("int64",), lambda: weft.recognize(np.ones((4, 4), np.int64))),
    ("recognize: list", InputError, ("list",), lambda: weft.recognize([[True]])),
    ("recognize: rank", InputError, ("(4,)",), lambda: weft.recognize(np.ones(4, bool))),
    ("recognize: no head", InputError, ("(0, 4, 4)",), lambda: weft.recognize(np.ones((0, 4, 4), bool))),
    ("recognize: size of a mask", InputError, ("size",), lambda: weft.recognize(np.ones((4, 4), bool), size=(4, 4))),
    ("recognize: size", InputError, ("size=-3",), lambda: weft.recognize(lambda q, k: q >= k, size=-3)),
    ("recognize: heads", InputError, ("heads=0",), lambda: weft.recognize(lambda b, h, q, k: q >= k, heads=0)),
    ("recognize: which heads", InputError, ("heads=",), lambda: weft.recognize(lambda b, h, q, k: q >= k + h)),
    ("recognize: arguments", InputError, ("q, k",), lambda: weft.recognize(lambda q, k, v: q >= k)),
    ("recognize: numbers of a function", InputError, ("booleans",), lambda: weft.recognize(lambda q, k: q - k)),
    ("recognize: in place", InputError, ("in place",), lambda: weft.recognize(in_place)),
    ("recognize: no closed form", InputError, ("size=(M, N)",), lambda: weft.recognize(unruly)),
    ("recognize: its own error", InputError, ("RuntimeError",), lambda: weft.recognize(failing, size=(8, 8))),
    ("recognize: one pair at a time", InputError, ("one pair",), lambda: weft.recognize(scalar_only, size=1 << 14)),
    ("recognize: other lengths", LengthError, ("40 x 40", "41"), lambda: BITS.acsr(41)),
    ("recognize: bits written out", PatternError, ("bits", "6 words"), lambda: bits([1], 3, 70)),
    ("load_mask: nowhere", InputError, ("nowhere.npy",), lambda folder: load_mask(folder / "nowhere.npy")),
    ("load_mask: text", InputError, ("notes.npy",), lambda folder: load_mask(text_file(folder))),
    # ---- attention ---------------------------------------------------------------------------------------------------
    ("attention: mask", InputError, ("mask=list", "recognize"), attend([[True]])),
    ("attention: no mask", InputError, ("mask=None", "weft.full()"), lambda: weft.attention(*tokens(), None)),
    ("attention: a mask of padding", InputError, ("(B, N)", "weft.padding(mask=mask)"),
     attend(torch.ones(2, 8, dtype=torch.bool))),
    ("attention: a mask that could change unseen", InputError, ("by globals", "weft.recognize(unseen).pattern"),
     attend(unseen)),
    ("attention: a mask met while a graph is captured", UnsupportedError, ("captured", "before the capture"),
     attend_captured),
    ("attention: blocks of a BlockMask", InputError, ("block (0, 0)", "create_block_mask"), attend(no_blocks(8))),
    ("attention: lengths of a BlockMask", LengthError, ("16 x 16", "8 queries"), attend(no_blocks(16))),
    ("padding: of integers", PatternError, ("int64", "mask.bool()"), lambda: weft.padding(mask=np.ones((2, 4), int))),
    ("attention: q", InputError, ("q is int",), lambda: weft.attention(1, 2, 3, CAUSAL)),
    ("attention: rank", InputError, ("k has 3",), lambda: weft.attention(HALVES[0], HALVES[1][0], HALVES[2], CAUSAL)),
    ("attention: another library's keyword", OptionError, ("is_causal", "mask=weft.causal()"), attend(is_causal=True)),
    ("attention: a keyword to come", UnsupportedError, ("bias", "not implemented yet"), attend(bias=None)),
    ("attention: layout", OptionError, ("layout='sbhd'", "'bshd'"), attend(layout="sbhd")),
    ("attention: axes of a layout", InputError, ("q has 4", "'thd'"), attend(layout="thd")),
    ("attention: surely another layout", OptionError, ("64 heads of 8 tokens", 'layout="bshd"'),
     attend(qkv=tokens(8, heads=(64, 64)), sinks=torch.zeros(8))),
    ("attention: another grid", LengthError, ("6 x 5", "5 x 6"),
     attend(weft.neighborhood((5, 6), 3), qkv=[torch.zeros(2, 6, 5, 4, 8)] * 3, layout="bshd")),
    ("attention: extra_keys", InputError, ("extra_values", "extra_keys is missing"), attend(extra_values=HALVES[1])),
    ("merge: parts", InputError, ("1 outs and 2 lses", "one lse for each out"),
     lambda: weft.merge(HALVES[:1], [HALVES[0][..., 0]] * 2)),
    ("attention: dtype", InputError, ("float16", "float32"), attend(qkv=[HALVES[0], *tokens()[1:]])),
    ("attention: heads", InputError, ("4 query heads", "3"), attend(qkv=tokens(heads=(4, 3)))),
    ("attention: heads of the mask", InputError, ("3 heads", "4"), attend(weft.per_head([FULL] * 3))),
    ("attention: scale", OptionError, ("scale=nan",), attend(scale=float("nan"))),
    ("attention: scale of numpy", OptionError, ("float32", "pass float(scale)"), attend(scale=np.float32(0.5))),
    ("attention: softcap", OptionError, ("softcap=0",), attend(softcap=0)),
    ("attention: sinks", OptionError, ("sinks", "4 query heads"), attend(sinks=torch.zeros(2))),
    ("attention: backend", OptionError, ("backend='cuda'", "triton"), attend(backend="cuda")),
    ("attention: deterministic", OptionError, ("deterministic='yes'",), attend(deterministic="yes")),
    ("attention: dropout", UnsupportedError, ("dropout=0.1",), attend(dropout=0.1)),
    ("attention: scale that learns", UnsupportedError, ("scale", "tensor"), attend(scale=torch.ones(()))),
    ("attention: slopes that learn", UnsupportedError, ("alibi_slopes", "gradients"),
     attend(alibi_slopes=torch.ones(4, requires_grad=True))),
    ("attention: slopes on a grid", UnsupportedError, ("alibi_slopes", "grid"),
     attend(weft.neighborhood((2, 4), (1, 3)), alibi_slopes=torch.ones(4))),
    ("attention: slopes and no alignment", AlignmentError, ("alibi_slopes", "M=8", "N=12"),
     attend(FULL, qkv=tokens(8, 12), alibi_slopes=torch.ones(4))),
    ("attention: second derivative", UnsupportedError, ("derivative",), differentiated_twice),
    ("attention: vmap", UnsupportedError, ("torch.vmap", "mapped dimension", "batch of q, k and v"),
     lambda: torch.vmap(lambda q: weft.attention(q, *tokens()[1:], CAUSAL))(tokens()[0][None])),
    ("attention: torch.func", UnsupportedError, ("torch.func", "torch.autograd.grad()"),
     lambda: torch.func.grad(lambda q: weft.attention(q, *tokens()[1:], CAUSAL).sum())(tokens()[0])),
    ("attention: a mask in torch.fx", InputError, ("torch.fx", "weft.recognize(mask).pattern"),
     lambda: torch.fx.symbolic_trace(Traced(unseen))),
    ("attention: a pattern without a module", InputError, ("no place for a pattern", "torch.nn.Module"),
     lambda: CAUSAL.__fx_create_arg__(torch.fx.proxy.TracerBase())),
    ("attention: counted without numbers", UnsupportedError, ("fake", "torch.device('meta')"), counted_by_fakes),
    ("attention: masked tensors", UnsupportedError, ("q=MaskedTensor", "get_data()"), masked_tensors),
    ("attention: no kernel", UnsupportedKernel, ("triton", "float64"),
     attend(qkv=tokens(dtype=torch.float64), backend="triton")),
    ("attention: damaged graph", InputError, ("causal", "record"),
     lambda: torch.ops.weft.attention(*tokens(), "causal()", torch.zeros(3, dtype=torch.int64), None, None, None, None,
                                      "auto", False, False)),
    ("varlen_attention: sums", InputError, ("cu_seqlens_q", "falls"), packed_by([0, 5, 3, 8])),
    ("varlen_attention: alignment", AlignmentError, ("queries of a document", "bottom-right"),
     packed_by([0, 8], [0, 8], CAUSAL)),
    ("varlen_attention: rows", PatternError, ("2 batch rows", "1 documents"),
     packed_by([0, 8], None, weft.per_batch([FULL] * 2))),
    ("varlen_attention: sums on a device", UnsupportedError, ("cu_seqlens_q on meta", ".cpu()"),
     packed_by([0, 8], device="meta")),
    ("SparseAttention: option", OptionError, ("window_size",), lambda: SparseAttention(CAUSAL, window_size=3)),
    ("plan: mask", InputError, ("plan(..., mask=None)", "weft.full()"), lambda: weft.plan(None, *tokens())),
    ("explain: mask", InputError, ("explain(..., mask=int)",), lambda: weft.explain(3, *tokens())),
    ("explain: length", LengthError, ("documents", "8"), lambda: weft.explain(weft.documents([3, 4]), *tokens())),
    ("verify: no head", VerificationError, ("heads are served by no plan",), verified(forward=())),
    ("verify: no tile", VerificationError, ("defect",), verified(tiles={"launches": ()})),
    # ---- pictures, diagrams, settings --------------------------------------------------------------------------------
    ("pattern_figure: size", OptionError, ("10000 x 10000",), lambda: plot.pattern_figure(CAUSAL, 10_000)),
    ("pattern_figure: matplotlib", UnsupportedError, ("matplotlib", ".[plot]"),
     without(("matplotlib.figure", "matplotlib.backends.backend_agg"), lambda: plot.pattern_figure(CAUSAL, 8))),
    ("save: kind", OptionError, ("picture.gif", "end its name in .png or .svg"),
     lambda: plot.save(None, Path("picture.gif"))),
    ("napkin: axis", RelabelError, ("axis z", "shared"), lambda: DIAGRAM.group("z", "shared")),
    ("napkin: level", RelabelError, ("attic",), lambda: DIAGRAM.group("q", "attic")),
    ("napkin: operation", RelabelError, ("fuse melt",), lambda: DIAGRAM.fuse("melt")),
    ("napkin: machine", RelabelError, ("abacus", "h200"), lambda: machine("abacus")),
    ("napkin: rate", RelabelError, ("fp32", "h200"), lambda: rate(machine("h200"), "fp32")),
    ("napkin: span", RelabelError, ("8 queries and 9 keys", "closed form", "weft plan"),
     lambda: Span(weft.documents([5, 4]).body.relation, 8, 9).total(2)),
    ("napkin: relations", RelabelError, ("1 axes",), lambda: attention_diagram(relations=(None, None))),
    ("WEFT_CACHE_MIB: words", OptionError, ("WEFT_CACHE_MIB=much", "set a whole number"),
     lambda: at_limits("WEFT_CACHE_MIB", "much")),
    ("WEFT_PLANS_MIB: nothing", OptionError, ("WEFT_PLANS_MIB=0", "set a whole number"),
     lambda: at_limits("WEFT_PLANS_MIB", "0")),
    # ---- commands ----------------------------------------------------------------------------------------------------
    ("weft show: open bracket", PatternError, ("column 7", "closed"), command("show", "causal(")),
    ("weft show: no pair", OptionError, ("--size",), command("show", "causal()", "--size", 0)),
    ("weft show: tiles", OptionError, ("--tiles", "--size"), command("show", "causal()", "--size", 9999, "--tiles")),
    ("weft show: out", OptionError, ("--out",), command("show", "causal()", "--out", "/nowhere/at/all.svg")),
    ("weft plan: shape", OptionError, ("--shape 0,4,64,32",), command("plan", "causal()", "--shape", "0,4,64,32")),
    ("weft plan: heads", OptionError, ("--kv-heads 3",), command("plan", "causal()", *SMALL, "--kv-heads", 3)),
    ("weft explain: device", OptionError, ("--source", "gpu"), command("explain", "full()", *SMALL, "--source", "dq")),
    ("weft explain: two kernels", OptionError, ("--source dq", "--source dkdv"),
     command("explain", "causal()", *SMALL, "--device", "gpu", "--source", "gradients")),
    ("weft explain: no kernel", UnsupportedKernel, ("--dtype",),
     command("explain", "causal()", *SMALL, "--device", "gpu", "--dtype", "float64", "--source", "dq")),
    ("weft explain: no room", UnsupportedKernel, ("blocks of 64 x 64", "bytes", "rtx4090", "head dimension"),
     command("explain", "random_blocks(64, 2, seed=1)", "--shape", "1,1,256,256", "--device", "gpu",
             "--dtype", "float32", "--target", "rtx4090")),
    ("weft compile: nothing", OptionError, ("PATTERN, --workloads NAME, --calls FILE",), command("compile", *CARD)),
    ("weft compile: shape", OptionError, ("sizes are missing", "--shape"), command("compile", "causal()", *CARD)),
    ("weft compile: file", OptionError, ("--calls nowhere", "a call on each line"),
     command("compile", "--calls", "nowhere", *CARD)),
    ("weft compile: triton", OptionError, ("--triton 1.2.3", "pip install triton==1.2.3"),
     command("compile", "causal()", *SMALL, *CARD, "--triton", "1.2.3")),
    ("weft tune: nothing", OptionError, ("PATTERN, --share FILE and --adopt FILE",), command("tune")),
    ("weft tune: shape", OptionError, ("sizes are missing", "--shape"), command("tune", "causal()")),
    ("weft recognize: module", InputError, ("nowhere:mask",), command("recognize", "nowhere:mask")),
    ("weft recognize: no function", InputError, ("sys:path",), command("recognize", "sys:path")),
    ("weft napkin: terms", RelabelError, ("strided", "2 affine terms"),
     command("napkin", "attention", "--length", 64, "--pattern", "strided(16)")),
    ("weft napkin: pattern", OptionError, ("matmul", "--pattern 'causal()'", "attention"),
     command("napkin", "matmul", "--pattern", "causal()")),
    ("weft napkin: head dimension", OptionError, ("mlp", "--dim 64"), command("napkin", "mlp", "--dim", 64)),
    ("weft napkin: out", InputError, ("all.svg",),
     command("napkin", "matmul", "--length", 512, "--out", "/nowhere/at/all.svg")),
    ("weft napkin: documents", RelabelError, ("documents([8000, 192])", "without an end", "closed form"),
     command("napkin", "attention", "--pattern", "documents([8000, 192])")),
    ("weft napkin: sizes", RelabelError, ("even",), command("napkin", "attention", "--dim", 1 << 16)),
    ("weft demo: torch", UnsupportedError, ("torch", "pip"), without(("torch",), command("demo", "--json"))),
    ("weft demo: html", OptionError, ("--html", "all.html"), command("demo", "--html", "/nowhere/at/all.html")),
    ("weft cache: nothing to ask", OptionError, ("list --yes",), command("cache", "list", "--yes")),
    ("weft bench: workload", OptionError, ("windw", "--list"), command("bench", "windw")),
    ("weft bench: peer", OptionError, ("--peers", "flax"), command("bench", "cpu", "--peers", "flax")),
    ("weft bench: rows", OptionError, ("rows.csv", "--out"),
     lambda folder: command("bench", "cpu", "--device", "cpu", "--out", other_columns(folder))()),
]  # fmt: skip


def run(row, folder):
    """What the row raises, held to the contract."""
    name, error, words, call = row
    found = refused(lambda: call(folder) if "folder" in inspect.signature(call).parameters else call(), error, words)
    assert type(found) is error, f"{name}: {type(found).__name__}"
    return found


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """Id of a row -> what it raised, or what is wrong with that."""
    found = {}
    for row in TABLE:
        try:
            found[row[0]] = run(row, tmp_path_factory.mktemp("row"))
        except Exception as wrong:
            found[row[0]] = wrong
    return found


def modules_of(raised):
    """(module, class) for every module of weft that the exception came through."""
    step = raised.__traceback__
    while step is not None:
        yield step.tb_frame.f_globals["__name__"], type(raised).__name__
        step = step.tb_next


def raised_in_sources():
    """(module, class) of every weft error that the sources make."""
    names = {kind.__name__ for kind in CLASSES}
    for path in sorted((ROOT / "src" / "weft").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
                yield module, node.func.id


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row[0])
def test_every_refusal_says_what_was_asked_what_is_wrong_and_what_to_do(row, outcomes):
    if not isinstance(outcomes[row[0]], WeftError):
        raise outcomes[row[0]]


def test_every_exception_class_has_a_row():
    assert {error for _, error, _, _ in TABLE} == set(CLASSES) - {WeftError}


def test_every_public_function_and_command_has_a_row():
    told = {row[0].partition(":")[0] for row in TABLE}
    functions = {name for name in weft.__all__ if callable(getattr(weft, name))} - NOTHING_TO_REFUSE
    assert functions - told == set()
    commands = {f"weft {name}" for name in COMMANDS} - {"weft doctor"}  # which never fails for what is missing
    assert commands - told == set()


def test_every_module_that_refuses_is_reached(outcomes):
    reached = {pair for raised in outcomes.values() for pair in modules_of(raised)}
    missing = set(raised_in_sources()) - reached - set(ELSEWHERE)
    assert missing == set(), "add rows to the table, or name the tests in ELSEWHERE"
    for (_, name), tests in ELSEWHERE.items():
        assert not tests or (ROOT / tests).is_file(), f"{name}: {tests}"
