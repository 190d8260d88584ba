"""Refusals of attention under torch, and of plans: rows of the table in test_table.py."""

import warnings
from dataclasses import replace
from unittest import mock

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention.flex_attention import BlockMask
from torch.utils.flop_counter import FlopCounterMode

import weft
from weft.errors import (
    AlignmentError,
    InputError,
    LengthError,
    OptionError,
    PatternError,
    UnsupportedError,
    UnsupportedKernel,
    VerificationError,
)
from weft.torch import SparseAttention


def tokens(m=8, n=None, *, heads=(4, 2), dims=(8, 8), batch=2, **how):
    """q, k, v."""
    n = m if n is None else n
    return [torch.zeros(batch, h, length, d, **how) for h, length, d in
            ((heads[0], m, dims[0]), (heads[1], n, dims[0]), (heads[1], n, dims[1]))]  # fmt: skip


def attend(mask=None, /, *, qkv=None, **options):
    return lambda: weft.attention(*(qkv or tokens()), mask if mask is not None else weft.causal(), **options)


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


def branching(score, b, h, q, k):
    return score if q > k else -score


def endless(score, b, h, q, k):
    for _ in range(5000):
        score = score * (score + 1)
    return score


def counted_by_fakes():
    with FakeTensorMode(), FlopCounterMode(display=False):
        torch.ops.weft.attention(*tokens(), "causal()", torch.empty(13, dtype=torch.int64), None, None, None, None,
                                 "auto", False, "", [], 0.0, None, False)  # fmt: skip


def packed_by(queries, keys=None, pattern=None, device="cpu"):
    sums = [None if x is None else torch.tensor(x, device=device) for x in (queries, keys)]
    q, k, v = (x[0].transpose(0, 1) for x in tokens())
    return lambda: weft.varlen_attention(q, k, v, *sums, FULL if pattern is None else pattern)


def masked_tensors():
    with warnings.catch_warnings(action="ignore"):  # a prototype, and says so
        q = torch.masked.masked_tensor(tokens()[0], torch.ones(tokens()[0].shape, dtype=torch.bool))
    weft.attention(q, *tokens()[1:], weft.causal())


CAUSAL, FULL = weft.causal(), weft.full()
HALVES = tokens(dtype=torch.float16)

OF_ATTENTION = [
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
    ("fuse: no model", InputError, ("neither a torch.nn.Module", "weft.fuse(model"), lambda: weft.fuse(3)),
    ("attention: rank", InputError, ("k has 3",), lambda: weft.attention(HALVES[0], HALVES[1][0], HALVES[2], CAUSAL)),
    ("attention: another library's keyword", OptionError, ("is_causal", "mask=weft.causal()"), attend(is_causal=True)),
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
    ("attention: dropout", OptionError, ("dropout=1.0", "below 1"), attend(dropout=1.0)),
    ("attention: bias", OptionError, ("bias=(3, 3)", "(8, 8)"), attend(bias=torch.zeros(3, 3))),
    ("attention: score", OptionError, ("branching", "a branch on its value"), attend(score=branching)),
    ("attention: a table", OptionError, ("beyond its end", "clamp"), attend(bias=weft.bias.relative(torch.ones(3, 3)))),
    ("attention: a score's length", OptionError, ("4096 steps",), attend(score=endless)),
    ("attention: extra keys and a bias", UnsupportedError, ("extra keys have no index",),
     attend(bias=torch.zeros(8, 8), extra_keys=tokens()[1], extra_values=tokens()[2])),
    ("trace_score", OptionError, ("its result, a condition",), lambda: weft.trace_score(lambda s, b, h, q, k: q > k)),
    ("bias", OptionError, ("weft.bias.relative", "2R + 1"), lambda: weft.bias.relative(torch.ones(4, 8))),
    ("attention: scale that learns", UnsupportedError, ("scale", "tensor"), attend(scale=torch.ones(()))),
    ("attention: slopes on a grid", UnsupportedError, ("alibi_slopes", "grid"),
     attend(weft.neighborhood((2, 4), (1, 3)), alibi_slopes=torch.ones(4))),
    ("attention: slopes and no alignment", AlignmentError, ("alibi_slopes", "M=8", "N=12"),
     attend(FULL, qkv=tokens(8, 12), alibi_slopes=torch.ones(4))),
    ("attention: second derivative", UnsupportedError, ("derivative",), differentiated_twice),
    ("attention: functionalize", UnsupportedError, ("torch.func.functionalize",),
     lambda: torch.func.functionalize(lambda q: weft.attention(q, *tokens()[1:], CAUSAL))(tokens()[0])),
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
                                      "auto", False, "", [], 0.0, None, False)),
    ("varlen_attention: bias", UnsupportedError, ("bias", "cu_seqlens.cpu()"), lambda: weft.varlen_attention(
        *(x[0].transpose(0, 1) for x in tokens()), torch.zeros(2, device="meta"), None, FULL, bias=torch.zeros(8, 8))),
    ("varlen_attention: sums", InputError, ("cu_seqlens_q", "falls"), packed_by([0, 5, 3, 8])),
    ("varlen_attention: alignment", AlignmentError, ("queries of a document", "bottom-right"),
     packed_by([0, 8], [0, 8], CAUSAL)),
    ("varlen_attention: rows", PatternError, ("2 batch rows", "1 documents"),
     packed_by([0, 8], None, weft.per_batch([FULL] * 2))),
    ("varlen_attention: sums elsewhere", InputError, ("cu_seqlens_q is meta", "both on the CPU"),
     packed_by([0, 8], device="meta")),
    ("decode_attention: key_count", InputError, ("decode_attention", "key_count", "9"),
     lambda: weft.decode_attention(*tokens(4), weft.causal(align="bottom-right"), 9)),
    ("decode_attention: pages", InputError, ("block_table", "page has 4 tokens", "transpose(1, 2)"),
     lambda: weft.decode_attention(*tokens(4), weft.causal(align="bottom-right"), 3, block_table=torch.zeros(2, 1))),
    ("SparseAttention: option", OptionError, ("window_size",), lambda: SparseAttention(CAUSAL, window_size=3)),
    ("plan: mask", InputError, ("plan(..., mask=None)", "weft.full()"), lambda: weft.plan(None, *tokens())),
    ("explain: mask", InputError, ("explain(..., mask=int)",), lambda: weft.explain(3, *tokens())),
    ("explain: length", LengthError, ("documents", "8"), lambda: weft.explain(weft.documents([3, 4]), *tokens())),
    ("verify: no head", VerificationError, ("heads are served by no plan",), verified(forward=())),
    ("verify: no tile", VerificationError, ("defect",), verified(tiles={"nests": ()})),
]  # fmt: skip
