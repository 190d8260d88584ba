"""The backward kernels' fragments: dQ by tiles of queries, dK and dV by tiles of keys."""

from __future__ import annotations

from collections.abc import Iterator

from weft.kernels.triton.fragments import Fragments, indented
from weft.kernels.triton.spec import KernelSpec


class Gradient(Fragments):
    """What both backward kernels share: p and ds of one tile, recomputed from lse."""

    def scores(self, raw: str, lse: str, kind: str) -> Iterator[str]:
        """p (rows, cols) of a tile; raw: its products, lse: in units of log2, as it broadcasts."""
        yield from self.score(raw, transposed=self.spec.of_keys)
        yield f"p = tl.exp2({self.exponent} - {lse})  # (rows, cols)"
        yield from self.mask_edge("p", "0.0", kind)

    def keep(self, name: str, tensor: str, rows: str, kind: str) -> Iterator[str]:
        """Store a gradient, added to what an earlier launch left, float32, where launches meet the same rows."""
        dims, column = (self.d, "d") if kind == "d" else (self.dv, "dv")
        for n, (first, width, live) in enumerate(dims if self.spec.accumulate else ()):
            inside = f" & ({column}_{n} < {first + live})[None, :]" if live < width else ""
            at = self.pointer(tensor, rows, f"{column}_{n}")
            if self.spec.split:
                yield f'tl.atomic_add({at}, {name}_{n}, mask=valid[:, None]{inside}, sem="relaxed")'
            else:
                yield f"{name}_{n} += tl.load({at}, mask=valid[:, None]{inside}, other=0.0)"
        if not self.spec.split:
            yield from self.store(name, tensor, rows, "valid", kind)

    def slope_of_cap(self) -> Iterator[str]:
        if self.spec.softcap:
            yield "ds = ds * (1.0 - capped * capped)"

    def scale_of(self) -> Iterator[str]:
        if self.spec.linear:
            yield "scale2 = scale * 1.4426950408889634"


class QueryGradient(Gradient):
    """dQ of a tile of queries: scale * sum over keys of ds K."""

    def load_mine(self) -> Iterator[str]:
        yield from self.columns(self.d, "d")
        yield from self.columns(self.dv, "dv")
        yield "q_rows = Q + batch * Q_batch + head.to(tl.int64) * Q_head + token_r.to(tl.int64) * Q_row"
        yield "o_rows = DOut + batch * DOut_batch + head.to(tl.int64) * DOut_head + token_r.to(tl.int64) * DOut_row"
        yield from self.load("q", "Q", "q_rows", "valid", "d")
        yield from self.load("do", "DOut", "o_rows", "valid", "dv")
        yield "row = (batch * all_heads + head) * my_length + token_r"
        yield "lse = tl.load(Lse + row, mask=valid, other=0.0) * 1.4426950408889634"
        yield "delta = tl.load(Delta + row, mask=valid, other=0.0)"
        yield from self.scale_of()
        if self.spec.alibi:
            yield "slope = tl.load(Slopes + head) * 1.4426950408889634"

    def start(self) -> Iterator[str]:
        yield from self.zeros("dq", self.d)
        yield "k_at = K + batch * K_batch + kv_head * K_head"
        yield "v_at = V + batch * V_batch + kv_head * V_head"

    def per_part(self) -> Iterator[str]:
        yield f"k_off = (token_c{self.wide} * K_row{self.narrow})[:, None]"
        yield f"v_off = (token_c{self.wide} * V_row{self.narrow})[:, None]"

    def per_head(self, walk: Iterator[str]) -> Iterator[str]:
        yield from walk

    def step(self, kind: str = "either") -> Iterator[str]:
        yield from self.locate(kind)
        yield from self.load_tile("k", "K", "k", kind)
        yield from self.load_tile("v", "V", "v", kind)
        yield from self.scores(self.dot("q", "k", self.d), "lse[:, None]", kind)
        yield f"ds = p * ({self.dot('do', 'v', self.dv)} - delta[:, None])"
        yield from self.slope_of_cap()
        yield from self.at_edges(["ds = tl.where(p == 0, 0.0, ds)  # whatever lies in a key that no query sees"], kind)
        yield "ds = ds.to(k_0.dtype)"
        yield from self.accumulate("dq", "ds", "k", self.d)

    def finish(self) -> Iterator[str]:
        yield "dq_rows = DQ + batch * DQ_batch + head.to(tl.int64) * DQ_head + token_r.to(tl.int64) * DQ_row"
        yield from (f"dq_{n} = dq_{n} * scale" for n in range(len(self.d)))
        yield from self.keep("dq", "DQ", "dq_rows", "d")


class KeyGradient(Gradient):
    """dK = scale * sum of ds^T Q and dV = sum of p^T dO for a tile of keys, over queries and the heads of a group."""

    def load_mine(self) -> Iterator[str]:
        yield from self.columns(self.d, "d")
        yield from self.columns(self.dv, "dv")
        yield "k_rows = K + batch * K_batch + kv_head * K_head + token_r.to(tl.int64) * K_row"
        yield from self.load("k", "K", "k_rows", "valid", "d")
        yield "v_rows = V + batch * V_batch + kv_head * V_head + token_r.to(tl.int64) * V_row"
        yield from self.load("v", "V", "v_rows", "valid", "dv")
        yield from self.scale_of()

    def start(self) -> Iterator[str]:
        yield from self.zeros("dk", self.d)
        yield from self.zeros("dv_sum", self.dv)

    def per_part(self) -> Iterator[str]:
        yield f"q_off = (token_c{self.wide} * Q_row{self.narrow})[:, None]"
        yield f"o_off = (token_c{self.wide} * DOut_row{self.narrow})[:, None]"

    def per_head(self, walk: Iterator[str]) -> Iterator[str]:
        yield "for one in range(group):"

        def inner() -> Iterator[str]:
            yield "head = first_head + one"
            yield "q_at = Q + batch * Q_batch + head.to(tl.int64) * Q_head"
            yield "o_at = DOut + batch * DOut_batch + head.to(tl.int64) * DOut_head"
            yield "row_at = (batch * all_heads + head) * their_length"
            if self.spec.alibi:
                yield "slope = tl.load(Slopes + head) * 1.4426950408889634"
            yield from walk

        yield from indented(inner())

    def step(self, kind: str = "either") -> Iterator[str]:
        yield from self.locate(kind)
        yield from self.load_tile("q", "Q", "q", kind)
        there = "" if kind == "full" and not self.spec.listed else ", mask=there, other=0.0"
        token = "(token - at)" if self.spec.listed else "token_c"
        yield f"lse = tl.load(Lse + (row_at + at) + {token}{there}) * 1.4426950408889634"
        yield from self.scores(self.dot("k", "q", self.d), "lse[None, :]", kind)
        yield from self.load_tile("do", "DOut", "o", kind)
        yield "weights = p.to(do_0.dtype)"
        yield from self.accumulate("dv_sum", "weights", "do", self.dv)
        yield f"delta = tl.load(Delta + (row_at + at) + {token}{there})"
        yield f"ds = p * ({self.dot('v', 'do', self.dv)} - delta[None, :])"
        yield from self.slope_of_cap()
        yield from self.at_edges(["ds = tl.where(p == 0, 0.0, ds)  # whatever lies in a key that no query sees"], kind)
        yield "ds = ds.to(q_0.dtype)"
        yield from self.accumulate("dk", "ds", "q", self.d)

    def finish(self) -> Iterator[str]:
        yield "dk_rows = DK + batch * DK_batch + kv_head * DK_head + token_r.to(tl.int64) * DK_row"
        yield "dv_rows = DV + batch * DV_batch + kv_head * DV_head + token_r.to(tl.int64) * DV_row"
        yield from (f"dk_{n} = dk_{n} * scale" for n in range(len(self.d)))
        yield from self.keep("dk", "DK", "dk_rows", "d")
        yield from self.keep("dv_sum", "DV", "dv_rows", "dv")


def delta(spec: KernelSpec) -> Iterator[str]:
    """Delta (B, Hq, M) = rowsum(dO * O), minus the gradient of lse where there is one (spec.accumulate)."""
    one = Fragments(spec)
    yield f"token_r = tl.program_id(0) * {spec.rows} + tl.arange(0, {spec.rows})"
    yield "head, batch = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)"
    yield "valid = token_r < my_length"
    yield from one.columns(one.dv, "dv")
    for name, tensor in (("o", "Out"), ("do", "DOut")):
        at = f"{tensor} + batch * {tensor}_batch + head * {tensor}_head + token_r.to(tl.int64) * {tensor}_row"
        yield f"{name}_rows = {at}"
        yield from one.load(name, tensor, f"{name}_rows", "valid", "dv")
    total = [f"tl.sum(o_{n}.to(tl.float32) * do_{n}.to(tl.float32), 1)" for n in range(len(one.dv))]
    yield f"delta = {' + '.join(total)}  # (rows,)"
    yield "at = (batch * all_heads + head) * my_length + token_r"
    if spec.accumulate:
        yield "delta -= tl.load(DLse + at, mask=valid, other=0.0)"
    yield "tl.store(Delta + at, delta, mask=valid)"
