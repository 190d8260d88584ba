"""Dense attention, differentiated by autograd, in any dtype: what every backend is compared with."""

import torch


def attention(q, k, v, live, options, shift=0):
    """(out, lse). q (B, Hq, M, D), k (B, Hkv, N, D), v (B, Hkv, N, Dv), live broadcastable to (B, Hq, M, N).

    options: scale, softcap, sinks (Hq,), alibi_slopes (Hq,), each may be absent. shift: what alignment adds to a
    query's index. A row without keys gives out 0 and lse -inf (with a sink: lse = sink) and has no gradient.
    """
    heads, m, n = q.shape[1], q.shape[2], k.shape[2]
    k, v = (x.repeat_interleave(heads // x.shape[1], dim=1) for x in (k, v))
    scores = q @ k.mT * options.get("scale", q.shape[3] ** -0.5)
    if options.get("softcap"):
        scores = options["softcap"] * torch.tanh(scores / options["softcap"])
    if options.get("alibi_slopes") is not None:
        distance = (torch.arange(m)[:, None] + shift - torch.arange(n)).abs().to(q.dtype)
        scores = scores - options["alibi_slopes"][:, None, None].to(q.dtype) * distance
    live = live.expand(scores.shape)
    scores = scores.masked_fill(~live, -torch.inf)
    sinks = options.get("sinks")
    if sinks is not None:
        scores = torch.cat([scores, sinks[None, :, None, None].expand(*scores.shape[:3], 1)], -1)
    empty = (scores == -torch.inf).all(-1, keepdim=True)
    scores = scores.masked_fill(empty, 0.0)
    p = scores.softmax(-1)[..., :n].masked_fill(~live, 0.0)
    lse = scores.logsumexp(-1).masked_fill(empty[..., 0], -torch.inf)
    return p @ v, lse


def with_gradients(tensors, sinks, seeds, how):
    """{name: tensor} of out, lse and every gradient of sum(out * seeds[0]) + sum(lse * seeds[1]) where lse is finite.

    how: (live, options without sinks, shift). seeds[1] may be None: no gradient of lse.
    """
    live, options, shift = how
    leaves = [x.detach().clone().requires_grad_() for x in (*tensors, *([] if sinks is None else [sinks]))]
    out, lse = attention(*leaves[:3], live, options | ({"sinks": leaves[3]} if sinks is not None else {}), shift)
    total = (out * seeds[0]).sum()
    if seeds[1] is not None:
        total = total + torch.where(lse.isfinite(), lse, 0.0).mul(seeds[1]).sum()
    found = torch.autograd.grad(total, leaves)
    names = ("out", "lse", "dq", "dk", "dv", "dsinks")
    return dict(zip(names, (out.detach(), lse.detach(), *found), strict=False))
