"""Forward on the CPU: for each query tile scores, soft maximum, accumulate, and a merge by lse where rows are met
again.
"""

from __future__ import annotations

import torch

from weft.kernels.cpu.program import Program, Step, Tile
from weft.kernels.cpu.scores import Modifiers, Workspace, key_rows, query_rows, rows_of, score


def forward(
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    result: tuple[torch.Tensor, torch.Tensor],
    program: Program,
    how: Modifiers,
) -> None:
    """Write out and lse. q (P, G, M, D), k (P, N, D), v (P, N, Dv); out (P, G, M, Dv), lse (P, G, M).

    Unless the program covers every row, out comes zeroed and lse at -inf.
    P counts pairs of batch row and key/value head, G the query heads that share one. lse has the dtype of accumulation;
    out must have it too if the program merges.
    """
    q, k, v = tensors
    out, lse = result
    work = Workspace(lse.dtype)
    for tile in program.tiles:
        staged = query_rows(q, tile.queries, work, "q")
        o, tile_lse = _attend(staged, k, v, tile, work, how)
        out_rows, lse_rows = rows_of(out, tile.queries), rows_of(lse, tile.queries)
        if program.merges:
            o, tile_lse = merge(o, tile_lse, out_rows.reshape(o.shape), lse_rows.reshape(tile_lse.shape))
        out_rows.copy_(o.view(out_rows.shape))
        lse_rows.copy_(tile_lse.view(lse_rows.shape))


def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, tile: Tile, work: Workspace, how: Modifiers
) -> tuple[torch.Tensor, torch.Tensor]:
    """(o, lse) of one query tile over all its steps: (P, rows, Dv) and (P, rows, 1)."""
    o = lse = None
    for number, step in enumerate(tile.steps):
        scores = score(q, k, step, work, how, tile.queries).scores
        part = work.take("o" if number == 0 else "o next", q.shape[0], q.shape[1], v.shape[2])
        if step.dead is not None:  # any finite score will do: what comes of it is thrown away
            _fill(scores, tile.queries.size, step.dead, 0.0)
        part_lse = _finish(scores, v, step, work, part)
        if step.dead is not None:
            _fill(part, tile.queries.size, step.dead, 0.0)
            _fill(part_lse, tile.queries.size, step.dead, -torch.inf)
        o, lse = (part, part_lse) if o is None else merge(part, part_lse, o, lse)
    assert o is not None and lse is not None  # a tile has at least one step
    return o, lse


def _fill(x: torch.Tensor, rows: int, which: torch.Tensor, value: float) -> None:
    """x (P, group * rows, any): the same rows of every head of the group."""
    x.unflatten(1, (-1, rows)).index_fill_(2, which, value)


def _finish(scores: torch.Tensor, v: torch.Tensor, step: Step, work: Workspace, o: torch.Tensor) -> torch.Tensor:
    """Soft maximum, and its product with v into o; returns lse.

    In a row the largest probability is exp(0) / sum, which gives lse without a pass of its own.
    """
    largest = scores.amax(-1, keepdim=True)
    torch.softmax(scores, -1, out=scores)
    lse = largest.sub_(scores.amax(-1, keepdim=True).log_())
    torch.bmm(scores, key_rows(v, step, work, "v"), out=o)
    return lse


def merge(
    o: torch.Tensor, lse: torch.Tensor, old_o: torch.Tensor, old_lse: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention over the union of two disjoint sets of keys, from the outputs and lse over each; both may be empty."""
    both = torch.logaddexp(lse, old_lse)
    safe = both.masked_fill(both == -torch.inf, 0.0)
    merged = o * (lse - safe).exp() + old_o * (old_lse - safe).exp()
    return merged, both
