"""`weft demo distributed`: four processes train a small model over one sequence, with the losses of one process.

The model is like Gemma 3: five layers of six see a window, the sixth all tokens before. Each process holds a quarter of
the sequence. Positions and targets are those of the whole sequence.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, rms_norm

import weft
from weft.distributed import Plan, plan

RANKS, TOKENS, WINDOW, LAYERS, STEPS = 4, 1024, 64, 6, 5
HIDDEN, HEADS, DIM, WORDS = 32, (4, 2), 8, 64
WRONG = 1e-4  # of a loss; sums are in another order
LOCAL, GLOBAL = weft.causal() & weft.window(left=WINDOW - 1), weft.causal()


class Model(nn.Module):  # type: ignore[misc]
    """LAYERS layers of attention and a small network. tokens: where its tokens are in the whole sequence."""

    def __init__(self, group: Any = None) -> None:
        super().__init__()
        over = {} if group is None else {"group": group}
        self.words, self.places = nn.Embedding(WORDS, HIDDEN), nn.Embedding(TOKENS, HIDDEN)
        self.attends = nn.ModuleList(
            weft.torch.SparseAttention(LOCAL if (i + 1) % 6 else GLOBAL, **over) for i in range(LAYERS)
        )
        width = (HEADS[0] + 2 * HEADS[1]) * DIM
        self.qkv = nn.ModuleList(nn.Linear(HIDDEN, width, bias=False) for _ in range(LAYERS))
        self.out = nn.ModuleList(nn.Linear(HEADS[0] * DIM, HIDDEN, bias=False) for _ in range(LAYERS))
        self.inner = nn.ModuleList(nn.Linear(HIDDEN, HIDDEN) for _ in range(LAYERS))

    def forward(self, text: Tensor, tokens: Tensor) -> Tensor:
        """Logits (tokens, words)."""
        x = self.words(text) + self.places(tokens)
        for attend, qkv, out, inner in zip(self.attends, self.qkv, self.out, self.inner, strict=True):
            rows = qkv(rms_norm(x, x.shape[-1:])).unflatten(-1, (-1, DIM)).transpose(0, 1)[None]
            q, k, v = rows.split((HEADS[0], *HEADS[1:] * 2), dim=1)
            x = x + out(attend(q, k, v)[0].transpose(0, 1).flatten(1))
            x = x + inner(rms_norm(x, x.shape[-1:])).relu()
        return x @ self.words.weight.T


def losses(group: Any = None) -> list[float]:
    """The losses of a few steps. group: of the ranks that hold the sequence, None for one process."""
    torch.manual_seed(0)
    text = torch.randint(WORDS, (TOKENS + 1,)).cumsum(0) % WORDS
    model = Model(group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    rank, ranks = (0, 1) if group is None else (dist.get_rank(group), dist.get_world_size(group))
    tokens = torch.arange(TOKENS * rank // ranks, TOKENS * (rank + 1) // ranks)
    found = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = cross_entropy(model(text[tokens], tokens), text[tokens + 1], reduction="sum") / TOKENS
        loss.backward()
        whole = loss.detach().clone()
        if group is not None:
            for x in (whole, *(p.grad for p in model.parameters())):
                dist.all_reduce(x, group=group)
        optimizer.step()
        found.append(float(whole))
    return found


def one_of(rank: int, folder: str) -> None:
    """One process of the group; the first writes what it found."""
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=RANKS)
    try:
        found = losses(dist.group.WORLD)
        if rank == 0:
            Path(folder, "losses").write_text("\n".join(map(repr, found)))
    finally:
        dist.destroy_process_group()


def main(say: Callable[[str], object] = print) -> bool:
    """Whether four processes have the losses of one."""
    given: dict[str, Any] = {"heads": HEADS, "head_dim": DIM, "dtype": "float32", "ranks": RANKS}
    plans = [plan(pattern, TOKENS, **given) for pattern in (LOCAL, GLOBAL)]
    for one in plans:
        say(f"{one}\n{one.draw()}\n")
    every = sum(_most(one, "all-gather") * n for one, n in zip(plans, (LAYERS - 1, 1), strict=True))
    ours = sum(one.chosen.most_bytes * n for one, n in zip(plans, (LAYERS - 1, 1), strict=True))
    say(f"bytes that a rank receives in a forward of {LAYERS} layers: {ours:,}; by all-gather {every:,}\n")
    alone = losses()
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(one_of, (folder,), nprocs=RANKS)
        together = [float(x) for x in Path(folder, "losses").read_text().split()]
    say(f"loss of a step    one process   {RANKS} processes")
    for i, (one_loss, other) in enumerate(zip(alone, together, strict=True)):
        say(f"{i + 1:4}{one_loss:23.6f}{other:14.6f}")
    held = all(abs(x - y) < WRONG * abs(x) for x, y in zip(alone, together, strict=True))
    say("the losses are the same" if held else "FAILED: the losses differ")
    return held


def _most(one: Plan, strategy: str) -> int:
    return next(x.most_bytes for x in one.candidates if x.strategy == strategy)
