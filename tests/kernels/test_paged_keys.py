"""`weft.decode_attention` with a block table: keys in shuffled pages, beside the same keys one after the other."""

import pytest
import torch

import weft
from weft.errors import InputError, OptionError

from .compare import BACKENDS, generator
from .test_key_cache import BATCH, CAUSAL, HEADS, OPTIONS, PATTERNS, WIDTH, WINDOW, counts, options, problem, same

EACH, SPARE = 6, 3  # pages of a batch row, and pages that no row has
LAYOUTS = ("heads first", "tokens first")


@pytest.fixture(params=sorted(BACKENDS))
def backend(request):
    return request.param


class Paged:
    """Keys and values of `problem` in shuffled pages, what is in no page of a row no number."""

    def __init__(self, name, backend, page=16, layout="heads first", queries=2):
        self.page, self.tensors = page, problem(name, backend, EACH * page, queries)
        self.pages = BATCH * EACH + SPARE
        order = torch.randperm(self.pages, generator=generator(f"pages of {name}"))
        self.order = order[: BATCH * EACH].reshape(BATCH, EACH).to(self.tensors[0].device)
        self.caches = [self._shuffled(x, layout) for x in self.tensors[1:]]
        self.table = self.order.to(torch.int32)

    def _shuffled(self, x, layout):
        """(pages, Hkv, page, D) of (B, Hkv, N, D)."""
        made = torch.full((self.pages, self.page, HEADS[1], WIDTH), torch.nan, device=x.device)
        found = made.transpose(1, 2) if layout == "tokens first" else made.transpose(1, 2).contiguous()
        found[self.order] = x.reshape(BATCH, HEADS[1], EACH, self.page, WIDTH).transpose(1, 2)
        return found

    def free(self, row, page):
        """A page is gone."""
        for x in self.caches:
            x[self.order[row, page]] = torch.nan
        self.table[row, page] = -1 - page

    def check(self, mask, keys, backend, **more):
        """Pages give what keys one after the other do."""
        how = {"return_lse": True, "backend": backend, **more}
        q, k, v = self.tensors
        wanted = weft.decode_attention(q, k, v, mask, counts(keys, backend), **how)
        paged = weft.decode_attention(q, *self.caches, mask, counts(keys, backend), block_table=self.table, **how)
        same(paged, wanted)
        assert all(x.isfinite().all() for x in paged[:1])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("page", [16, 40, 256])
def test_pages_of_each_size_and_layout(page, layout, backend):
    paged = Paged("sizes", backend, page, layout)
    paged.check(WINDOW, (2, 3 * page + 1, EACH * page), backend)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns(pattern, backend):
    chosen = list(OPTIONS)[list(PATTERNS).index(pattern) % len(OPTIONS)]
    paged = Paged(pattern, backend)
    paged.check(PATTERNS[pattern], (2, 17, 96), backend, **options(OPTIONS[chosen], pattern, backend))


def test_all_options(backend):
    paged = Paged("options", backend, queries=5)
    more = {"offset": counts((1, 12, 90), backend), "window": counts((4, 30, 9), backend)}
    paged.check(CAUSAL, (6, 17, 96), backend, **more, **options(OPTIONS["all"], "options", backend))


def test_a_ring_of_pages(backend):
    paged = Paged("ring", backend)
    paged.check(WINDOW, (64, 100, 300), backend, ring=True)


def test_pages_that_a_window_has_left_are_gone(backend):
    """Two queries see 20 keys before themselves; of the pages before, and of those to come, nothing is read."""
    paged, keys = Paged("gone", backend), (96, 50, 16)
    for row, n in enumerate(keys):
        for page in range(EACH):
            if 16 * (page + 1) <= n - 2 - 20 or 16 * page >= n:
                paged.free(row, page)
    assert int((paged.table < 0).sum()) == 4 + 3 + 5
    paged.check(WINDOW, keys, backend)


def test_an_int_of_keys(backend):
    paged = Paged("an int", backend)
    q, k, v = paged.tensors
    found = weft.decode_attention(q, *paged.caches, WINDOW, 41, block_table=paged.table, backend=backend)
    torch.testing.assert_close(found, weft.decode_attention(q, k, v, WINDOW, 41, backend=backend), rtol=2e-5, atol=2e-5)


def test_rows_of_a_wider_table(backend):
    """A batch row's pages are a part of a longer row."""
    paged = Paged("wider", backend)
    paged.table = torch.cat([paged.table, torch.full_like(paged.table, -7)], 1)[:, :EACH]
    assert paged.table.stride() == (2 * EACH, 1)
    paged.check(WINDOW, (5, 96, 33), backend)


@pytest.mark.skipif("triton" not in BACKENDS or BACKENDS["triton"] == "cpu", reason="captures need a GPU")
def test_a_captured_step_serves_every_length_and_table():
    """One graph; between replays lengths grow, and pages are swapped with their numbers."""
    paged = Paged("captured", "triton", queries=1)
    q, k, v = paged.tensors
    count = counts((10, 40, 60), "triton")
    with torch.no_grad():
        weft.decode_attention(q, *paged.caches, WINDOW, count, block_table=paged.table)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            out = weft.decode_attention(q, *paged.caches, WINDOW, count, block_table=paged.table)
        found = []
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(30):
                graph.replay()
                found.append(out.clone())
                count.add_(1)
                swapped = [x[paged.table.flip(1).long()] for x in paged.caches]
                for x, y in zip(paged.caches, swapped, strict=True):
                    x[paged.table.long()] = y
                paged.table.copy_(paged.table.flip(1))
        finally:
            torch.cuda.set_sync_debug_mode("default")
        for step, one in enumerate(found):
            keys = counts((10 + step, 40 + step, 60 + step), "triton")
            assert torch.equal(one, weft.decode_attention(q, k, v, WINDOW, keys))


REFUSED = {
    "64 bits": ({"block_table": torch.zeros(BATCH, EACH, dtype=torch.int64)}, "block_table is torch.int64"),
    "no tensor": ({"block_table": [[0, 1]]}, "block_table is list"),
    "other rows": ({"block_table": torch.zeros(2, EACH, dtype=torch.int32)}, "block_table has shape"),
    "no pages of a row": ({"block_table": torch.zeros(BATCH, 0, dtype=torch.int32)}, "block_table has shape"),
    "columns apart": ({"block_table": torch.zeros(EACH, BATCH, dtype=torch.int32).T}, "strides"),
    "an int beyond": ({"key_count": 97}, "key_count is 97"),
    "other values": ({"v_cache": torch.zeros(4, HEADS[1], 16, WIDTH)}, "v_cache 4"),
    "no pages": ({"k_cache": torch.zeros(0, HEADS[1], 16, WIDTH)}, "one page or more"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case, backend):
    given, text = REFUSED[case]
    paged = Paged("refused", backend)
    q, (k, v) = paged.tensors[0], paged.caches
    call = {"k_cache": k, "v_cache": v, "key_count": counts([5], backend), "block_table": paged.table, **given}
    call = {name: x.to(q.device) if isinstance(x, torch.Tensor) else x for name, x in call.items()}
    call["block_table"] = given.get("block_table", paged.table)
    if case == "columns apart":
        call["block_table"] = torch.zeros(EACH, BATCH, dtype=torch.int32, device=q.device).T
    with pytest.raises(InputError, match=text):
        weft.decode_attention(q, mask=WINDOW, backend=backend, **call)


def test_pages_with_their_heads_behind_their_tokens_are_refused_with_the_cure(backend):
    """As FlashAttention and vLLM keep them: a page then has as many tokens as there are heads."""
    paged = Paged("layout", backend)
    q, caches = paged.tensors[0], [x.transpose(1, 2) for x in paged.caches]
    with pytest.raises(InputError, match=r"k_cache.transpose\(1, 2\)"):
        weft.decode_attention(q, *caches, WINDOW, counts([5], backend), block_table=paged.table, backend=backend)


@pytest.mark.skipif("cpu" not in BACKENDS, reason="a GPU's numbers are read by nobody on the host")
def test_what_is_wrong_in_numbers_is_said_where_the_host_reads_them():
    paged = Paged("wrong numbers", "cpu")
    q = paged.tensors[0]
    with pytest.raises(InputError, match="row 1 has 97 keys, and its 6 pages hold 96"):
        weft.decode_attention(q, *paged.caches, WINDOW, counts((5, 97, 3), "cpu"), block_table=paged.table)
    paged.table[2, 0] = paged.pages
    with pytest.raises(InputError, match=rf"block_table\[2, 0\] is {paged.pages}"):
        weft.decode_attention(q, *paged.caches, WINDOW, counts((5, 96, 3), "cpu"), block_table=paged.table)


def test_attention_names_the_call_that_takes_pages(backend):
    paged = Paged("attention", backend)
    with pytest.raises(OptionError, match=r"weft\.decode_attention"):
        weft.attention(*paged.tensors, WINDOW, block_table=paged.table)
