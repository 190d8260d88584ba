"""The backward kernels' fragments: dQ by tiles of queries; dK and dV, and if asked for dQ too, by tiles of keys."""

from __future__ import annotations

from collections.abc import Iterator

from weft.kernels.gpu.constants import LOG2E, PENALTY, STATS
from weft.kernels.gpu.entry import indented
from weft.kernels.triton.fragments import Fragments, KeyWalk
from weft.planning.candidates import REGISTERS_OF_FIVE


class Gradient(Fragments):
    """What both backward kernels share: p and ds of one tile, recomputed from lse."""

    def scores(self, raw: str, lse: str, kind: str, dp: str = "") -> Iterator[str]:
        """p (rows, cols) of a tile; raw: its products, lse: in units of log2, as it broadcasts; empty: already off.

        dp: the other products, where they are asked for before anything is made of the first.
        """
        products, *rest = self.score(raw, transposed=self.spec.of_keys)
        yield products
        if dp:
            yield f"dp = {dp}"
        yield from rest
        yield f"p = tl.exp2({self.exponent}{lse and f' - {lse}'})  # (rows, cols)"
        both = dp and self.spec.rank == 1  # dp: whatever lies in a key that no query sees
        yield from self.mask_edge(("p", "dp") if both else ("p",), "0.0", kind)

    def keep(self, name: str, tensor: str, rows: str, kind: str) -> Iterator[str]:
        """Store a gradient, added to what an earlier launch left, float32, where launches meet the same rows."""
        dims, column = (self.d, "d") if kind == "d" else (self.dv, "dv")
        for n, (_, width, live) in enumerate(dims if self.spec.accumulate else ()):
            inside = f" & {column}_live_{n}" if live < width else ""
            at = self.pointer(tensor, rows, f"{column}_{n}")
            if self.spec.split:
                yield f'tl.atomic_add({at}, {name}_{n}, mask=valid[:, None]{inside}, sem="relaxed")'
            else:
                yield f"{name}_{n} += tl.load({at}, mask=valid[:, None]{inside}, other=0.0)"
        if not self.spec.split:
            yield from self.store(name, tensor, rows, "valid", kind)

    def hold(self, name: str, dims: tuple[tuple[int, int, int], ...]) -> Iterator[str]:
        """A factor that stays, laid out as products leave their results: they take it from there."""
        if name in self.spec.factors:
            for n, (_, width, _) in enumerate(dims):
                one = f"{name}_{n}"
                yield f"{one} = ({self.nothing(width, f'{one}.dtype')} + {one}).to({one}.dtype)"

    @property
    def holds_early(self) -> bool:
        """Whether factors are held before other rows are read: on grids registers are worth more than the wait."""
        return self.spec.rank > 1

    def slope_of_cap(self) -> Iterator[str]:
        if self.spec.softcap:
            yield "ds = ds * (1.0 - capped * capped)"

    def scale_of(self) -> Iterator[str]:
        if self.spec.linear:
            yield f"scale2 = scale * {LOG2E}"

    def load_rows(self) -> Iterator[str]:
        """What `row_numbers` needs."""
        yield "row = (batch * all_heads + head) * my_length + token_r"
        yield "lse = tl.load(Lse + row)"
        if self.spec.lse_gradient:
            yield "dlse = tl.load(DLse + row)"
        yield from self.load("do", "DOut", "o_rows", "", "dv")
        if self.holds_early:
            yield from self.hold("do", self.dv)
        yield from self.my_rows("out_rows", "Out")
        yield from self.load("o", "Out", "out_rows", "", "dv")

    def row_numbers(self) -> Iterator[str]:
        """lse and delta = rowsum(dO * O), less the gradient of lse where there is one."""
        for n in range(len(self.dv)):
            product = f"o_{n}.to(tl.float32) * do_{n}.to(tl.float32)"
            if self.spec.rank == 0:  # out is 0 in rows that see nothing, dO anything
                product = f"tl.where(o_{n} == 0, 0.0, {product})"
            yield f"delta {'+=' if n else '='} tl.sum({product}, 1)  # (rows,)"
        if self.spec.lse_gradient:
            yield 'delta -= tl.where(lse == float("-inf"), 0.0, dlse)  # NaN, as logaddexp has it there, is nothing'
        if self.spec.leaves_delta:
            yield "tl.store(Delta + row, delta, mask=valid)"
        yield self.lse_without_keys()

    def lse_without_keys(self) -> str:
        """0 for lse of a row that sees no key: -inf, or its sink, which may be as low as numbers go. On a grid its
        pairs get penalties, which must stay far below lse. Lines mask what they weigh, so lse may be anything.
        """
        none = 'lse == float("-inf")'
        if self.spec.rank > 1:
            none = f"lse < {PENALTY / 10} * scale" if self.spec.linear else f"lse < {PENALTY / 10}"
        return f"lse = tl.where({none}, 0.0, lse)  # a row that sees no key"

    def leave_stats(self) -> Iterator[str]:
        """lse and delta as dK and dV take them."""
        if self.spec.folded:
            yield "# as sums of three: what dK and dV take from their products (a multiple of it)"
            yield "of_lse, of_delta = in_three(-lse / scale), in_three(-delta)"
            yield f"stat = tl.arange(0, {STATS})[None, :]"
            yield f"stats = tl.zeros(({self.spec.rows}, {STATS}), tl.float32)"
            for n in range(3):
                yield f"stats = tl.where(stat == {n}, of_lse[{n}][:, None], stats)"
                yield f"stats = tl.where(stat == {n + 8}, of_delta[{n}][:, None], stats)"
            yield f"tl.store(Stats + row[:, None] * {STATS} + stat, stats.to(tl.bfloat16), mask=valid[:, None])"


class QueryGradient(Gradient, KeyWalk):
    """dQ of a tile of queries: scale * sum over keys of ds K."""

    def load_mine(self) -> Iterator[str]:
        yield from self.columns(self.d, "d")
        yield from self.columns(self.dv, "dv")
        yield from self.my_rows("q_rows", "Q")
        yield from self.my_rows("o_rows", "DOut")
        yield from self.load("q", "Q", "q_rows", "", "d")
        if self.holds_early:
            yield from self.hold("q", self.d)
        yield from self.load_rows()
        yield from self.scale_of()
        if self.spec.alibi:
            yield f"slope = tl.load(Slopes + head) * {LOG2E}"

    def start(self) -> Iterator[str]:
        if not self.holds_early:
            yield from self.hold("q", self.d)
            yield from self.hold("do", self.dv)
        yield from self.row_numbers()
        if not self.leaves_last:
            yield from self.leave_stats()
        yield f"lse2 = lse * {LOG2E}"
        yield from self.zeros("dq", self.d)
        yield from self.keys_of_head()

    def step(self, kind: str = "either") -> Iterator[str]:
        yield from self.locate(kind)
        yield from self.load_tile("k", "K", "k", kind)
        yield from self.load_tile("v", "V", "v", kind)
        yield from self.penalties()
        yield from self.scores(self.products("q", "k"), "lse2[:, None]", kind)
        yield f"ds = p * ({self.dot('do', 'v', self.dv)} - delta[:, None])"
        yield from self.slope_of_cap()
        yield "ds = ds.to(k_0.dtype)"
        yield from self.accumulate("dq", "ds", "k", self.d)

    @property
    def leaves_last(self) -> bool:
        """Whether what dK and dV take is made after the walk, before which it would keep the first keys waiting.

        At narrow heads: there it costs no registers that the walk needs (benchmarks/notes/triton.md).
        """
        spec = self.spec
        return spec.rank == 1 and spec.narrow and not spec.several and spec.registers != REGISTERS_OF_FIVE

    def finish(self) -> Iterator[str]:
        if self.leaves_last:
            yield from self.leave_stats()
        yield from self.my_rows("dq_rows", "DQ", near=False)
        yield from (f"dq_{n} = dq_{n} * scale" for n in range(len(self.d)))
        if self.spec.rank == 0:
            yield from (f"dq_{n} = tl.where(within[:, None], dq_{n}, 0.0)" for n in range(len(self.d)))
        yield from self.keep("dq", "DQ", "dq_rows", "d")


class KeyGradient(Gradient):
    """dK = scale * sum of ds^T Q and dV = sum of p^T dO for a tile of keys, over queries and the heads of a group; or
    one of them, where a thread has no registers for both sums.
    """

    @property
    def sums(self) -> tuple[tuple[str, str, tuple[tuple[int, int, int], ...], str], ...]:
        """(name, tensor, chunks, column) of what is made."""
        both = ("dk", "DK", self.d, "d"), ("dv_sum", "DV", self.dv, "dv")
        return both if self.spec.makes == "both" else both[:1] if self.spec.makes == "dk" else both[1:]

    @property
    def makes_dk(self) -> bool:
        return self.spec.makes != "dv"

    def load_mine(self) -> Iterator[str]:
        yield from self.columns(self.d, "d")
        yield from self.columns(self.dv, "dv")
        yield from self.my_rows("k_rows", "K", "kv_head")
        if not self.for_queries:
            if self.spec.with_dq:  # what joins sums over keys joins them once, and where some query sees it
                yield "wanted = valid & within"
            yield from self.load("k", "K", "k_rows", "wanted" if self.spec.with_dq else "", "d")
        if self.makes_dk:
            yield from self.my_rows("v_rows", "V", "kv_head")
            if not self.for_queries:
                yield from self.load("v", "V", "v_rows", "", "dv")
        yield from self.scale_of()
        if self.spec.folded:
            yield f"stat = tl.arange(0, {STATS})"
            for name, those in (("of_lse", "stat < 8"), ("of_delta", "stat >= 8"))[: 1 + self.makes_dk]:
                yield f"{name} = tl.where(({those})[None, :] & (r >= 0)[:, None], 1.0, 0.0).to({self.small})"

    def start(self) -> Iterator[str]:
        if self.spec.chained and not self.spec.joins:
            yield "gdc_wait()  # for all that the launch before this one leaves"
        if self.spec.chained and self.spec.accumulate:
            yield "gdc_launch_dependents()"
        yield from self.hold("k", self.d)
        for name, _, dims, _ in self.sums:
            yield from self.zeros(name, dims)
        if self.spec.rank > 1:
            yield "is_seen = r < 0"

    def per_part(self) -> Iterator[str]:
        if self.spec.rank > 1:
            yield f"is_seen |= {' & '.join(f'(low_{a} < high_{a})' for a in range(self.spec.rank))}"
        yield f"q_off = ({self.inside('Q', 'token_c')})[:, None]"
        yield f"o_off = ({self.inside('DOut', 'token_c')})[:, None]"
        if self.spec.with_dq:
            yield f"dq_off = ({self.inside('DQ', 'token_c')})[None, :]"
        if self.for_queries:
            yield from self.load_seen()

    @property
    def for_queries(self) -> bool:
        """Whether keys join sums over keys, which one that no query sees must not reach, whatever it holds."""
        return self.spec.with_dq and self.spec.rank > 0

    def load_seen(self) -> Iterator[str]:
        """k and v of a part; keys that none of its queries sees are 0."""
        spec = self.spec
        yield f"wanted = valid & {' & '.join(f'(low_{a} < high_{a})' for a in range(spec.rank))}"
        if spec.listed:
            yield "wanted &= row_is_out == 0"
        yield from self.load("k", "K", "k_rows", "wanted", "d")
        yield from self.load("v", "V", "v_rows", "wanted" if spec.rank > 1 else "", "dv")

    def per_head(self, walk: Iterator[str]) -> Iterator[str]:
        def inner() -> Iterator[str]:
            yield "head = first_head + one" if self.spec.grouped else "head = first_head"
            yield f"q_at = {self.head_of('Q', 'head.to(tl.int64)')}"
            yield f"o_at = {self.head_of('DOut', 'head.to(tl.int64)')}"
            yield "row_at = (batch * all_heads + head) * their_length"
            if self.spec.with_dq:
                yield f"dq_at = {self.head_of('DQ', 'head.to(tl.int64)')}"
            if self.spec.alibi:
                yield f"slope = tl.load(Slopes + head) * {LOG2E}"
            yield from walk

        if self.spec.grouped:
            yield "for one in range(group):"
            yield from indented(inner())
        else:
            yield from inner()

    def step(self, kind: str = "either") -> Iterator[str]:
        yield from self.locate(kind)
        yield from self.load_tile("q", "Q", "q", kind)
        yield from self.penalties()
        yield from self.folded(kind) if self.spec.folded else self.beside(kind)
        yield from self.together(kind) if self.products_first else self.in_turn(kind)
        if self.spec.with_dq:
            yield "ds = tl.where(wanted[:, None], ds, 0.0)  # of unseen keys it may be infinite"
        if self.makes_dk:
            yield "ds = ds.to(q_0.dtype)"
            yield from self.accumulate("dk", "ds", "q", self.d)
        if self.spec.with_dq:
            yield from self.add_to_dq(kind)

    @property
    def products_first(self) -> bool:
        """Whether p and dp are made together: both products first, and one mask. Where registers suffice."""
        spec = self.spec
        crowded = spec.rank == 0 or spec.with_dq or spec.listed or (spec.several and spec.grouped)
        return spec.folded and max(spec.d, spec.dv) <= 128 and not crowded

    def together(self, kind: str) -> Iterator[str]:
        """ds of a tile, and dV with it."""
        scores, lse, dp = self.taken_off
        yield from self.load_tile("do", "DOut", "o", kind)
        yield from self.scores(scores, lse, kind, dp)
        yield from self.add_to_dv()
        yield "ds = p * dp"

    def in_turn(self, kind: str) -> Iterator[str]:
        """The same, dp after all that needs p alone."""
        scores, lse, dp = self.taken_off if self.spec.folded else self.left_on
        yield from self.scores(scores, lse, kind)
        yield from self.load_tile("do", "DOut", "o", kind)
        if self.spec.makes != "dk":
            yield from self.add_to_dv()
        if self.makes_dk:
            yield from self._ds(dp, kind)

    def _ds(self, dp: str, kind: str) -> Iterator[str]:
        """ds of a tile from its p."""
        if not self.spec.folded:
            token, there = self.of_their_rows(kind, "")
            yield f"delta = tl.load(Delta + (row_at + at) + {token}{there})"
        yield f"ds = p * ({dp})"
        yield from self.slope_of_cap()
        if self.spec.rank < 2 and kind != "full":
            # in no branch of its own: with one, LLVM spoiled masks of listed tokens (benchmarks/notes/triton.md)
            yield "ds = tl.where(p == 0, 0.0, ds)  # whatever lies in a key that no query sees"

    def add_to_dv(self) -> Iterator[str]:
        yield "weights = p.to(do_0.dtype)"
        yield from self.accumulate("dv_sum", "weights", "do", self.dv)

    def folded(self, kind: str) -> Iterator[str]:
        """What p and dp subtract inside their products, where that needs no registers and no instructions.

        Stats (B, Hq, M, STATS) holds -lse / scale and -delta, each as a sum of three numbers of bfloat16.
        """
        rows = self.of_their_rows(kind, "[:, None]")
        yield f"stats_at = Stats + (row_at + at) * {STATS} + ({rows[0]}{self.wide} * {STATS} + stat[None, :])"
        yield f"stats = tl.load(stats_at{rows[1]}){self.upcast}  # (cols, {STATS})"

    @property
    def taken_off(self) -> tuple[str, str, str]:
        """Scores, lse as it broadcasts, and dp, where `folded` takes lse and delta off."""
        scores = self.products("k", "q", "tl.dot(of_lse, tl.trans(stats){})")
        return scores, "", self.dot("v", "do", self.dv, "tl.dot(of_delta, tl.trans(stats))")

    def beside(self, kind: str) -> Iterator[str]:
        """lse as a row (cols,), subtracted after the products, as delta will be."""
        token, there = self.of_their_rows(kind, "")
        yield f"lse = tl.load(Lse + (row_at + at) + {token}{there})"
        if self.spec.rank > 1:  # elsewhere p is masked after this
            yield self.lse_without_keys()
        yield f"lse = lse * {LOG2E}"

    @property
    def left_on(self) -> tuple[str, str, str]:
        """The same where lse and delta are rows (cols,)."""
        return self.products("k", "q"), "lse[None, :]", f"{self.dot('v', 'do', self.dv)} - delta[None, :]"

    def of_their_rows(self, kind: str, shape: str) -> tuple[str, str]:
        """(offsets of the queries of a tile from its first one, the mask of a load of them)"""
        token = "(token - at)" if self.spec.listed else "token_c"
        there = f", mask=there{shape}, other=0.0" if self.ragged(kind) else ""
        return token + shape, there

    def add_to_dq(self, kind: str) -> Iterator[str]:
        """DQ += ds^T K, transposed: a tensor core's instruction takes 64 rows, so dims rather than a tile's columns."""
        listed, dim = self.spec.listed, "" if self.spec.aligned else " * DQ_dim"
        inside = f"({self.at_token('DQ', 'token')})[None, :]" if listed else "dq_off"
        yield "dq_box = dq_at" + ("" if listed else f" + {self.at_tile('DQ')}")
        for n, (_, width, live) in enumerate(self.d):
            masks = ["there[None, :]"] * self.ragged(kind) + [f"tl.trans(d_live_{n})"] * (live < width)
            mask = f", mask={' & '.join(masks)}" if masks else ""
            yield f"dq = tl.dot(tl.trans(k_{n}), ds{self.precision})  # ({width}, cols)"
            yield f"dq_place = dq_box + ({inside} + d_{n}[:, None]{dim})"
            yield f'tl.atomic_add(dq_place, dq{mask}, sem="relaxed")'

    def finish(self) -> Iterator[str]:
        if self.spec.rank > 1:
            yield "# whatever lies in a key that no query sees (a test for each pair would be one in every tile)"
            for name, _, dims, _ in self.sums:
                yield from (f"{name}_{n} = tl.where(is_seen[:, None], {name}_{n}, 0.0)" for n in range(len(dims)))
        few = self.spec.few
        if not few:
            for _, tensor, _, _ in self.sums:
                yield from self.my_rows(f"{tensor.lower()}_rows", tensor, "kv_head")
        if self.makes_dk:
            yield from (f"dk_{n} = dk_{n} * scale" for n in range(len(self.d)))
        if few or self.spec.joins:
            yield "slot = tl.load(Slots + token_r)  # (rows,) of Sums, where dV follows dK"
        if few:
            yield from self.places_left()
        elif self.spec.joins:
            yield from self.join()
        for name, tensor, _, column in self.sums:
            where = ("Sums", f"{tensor.lower()}_left") if few else (tensor, f"{tensor.lower()}_rows")
            yield from self.keep(name, *where, column)

    def places_left(self) -> Iterator[str]:
        """Where sums of few keys lie."""
        yield f"dk_left = {self.head_of('Sums', 'kv_head')}"
        yield f"dv_left = dk_left + {self.spec.d}"
        yield f"dk_left_in = {self.at_token('Sums', 'slot')}"
        yield "dv_left_in = dk_left_in"

    def join(self) -> Iterator[str]:
        """Add what other launches left, in float32, of the keys that they visit; most tiles have none of these."""
        yield "met = valid & (slot >= 0)"
        some = "tl.max(met.to(tl.int32), 0) != 0"
        if self.spec.chained:
            yield "# the launches before waited for that of dQ; some program waits for them, or this might end first"
            yield f"if ({some}) | (tl.program_id(1) == 0):"
            yield "    gdc_wait()"
        else:
            yield f"if {some}:"
        yield from indented(self.places_left())
        for name, tensor, dims, column in self.sums:
            for n, (_, width, live) in enumerate(dims):
                inside = f" & {column}_live_{n}" if live < width else ""
                at = self.pointer("Sums", f"{tensor.lower()}_left", f"{column}_{n}")
                yield f"    {name}_{n} += tl.load({at}, mask=met[:, None]{inside}, other=0.0)"
