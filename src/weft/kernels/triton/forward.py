"""The forward kernel's fragments."""

from __future__ import annotations

from collections.abc import Iterator

from weft.kernels.triton.fragments import LOG2E, NOTHING, KeyWalk


class Forward(KeyWalk):
    """Out = softmax(scores) V by the online form, Lse its logarithm."""

    def load_mine(self) -> Iterator[str]:
        yield from self.columns(self.d, "d")
        yield from self.columns(self.dv, "dv")
        yield "q_at = Q + batch * Q_batch + head.to(tl.int64) * Q_head"
        yield "q_rows = q_at + token_r.to(tl.int64) * Q_row"
        yield from self.load("q", "Q", "q_rows", "valid", "d")
        if self.spec.linear:
            yield f"scale2 = scale * {LOG2E}"
        if self.spec.alibi:
            yield f"slope = tl.load(Slopes + head) * {LOG2E}"

    def start(self) -> Iterator[str]:
        yield from self.zeros("acc", self.dv)
        yield f'largest = tl.full(({self.spec.rows},), float("-inf"), tl.float32)'
        yield f"total = tl.zeros(({self.spec.rows},), tl.float32)"
        yield from self.keys_of_head()

    def step(self, kind: str = "either") -> Iterator[str]:
        yield from self.locate(kind)
        yield from self.load_tile("k", "K", "k", kind)
        yield from self.penalties()
        yield from self.score(self.products("q", "k"))
        yield from self.mask_edge(("s",), 'float("-inf")', kind)
        yield from self.online_softmax()
        yield from self.load_tile("v", "V", "v", kind)
        yield from (f"acc_{n} = acc_{n} * kept[:, None]" for n in range(len(self.dv)))
        yield "p = p.to(v_0.dtype)"
        yield from self.accumulate("acc", "p", "v", self.dv)

    def online_softmax(self) -> Iterator[str]:
        """largest and safe are in units of log2 and rounded once: an unchanged one gives kept = 1 exactly."""
        scale = " * scale2" if self.spec.linear else ""
        yield f"new = tl.maximum(largest, tl.max(s, 1){scale})"
        yield f"safe = tl.where({self.unseen('new')}, 0.0, new)"
        yield f"p = tl.exp2({self.exponent} - safe[:, None])  # (rows, cols)"
        yield "kept = tl.exp2(largest - safe)"
        yield "total = total * kept + tl.sum(p, 1)"
        yield "largest = new"

    def unseen(self, largest: str) -> str:
        """Whether a row has seen no key yet."""
        return f"{largest} < {NOTHING}" if self.spec.rank > 1 else f'{largest} == float("-inf")'

    def finish(self) -> Iterator[str]:
        spec = self.spec
        yield f"top = tl.where({self.unseen('largest')}, 0.0, largest)"
        if spec.sinks:
            yield "# the sink joins the sum and has no value"
            yield "alone = total == 0"
            yield f"sink = tl.load(Sinks + head) * {LOG2E}"
            yield f"above = tl.maximum(tl.where({self.unseen('largest')}, float('-inf'), top), sink)"
            yield "less = tl.where(alone, 0.0, tl.exp2(top - above))"
            yield "total = total * less + tl.exp2(sink - above)"
            yield from (f"acc_{n} = acc_{n} * less[:, None]" for n in range(len(self.dv)))
            yield "top = above"
        yield "inverse = tl.where(total == 0, 0.0, 1.0 / total)  # NaN stays NaN"
        yield from (f"acc_{n} = acc_{n} * inverse[:, None]" for n in range(len(self.dv)))
        yield 'lse = tl.where(total == 0, float("-inf"), (top + tl.log2(total)) * 0.6931471805599453)'
        if spec.sinks:
            yield "lse = tl.where(alone, tl.load(Sinks + head), lse)  # exactly"
        yield "lse_at = Lse + (batch * all_heads + head) * my_length + token_r"
        yield "out_rows = Out + batch * Out_batch + head.to(tl.int64) * Out_head + token_r.to(tl.int64) * Out_row"
        if spec.accumulate:
            yield from self.merge()
        yield "tl.store(lse_at, lse, mask=valid)"
        yield from self.store("acc", "Out", "out_rows", "valid", "dv")

    def merge(self) -> Iterator[str]:
        """With what earlier launches left in Sum (B, Hq, M, Dv) and Lse: both are over disjoint keys."""
        yield "# merged by lse with what earlier launches left, in float32"
        yield f"sum_rows = Sum + ((batch * all_heads + head) * my_length + token_r.to(tl.int64)) * {self.spec.dv}"
        yield 'old = tl.load(lse_at, mask=valid, other=float("-inf"))'
        yield "above = tl.maximum(lse, old)"
        yield 'above = tl.where(above == float("-inf"), 0.0, above)'
        yield "mine_w, old_w = tl.exp(lse - above), tl.exp(old - above)"
        yield "both = mine_w + old_w"
        yield "inverse = tl.where(both == 0, 0.0, 1.0 / both)"
        for n, (_, width, live) in enumerate(self.dv):
            inside = f" & dv_live_{n}" if live < width else ""
            yield f"sum_at = sum_rows[:, None] + dv_{n}[None, :]"
            yield f"was = tl.load(sum_at, mask=valid[:, None]{inside}, other=0.0)"
            yield f"acc_{n} = (acc_{n} * mine_w[:, None] + was * old_w[:, None]) * inverse[:, None]"
            yield f"tl.store(sum_at, acc_{n}, mask=valid[:, None]{inside})"
        yield 'lse = tl.where(both == 0, float("-inf"), above + tl.log(both))'
