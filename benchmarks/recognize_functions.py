"""How long it takes to recognise a mask function, at 4,096 to 1,048,576 tokens and 1, 2 and 8 batch rows.

    python benchmarks/recognize_functions.py [--only TEXT] [--tokens N ...] [--rows B ...] [--record]

The functions of `transformers.masking_utils`, built by that library, and those of tests/recognition/generators.py;
those that read nothing by batch row are asked once. Each in a process of its own that has recognised one other
function: `cold` is its first call, `warm` the median of five later ones, each on tensors of other contents. Processor
time of one thread; tensors are made beforehand. Packed rows hold documents of about a thousand tokens, their lengths
log-normal. Needs torch, transformers and pytest; two minutes. Bar: less than 20 ms, cold and warm.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before anything loads a library that reads it

import argparse
import gc
import multiprocessing
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from planning import RESULTS, append, commit, machine, provenance
from transformers import masking_utils as masks

import weft

sys.path.append(str(Path(__file__).parent.parent))
from tests.recognition import generators as given

BAR = 20.0  # ms
WARM = 5
TOKENS, ROWS = (1 << 12, 1 << 17, 1 << 20), (1, 2, 8)
COLUMNS = ("date", "machine", "python", "numpy", "commit", "function", "tokens", "rows", "cold_ms", "warm_ms", "proof")
CAUSAL, WINDOW = masks.causal_mask_function, masks.sliding_window_causal_mask_function(1024)


# ---- tensors that functions read -----------------------------------------------------------------------------------
class Rows:
    """Tensors of `count` batch rows of n tokens, of other contents for every seed."""

    def __init__(self, n: int, count: int, seed: int) -> None:
        self.n, self.count, self.random = n, count, np.random.default_rng(seed)

    def _lengths(self) -> np.ndarray:
        weights = self.random.lognormal(0, 1, max(4, self.n // 1024))
        ends = np.rint(np.cumsum(weights) / weights.sum() * self.n).astype(np.int64)
        return np.diff(ends, prepend=0)

    def packed(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(document of each token, its position in the document), both (count, n) int64."""
        ids, places = (np.empty((self.count, self.n), np.int64) for _ in range(2))
        for row in range(self.count):
            lengths = self._lengths()
            ids[row] = np.repeat(np.arange(lengths.size), lengths)
            places[row] = np.arange(self.n) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return torch.from_numpy(ids), torch.from_numpy(places)

    @property
    def ids(self) -> torch.Tensor:
        return self.packed()[0]

    @property
    def offsets(self) -> torch.Tensor:
        """Where the documents of one row begin, and the end."""
        return torch.from_numpy(np.append(0, np.cumsum(self._lengths())))

    def numbers(self, low: int, high: int) -> torch.Tensor:
        return torch.from_numpy(self.random.integers(low, high, self.count))

    def live(self, *, left: bool = False) -> torch.Tensor:
        """(count, n) booleans, False in the padding."""
        some = self.numbers(0, self.n // 4)[:, None]
        at = torch.arange(self.n)[None]
        return at >= some if left else at < self.n - some

    def images(self) -> torch.Tensor:
        """(count, n): the number of the image a token is of, -1 for text; every second document is an image."""
        ids = self.ids
        return torch.where(ids % 2 == 1, ids // 2, -1)


class Case(NamedTuple):
    """A function for some rows and the options of its recognition; by_row: whether it reads anything by batch row."""

    make: Callable[[Rows], Any]
    by_row: bool = True
    heads: int | None = None


def _packed(inner: Callable[[Rows], Any]) -> Case:
    """`inner` on positions counted from the beginning of each document."""

    def make(rows: Rows) -> Any:
        ids, places = rows.packed()
        mask = masks.remap_positions_for_packed_sequence(inner(rows), places)
        return masks.and_masks(mask, masks.packed_sequence_mask_function(ids))

    return Case(make)


def _blockwise(rows: Rows) -> Any:
    return masks.or_masks(CAUSAL, masks.blockwise_overlay(rows.images()))


TRANSFORMERS = {
    "causal": Case(lambda _: CAUSAL, False),
    "bidirectional": Case(lambda _: masks.bidirectional_mask_function, False),
    "sliding window": Case(lambda _: WINDOW, False),
    "sliding overlay": Case(lambda _: masks.sliding_window_overlay(1024), False),
    "bidirectional window": Case(lambda _: masks.sliding_window_bidirectional_mask_function(1024), False),
    "prefix": Case(lambda _: masks.or_masks(CAUSAL, lambda b, h, q, k: k < 1000), False),
    "with a cache": Case(lambda _: masks.add_offsets_to_mask_function(WINDOW, 40, 0), False),
    "chunked": Case(lambda r: masks.chunked_causal_mask_function(1000, r.numbers(0, 900))),
    "chunked overlay": Case(lambda r: masks.chunked_overlay(1000, r.numbers(0, 900))),
    "padding": Case(lambda r: masks.padding_mask_function(r.live())),
    "left padding": Case(lambda r: masks.padding_mask_function(r.live(left=True))),
    "causal and padding": Case(lambda r: masks.and_masks(CAUSAL, masks.padding_mask_function(r.live()))),
    "window and padding": Case(lambda r: masks.and_masks(WINDOW, masks.padding_mask_function(r.live(left=True)))),
    "packed": Case(lambda r: masks.packed_sequence_mask_function(r.ids)),
    "packed and causal": Case(lambda r: masks.and_masks(CAUSAL, masks.packed_sequence_mask_function(r.ids))),
    "packed and padding": Case(
        lambda r: masks.and_masks(
            CAUSAL, masks.packed_sequence_mask_function(r.ids), masks.padding_mask_function(r.live())
        )
    ),
    "packed positions": _packed(lambda _: CAUSAL),
    "packed window": _packed(lambda _: WINDOW),
    "packed chunks": _packed(lambda r: masks.chunked_causal_mask_function(256, torch.zeros(r.count, dtype=int))),
    "packed bidirectional window": _packed(lambda _: masks.sliding_window_bidirectional_mask_function(256)),
    "blockwise": Case(_blockwise),
    "blockwise and padding": Case(lambda r: masks.and_masks(_blockwise(r), masks.padding_mask_function(r.live()))),
}


def _side(rows: Rows) -> int:
    return 1 << (rows.n.bit_length() // 2)


def _layout(rows: Rows) -> torch.Tensor:
    """(heads, 64, 64) blocks: causal, diagonal, every third diagonal."""
    at = torch.arange(64)[:, None] - torch.arange(64)[None]
    shift = int(rows.random.integers(3))
    return torch.stack([at >= 0, at == shift, at % 3 == shift])


GENERATORS = {
    "sliding_window": Case(lambda _: given.sliding_window(1024), False),
    "dilated_window": Case(lambda _: given.dilated_window(1024, 4), False),
    "global_and_sliding": Case(lambda _: given.global_and_sliding(64, 512), False),
    "strided": Case(lambda _: given.strided(128), False),
    "fixed": Case(lambda _: given.fixed(128, 8), False),
    "images_in_text": Case(lambda _: given.images_in_text([(100, 700), (2000, 2900)]), False),
    "neighborhood_2d": Case(lambda r: given.neighborhood_2d(_side(r), r.n // _side(r), 13), False),
    "cut_neighborhood_2d": Case(lambda r: given.cut_neighborhood_2d(_side(r), 13), False),
    "neighborhood_3d": Case(lambda r: given.neighborhood_3d((16, 16, r.n // 256), 5), False),
    "sliding_tile": Case(lambda r: given.sliding_tile(_side(r), 8, 5), False),
    "alternating": Case(lambda _: given.alternating(512), False, 8),
    "documents": Case(lambda r: given.in_documents(given.causal, r.offsets), False),
    "window in documents": Case(lambda r: given.in_documents(given.sliding_window(256), r.offsets), False),
    "dilated in documents": Case(lambda r: given.in_documents(given.dilated_window(256, 4), r.offsets), False),
    "prefix_lm in documents": Case(lambda r: given.in_documents(given.prefix_lm(r.numbers(9, 99)), r.offsets)),
    "searched_documents": Case(lambda r: given.searched_documents(r.offsets), False),
    "share_question": Case(lambda r: given.share_question(r.ids[0]), False),
    "with_numpy": Case(lambda r: given.with_numpy(r.ids[0].numpy()), False),
    "prefix_lm": Case(lambda r: given.prefix_lm(r.numbers(1, r.n))),
    "per_head_window": Case(lambda r: given.per_head_window(r.numbers(1, 4000)), False),
    "layout_of_blocks": Case(lambda r: given.layout_of_blocks(_layout(r), r.n // 64), False, 3),
}
CASES = {f"transformers {name}": case for name, case in TRANSFORMERS.items()} | GENERATORS


# ---- measuring -----------------------------------------------------------------------------------------------------
class Row(NamedTuple):
    """Milliseconds, and how the function is proven."""

    cold: float
    warm: float
    proof: str


def once(case: Case, n: int, rows: int, seed: int) -> tuple[float, str]:
    """(milliseconds, proof) on tensors of this seed."""
    function = case.make(Rows(n, rows, seed))
    size = (40, n) if case is CASES["transformers with a cache"] else (n, n)
    begin = time.process_time()
    found = weft.recognize(function, size=size, batch=rows if case.by_row else None, heads=case.heads)
    return 1e3 * (time.process_time() - begin), found.proof


def settle() -> None:
    """Make a forked process one of its own: until it writes to a page, counting references for one, it shares it with
    its parent, and the copy would be timed. Then recognise a function that is none of the cases, so that a first call
    meets code that has run.
    """
    gc.get_objects()
    gc.freeze()
    table = torch.arange(64)
    weft.recognize(lambda q, k: (q // 7 <= k) & (table[q] > 3), size=(64, 64))


def measure(job: tuple[str, int, int]) -> Row:
    """What the process of one function does."""
    name, n, rows = job
    settle()
    cold, proof = once(CASES[name], n, rows, 0)
    return Row(cold, median(once(CASES[name], n, rows, seed)[0] for seed in range(1, WARM + 1)), proof)


def jobs(only: str, tokens: list[int], rows: list[int]) -> list[tuple[str, int, int]]:
    return [
        (name, n, count)
        for name, case in CASES.items() if only in name
        for n in tokens
        for count in (rows if case.by_row else rows[:1])
    ]  # fmt: skip


def verdicts(found: dict[tuple[str, int, int], Row]) -> None:
    """The bar, with the slowest function and all that miss it."""
    for kind in ("cold", "warm"):
        worst = max(found, key=lambda job: getattr(found[job], kind))
        missed = [job for job, row in found.items() if getattr(row, kind) >= BAR]
        slowest = f"{getattr(found[worst], kind):.1f}, the most, in {worst[0]} at {worst[1]} x {worst[2]}"
        verdict, share = "MISS" if missed else "PASS", f"{len(missed)} of {len(found)} miss it"
        print(f"{verdict}  {kind} below {BAR:.0f} ms: {slowest}; {share}")
    for job, row in found.items():
        if row.proof != "symbolic":
            print(f"MISS  {job}: {row.proof}")


def csv_row(job: tuple[str, int, int], row: Row) -> dict[str, object]:
    cold, warm = round(row.cold, 2), round(row.warm, 2)
    named = dict(zip(("function", "tokens", "rows"), job, strict=True))
    return provenance("numpy") | named | {"cold_ms": cold, "warm_ms": warm, "proof": row.proof}


def main() -> None:
    parser = argparse.ArgumentParser(description="Time to recognise mask functions")
    parser.add_argument("--only", default="", help="functions with this text in their name")
    parser.add_argument("--tokens", type=int, nargs="+", default=list(TOKENS))
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS))
    parser.add_argument("--record", action="store_true", help="append to results/recognition.csv")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{machine()}; commit {commit()}\n{'function':40s}{'tokens':>9s}{'rows':>5s}{'cold ms':>9s}{'warm ms':>9s}")
    found = {}
    for job in jobs(asked.only, asked.tokens, asked.rows):
        with multiprocessing.get_context("fork").Pool(1) as process:
            found[job] = row = process.apply(measure, (job,))
        mark = "  misses" if max(row.cold, row.warm) >= BAR else ""
        print(f"{job[0]:40s}{job[1]:9d}{job[2]:5d}{row.cold:9.1f}{row.warm:9.1f}{mark}", flush=True)
    verdicts(found)
    if asked.record:
        append(RESULTS / "recognition.csv", COLUMNS, [csv_row(job, row) for job, row in found.items()])


if __name__ == "__main__":
    main()
