"""FlexAttention's block mask from the formula, some rows of blocks at a time: no S x S tensor is held, and nothing is
compiled.

create_block_mask holds every pair unless torch.compile fuses it, and compiling it took between one second and minutes.
What it costs its users is measured apart, by the peer `flex-mask`.
"""

from __future__ import annotations

from typing import Any

from weft.testing.workloads import Workload

BLOCK = 128  # queries and keys of a block: FlexAttention's own choice; FlashAttention-4 takes it on sm_90
PAIRS = {"cuda": 1 << 26, "cpu": 1 << 22}  # looked at together


def block_mask(workload: Workload, tensors: Any) -> Any:
    """What create_block_mask makes of the formula: partial and full blocks, by rows and by columns.

    One batch row stands for all, and one head unless heads differ.
    """
    import torch
    from torch.nn.attention.flex_attention import BlockMask

    from weft.torch.blockmask import ordered

    heads = range(workload.q_heads if workload.per_head else 1)
    live = torch.stack([_live_pairs(workload, tensors, head) for head in heads])[None]  # (1, heads, rows, columns)
    full = live == BLOCK * BLOCK  # a block that reaches beyond the end is partial
    return BlockMask.from_kv_blocks(
        *ordered((live > 0) & ~full), *ordered(full), BLOCK_SIZE=BLOCK,
        mask_mod=workload.predicate(tensors.table), seq_lengths=(workload.m, workload.n),
    )  # fmt: skip


def _live_pairs(workload: Workload, tensors: Any, head: int) -> Any:
    """(ceil(M / BLOCK), ceil(N / BLOCK)) live pairs of each block of one head."""
    import torch
    from torch.nn.functional import pad

    m, n = workload.m, workload.n
    predicate, h = workload.predicate(tensors.table), tensors.table(head)
    keys = tensors.arange(n).int()[None, :]  # half the bytes of int64, and those are what this costs
    rows = max(1, PAIRS[tensors.device] // (n * BLOCK)) * BLOCK
    found = []
    for first in range(0, m, rows):
        queries = tensors.arange(m)[first : first + rows].int()[:, None]
        live = predicate(0, h, queries, keys).expand(len(queries), n)
        live = pad(live, (0, -n % BLOCK, 0, -len(queries) % BLOCK))
        found.append(live.unflatten(1, (-1, BLOCK)).unflatten(0, (-1, BLOCK)).sum((1, 3), dtype=torch.int32))
    return torch.cat(found)
