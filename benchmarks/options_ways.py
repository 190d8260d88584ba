"""What benchmarks/options.py compares: one function for each table of issues' bars, which makes its contenders.

A `Way` is one way to compute what its `Table` asks for: weft with an option, in a layout, or another library. All ways
of a table are timed in turn; `beside` names the way that the others are divided by. `Law` is the meaning in float64,
written here a second time, which a few rows of each result are compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

import weft
from weft.bench.peers.base import missing
from weft.score.dropout import Dropout

RATE, SEED = 0.1, 12345
ROWS, PAIRS_OF_HEADS = 16, 2  # rows that are compared, in so many pairs of batch row and head


@dataclass
class Law:
    """live(b, q, k) -> bool; score(s, b, h, q, k), both on float64 tensors and indices that broadcast."""

    live: Callable[..., Tensor]
    score: Callable[..., Tensor] = lambda s, b, h, q, k: s
    scale: float | None = None
    dropout: float = 0.0

    def rows(self, tensors: list[Tensor], dout: Tensor, b: int, h: int, rows: Tensor) -> tuple[Tensor, Tensor]:
        """(out, dq) of some rows of one head."""
        q, k, v = tensors
        group = q.shape[1] // k.shape[1]
        mine = q[b, h, rows].double().requires_grad_()
        keys, values = k[b, h // group].double(), v[b, h // group].double()
        at_q, at_k = rows[:, None], torch.arange(k.shape[2], device=q.device)[None]
        s = self.score(mine @ keys.T * (self.scale or q.shape[3] ** -0.5), b, h, at_q, at_k)
        p = s.masked_fill(~self.live(b, at_q, at_k), -torch.inf).softmax(-1)
        if self.dropout:
            i, j = rows.cpu().numpy()[:, None], at_k.cpu().numpy()
            p = p * torch.from_numpy(Dropout(self.dropout, SEED).factors(b, h, i, j)).to(p)
        out = p @ values
        (dq,) = torch.autograd.grad(out, mine, dout[b, h, rows].double())
        return out.detach(), dq


@dataclass
class Way:
    """run(q, k, v) on tensors (B, H, S, D), or as `lay` has laid them out. leaves: tables whose gradients are wanted.
    law: None for the table's own. slow: seconds that compiling takes, about.
    """

    who: str
    run: Callable[..., Tensor]
    leaves: tuple[Tensor, ...] = ()
    law: Law | None = None
    lay: Callable[[Tensor], Tensor] = lambda x: x
    back: Callable[[Tensor], Tensor] = lambda x: x
    slow: float = 2.0
    beside: str = ""


@dataclass
class Table:
    """One problem: inputs (B, H, S, D), the law, the ways. beside: whom others are divided by."""

    name: str
    shape: tuple[int, int, int, int]
    law: Law
    ways: list[Way]
    beside: str
    device: str
    directions: tuple[str, ...] = ("fwd", "bwd")

    @cached_property
    def tensors(self) -> list[Tensor]:
        """q, k, v, dout; made when they are first asked for."""
        random = torch.Generator(self.device).manual_seed(0)
        dtype = torch.bfloat16 if self.device == "cuda" else torch.float32
        made = [torch.randn(self.shape, generator=random, device=self.device, dtype=dtype) for _ in range(4)]
        return made if self.law.scale is None else [made[0] * self.shape[3] ** -0.5, *made[1:]]


# ---- options over none -----------------------------------------------------------------------------------------------
def with_options(name: str, device: str, small: bool) -> Table:
    """window_pm256 at D=64 or causal at D=128, with each option beside an identity as score function: that is computed
    by the same family of kernels, in the same form of the soft maximum.
    """
    window = name == "window_pm256"
    b, h, n, d = (4, 12, 16384, 64) if window else (1, 16, 16384, 128)
    reach = 256
    if small:
        b, h, n, reach = 1, 2, 256, 16
    pattern = weft.window(reach, reach) if window else weft.causal()

    def live(b: Any, q: Tensor, k: Tensor) -> Tensor:
        return (q - k).abs() <= reach if window else k <= q

    plain = Law(live)
    table = torch.randn(h, 2 * reach + 1, device=device)
    learned = table.clone().requires_grad_()
    slopes = 2.0 ** -torch.arange(1, h + 1, device=device) if h < 30 else torch.ones(h)
    seed = torch.tensor([SEED], device=device)

    def moved(s: Tensor, b: int, h: int, q: Tensor, k: Tensor) -> Tensor:
        return s + table.double()[h, (k - q).clamp(-reach, reach) + reach]

    def ours(**options: Any) -> Callable[..., Tensor]:
        return lambda q, k, v: weft.attention(q, k, v, pattern, **options)

    shifted = weft.trace_score(lambda score, b, h, q, k: score + 0.5 * (h + 1))
    # it multiplies the score by what is nearly 1, so that the sum is made of scores and not by products
    after = weft.trace_score(
        lambda score, b, h, q, k: score * (1 + 2.0**-20) + table[h, (k - q).clamp(-reach, reach) + reach]
    )
    same = weft.trace_score(lambda score, b, h, q, k: score)
    ways = [
        Way("identity", ours(score=same), law=plain),
        Way("none", ours()),
        Way("a number added", ours(score=shifted), law=plain),
        Way("relative", ours(bias=weft.bias.relative(table)), law=Law(live, moved)),
        Way("relative, its gradient", ours(bias=weft.bias.relative(learned)), (learned,), Law(live, moved)),
        Way("relative, after products", ours(score=after), law=Law(live, moved)),
        Way("dropout", ours(dropout=RATE, seed=seed), law=Law(live, dropout=RATE)),
        Way("softcap", ours(softcap=50.0), law=Law(live, lambda s, *_: 50 * torch.tanh(s / 50))),
        Way("alibi", ours(alibi_slopes=slopes), law=Law(live, lambda s, b, h, q, k: s - slopes[h] * (q - k).abs())),
    ]
    return Table(f"{name} options", (b, h, n, d), plain, ways, "identity", device)


# ---- layouts and packed documents ------------------------------------------------------------------------------------
def layouts(name: str, device: str, small: bool) -> Table:
    """bshd beside bhsd, both contiguous."""
    window = name == "window_pm256"
    b, h, n, d = (4, 12, 16384, 64) if window else (1, 16, 16384, 128)
    if small:
        b, h, n = 1, 2, 256
    pattern = weft.window(256, 256) if window else weft.causal()
    law = Law(lambda b, q, k: (q - k).abs() <= 256 if window else k <= q)
    ways = [
        Way("bhsd", lambda q, k, v: weft.attention(q, k, v, pattern)),
        Way("bshd", lambda q, k, v: weft.attention(q, k, v, pattern, layout="bshd"), lay=_exchanged, back=_exchanged),
    ]
    return Table(f"{name} layouts", (b, h, n, d), law, ways, "bhsd", device)


def _exchanged(x: Tensor) -> Tensor:
    return x.transpose(1, 2).contiguous()


def drawn_lengths(documents: int, tokens: int) -> list[int]:
    """Of so many documents, unlike, that fill the tokens."""
    ends = torch.randperm(tokens - 1, generator=torch.Generator().manual_seed(1))[: documents - 1] + 1
    points = [0, *sorted(ends.tolist()), tokens]
    return [b - a for a, b in pairwise(points)]


def packed(documents: int, tokens: int, even: bool, device: str, rivals: bool) -> Table:
    """(T, H, D) with sums on the device, beside the same work as (1, H, T, D) whose lengths the host knows."""
    h, d = (16, 128) if device == "cuda" else (2, 16)
    lengths = [tokens // documents] * documents if even else drawn_lengths(documents, tokens)
    sums = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)
    most, document = max(lengths), torch.repeat_interleave(torch.tensor(lengths)).to(device)
    whole, causal = weft.causal() & weft.documents(lengths), weft.causal()

    def live(b: Any, q: Tensor, k: Tensor) -> Tensor:
        return (document[q] == document[k]) & (k <= q)

    def flat(x: Tensor) -> Tensor:
        return x[0].transpose(0, 1).contiguous()

    def back(x: Tensor) -> Tensor:
        return x.transpose(0, 1)[None]

    def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        found = weft.varlen_attention(q, k, v, sums, sums, causal, max_seqlen_q=most, max_seqlen_k=most)
        assert isinstance(found, Tensor)
        return found

    ways = [
        Way("lengths on the host", lambda q, k, v: weft.attention(q, k, v, whole)),
        Way("sums on the device", ours, lay=flat, back=back),
    ]
    if rivals:
        ways += [Way(who, run, lay=flat, back=back, slow=slow) for who, run, slow in _rivals(sums, most)]
    kind = "even" if even else "drawn"
    return Table(f"{documents} {kind} documents of {tokens} tokens, causal", (1, h, tokens, d), Law(live), ways,
                 "lengths on the host", device)  # fmt: skip


def _rivals(sums: Tensor, most: int) -> Iterator[tuple[str, Callable[..., Tensor], float]]:
    """torch's and FlashAttention-4's functions of packed documents, where they are there."""

    def of_torch(q: Tensor, k: Tensor, v: Tensor) -> Any:
        import inspect

        from torch.nn.attention.varlen import varlen_attn

        causal = {"window_size": (-1, 0)}
        if "window_size" not in inspect.signature(varlen_attn).parameters:
            causal = {"is_causal": True}
        return varlen_attn(q, k, v, sums, sums, most, most, **causal)

    def of_flash(q: Tensor, k: Tensor, v: Tensor) -> Any:
        from flash_attn.cute import flash_attn_varlen_func

        out = flash_attn_varlen_func(q, k, v, cu_seqlens_q=sums, cu_seqlens_k=sums, max_seqlen_q=most,
                                     max_seqlen_k=most, causal=True)  # fmt: skip
        return out[0] if isinstance(out, tuple) else out

    yield "torch's varlen_attn", of_torch, 1.0
    if not missing("flash_attn.cute", "cuda"):
        yield "fa4", of_flash, 8.0


# ---- beside FlexAttention and dense attention ------------------------------------------------------------------------
def neighbours(device: str, small: bool) -> Table:
    """na2d_128x128_k21 with a relative position bias that learns."""
    side, size, h, d = (16, 5, 2, 16) if small else (128, 21, 16, 128)
    reach = size - 1
    table = torch.randn(h, 2 * reach + 1, 2 * reach + 1, device=device).requires_grad_()
    pattern = weft.neighborhood((side, side), (size, size))

    def near(q: Tensor, k: Tensor) -> Tensor:
        first = (q - size // 2).clamp(0, side - size)
        return (k >= first) & (k < first + size)

    def live(b: Any, q: Tensor, k: Tensor) -> Tensor:
        return near(q // side, k // side) & near(q % side, k % side)

    def biased(s: Tensor, b: Any, h: Any, q: Tensor, k: Tensor) -> Tensor:
        down = (k // side - q // side).clamp(-reach, reach) + reach
        along = (k % side - q % side).clamp(-reach, reach) + reach
        return s + table[h, down, along]

    law = Law(live, biased)
    fixed = table.detach()
    ways = [
        Way("weft", lambda q, k, v: weft.attention(q, k, v, pattern, bias=weft.bias.grid(table, (side, side))),
            (table,)),
        Way("weft, a fixed table",
            lambda q, k, v: weft.attention(q, k, v, pattern, bias=weft.bias.grid(fixed, (side, side)))),
        Way("weft, no bias", lambda q, k, v: weft.attention(q, k, v, pattern), law=Law(live)),
        replace(flex(biased, lambda b, h, q, k: live(b, q, k), side * side, device, (table,), blocks=BLOCKS),
                who="flex, in blocks of 64"),
    ]  # fmt: skip
    return Table("na2d_128x128_k21 with a learned bias", (1, h, side * side, d), law, ways, "weft", device)


# What FlexAttention takes with a captured table at D=128: its own choices have no room there (torch 2.11, an H200).
BLOCKS = {"BLOCK_M": 64, "BLOCK_N": 64, "num_stages": 1, "BLOCK_M1": 32, "BLOCK_N1": 64, "BLOCK_M2": 64, "BLOCK_N2": 32}


def flex(  # noqa: PLR0913 - the arguments of a call of it
    score: Any, live: Any, tokens: int, device: str, leaves: tuple[Tensor, ...], scale: float | None = None,
    blocks: dict[str, int] | None = None,
) -> Way:  # fmt: skip
    """FlexAttention, compiled; its block mask is made at the first call."""
    kept: list[Any] = []

    def run(q: Tensor, k: Tensor, v: Tensor) -> Any:
        from torch._functorch import config
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        if not kept:
            config.donated_buffer = False  # gradients are taken many times after one forward
            mask = None if live is None else create_block_mask(live, None, None, tokens, tokens, device=device)
            kept[:] = [torch.compile(flex_attention, dynamic=False), mask]
        return kept[0](q, k, v, score_mod=score, block_mask=kept[1], scale=scale, kernel_options=blocks)

    return Way("flex", run, leaves, slow=20.0)


def shifted_windows(device: str, small: bool) -> Table:
    """Swin's first stage, shifted: 56 x 56 tokens, windows of 7, a shift of 3, a learned bias for each head."""
    side, size, shift, d = 56, 7, 3, 32
    b, h = (1, 2) if small else (64, 3)
    cuts = [shift, *[size] * ((side - size) // size), size - shift]
    pattern = weft.product([weft.documents(cuts)] * 2, (side, side))
    table = torch.randn(h, 2 * size - 1, 2 * size - 1, device=device).requires_grad_()
    window = torch.repeat_interleave(torch.tensor(cuts)).to(device)

    def live(b: Any, q: Tensor, k: Tensor) -> Tensor:
        return (window[q // side] == window[k // side]) & (window[q % side] == window[k % side])

    def biased(s: Tensor, b: Any, h: Any, q: Tensor, k: Tensor) -> Tensor:
        down = (k // side - q // side).clamp(1 - size, size - 1) + size - 1
        along = (k % side - q % side).clamp(1 - size, size - 1) + size - 1
        return s + table[h, down, along]

    ways = [
        Way("weft", lambda q, k, v: weft.attention(q, k, v, pattern, bias=weft.bias.grid(table, (side, side))),
            (table,)),
        Way("compiled dense in windows", torch.compile(_swin(table, side, size, shift)), (table,), slow=12.0),
        flex(biased, lambda b, h, q, k: live(b, q, k), side * side, device, (table,)),
    ]  # fmt: skip
    return Table("shifted windows of 7 x 7 on 56 x 56, a learned bias", (b, h, side * side, d), Law(live, biased), ways,
                 "weft", device)  # fmt: skip


def _swin(table: Tensor, side: int, size: int, shift: int) -> Callable[..., Tensor]:
    """As Swin's code does it: rolled, cut into windows, dense attention with bias and mask in each."""
    count, device = side // size, table.device
    at = torch.arange(size, device=device)
    gap = at[None] - at[:, None] + size - 1
    gap_y = gap[:, None, :, None].expand(size, size, size, size).reshape(size * size, -1)
    gap_x = gap[None, :, None, :].expand(size, size, size, size).reshape(size * size, -1)
    part = torch.zeros(side, dtype=torch.long, device=device)
    part[side - size : side - shift], part[side - shift :] = 1, 2
    both = (part[:, None] * 3 + part[None]).unflatten(1, (count, size)).unflatten(0, (count, size))
    both = both.transpose(1, 2).reshape(count * count, size * size)
    dead = (both[:, None] != both[:, :, None])[:, None]  # (windows, 1, 49, 49)

    def cut(x: Tensor) -> Tensor:
        x = x.unflatten(2, (side, side)).roll((-shift, -shift), (2, 3))
        x = x.unflatten(3, (count, size)).unflatten(2, (count, size))  # B H count size count size D
        return x.permute(0, 2, 4, 1, 3, 5, 6).flatten(4, 5).flatten(1, 2)

    def dense(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = cut(q), cut(k), cut(v)  # (B, windows, H, 49, D)
        s = (q @ k.mT) * q.shape[-1] ** -0.5 + table[:, gap_y, gap_x]
        out = s.masked_fill(dead, -100.0).softmax(-1).to(v.dtype) @ v
        out = out.unflatten(3, (size, size)).unflatten(1, (count, count)).permute(0, 3, 1, 4, 2, 5, 6)
        return out.flatten(4, 5).flatten(2, 3).roll((shift, shift), (2, 3)).flatten(2, 3)

    return dense


def t5_encoder(device: str, small: bool) -> Table:
    """T5-base's encoder: 12 heads of 64, 512 tokens, 32 buckets up to a distance of 128, which learn; no scale."""
    b, h, n, d = (1, 2, 64, 16) if small else (16, 12, 512, 64)
    table = torch.randn(32, h, device=device).requires_grad_()
    at = torch.arange(n, device=device)
    bucket = _buckets(at[None] - at[:, None])
    far = _buckets(torch.arange(-128, 129, device=device))

    def biased(s: Tensor, b: Any, h: Any, q: Tensor, k: Tensor) -> Tensor:
        return s + table[far[(k - q).clamp(-128, 128) + 128], h]

    def dense(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        s = q @ k.mT + table[bucket].permute(2, 0, 1)[None].to(q.dtype)
        return s.float().softmax(-1).to(v.dtype) @ v

    def of_torch(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        bias = table[bucket].permute(2, 0, 1)[None].to(q.dtype)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=1.0)

    pattern = weft.full()
    ways = [
        Way("weft", lambda q, k, v: weft.attention(q, k, v, pattern, bias=weft.bias.buckets(table), scale=1.0),
            (table,)),
        Way("compiled dense", torch.compile(dense), (table,), slow=12.0),
        Way("sdpa with a dense bias", of_torch, (table,), slow=0.0),
        flex(biased, None, n, device, (table,), 1.0),
    ]  # fmt: skip
    law = Law(lambda b, q, k: (q >= 0) & (k >= 0), biased, scale=1.0)
    return Table("T5-base's encoder, learned buckets", (b, h, n, d), law, ways, "weft", device)


def _buckets(distance: Tensor) -> Tensor:
    """T5's rule, for both directions, as transformers writes it."""
    found = (distance > 0).long() * 16
    distance = distance.abs()
    far = 8 + (torch.log(distance.clamp(min=1).float() / 8) / torch.tensor(16.0).log() * 8).long()
    return found + torch.where(distance < 8, distance, far.clamp(max=15))
