"""The same numbers in other places of memory."""

import torch

NAN = float("nan")


def contiguous(x):
    return x.contiguous()


def tokens_first(x):
    """(B, S, H, D) in memory, as projections leave it."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def dims_first(x):
    """(B, H, D, S) in memory: the last stride is not 1."""
    return x.mT.contiguous().mT


def interior(x):
    """The middle of a larger buffer of NaN, on every axis: padded strides, poison before, between and beyond."""
    around = torch.full([size + 3 for size in x.shape], NAN, dtype=x.dtype)
    view = around[tuple(slice(1 + axis % 2, 1 + axis % 2 + size) for axis, size in enumerate(x.shape))]
    return view.copy_(x)


def every_other(x):
    """Every other element of a buffer of NaN, on every axis: poison between neighbours."""
    around = torch.full([2 * size + 1 for size in x.shape], NAN, dtype=x.dtype)
    return around[:, 1::2][::2][:, :, 1::2, 1::2][: x.shape[0]].copy_(x)


def one_row(x):
    """The first batch row for all: stride 0."""
    return x[:1].expand(x.shape)


def one_head(x):
    """The first head for all: stride 0."""
    return x[:, :1].expand(x.shape)


# name -> where q, k and v lie
LAYOUTS = {
    "contiguous": (contiguous, contiguous, contiguous),
    "tokens_first": (tokens_first, tokens_first, tokens_first),
    "interior": (interior, interior, interior),
    "every_other": (every_other, every_other, every_other),
    "dims_first": (dims_first, dims_first, dims_first),
    "kv_of_one_row": (contiguous, one_row, one_row),
    "all_of_one_head": (one_head, one_head, one_head),
    "mixed": (tokens_first, dims_first, interior),
}
