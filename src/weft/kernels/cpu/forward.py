"""Forward on the CPU: for each query tile scores, soft maximum, accumulate, and a merge by lse where rows are met again."""

from __future__ import annotations

import torch

from weft.kernels.cpu.program import Program, Step, Tile
from weft.kernels.cpu.scores import Modifiers, Workspace, key_slice, pieces_of, rows_of, score, staged_rows


def forward(
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    result: tuple[torch.Tensor, torch.Tensor],
    program: Program,
    how: Modifiers,
) -> None:
    """Write out and lse. q (P, G, M, D), k (P, N, D), v (P, N, Dv); out (P, G, M, Dv) zeroed, lse (P, G, M) at -inf.

    P counts pairs of batch row and key/value head, G the query heads that share one. lse has the dtype of accumulation;
    out must have it too if the program merges.
    """
    q, k, v = tensors
    out, lse = result
    pairs, group = q.shape[:2]
    work = Workspace(lse.dtype)
    for tile in program.tiles:
        rows = group * tile.queries.size
        staged = staged_rows(q, tile.queries, work.take("q", pairs, rows, q.shape[3])).mul_(how.scale)
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
    group = q.shape[1] // tile.queries.size
    o = lse = None
    for number, step in enumerate(tile.steps):
        scores = score(q, k, step, work, how, (tile.queries, group)).scores
        accumulator = work.take("o" if number == 0 else "o next", q.shape[0], q.shape[1], v.shape[2])
        if step.dead is not None:  # any finite score will do: what comes of it is thrown away
            scores.unflatten(1, (group, -1)).index_fill_(2, step.dead, 0.0)
        step_o, step_lse = _finish(scores, v, step, work, accumulator)
        if step.dead is not None:
            step_o.unflatten(1, (group, -1)).index_fill_(2, step.dead, 0.0)
            step_lse.unflatten(1, (group, -1)).index_fill_(2, step.dead, -torch.inf)
        o, lse = (step_o, step_lse) if o is None else merge(step_o, step_lse, o, lse)
    assert o is not None and lse is not None  # a tile has at least one step
    return o, lse


def _finish(
    scores: torch.Tensor, v: torch.Tensor, step: Step, work: Workspace, o: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Soft maximum and product with v. In a row the largest probability is exp(0) / sum, which gives lse for one pass."""
    largest = scores.amax(-1, keepdim=True)
    torch.softmax(scores, -1, out=scores)
    lse = largest.sub_(scores.amax(-1, keepdim=True).log_())
    for i, (piece, weights) in enumerate(zip(step.pieces, pieces_of(step, scores), strict=True)):
        values = key_slice(v, piece.keys, work, "v")
        if i == 0:
            torch.bmm(weights, values, out=o)
        else:
            o.baddbmm_(weights, values)
    return o, lse


def merge(
    o: torch.Tensor, lse: torch.Tensor, old_o: torch.Tensor, old_lse: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention over the union of two disjoint sets of keys, from the outputs and lse over each; both may be empty."""
    both = torch.logaddexp(lse, old_lse)
    safe = both.masked_fill(both == -torch.inf, 0.0)
    merged = o * (lse - safe).exp() + old_o * (old_lse - safe).exp()
    return merged, both
