"""Packed queries against keys in shuffled pages, on the CPU: what the same keys give one after the other."""

from itertools import accumulate

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tiers import examples

import weft
from weft.errors import InputError, OptionError, UnsupportedError
from weft.testing.refusals import refuse

LAST = "bottom-right"
PATTERNS = {
    "causal": weft.causal(align=LAST),
    "window": (weft.causal() & weft.window(left=20)).aligned(LAST),
    "full": weft.full(),
    "dilated": weft.dilated(3, 0, 4, align=LAST),
    "heads": weft.per_head([weft.causal(), weft.window(2), weft.full(), weft.window(9, 1)]).aligned(LAST),
    "each its own": weft.per_batch([weft.window(3, align=LAST), weft.full(), weft.causal(align=LAST)] * 2),
}
QUERIES, KEYS = [5, 0, 9, 30, 1, 7], [29, 4, 9, 75, 120, 0]


def sums(lengths):
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)


def paged(keys, page, seed=0, heads_first=True):
    """(k, v, k pages, v pages, table) of keys and values (T, 2, 4) and (T, 2, 3); pages beyond a document are -1."""
    random = torch.Generator().manual_seed(seed)
    k, v = (torch.randn(sum(keys), 2, width, generator=random, dtype=torch.float64) for width in (4, 3))
    each = [-(-n // page) for n in keys]
    order = torch.randperm(sum(each) + 2, generator=random).tolist()
    table = torch.full((len(keys), max([*each, 1]) + 1), -1, dtype=torch.int32)
    pools = [torch.full((sum(each) + 2, 2, page, x.shape[2]), torch.nan, dtype=torch.float64) for x in (k, v)]
    if not heads_first:
        pools = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in pools]
    first = 0
    for i, n in enumerate(keys):
        for j in range(each[i]):
            table[i, j] = order.pop()
            for pool, x in zip(pools, (k, v), strict=True):
                part = x[first + j * page : first + min((j + 1) * page, n)]
                pool[table[i, j], :, : part.shape[0]] = part.transpose(0, 1)
        first += n
    return k, v, *pools, table


def check(queries, keys, pattern, page=16, seed=0, **options):
    q = torch.randn(sum(queries), 4, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    k, v, k_pages, v_pages, table = paged(keys, page, seed, heads_first=seed % 2 == 0)
    counted = sums(queries), sums(keys)
    wanted = weft.varlen_attention(q, k, v, *counted, pattern, return_lse=True, **options)
    found = weft.varlen_attention(
        q, k_pages, v_pages, *counted, pattern, block_table=table, return_lse=True, **options
    )  # fmt: skip
    for x, y in zip(found, wanted, strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("page", [16, 24])
@pytest.mark.parametrize("name", PATTERNS)
def test_shuffled_pages(name, page):
    """What lies in no page, or behind a document's last key, is NaN."""
    check(QUERIES, KEYS, PATTERNS[name], page, seed=page)
    check(QUERIES, KEYS, PATTERNS[name], page, sinks=torch.linspace(-1, 1, 4, dtype=torch.float64), softcap=2.0)


lengths = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 90)), min_size=1, max_size=6)


@settings(max_examples=examples(30), deadline=None)
@given(lengths, st.sampled_from(sorted(set(PATTERNS) - {"each its own"})), st.sampled_from((16, 40)), st.integers(0, 9))
def test_any_lengths(drawn, name, page, seed):
    check([m for m, _ in drawn], [n for _, n in drawn], PATTERNS[name], page, seed)


def test_pages_that_a_window_has_left_may_be_gone():
    """Those that no query sees are neither read nor need a number."""
    q = torch.randn(8, 4, 4, dtype=torch.float64)
    *_, k_pages, v_pages, table = paged([100], 16)
    pattern = (weft.causal() & weft.window(left=20)).aligned(LAST)

    def out():
        counted = sums([8]), sums([100])
        return weft.varlen_attention(q, k_pages, v_pages, *counted, pattern, block_table=table)

    wanted = out()  # queries 92 to 99 see keys from 72 on, in pages 4, 5 and 6
    for x in (k_pages, v_pages):
        x[table[0, :4].long()] = torch.nan
    table[0, :4] = -7
    assert torch.equal(out(), wanted)
    table[0, 4] = -7
    refuse(out, InputError, ("varlen_attention", "block_table[0, 4] is -7"))


def call(q=None, table=None, pattern=PATTERNS["causal"], queries=(6,), keys=(20,), **options):
    *_, k_pages, v_pages, found = paged(list(keys), 16)
    q = torch.randn(sum(queries), 4, 4, dtype=torch.float64) if q is None else q
    table = found if table is None else table
    return weft.varlen_attention(
        q, k_pages, v_pages, sums(queries), sums(keys), pattern, block_table=table, **options
    )  # fmt: skip


def test_refused():
    wanted = torch.randn(6, 4, 4, dtype=torch.float64, requires_grad=True)
    table = torch.zeros(1, 1, dtype=torch.int32)
    refuse(lambda: call(wanted), UnsupportedError, ("gradients", "torch.no_grad()"))
    refuse(lambda: call(table=table.long()), InputError, ("varlen_attention", "block_table is torch.int64"))
    refuse(lambda: call(table=table.expand(2, 1)), InputError, ("block_table has shape (2, 1)",))
    refuse(lambda: call(table=table), InputError, ("row 0 has 20 keys", "hold 16"))
    refuse(lambda: call(table=table.expand(1, 2) + 99), InputError, ("block_table[0, 0] is 99",))
    refuse(lambda: call(pattern=weft.causal()), weft.errors.AlignmentError, ("bottom-right",))
    refuse(lambda: call(torch.zeros(1, 4, 6, 4).double()[0, 0]), InputError, ("q has 2 dimensions",))
    refuse(lambda: call(max_seqlen_k=19), InputError, ("max_seqlen_k is 19",))
    refuse(lambda: call(extra_keys=torch.zeros(1, 2, 4)), UnsupportedError, ("extra_keys", "weft.merge"))
    refuse(lambda: call(seqused_k=3), OptionError, ("seqused_k",))
