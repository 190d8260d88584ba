"""The oracles against examples worked out by hand, and against each other; the library is not involved."""

import numpy as np
import pytest

from . import oracles as o


def picture(matrix):
    return ["".join("x" if live else "." for live in row) for row in matrix]


HAND = {
    "causal": (o.dense(o.causal, 3), ["x..", "xx.", "xxx"]),
    "causal offset": (o.dense(lambda q, k: o.causal(q, k, -1), 3), ["...", "x..", "xx."]),
    "causal bottom right": (o.dense(o.causal, 2, 4, "bottom-right"), ["xxx.", "xxxx"]),
    "causal bottom right tall": (o.dense(o.causal, 3, 2, "bottom-right"), ["..", "x.", "xx"]),
    "window": (o.dense(lambda q, k: o.window(q, k, 1, 0), 4), ["x...", "xx..", ".xx.", "..xx"]),
    "window open": (o.dense(lambda q, k: o.window(q, k, None, 1), 3), ["xx.", "xxx", "xxx"]),
    "dilated": (o.dense(lambda q, k: o.dilated(q, k, 1, 1, 2), 5), ["x.x..", ".x.x.", "x.x.x", ".x.x.", "..x.x"]),
    "periodic": (o.dense(lambda q, k: o.periodic_keys(q, k, 3), 1, 7), ["..x..x."]),
    "periodic phase": (o.dense(lambda q, k: o.periodic_keys(q, k, 3, 0), 1, 7), ["x..x..x"]),
    "strided": (o.dense(lambda q, k: o.strided(q, k, 2), 5), ["x....", "xx...", "xxx..", ".xxx.", "x.xxx"]),
    "fixed": (o.dense(lambda q, k: o.fixed(q, k, 2), 5), ["x....", "xx...", ".xx..", ".xxx.", ".x.xx"]),
    "chunks": (o.dense(lambda q, k: o.chunks(q, k, 2), 3), ["xx.", "xx.", "..x"]),
    "blocks": (o.dense(lambda q, k: o.blocks(q, k, (1, 2), [(0, 1), (2, 0)]), 3), ["..x", "...", "xx."]),
    "documents": (o.documents([1, 0, 2]), ["x..", ".xx", ".xx"]),
    "documents ids": (o.documents(ids=[5, -1, 5]), ["x.x", ".x.", "x.x"]),
    "documents cu_seqlens": (o.documents(cu_seqlens=[0, 2, 2, 3]), ["xx.", "xx.", "..x"]),
    "padding": (o.dense(lambda q, k: o.padding(q, k, 2, rows=True), 3), ["xx.", "xx.", "..."]),
    "global": (o.dense(lambda q, k: o.global_tokens(q, k, [1]), 3), [".x.", "xxx", ".x."]),
    "longformer": (o.dense(lambda q, k: o.longformer(q, k, 3, 1), 4), ["xxxx", "xxx.", "xxxx", "x.xx"]),
    "bigbird": (
        o.dense(lambda q, k: o.bigbird(q, k, 5, 1, 1, 1, np.zeros((5, 5), bool)), 5),
        ["xxxxx", "xx..x", "x.x.x", "x..xx", "xxxxx"],
    ),
    "segments": (
        o.segments([2, 1], [[np.eye(2, dtype=bool), True], [None, False]]),
        ["x.x", ".xx", "..."],
    ),
    "product": (
        o.product([np.eye(2, dtype=bool), np.array([[True, False], [True, True]])], (2, 2)),
        ["x...", "xx..", "..x.", "..xx"],
    ),
    "shift": (o.shift(np.eye(3, dtype=bool), 1, 0), ["...", "x..", ".x."]),
    # The window of 3 moves inwards at both borders.
    "natten": (o.natten_axis(5, 3), ["xxx..", "xxx..", ".xxx.", "..xxx", "..xxx"]),
    # Even size: two to the left, self, one to the right.
    "natten even": (o.natten_axis(6, 4), ["xxxx..", "xxxx..", "xxxx..", ".xxxx.", "..xxxx", "..xxxx"]),
    # Two residue groups: 0 2 4 and 1 3; a window of 2 in each.
    "natten dilated": (o.natten_axis(5, 2, 1, 2), ["x.x..", ".x.x.", "x.x..", ".x.x.", "..x.x"]),
    # Groups of two queries share the window of their second member.
    "natten stride": (o.natten_axis(6, 3, 2), ["xxx...", "xxx...", "..xxx.", "..xxx.", "...xxx", "...xxx"]),
    "natten causal": (o.natten_axis(4, 2, 1, 1, True), ["x...", "xx..", ".xx.", "..xx"]),
    # Leaders 1, 1, 3, 3, 4: earlier queries of a group see fewer keys.
    "natten causal stride": (o.natten_axis(5, 2, 2, 1, True), ["x....", "xx...", "..x..", "..xx.", "...xx"]),
}


@pytest.mark.parametrize("name", HAND)
def test_by_hand(name):
    matrix, rows = HAND[name]
    assert picture(matrix) == rows


def test_merged_heads_are_the_union_of_the_factors():
    for stride in (1, 2, 3, 8):
        merged = o.dense(lambda q, k, s=stride: o.strided(q, k, s), 20)
        factors = [o.dense(lambda q, k, s=stride, h=h: o.sparse_transformer(q, k, h, s), 20) for h in (0, 1)]
        assert (merged == factors[0] | factors[1]).all()
        for summary in range(1, stride + 1):
            merged = o.dense(lambda q, k, s=stride, c=summary: o.fixed(q, k, s, c), 20)
            factors = [
                o.dense(lambda q, k, s=stride, h=h, c=summary: o.sparse_transformer(q, k, h, s, "fixed", c), 20)
                for h in (0, 1)
            ]
            assert (merged == factors[0] | factors[1]).all()


def test_plain_longformer_is_a_window():
    band = o.dense(lambda q, k: o.longformer(q, k, 6), 9, 12, "bottom-right")
    assert (band == o.dense(lambda q, k: o.window(q, k, 3, 3), 9, 12, "bottom-right")).all()
    dilated = o.dense(lambda q, k: o.longformer(q, k, 6, dilation=2), 20)
    assert (dilated == o.dense(lambda q, k: o.dilated(q, k, 3, 3, 2), 20)).all()


def test_natten_facts():
    for length in range(1, 14):
        for size in range(1, length + 1):
            for dilation in range(1, length // size + 1):
                for stride in range(1, size + 1):
                    axis = o.natten_axis(length, size, stride, dilation)
                    assert (axis.sum(1) == size).all(), "every query sees exactly `size` keys"
                    assert axis.diagonal().all(), "with stride <= size every query sees itself"
                    past = o.natten_axis(length, size, stride, dilation, True)
                    assert not np.triu(past, 1).any(), "causal sees no later key"
                    assert past.diagonal().all()
        assert o.natten_axis(length, length).all(), "size == length is plain attention"
        assert (o.natten_axis(length, length, 1, 1, True) == o.dense(o.causal, length)).all()


def test_neighborhood_is_the_product_of_its_axes():
    axes = [o.natten_axis(4, 3, 2), o.natten_axis(5, 2, 1, 2, True)]
    assert (o.neighborhood((4, 5), (3, 2), (2, 1), (1, 2), (False, True)) == o.product(axes, (4, 5))).all()
