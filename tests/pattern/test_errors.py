"""Bad input: one clear exception each, that names what was asked, what is wrong and what to do."""

from functools import partial

import numpy as np
import pytest
import torch

import weft
from weft.errors import (
    AlignmentError,
    InputError,
    LengthError,
    OptionError,
    PatternError,
    UnsupportedError,
    VerificationError,
    WeftError,
)
from weft.testing.refusals import refuse

POSITIONAL = {
    "causal": weft.causal,
    "window": lambda: weft.window(left=2),
    "dilated": lambda: weft.dilated(1, 1, 2),
    "strided": lambda: weft.strided(4),
    "fixed": lambda: weft.fixed(4),
    "sparse_transformer": lambda: weft.sparse_transformer(4, 2),
    "chunks": lambda: weft.chunks(4),
    "padding-rows": lambda: weft.padding(3, rows=True),
    "global_tokens": lambda: weft.global_tokens(2),
    "longformer": lambda: weft.longformer(4),
    "bigbird": lambda: weft.bigbird(block=4),
    "and": lambda: weft.full() & weft.causal(),
    "or": lambda: weft.nothing() | weft.causal(align="top-left") | weft.chunks(2),
    "not": lambda: ~weft.causal(),
    "shift": lambda: weft.causal().shift(q=1),
    "per_head": lambda: weft.per_head([weft.causal(), weft.full()]),
    "per_batch": lambda: weft.per_batch([weft.causal(), weft.full()]),
}
FITTED = {
    "documents": lambda: weft.documents([3, 5]),
    "documents-ids": lambda: weft.documents(ids=[1, 1, 2, 2, 2, 7, 7, 7]),
    "documents-cu_seqlens": lambda: weft.documents(cu_seqlens=[0, 3, 8]),
    "segments": lambda: weft.segments([3, 5], [[True, False], [None, weft.causal()]]),
    "neighborhood": lambda: weft.neighborhood(8, 3),
    "neighborhood-2d": lambda: weft.neighborhood((2, 4), (1, 3)),
    "product": lambda: weft.product([weft.causal(), weft.full()], (2, 4)),
    "product-unlike": lambda: weft.product([weft.full(), weft.full()], (2, 4), (3, 3)),
}

DOORS = {
    "to_dense": lambda pattern, m, n: pattern.to_dense(m, n),
    "acsr": lambda pattern, m, n: pattern.acsr(m, n),
    "contains": lambda pattern, m, n: pattern.contains(0, 0, m, n),
}


def rows(*table):
    return pytest.mark.parametrize("call,error,words", [pytest.param(*row[1:], id=row[0]) for row in table])


@rows(
    ("window-left", lambda: weft.window(left=-1), PatternError, ("window", "left", "-1")),
    ("window-right", lambda: weft.window(left=2, right=-7), PatternError, ("window", "right", "-7")),
    ("window-neither", weft.window, PatternError, ("window", "left", "right")),
    ("dilated-step-0", lambda: weft.dilated(1, 1, 0), PatternError, ("dilated", "step", "0")),
    ("dilated-step-negative", lambda: weft.dilated(1, 1, -2), PatternError, ("dilated", "step", "-2")),
    ("dilated-left", lambda: weft.dilated(-1, 1, 2), PatternError, ("dilated", "left", "-1")),
    ("dilated-right", lambda: weft.dilated(1, -1, 2), PatternError, ("dilated", "right", "-1")),
    ("periodic-step", lambda: weft.periodic_keys(0), PatternError, ("periodic_keys", "step", "0")),
    ("strided", lambda: weft.strided(0), PatternError, ("strided", "stride", "0")),
    ("fixed", lambda: weft.fixed(0), PatternError, ("fixed", "stride", "0")),
    ("fixed-summary-0", lambda: weft.fixed(4, summary=0), PatternError, ("fixed", "summary", "0")),
    ("fixed-summary-large", lambda: weft.fixed(4, summary=5), PatternError, ("fixed", "summary", "5", "4")),
    ("sparse-stride", lambda: weft.sparse_transformer(0, 2), PatternError, ("sparse_transformer", "stride", "0")),
    ("sparse-heads", lambda: weft.sparse_transformer(4, 0), PatternError, ("sparse_transformer", "heads", "0")),
    (
        "sparse-kind",
        lambda: weft.sparse_transformer(4, 2, kind="spiral"),
        PatternError,
        ("sparse_transformer", "spiral", "strided", "fixed"),
    ),
    (
        "sparse-summary",
        lambda: weft.sparse_transformer(4, 2, kind="fixed", summary=9),
        PatternError,
        ("sparse_transformer", "summary", "9"),
    ),
    ("chunks-0", lambda: weft.chunks(0), PatternError, ("chunks", "size", "0")),
    ("chunks-negative", lambda: weft.chunks(-4), PatternError, ("chunks", "size", "-4")),
    ("blocks-query", lambda: weft.blocks(4, [(0, 0), (-1, 2)]), PatternError, ("blocks", "-1")),
    ("blocks-key", lambda: weft.blocks(4, [(0, -3)]), PatternError, ("blocks", "-3")),
    ("blocks-size", lambda: weft.blocks(0, [(0, 0)]), PatternError, ("blocks", "block", "0")),
    ("blocks-one-size", lambda: weft.blocks((4, -1), [(0, 0)]), PatternError, ("blocks", "-1")),
    ("blocks-triple", lambda: weft.blocks(4, [(0, 1, 2)]), PatternError, ("blocks", "pairs")),
    ("blocks-sizes", lambda: weft.blocks((4, 4, 4), [(0, 1)]), PatternError, ("blocks", "block")),
    ("prefix", lambda: weft.prefix(-1), PatternError, ("prefix", "-1")),
    ("prefix-row", lambda: weft.prefix([3, -2]), PatternError, ("prefix", "-2")),
    ("prefix-none", lambda: weft.prefix([]), PatternError, ("prefix",)),
    ("padding", lambda: weft.padding(-1), PatternError, ("padding", "-1")),
    ("padding-row", lambda: weft.padding([3, -2]), PatternError, ("padding", "-2")),
    ("padding-none", lambda: weft.padding([]), PatternError, ("padding",)),
    ("global-count", lambda: weft.global_tokens(-1), PatternError, ("global_tokens", "-1")),
    ("global-index", lambda: weft.global_tokens([0, -5]), PatternError, ("global_tokens", "-5")),
    ("random-block", lambda: weft.random_blocks(0, 2), PatternError, ("random_blocks", "block", "0")),
    ("random-count", lambda: weft.random_blocks(4, -2), PatternError, ("random_blocks", "count", "-2")),
    ("longformer", lambda: weft.longformer(-2), PatternError, ("longformer", "window", "-2")),
    ("longformer-dilation", lambda: weft.longformer(4, dilation=0), PatternError, ("longformer", "dilation", "0")),
    ("longformer-global", lambda: weft.longformer(4, global_tokens=-1), PatternError, ("longformer", "global", "-1")),
    ("bigbird-block", lambda: weft.bigbird(block=0), PatternError, ("bigbird", "block", "0")),
    ("bigbird-window", lambda: weft.bigbird(window=-3), PatternError, ("bigbird", "window", "-3")),
    ("bigbird-global", lambda: weft.bigbird(global_blocks=-1), PatternError, ("bigbird", "global_blocks", "-1")),
    ("bigbird-random", lambda: weft.bigbird(random=-1), PatternError, ("bigbird", "random", "-1")),
    ("bigbird-seed", lambda: weft.bigbird(seed=-1), PatternError, ("bigbird", "seed", "-1")),
    ("global-rows-none", lambda: weft.global_tokens(4, rows=None), PatternError, ("global_tokens", "rows", "None")),
    ("global-rows-text", lambda: weft.global_tokens(4, rows="x"), PatternError, ("global_tokens", "rows", "'x'")),
    (
        "global-rows-number",
        lambda: weft.global_tokens(4, rows=-1, columns=False),
        PatternError,
        ("global_tokens", "rows", "-1"),
    ),
    ("global-columns", lambda: weft.global_tokens([4, 9], columns=2), PatternError, ("global_tokens", "columns", "2")),
    ("padding-rows", lambda: weft.padding(3, rows="no"), PatternError, ("padding", "rows", "'no'")),
    ("padding-rows-none", lambda: weft.padding([3, 4], rows=None), PatternError, ("padding", "rows", "None")),
    ("align", lambda: weft.causal(align="centre"), PatternError, ("align", "centre", "top-left", "bottom-right")),
    ("aligned", lambda: weft.causal().aligned("left"), PatternError, ("align", "left", "top-left", "bottom-right")),
    (
        "aligned-otherwise",
        lambda: (weft.causal(align="top-left") & weft.window(left=3, align="top-left")).aligned("bottom-right"),
        PatternError,
        ("(causal", "aligned('bottom-right')", "declare 'top-left' already", "q + N - M"),
    ),
    ("blocks-mask", lambda: weft.blocks(4, np.eye(2, dtype=bool)), PatternError, ("blocks", "mask", "nonzero")),
    ("per_head-none", lambda: weft.per_head([]), PatternError, ("per_head",)),
    ("per_batch-none", lambda: weft.per_batch([]), PatternError, ("per_batch",)),
    ("per_head-not-patterns", lambda: weft.per_head([weft.full(), 3]), PatternError, ("per_head", "3")),
    ("per_batch-not-patterns", lambda: weft.per_batch([weft.full(), None]), PatternError, ("per_batch", "None")),
)
def test_wrong_arguments(call, error, words):
    refuse(call, error, words)


@pytest.mark.parametrize("name", ["global_tokens", "padding", "prefix", "documents"])
@pytest.mark.parametrize("shape", [(8192,), (2, 8192)], ids=str)
def test_a_mask_for_a_list_is_not_printed_whole(name, shape):
    """Nor the rows of an attention mask."""
    for given in (np.zeros(shape, bool), np.zeros(shape, int))[: len(shape)]:
        with pytest.raises(PatternError, match=r"list of integers[^$]*(nonzero|flat)") as caught:
            weft.documents(ids=given) if name == "documents" else getattr(weft, name)(given)
        assert len(str(caught.value)) < 300 and "mask.sum(-1)" in str(caught.value)


@rows(
    ("larger-than-grid", lambda: weft.neighborhood(4, 5), PatternError, ("neighborhood", "5", "4")),
    ("larger-on-one-axis", lambda: weft.neighborhood((8, 4), (3, 6)), PatternError, ("neighborhood", "6", "4")),
    ("larger-dilated", lambda: weft.neighborhood(10, 4, dilation=3), PatternError, ("neighborhood", "dilation", "10")),
    ("stride-over-window", lambda: weft.neighborhood(8, 3, stride=4), PatternError, ("neighborhood", "stride", "4")),
    (
        "stride-over-window-on-one-axis",
        lambda: weft.neighborhood((8, 8), (5, 2), stride=3),
        PatternError,
        ("neighborhood", "stride", "3", "2"),
    ),
    ("size-0", lambda: weft.neighborhood(8, 0), PatternError, ("neighborhood", "size", "0")),
    ("stride-0", lambda: weft.neighborhood(8, 3, stride=0), PatternError, ("neighborhood", "stride", "0")),
    ("dilation-0", lambda: weft.neighborhood(8, 3, dilation=0), PatternError, ("neighborhood", "dilation", "0")),
    ("empty-axis", lambda: weft.neighborhood((4, 0), 1), PatternError, ("neighborhood",)),
    ("four-axes", lambda: weft.neighborhood((2, 2, 2, 2), 1), PatternError, ("neighborhood", "4", "3")),
    ("no-axes", lambda: weft.neighborhood((), ()), PatternError, ("neighborhood",)),
    ("size-rank", lambda: weft.neighborhood((4, 4), (2, 2, 2)), PatternError, ("neighborhood", "size")),
    ("stride-rank", lambda: weft.neighborhood((4, 4), 2, stride=(1,)), PatternError, ("neighborhood", "stride")),
    ("dilation-rank", lambda: weft.neighborhood((4, 4), 2, dilation=(1,)), PatternError, ("neighborhood", "dilation")),
    ("causal-rank", lambda: weft.neighborhood((4, 4), 2, causal=(True,)), PatternError, ("neighborhood", "causal")),
)
def test_wrong_neighborhoods(call, error, words):
    refuse(call, error, words)


@rows(
    ("negative-length", lambda: weft.documents([3, -1]), PatternError, ("documents", "-1")),
    ("both", lambda: weft.documents([3], ids=[0, 0, 0]), PatternError, ("documents", "lengths", "ids")),
    ("ids-and-bounds", lambda: weft.documents(ids=[0], cu_seqlens=[0, 1]), PatternError, ("documents", "cu_seqlens")),
    ("none", weft.documents, PatternError, ("documents", "lengths", "ids", "cu_seqlens")),
    ("decreasing", lambda: weft.documents(cu_seqlens=[0, 5, 3]), PatternError, ("documents", "cu_seqlens")),
    ("not-from-0", lambda: weft.documents(cu_seqlens=[1, 5]), PatternError, ("documents", "cu_seqlens", "0")),
    ("no-bounds", lambda: weft.documents(cu_seqlens=[]), PatternError, ("documents", "cu_seqlens")),
    ("fraction", lambda: weft.documents([2.5, 1.5]), PatternError, ("documents", "2.5")),
    ("float-ids", lambda: weft.documents(ids=[0.5, 1.0]), PatternError, ("documents", "ids")),
    ("square-lengths", lambda: weft.documents(np.ones((2, 2), dtype=int)), PatternError, ("documents",)),
    ("int", lambda: weft.documents(8), PatternError, ("documents", "8")),
    ("beyond-64-bits", lambda: weft.documents([2**64, 1]), PatternError, ("documents", "lengths", "64 bits")),
    ("bounds-beyond-64-bits", lambda: weft.documents(cu_seqlens=[0, 2**64]), PatternError, ("cu_seqlens", "64 bits")),
    ("ids-beyond-64-bits", lambda: weft.documents(ids=[1, -(2**64)]), PatternError, ("documents", "ids", "64 bits")),
    ("far", lambda: weft.documents([1, 2**62, 2**62]), PatternError, ("lengths[1]", str(2**62), "2**31")),
    ("far-bounds", lambda: weft.documents(cu_seqlens=[0, 2**40]), PatternError, ("cu_seqlens[1]", "2**31")),
    ("far-together", lambda: weft.documents([2**31, 1]), PatternError, ("lengths", str(2**31 + 1), "2**31")),
)
def test_wrong_documents(call, error, words):
    refuse(call, error, words)


CELL = [[True]]


@rows(
    ("too-few-rows", lambda: weft.segments([3, 5], [[True, False]]), PatternError, ("segments", "2")),
    ("short-row", lambda: weft.segments([3, 5], [[True, False], [True]]), PatternError, ("segments", "2")),
    ("too-many", lambda: weft.segments([3], [[True, True], [True, True]]), PatternError, ("segments",)),
    ("flat", lambda: weft.segments([3, 5], [True, False]), PatternError, ("segments",)),
    ("negative-part", lambda: weft.segments([3, -5], [[True] * 2] * 2), PatternError, ("segments", "-5")),
    ("strange-cell", lambda: weft.segments([3], [["causal"]]), PatternError, ("segments", "causal")),
    ("number-cell", lambda: weft.segments([3], [[7]]), PatternError, ("segments", "7")),
    ("product-rank", lambda: weft.product([weft.full()], (2, 4)), PatternError, ("product", "1", "2")),
    (
        "product-key-rank",
        lambda: weft.product([weft.full(), weft.full()], (2, 4), (8,)),
        PatternError,
        ("product", "key_shape"),
    ),
    ("product-empty", lambda: weft.product([], ()), PatternError, ("product",)),
    ("product-negative", lambda: weft.product([weft.full()], (-2,)), PatternError, ("product", "-2")),
    ("product-not-patterns", lambda: weft.product([weft.full(), 5], (2, 4)), PatternError, ("product", "5")),
)
def test_wrong_compositions(call, error, words):
    refuse(call, error, words)


def sizes_of(value):
    """Every place that wants an integer, given something else."""
    causal = weft.causal()
    return {
        "causal": lambda: weft.causal(value),
        "window-left": lambda: weft.window(left=value),
        "window-right": lambda: weft.window(right=value),
        "dilated-left": lambda: weft.dilated(value, 1, 2),
        "dilated-step": lambda: weft.dilated(1, 1, value),
        "periodic_keys": lambda: weft.periodic_keys(value),
        "periodic_keys-phase": lambda: weft.periodic_keys(4, value),
        "strided": lambda: weft.strided(value),
        "fixed": lambda: weft.fixed(value),
        "fixed-summary": lambda: weft.fixed(8, summary=value),
        "sparse_transformer": lambda: weft.sparse_transformer(value, 2),
        "sparse_transformer-heads": lambda: weft.sparse_transformer(4, value),
        "chunks": lambda: weft.chunks(value),
        "blocks": lambda: weft.blocks(value, [(0, 0)]),
        "blocks-pair": lambda: weft.blocks(4, [(0, value)]),
        "documents": lambda: weft.documents([value]),
        "padding": lambda: weft.padding(value),
        "padding-row": lambda: weft.padding([value, 2]),
        "prefix": lambda: weft.prefix(value),
        "prefix-row": lambda: weft.prefix([2, value]),
        "global_tokens": lambda: weft.global_tokens(value),
        "global_tokens-index": lambda: weft.global_tokens([value]),
        "random_blocks": lambda: weft.random_blocks(value, 2),
        "random_blocks-count": lambda: weft.random_blocks(4, value),
        "segments": lambda: weft.segments([value], CELL),
        "longformer": lambda: weft.longformer(value),
        "bigbird-block": lambda: weft.bigbird(block=value),
        "bigbird-random": lambda: weft.bigbird(random=value),
        "neighborhood-shape": lambda: weft.neighborhood(value, 1),
        "neighborhood-size": lambda: weft.neighborhood(8, value),
        "neighborhood-stride": lambda: weft.neighborhood(8, 4, stride=value),
        "neighborhood-dilation": lambda: weft.neighborhood((8, 8), 2, dilation=(1, value)),
        "product": lambda: weft.product([causal], (value,)),
        "shift-q": lambda: causal.shift(q=value),
        "shift-k": lambda: causal.shift(k=value),
        "to_dense": lambda: causal.to_dense(value),
        "acsr": lambda: causal.acsr(value),
    }


@pytest.mark.parametrize("value", (2.5, "3", float("nan"), True), ids=repr)
@pytest.mark.parametrize("place", sizes_of(0))
def test_sizes_are_integers(place, value):
    # A string is a sequence but no list of lengths, and True is no size: refused, with themselves in the message.
    words = () if place in ("to_dense", "acsr") else (place.split("-")[0],)
    refuse(sizes_of(value)[place], PatternError, (*words, str(value)))


@pytest.mark.parametrize("two", (np.int32(2), np.array(2), torch.tensor(2)), ids=repr)
@pytest.mark.parametrize("place", sizes_of(0))
def test_integers_of_numpy_and_torch_are_integers(place, two):
    assert str(sizes_of(two)[place]()) == str(sizes_of(2)[place]())


@pytest.mark.parametrize("value", (np.array(2.5), torch.tensor(2.5), torch.tensor(True), np.float32(2.5)), ids=repr)
@pytest.mark.parametrize("place", ("window-left", "documents", "neighborhood-size", "shift-q", "acsr"))
def test_other_values_of_numpy_and_torch_are_not(place, value):
    refuse(sizes_of(value)[place], PatternError, (str(value.item()),))


@pytest.mark.parametrize("place", ("padding-row", "prefix-row", "global_tokens-index", "segments", "shift-q", "acsr"))
@pytest.mark.parametrize("value", (2**31 + 1, 2**62, 2**64, 2**70))
def test_integers_beyond_any_sequence(place, value):
    refuse(sizes_of(value)[place], PatternError, (place.split("-")[0] if place != "acsr" else "m=",))


def test_heads_are_integers_of_numpy_and_torch_too():
    pattern = weft.per_head([weft.full(), weft.causal()])
    for head in (np.int8(1), np.array(1), torch.tensor(1)):
        assert pattern.acsr(4, head=head).nnz == 10 and not pattern.contains(0, 3, 4, head=head)


def test_ids_are_any_integers_of_64_bits():
    ids = [2**62, -(2**40), 2**62, 2**63 - 1]
    np.testing.assert_array_equal(weft.documents(ids=ids).to_dense(4), np.equal.outer(ids, ids))


def test_flags_of_numpy_are_flags():
    assert weft.global_tokens(4, rows=np.False_) == weft.global_tokens(4, rows=False)
    assert weft.padding(3, rows=np.True_) == weft.padding(3, rows=True)
    for flags in (np.True_, np.array(True), (np.True_, True), np.array([True, True])):
        of_numpy, expected = (weft.neighborhood((4, 4), 3, causal=x) for x in (flags, True))
        np.testing.assert_array_equal(of_numpy.to_dense(16), expected.to_dense(16))


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", POSITIONAL)
def test_undeclared_alignment(name, door):
    pattern = POSITIONAL[name]()
    for m, n in ((3, 8), (8, 3)):
        words = ("align", "top-left", "bottom-right", str(m), str(n))
        refuse(partial(DOORS[door], pattern, m, n), AlignmentError, words)
        DOORS[door](pattern.aligned("bottom-right"), m, n)
    DOORS[door](pattern, 8, 8)


def test_undeclared_alignment_inside_a_segment():
    pattern = weft.segments([3, 5], [[True, weft.causal()], [True, True]])
    refuse(lambda: pattern.to_dense(8), AlignmentError, ("align", "3", "5"))
    refuse(lambda: pattern.acsr(8), AlignmentError, ("align", "3", "5"))


def test_undeclared_alignment_on_an_axis():
    pattern = weft.product([weft.full(), weft.chunks(2)], (2, 3), (2, 5))
    refuse(lambda: pattern.to_dense(6, 10), AlignmentError, ("align", "3", "5"))
    refuse(lambda: pattern.acsr(6, 10), AlignmentError, ("align", "3", "5"))


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", FITTED)
def test_lengths_that_do_not_fit(name, door):
    pattern = FITTED[name]()
    n = 9 if name == "product-unlike" else 8
    DOORS[door](pattern, 8, n)
    for m, other in ((7, 7), (9, 9), (8, n + 1), (7, n)):
        refuse(partial(DOORS[door], pattern, m, other), LengthError, (name.split("-")[0], "8"))
        refuse(partial(DOORS[door], pattern & weft.full(), m, other), LengthError, (name.split("-")[0], "8"))


@pytest.mark.parametrize("door", ("to_dense", "acsr"))
@pytest.mark.parametrize("m,n", ((-1, -1), (4, -1), (2.5, 3), ("8", 8)), ids=str)
def test_lengths_that_are_none(m, n, door):
    refuse(lambda: DOORS[door](weft.full(), m, n), WeftError, (str(n if n == -1 else m),))


@rows(
    ("head", lambda p: p.acsr(8, head=2), WeftError, ("head", "2")),
    ("negative-head", lambda p: p.acsr(8, head=-1), WeftError, ("head", "-1")),
    ("contains", lambda p: p.contains(0, 0, 8, 8, head=5), WeftError, ("head", "5", "2")),
    ("text-head", lambda p: p.acsr(8, head="a"), PatternError, ("head", "'a'", "integer")),
    ("half-head", lambda p: p.acsr(8, head=1.5), PatternError, ("head", "1.5", "integer")),
)
def test_wrong_head(call, error, words):
    refuse(lambda: call(weft.per_head([weft.causal(), weft.full()])), error, words)
    refuse(lambda: call(weft.full() & ~weft.sparse_transformer(4, 2)), error, words)


@rows(
    ("batch", lambda p: p.acsr(8, batch=2), WeftError, ("batch", "2")),
    ("negative-batch", lambda p: p.acsr(8, batch=-1), WeftError, ("batch", "-1")),
    ("contains", lambda p: p.contains(0, 0, 8, 8, batch=5), WeftError, ("batch", "5", "2")),
)
def test_wrong_batch_row(call, error, words):
    refuse(lambda: call(weft.per_batch([weft.causal(), weft.full()])), error, words)
    refuse(lambda: call(weft.full() & weft.prefix([3, 4])), error, words)


def test_unlike_numbers_of_heads():
    two, three = weft.per_head([weft.full()] * 2), weft.per_head([weft.full()] * 3)
    refuse(lambda: (two & three).to_dense(4), WeftError, ("head", "2", "3"))
    rows_two, rows_three = weft.prefix([1, 2]), weft.prefix([1, 2, 3])
    refuse(lambda: (rows_two | rows_three).to_dense(4), WeftError, ("batch", "2", "3"))


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("choose,name", [(weft.per_head, "heads"), (weft.per_batch, "batch rows")])
@pytest.mark.parametrize("inner", [1, 3])
def test_unlike_numbers_inside_each_other(choose, name, inner, door):
    pattern = choose([weft.full(), choose([weft.causal()] * inner)])
    refuse(partial(DOORS[door], pattern, 4, 4), PatternError, (f"per_{name.split()[0][:4]}", name, "2", str(inner)))


@pytest.mark.parametrize("choose", [weft.per_head, weft.per_batch])
def test_like_numbers_inside_each_other(choose):
    """Each sees its own part of its part."""
    pattern = choose([weft.full(), choose([weft.full(), weft.causal()])])
    expected = [weft.full().to_dense(4), weft.causal().to_dense(4)]
    np.testing.assert_array_equal(pattern.to_dense(4).reshape(2, 4, 4), expected)
    found = [pattern.acsr(4, **{"head" if choose is weft.per_head else "batch": i}).to_dense() for i in range(2)]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", ("causal", "and", "not", "per_head"))
def test_a_pattern_has_no_truth(name):
    pattern = POSITIONAL[name]()
    refuse(lambda: 1 if pattern else 0, PatternError, ("&", "|"))
    refuse(lambda: pattern and weft.full(), PatternError, ("&", "|"))
    refuse(lambda: not pattern, PatternError, ("&", "|"))
    refuse(lambda: bool(pattern), PatternError, ("&", "|"))


def test_the_family_of_errors():
    assert issubclass(WeftError, Exception)
    for error, parents in {
        PatternError: (WeftError, ValueError),
        AlignmentError: (PatternError,),
        LengthError: (PatternError,),
        InputError: (WeftError, ValueError),
        OptionError: (WeftError, ValueError),
        UnsupportedError: (WeftError, NotImplementedError),
        VerificationError: (WeftError,),
    }.items():
        assert all(issubclass(error, parent) for parent in parents), error
        raised = error("this was asked", "this is wrong", "do that")
        assert (raised.asked, raised.wrong, raised.cure) == ("this was asked", "this is wrong", "do that")
        lines = str(raised).splitlines()
        assert len(lines) == 3
        assert "this was asked" in lines[0] and "this is wrong" in lines[1] and "do that" in lines[2]
