"""The forward kernel's fragments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain

from weft.kernels.gpu.constants import LN2, LOG2E, NOTHING
from weft.kernels.gpu.entry import indented
from weft.kernels.gpu.spec import KernelSpec
from weft.kernels.triton.fragments import KeyWalk

# What a row's sum of exponentials may be without a maximum: below, scores as far below the largest as they can matter
# would count as 0, and products with small values be none; above, sums of large values would not be finite.
LEAST, MOST = 2.0**-48, 2.0**120
SHARERS = 4  # threads that share a row of a product; each has two of every eight columns


class Forward(KeyWalk):
    """Out = softmax(scores) V, Lse its logarithm.

    By the online form, or a shorter one, as on the CPU (docs/decisions/0004): nothing is taken off scores, so that no
    tile waits for a maximum and no sum is scaled. Rows whose sum then leaves `LEAST` to `MOST`, or weighs what is not
    finite, are computed again by the online form: a row's bits are its own.
    """

    def __init__(self, spec: KernelSpec) -> None:
        super().__init__(spec)
        self.online = not spec.no_maximum

    def load_mine(self) -> Iterator[str]:
        yield from self.columns(self.d, "d")
        yield from self.columns(self.dv, "dv")
        yield from self.my_rows("q_rows", "Q")
        yield from self.load("q", "Q", "q_rows", "", "d")
        if self.spec.linear:
            yield f"scale2 = scale * {LOG2E}"
        if self.spec.alibi:
            yield f"slope = tl.load(Slopes + head) * {LOG2E}"

    def start(self) -> Iterator[str]:
        yield from self.zeros("acc", self.dv)
        rows, parts = self.spec.rows, f" {SHARERS}" if self.spec.partial else ""
        if self.online:
            yield f'largest = tl.full(({rows},), float("-inf"), tl.float32)'
        yield f"total = tl.zeros(({rows},{parts}), tl.float32)"
        if self.counts_beside:
            yield f"keys = tl.zeros(({rows},), tl.int32)"
        yield from self.keys_of_head()

    def look(self) -> Iterator[str]:
        """The second walk leaves out a part where no row that needs it sees a key: without keys sums are 0 as well."""
        spec = self.spec
        if self.counts_beside:
            yield from self.count_keys()
        if not (self.online and spec.no_maximum):
            return
        for n in range(max(spec.rank, spec.terms)):
            sign = "" if n == 0 else "&" if spec.rank > 1 else "|"
            yield f"sees {sign}= low_{n} < tl.minimum(high_{n}, count_{n})"
        for n in range(spec.terms if spec.rank == 1 else 0):
            yield f"sees |= full_{n} > left_{n}  # all rows see the keys of such tiles"
        if spec.more:
            yield "sees |= more_0 > 0"
        yield "again = tl.max((wild & sees).to(tl.int32), 0)  # 0 or 1"
        counts = ["boxes_0"] if spec.rank > 1 else [f"boxes_{n}" for n in range(spec.terms)]
        for count in counts + ["left_0", "full_0"] * spec.apart + ["more_0"] * spec.more:
            yield f"{count} = {count} * again"

    def again(self, walk: Callable[[], Iterator[str]]) -> Iterator[str]:
        """The walk once more by the online form, for rows that need it."""
        if self.online:
            return
        yield "if tl.max(wild.to(tl.int32), 0) != 0:"
        self.online = True
        yield from indented(chain(walk(), self.finish()))
        self.online = False

    def step(self, kind: str = "either") -> Iterator[str]:
        yield from self.locate(kind)
        yield from self.masks()
        yield from self.load_tile("k", "K", "k", kind)
        yield from self.score(self.products("q", "k"))
        yield from self.mask_edge(("s",), 'float("-inf")', kind)
        yield from self.online_softmax() if self.online else self.softmax()
        yield from self.load_tile("v", "V", "v", kind)
        if self.online:
            yield from (f"acc_{n} = acc_{n} * kept[:, None]" for n in range(len(self.dv)))
        yield "p = p.to(v_0.dtype)"
        yield from self.accumulate("acc", "p", "v", self.dv)

    def masks(self) -> Iterator[str]:
        """The penalties of a box, made while its keys are under way."""
        if self.spec.rank > 1:
            yield from self.penalties()
            yield f"masks = {super().penalty}"

    @property
    def penalty(self) -> str:
        return "masks"

    @property
    def rounds(self) -> bool:
        """Whether weights are rounded that may be a row's only one: the largest is 1 where a maximum is taken off."""
        return not self.online and self.spec.dtype == "bfloat16" and not self.spec.upcast

    @property
    def counts_beside(self) -> bool:
        """Whether a row's keys are counted before its tiles: bounds of a line with one part are there afterwards too
        and need no register of their own.
        """
        return self.rounds and (self.spec.rank > 1 or self.spec.several)

    @property
    def bounds_again(self) -> bool:
        """Whether bounds are read from tables again, to count a row's keys."""
        return self.rounds and not (self.counts_beside or self.spec.formula)

    def count_keys(self) -> Iterator[str]:
        """How many keys of a part a row (rows,) sees, by its bounds, which have no more; those of full tiles, which may
        have no bounds, count twice.
        """
        spec = self.spec
        bounds = range(max(spec.rank, spec.terms))
        counts = [f"tl.maximum(tl.minimum(high_{n}, count_{n}) - low_{n}, 0)" for n in bounds]
        if spec.rank > 1:
            counts = [" * ".join(counts)]
        elif self.counts_beside or spec.terms > 1 or spec.more:
            full = [f"full_{n} - left_{n}" for n in range(spec.terms)] + ["more_0"] * spec.more
            counts.append(f"({' + '.join(full)}) * {spec.cols}")
        else:
            counts = ["high_0 - low_0"]
        for n, count in enumerate(counts):
            yield f"keys {'+=' if self.counts_beside or n else '='} {count}"

    def softmax(self) -> Iterator[str]:
        yield f"p = tl.exp2({self.exponent})  # (rows, cols)"
        yield f"total += {self.row_sum}"

    @property
    def row_sum(self) -> str:
        """The sum of p (rows,), or its parts (rows, SHARERS), which threads have without asking each other."""
        if not self.spec.partial:
            return "tl.sum(p, 1)"
        shape = self.spec.rows, self.spec.cols // (2 * SHARERS), SHARERS, 2
        return f"tl.sum(tl.sum(tl.reshape(p, {shape}), 3), 1)"

    def online_softmax(self) -> Iterator[str]:
        """largest and safe are in units of log2 and rounded once: an unchanged one gives kept = 1 exactly."""
        scale = " * scale2" if self.spec.linear else ""
        yield f"new = tl.maximum(largest, tl.max(s, 1){scale})"
        unseen = f"new < {NOTHING}" if self.spec.rank > 1 else 'new == float("-inf")'
        yield f"safe = tl.where({unseen}, 0.0, new)  # of rows that have seen no key yet"
        yield f"p = tl.exp2({self.exponent} - safe[:, None])  # (rows, cols)"
        yield "kept = tl.exp2(largest - safe)"
        kept = "kept[:, None]" if self.spec.partial else "kept"
        yield f"total = total * {kept} + {self.row_sum}"
        yield "largest = new"

    def finish(self) -> Iterator[str]:
        spec = self.spec
        if spec.partial:
            yield "total = tl.sum(total, 1)"
        if not self.online:
            yield f"wild = (total > {MOST}) | (total < {LEAST})"
            for n in range(len(self.dv)):
                yield f"wild |= tl.sum(acc_{n} * 0.0, 1) != 0.0  # infinite, or not a number"
        if self.rounds:
            if not self.counts_beside:
                yield from self.count_keys()
            yield "# a row's only weight, rounded as its value met it: divided by that, the value is exact"
            yield "weight = tl.where(keys == 1, total.to(tl.bfloat16).to(tl.float32), total)"
        done = self.done
        top = "largest" if self.online else "tl.zeros_like(total)"
        if spec.sinks:
            yield "# the sink joins the sum and has no value"
            yield "alone = total == 0"
            yield f"sink = tl.load(Sinks + head) * {LOG2E}"
            yield f"above = tl.maximum({top}, sink)"
            if self.online:
                yield 'above = tl.where(above == float("-inf"), 0.0, above)  # neither keys nor a sink'
            yield f"less = tl.where(alone, 0.0, tl.exp2({top} - above))"
            for name in ("total", "weight")[: 1 + self.rounds]:
                yield f"{name} = {name} * less + tl.exp2(sink - above)"
            yield from (f"acc_{n} = acc_{n} * less[:, None]" for n in range(len(self.dv)))
            top = "above"
        yield f"inverse = tl.where(total == 0, 0.0, 1.0 / {'weight' if self.rounds else 'total'})  # NaN stays NaN"
        yield from (f"acc_{n} = acc_{n} * inverse[:, None]" for n in range(len(self.dv)))
        log2 = "libdevice.fast_log2f" if spec.fast_log else "tl.log2"
        log = f"({top} + {log2}(total))" if self.online or spec.sinks else f"{log2}(total)"
        yield f'lse = tl.where(total == 0, float("-inf"), {log} * {LN2})'
        if spec.sinks:
            yield "lse = tl.where(alone, tl.load(Sinks + head), lse)  # exactly"
        yield "lse_at = Lse + (batch * all_heads + head) * my_length + token_r"
        yield from self.my_rows("out_rows", "Out")
        if spec.accumulate:
            yield from self.merge(done)
        yield f"tl.store(lse_at, lse{done and f', mask={done}'})"
        yield from self.store("acc", "Out", "out_rows", done, "dv")

    @property
    def done(self) -> str:
        """Which rows are stored: of a first walk wild ones as well, which the second stores once more, and those beyond
        a tile's end, which are what its last row is. Where something is added to rows, each of them once.
        """
        stored = ["valid"] * self.spec.accumulate
        if self.spec.no_maximum and (self.spec.accumulate or self.online):
            stored.append("wild" if self.online else "~wild")
        return f"({' & '.join(stored)})" if len(stored) > 1 else "".join(stored)

    def merge(self, done: str) -> Iterator[str]:
        """With what earlier launches left in Sum (B, Hq, M, Dv) and Lse: both are over disjoint keys."""
        yield "# merged by lse with what earlier launches left, in float32"
        yield f"sum_rows = Sum + ((batch * all_heads + head) * my_length + token_r.to(tl.int64)) * {self.spec.dv}"
        yield f'old = tl.load(lse_at, mask={done}, other=float("-inf"))'
        yield "above = tl.maximum(lse, old)"
        yield 'above = tl.where(above == float("-inf"), 0.0, above)'
        yield "mine_w, old_w = tl.exp(lse - above), tl.exp(old - above)"
        yield "both = mine_w + old_w"
        yield "inverse = tl.where(both == 0, 0.0, 1.0 / both)"
        for n, (_, width, live) in enumerate(self.dv):
            inside = f" & dv_live_{n}" if live < width else ""
            yield f"sum_at = sum_rows[:, None] + dv_{n}[None, :]"
            yield f"was = tl.load(sum_at, mask={done}[:, None]{inside}, other=0.0)"
            yield f"acc_{n} = (acc_{n} * mine_w[:, None] + was * old_w[:, None]) * inverse[:, None]"
            yield f"tl.store(sum_at, acc_{n}, mask={done}[:, None]{inside})"
        yield 'lse = tl.where(both == 0, float("-inf"), above + tl.log(both))'
