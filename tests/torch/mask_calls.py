"""What the tests of masks share."""

from contextlib import contextmanager
from unittest import mock

import torch
from torch.nn.attention.flex_attention import create_block_mask

import weft
from weft.testing.cases import BATCH, HEADS
from weft.torch import masks

from .helpers import qkv

M = 24
X = qkv(M, batch=BATCH, heads=(HEADS, 2))


@contextmanager
def recognitions():
    """Counts what is recognised meanwhile."""
    with mock.patch.object(masks, "_recognize", side_effect=masks._recognize) as counted:
        yield counted


def dense(live, x=None):
    """What torch gives under a boolean mask, 0 in rows without keys."""
    q, k, v = X if x is None else x
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    live = torch.as_tensor(live)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=live).nan_to_num(0.0)


def held(mask, live):
    """How often a mask is recognised in three calls, which compute what they are to."""
    with recognitions() as counted:
        for _ in range(3):
            torch.testing.assert_close(weft.attention(*X, mask), dense(live))
    return counted.call_count


def triangle(m=M, n=None):
    return torch.ones(m, m if n is None else n, dtype=torch.bool).tril()


WINDOW = 5
TABLE = torch.arange(M) // 7


def near(b, h, q, k):
    return (q >= k) & (q - k < WINDOW)


def same_document(b, h, q, k):
    return TABLE[q] == TABLE[k]


def live_of(function, m=M, n=None):
    """The mask of a function, by every pair."""
    b, h, q, k = (torch.arange(size).view(shape) for size, shape in (
        (BATCH, (-1, 1, 1, 1)), (HEADS, (-1, 1, 1)), (m, (-1, 1)), (m if n is None else n, (-1,)),
    ))  # fmt: skip
    found = function(b, h, q, k)
    return torch.broadcast_to(found, (BATCH, HEADS, m, m if n is None else n))


def windowed(size):
    return lambda b, h, q, k: (q >= k) & (q - k < size)


def block_mask(function, batch=None, heads=None, m=M, size=8):
    return create_block_mask(function, batch, heads, m, m, device="cpu", BLOCK_SIZE=size)
