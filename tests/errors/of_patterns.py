"""Refusals of patterns, of what one asks of them, and of recognition: rows of the table in test_table.py."""

import numpy as np

import weft
from weft.acsr.packed import packed
from weft.errors import AlignmentError, ArgumentError, InputError, IrregularError, LengthError, PatternError
from weft.pattern.pieces import bits
from weft.recognition import load_mask


def in_place(q, k):
    q += 1
    return q >= k


def scalar_only(q, k):
    return bool(q >= k) and k % 7 < 3


def unruly(q, k):
    return (q * q * k) % 1013 < 5


def failing(q, k):
    raise RuntimeError("a table is missing")


def text_file(folder):
    path = folder / "notes.npy"
    path.write_text("q sees k")
    return path


CAUSAL, FULL = weft.causal(), weft.full()
BITS = weft.recognize(np.random.default_rng(0).random((40, 40)) < 0.5).pattern  # noise: no affine form

OF_PATTERNS = [
    # ---- patterns --------------------------------------------------------------------------------------------------
    ("causal: offset", PatternError, ("causal", "offset", "2.5"), lambda: weft.causal(offset=2.5)),
    ("causal: far offset", PatternError, ("causal", "between -2**31 and 2**31"), lambda: weft.causal(offset=1 << 40)),
    ("causal: align", PatternError, ("align", "middle", "bottom-right"), lambda: weft.causal(align="middle")),
    ("window: neither side", PatternError, ("left", "right"), weft.window),
    ("window: a word of others", ArgumentError, ("size", "weft.window(left=4)"), lambda: weft.window(size=5)),
    ("window: a pair", ArgumentError, ("weft.window(255, 0)",), lambda: weft.window((255, 0))),
    ("causal: joined with a list", ArgumentError, ("causal() & list",), lambda: weft.causal() & []),
    ("causal: as a truth value", PatternError, ("neither true nor false",), lambda: bool(weft.causal())),
    ("excerpt: no pattern", PatternError, ("excerpt", "no pattern"), lambda: weft.excerpt(3, 8, (0, 4), (0, 4))),
    ("excerpt: another size", LengthError, ("4 queries and 4 keys",),
     lambda: weft.excerpt(weft.full(), 8, (0, 4), (0, 4)).acsr(4, 5)),
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
]  # fmt: skip
