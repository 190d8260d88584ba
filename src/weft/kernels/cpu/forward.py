"""Forward on the CPU: for each query tile scores, soft maximum, accumulate, and a merge by lse where rows are met
again.
"""

from __future__ import annotations

import torch

from weft.kernels.cpu.program import Program, Tile, batches
from weft.kernels.cpu.scores import Steps, Tiles, Workspace, key_rows, query_rows, rows_of, score, split
from weft.kernels.options import Modifiers


def forward(
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    result: tuple[torch.Tensor, torch.Tensor | None],
    program: Program,
    how: Modifiers,
    work: Workspace,
) -> None:
    """Write out and lse. q (P, G, M, D), k (P, N, D), v (P, N, Dv); out (P, G, M, Dv), lse (P, G, M) or None.

    P counts pairs of batch row and key/value head, G the query heads that share one. Unless the program covers every
    row, out comes zeroed and lse at -inf. If it merges, lse must be given and out have the dtype of accumulation.
    """
    q, k, v = tensors
    out, lse = result
    for tiles in batches(program, q.shape[0] * q.shape[1]):
        staged = query_rows(q, tiles, work, "q")
        o, new_lse = _attend(staged, (k, v), tiles, work, how, lse is not None)
        new_lses = [None] * len(tiles) if new_lse is None else split(new_lse, tiles)
        for tile, new_o, one_lse in zip(tiles, split(o, tiles), new_lses, strict=True):
            _write(out, lse, tile, (new_o, one_lse), program.merges)


def _write(
    out: torch.Tensor,
    lse: torch.Tensor | None,
    tile: Tile,
    new: tuple[torch.Tensor, torch.Tensor | None],
    merges: bool,
) -> None:
    """Put (o, lse) of a run of tiles in their place, or merge them with what is there."""
    o, new_lse = new
    if merges:
        old, old_lse = rows_of(out, tile.queries), rows_of(lse, tile.queries)
        o, new_lse = merge(o, new_lse, old.reshape(o.shape), old_lse.reshape(new_lse.shape))
    tile.queries.put(out, 2, o)
    if lse is not None:
        tile.queries.put(lse, 2, new_lse)


def _attend(
    q: torch.Tensor, kv: tuple[torch.Tensor, torch.Tensor], tiles: Tiles, work: Workspace, how: Modifiers, wanted: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(o, lse) of tiles over all their steps: (tiles * P, rows, Dv) and (tiles * P, rows, 1), or None if not wanted."""
    k, v = kv
    o = lse = None
    several = len(tiles[0].steps) > 1
    for number, steps in enumerate(zip(*(tile.steps for tile in tiles), strict=True)):
        scores = score(q, k, tiles, steps, work, how).scores
        part = work.take("o" if number == 0 else "o next", q.shape[0], q.shape[1], v.shape[2])
        dead, rows = steps[0].dead, tiles[0].queries.size
        if dead is not None:  # any finite score will do: what comes of it is thrown away
            _fill(scores, rows, dead, 0.0)
        part_lse = _finish(scores, v, steps, work, part, wanted or several)
        if dead is not None:
            _fill(part, rows, dead, 0.0)
            if part_lse is not None:
                _fill(part_lse, rows, dead, -torch.inf)
        o, lse = (part, part_lse) if o is None else merge(part, part_lse, o, lse)
    return o, lse


def _fill(x: torch.Tensor, rows: int, which: torch.Tensor, value: float) -> None:
    """x (P, group * rows, any): the same rows of every head of the group."""
    x.unflatten(1, (-1, rows)).index_fill_(2, which, value)


def _finish(
    scores: torch.Tensor, v: torch.Tensor, steps: Steps, work: Workspace, o: torch.Tensor, wanted: bool
) -> torch.Tensor | None:
    """Soft maximum, and its product with v into o; returns lse if it is wanted.

    In a row the largest probability is exp(0) / sum, which gives lse without an exponential of its own.
    """
    lse = scores.amax(-1, keepdim=True) if wanted else None
    torch.softmax(scores, -1, out=scores)
    if lse is not None:
        lse.sub_(scores.amax(-1, keepdim=True).log_())
    torch.bmm(scores, key_rows(v, steps, work, "v"), out=o)
    return lse


def merge(
    o: torch.Tensor, lse: torch.Tensor, old_o: torch.Tensor, old_lse: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention over the union of two disjoint sets of keys, from the outputs and lse over each; both may be empty."""
    both = torch.logaddexp(lse, old_lse)
    safe = both.masked_fill(both == -torch.inf, 0.0)
    merged = o * (lse - safe).exp() + old_o * (old_lse - safe).exp()
    return merged, both
