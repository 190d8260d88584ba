"""What a tile does, in lines of source: loads, scores, masks. The two sides of a tile are named as in `emit`."""

from __future__ import annotations

from collections.abc import Iterator

from weft.kernels.gpu.constants import LOG2E, PENALTY
from weft.kernels.gpu.entry import indented
from weft.kernels.gpu.spec import KernelSpec
from weft.planning.device import FAR, PLACES
from weft.planning.tiling import chunks


def within_length() -> Iterator[str]:
    """Which rows r of a block exist, from its first_r on; for the others the last one stands."""
    yield "token_r = first_r + r"
    yield "valid = token_r < my_length"
    yield "token_r = tl.minimum(token_r, my_length - 1)  # (rows,)"
    yield "near_r = token_r - first_r"


class Fragments:
    """What one direction does with a tile; lines of source."""

    def __init__(self, spec: KernelSpec) -> None:
        self.spec = spec
        self.d, self.dv = chunks(spec.d), chunks(spec.dv)

    def look(self) -> Iterator[str]:
        """What a walk asks of the bounds of a part before it begins."""
        return iter(())

    # -- where things lie
    @property
    def units(self) -> str:
        """A factor: the elements that strides count in."""
        return f" * {self.spec.unit}" if self.spec.aligned else ""

    def head_of(self, tensor: str, head: str, token: str = "") -> str:
        """Where a head of a tensor begins, or a token of it. head: its number, 64 bits wide."""
        row = token and f" + {token}.to(tl.int64) * {tensor}_row"
        return f"{tensor} + (batch * {tensor}_batch + {head} * {tensor}_head{row}){self.units}"

    def at_token(self, tensor: str, token: str) -> str:
        """How far a token lies from where its head begins."""
        return f"{token}.to(tl.int64) * {tensor}_row{self.units}"

    def at_tile(self, tensor: str) -> str:
        """How far the first token of a tile lies from where its head begins, in a walk.

        Of a line, forwards and dK and dV take fewer instructions a tile where the stride is one of 64 bits before it;
        dQ and grids take more, or spill (benchmarks/notes/triton.md).
        """
        spec = self.spec
        if spec.aligned and spec.rank < 2 and spec.direction != "dq" and not spec.with_dq:
            return f"at.to(tl.int64) * ({tensor}_row.to(tl.int64){self.units})"
        return self.at_token(tensor, "at")

    def inside(self, tensor: str, tokens: str, step: str = "") -> str:
        """How far so many tokens reach, times a step, inside a tile, where 32 bits suffice if rows are aligned."""
        if self.spec.aligned:
            row = f"{tensor}_row{self.units}"
            return f"{tokens} * ({f'{step} * ({row})' if step else row})"
        return f"({tokens}{step and f' * {step}'}).to(tl.int64) * {tensor}_row"

    # -- loads
    def columns(self, dims: tuple[tuple[int, int, int], ...], name: str) -> Iterator[str]:
        """Index vectors of the chunks of a head dimension, and which columns of a padded one exist, (1, d)."""
        for n, (first, width, live) in enumerate(dims):
            yield f"{name}_{n} = {first} + tl.arange(0, {width})"
            if live < width:
                yield f"{name}_live_{n} = ({name}_{n} < {first + live})[None, :]"

    def my_rows(self, name: str, tensor: str, head: str = "head.to(tl.int64)", near: bool = True) -> Iterator[str]:
        """name, name_in: my rows of a tensor lie at their sum, (rows,).

        name_in has 32 bits from the first row on where a tile's rows are known to lie so near and it was not slower:
        on lines, and not where the first row's number would outlast the walk in dQ (benchmarks/notes/triton.md).
        """
        spec = self.spec
        if near and spec.aligned and spec.rank == 1 and not spec.listed:
            yield f"{name} = {self.head_of(tensor, head, 'first_r')}"
            yield f"{name}_in = {self.inside(tensor, 'near_r')}"
        else:
            yield f"{name} = {self.head_of(tensor, head)}"
            yield f"{name}_in = {self.at_token(tensor, 'token_r')}"

    def pointer(self, tensor: str, rows: str, column: str) -> str:
        dim = "" if self.spec.aligned else f" * {tensor}_dim"
        return f"{rows} + ({rows}_in[:, None] + {column}[None, :]{dim})"

    def load(self, target: str, tensor: str, rows: str, mask: str, kind: str) -> Iterator[str]:
        """(rows, d) in chunks target_0, target_1; dead columns of a padded chunk and masked rows read as 0."""
        dims, column = (self.d, "d") if kind == "d" else (self.dv, "dv")
        for n, (_, width, live) in enumerate(dims):
            live_columns = f"{column}_live_{n}" if live < width else ""
            name, where = self.both(f"in_{target}", mask and f"{mask}[:, None]", live_columns)
            yield from name
            option = f", mask={where}, other=0.0" if where else ""
            at = self.pointer(tensor, rows, f"{column}_{n}")
            yield f"{target}_{n} = tl.load({at}{option}){self.upcast}  # {width}"

    @staticmethod
    def both(name: str, rows: str, columns: str) -> tuple[list[str], str]:
        """The mask of rows (rows, 1) and of columns (1, d), where there is one: lines that name it, if both, and that.

        A name of its own: Triton gives one that a loop writes again the type that it had before the loop.
        """
        return ([f"{name} = {rows} & {columns}"], name) if rows and columns else ([], rows or columns)

    def clamped(self, kind: str) -> bool:
        """Whether columns beyond the last one are read as the last one instead of not at all; no row sees either.

        Loads with a mask for each row cost a quarter of the instructions of a tile with an edge, 64 columns wide; dK
        and dV, whose tiles are half as wide, rather need the registers.
        """
        return self.spec.rank == 1 and kind != "full" and not self.spec.listed and not self.spec.of_keys

    def ragged(self, kind: str) -> bool:
        """Whether some columns of a tile may not exist."""
        return self.spec.listed or not (kind == "full" or self.spec.whole)

    @property
    def loaded(self) -> str:
        """Which columns are read. Scores of blocks of pairs are not masked by it: bits do that before the first one."""
        return "seen" if self.spec.rank == 0 else "there"

    def load_tile(self, target: str, tensor: str, at: str, kind: str) -> Iterator[str]:
        """(cols, d) of the box: one pointer and the offsets of a tile, which are the same for all boxes of a part."""
        dims, column = (self.d, "d") if target in ("q", "k") else (self.dv, "dv")
        dim = "" if self.spec.aligned else f" * {tensor}_dim"
        if self.spec.listed:
            yield f"{at}_box = {at}_at"
            yield f"{at}_inside = ({self.at_token(tensor, 'token')})[:, None]"
        else:
            inside = f"{at}_off"
            if self.clamped(kind):
                inside = f"({self.inside(tensor, 'near', self.of_term('step'))})[:, None]"
            yield f"{at}_box = {at}_at + {self.at_tile(tensor)}"
            yield f"{at}_inside = {inside}"
        for n, (_, width, live) in enumerate(dims):
            mask = f"{self.loaded}[:, None]" if self.ragged(kind) and not self.clamped(kind) else ""
            name, where = self.both(f"in_{target}", mask, f"{column}_live_{n}" if live < width else "")
            yield from name
            option = f", mask={where}, other=0.0" if where else ""
            place = f"{at}_box + ({at}_inside + {column}_{n}[None, :]{dim})"
            yield f"{target}_{n} = tl.load({place}{option}){self.upcast}  # {width}"

    def store(self, source: str, tensor: str, rows: str, mask: str, kind: str) -> Iterator[str]:
        """Rows of chunks source_0, source_1, those of the mask, or all."""
        dims, column = (self.d, "d") if kind == "d" else (self.dv, "dv")
        for n, (_, width, live) in enumerate(dims):
            live_columns = f"{column}_live_{n}" if live < width else ""
            name, where = self.both(f"in_{source}", mask and f"{mask}[:, None]", live_columns)
            yield from name
            option = f", mask={where}" if where else ""
            yield f"{source}_{n} = {source}_{n}.to({tensor}.dtype.element_ty)"
            yield f"tl.store({self.pointer(tensor, rows, f'{column}_{n}')}, {source}_{n}{option})"

    @property
    def wide(self) -> str:
        """Offsets inside a tile are 32 bits wide where that is known to be enough."""
        return "" if self.spec.aligned else ".to(tl.int64)"

    @property
    def upcast(self) -> str:
        return ".to(tl.float32)" if self.spec.upcast else ""

    @property
    def precision(self) -> str:
        if self.spec.dtype == "float32":
            return f', input_precision="{"tf32" if self.spec.tf32 else "ieee"}"'
        return ""

    @property
    def small(self) -> str:
        """The type of operands that weft makes itself: small numbers, which bfloat16 holds exactly."""
        return "tl.float32" if self.spec.upcast or self.spec.dtype == "float32" else "tl.bfloat16"

    def dot(self, a: str, b: str, dims: tuple, start: str = "") -> str:
        """start + the sum over the chunks of a head dimension: a (rows, d), b (cols, d) -> (rows, cols)."""
        text = start
        for n in range(len(dims)):
            more = f", {text}" if text else ""
            text = f"tl.dot({a}_{n}, tl.trans({b}_{n}){more}{self.precision})"
        return text

    def accumulate(self, acc: str, weights: str, values: str, dims: tuple) -> Iterator[str]:
        """acc (rows, d) += weights (rows, cols) @ values (cols, d), chunk by chunk."""
        for n in range(len(dims)):
            yield f"{acc}_{n} = tl.dot({weights}, {values}_{n}, {acc}_{n}{self.precision})"

    def zeros(self, name: str, dims: tuple) -> Iterator[str]:
        for n, (_, width, _) in enumerate(dims):
            yield f"{name}_{n} = tl.zeros(({self.spec.rows}, {width}), tl.float32)"

    def nothing(self, width: int, dtype: str) -> str:
        """Zeros (rows, width) of float32 that Triton lays out as it does results of products.

        What is added to them is laid out so once, outside the loop over tiles; a product with it on the left then takes
        it from registers instead of reading it from shared memory in each tile (benchmarks/notes/triton.md).
        """
        return f"tl.dot(tl.zeros(({self.spec.rows}, 16), {dtype}), tl.zeros((16, {width}), {dtype}))"

    # -- the geometry of one step
    def locate(self, kind: str) -> Iterator[str]:
        """there (cols,): whether a column exists; at: the first token of the box. In blocks of pairs columns end with
        the last seen one of all; seen (cols,): and begin with the first.
        """
        spec = self.spec
        if spec.rank == 0:
            yield f"at = tl.load(columns + block) * {spec.cols}"
            yield "there = c < end - at"
            yield "seen = there & (c >= begin - at)"
        elif spec.rank == 1:
            if kind != "full" or spec.listed:
                count = self.of_term("count")
                if spec.more and kind == "either":
                    yield f"count = tl.where(j_0 < boxes_0, count_0, (j_0 + 1) * {spec.cols})"
                    count = "count"
                if self.clamped(kind):
                    yield f"near = tl.minimum(c, {count} - 1 - j_0 * {spec.cols})"
                else:
                    yield f"there = c < {count} - j_0 * {spec.cols}"
            base, pace = "base", "pace_0"
            if spec.terms > 1:
                base, pace = "base_j", f"(step_j * {spec.cols})"
            elif spec.more and kind != "edge":
                base = f"tl.where(j_0 < {self.before_more}, base, more)"
            yield f"at = {base} + j_0 * {pace}"
            if spec.listed:
                yield f"place = first_0 + step_0 * (j_0 * {spec.cols} + c)"
                yield "coordinate = place"
                yield "if keys_at != 0:  # listed keys"
                yield "    coordinate = tl.load(Tables + keys_at + place, mask=there, other=0)"
                yield "token = tl.load(here) + coordinate"
                return
        else:
            for a in range(spec.rank if self.ragged(kind) else 0):
                yield f"there {'&=' if a else '='} c_{a} < count_{a} - (j_{a} << log_{a})"
            yield "at = base + " + " + ".join(f"j_{a} * pace_{a}" for a in range(spec.rank))
        if spec.alibi or spec.listed:
            yield "token = at + " + ("c * step_j" if spec.terms > 1 else "token_c")

    def of_term(self, name: str) -> str:
        """A number of the term that a tile on a line is of: of the only one, or of the j-th tile's."""
        return f"{name}_{'j' if self.spec.terms > 1 else 0}"

    @property
    def before_more(self) -> str:
        """How many tiles of the first term a walk counts before those of another."""
        return "full_0" if self.spec.apart else "boxes_0"

    def places(self) -> Iterator[str]:
        """What masks a box on a grid by a matrix product: its coordinates on all axes have PLACES places."""
        rank = self.spec.rank
        yield f"place = tl.arange(0, {PLACES})"
        yield f"after_{rank - 1} = 0  # places of the axes after this one"
        for a in reversed(range(rank - 1)):
            yield f"after_{a} = after_{a + 1} + (1 << log_{a + 1})"
        yield "# (rows, places): the bounds of my rows on the axis of a place; (cols, places): 1 at a column's places"
        yield f"begins = tl.full(({self.spec.rows}, {PLACES}), {-FAR}, tl.int32)"
        yield f"ends = tl.full(({self.spec.rows}, {PLACES}), {FAR}, tl.int32)"
        yield f"hot = tl.zeros(({self.spec.cols}, {PLACES}), tl.float32)"
        for a in range(rank):
            yield f"of_{a} = (place >= after_{a}) & (place < after_{a} + (1 << log_{a}))"
            yield f"begins = tl.where(of_{a}[None, :], low_{a}[:, None] + (after_{a} - place)[None, :], begins)"
            yield f"ends = tl.where(of_{a}[None, :], high_{a}[:, None] + (after_{a} - place)[None, :], ends)"
            yield f"hot = tl.where(of_{a}[None, :] & (c_{a}[:, None] == (place - after_{a})[None, :]), 1.0, hot)"
        yield f"hot = hot.to({self.small})"
        if self.spec.held:
            yield f"nothing = {self.nothing(PLACES, self.small)}.to(tl.int32)"
            yield "begins += nothing"
            yield "ends += nothing"

    def penalties(self) -> Iterator[str]:
        """out (rows, places): what a coordinate of this box adds to the scores of a row that does not see it."""
        if self.spec.rank < 2:
            return
        last = self.spec.rank - 1
        corner = f"j_{last} << log_{last}"
        for a in reversed(range(last)):
            corner = f"tl.where(of_{a}, j_{a} << log_{a}, {corner})"
        yield f"corner = {corner}  # (places,)"
        yield "seen = (corner[None, :] >= begins) & (corner[None, :] < ends)"
        yield f"out = tl.where(seen, 0.0, {PENALTY}).to({self.small})"

    @property
    def penalty(self) -> str:
        """The penalties of all pairs of a box on a grid."""
        return f"tl.dot(out, tl.trans(hot){self.precision})"

    def products(self, mine: str, theirs: str, more: str = "") -> str:
        """mine (rows, d) . theirs (cols, d) plus `more`, and on grids the penalties if scores are linear."""
        start = self.penalty if self.spec.rank > 1 and self.spec.linear else ""
        if more:
            start = more.format(start and f", {start}")
        return self.dot(mine, theirs, self.d, start)

    def mask_edge(self, names: tuple[str, ...], dead: str, kind: str) -> Iterator[str]:
        """Pairs outside the bounds of their row become `dead` in all of `names`; on grids they are so already."""
        spec = self.spec
        if kind == "full":
            return

        def masked(live: str) -> list[str]:
            return [f"{name} = tl.where({live}, {name}, {dead})" for name in names]

        if spec.rank == 0:
            # forwards store rows beyond the last one too, as what that is; gradients do not
            row = "near_r" if spec.direction == "forward" else "r"
            yield "place = tl.load(places + block)"
            yield "if place >= 0:"
            yield f"    word_0 = tl.load(bits + place * 128 + 2 * {row})"
            yield f"    word_1 = tl.load(bits + place * 128 + 2 * {row} + 1)"
            yield "    word = tl.where((c < 32)[None, :], word_0[:, None], word_1[:, None])"
            yield from indented(iter(masked("((word >> (c & 31)[None, :]) & 1) != 0")))
            yield from masked("there[None, :]")
            return
        if self.by_side:
            yield from self.mask_sides(masked("live"))
            return
        lines, live = self.live_on_axis() if spec.rank == 1 else ([], [])
        if spec.listed:
            lines.append("col_is_out = is_out(Tables, cols_out, token)")
            live += ["(row_is_out[:, None] == 0)", "(col_is_out[None, :] == 0)"]
        if live:
            lines += [f"live {'&=' if n else '='} {' & '.join(live[n : n + 2])}" for n in range(0, len(live), 2)]
            yield from self.at_edges([*lines, *masked("live")], kind)

    @property
    def by_side(self) -> bool:
        """Whether a tile beside full ones is masked by the side that cuts it alone: in loops over several terms, and
        the forward's at narrow heads. Elsewhere a second branch cost more than it saved (benchmarks/notes/triton.md).
        """
        spec = self.spec
        return spec.terms > 1 or (spec.direction == "forward" and spec.rank == 1 and spec.narrow and not spec.listed)

    def mask_sides(self, masked: list[str]) -> Iterator[str]:
        """Beside full tiles, which all rows see, one side alone cuts a tile: low bounds before, high ones after."""
        left, full = self.of_term("left"), self.of_term("full")
        for bound, sign, beside in (("low", ">=", f"j_0 < {left}"), ("high", "<", f"j_0 >= {full}")):
            where = f"({beside}) | ({left} == {full})"  # computed here, not once before: Triton's code is worse then
            where = f"({where}) & (j_0 < boxes_0)" if self.spec.more else where
            yield f"if {where}:  # {bound} bounds cut the tile"
            yield f"    live = c[None, :] {sign} ({self.of_term(bound)} - j_0 * {self.spec.cols})[:, None]"
            yield from indented(iter(masked))

    def at_edges(self, lines: list[str], kind: str) -> Iterator[str]:
        """What is done in tiles with an edge only, of a loop over others too; on grids, where lists ask it, in all."""
        if kind == "edge" or self.spec.rank != 1:
            yield from lines
            return
        after = "((j_0 >= full_0) & (j_0 < boxes_0))" if self.spec.more else "(j_0 >= full_0)"
        yield f"if (j_0 < left_0) | {after}:  # a tile with an edge"
        yield from indented(iter(lines))

    def live_on_axis(self) -> tuple[list[str], list[str]]:
        """Lines, and what (rows, cols) must hold: the column lies between the bounds of the row."""
        if self.spec.listed:
            between = ["(coordinate[None, :] >= low_0[:, None])", "(coordinate[None, :] < high_0[:, None])"]
            return [], ["there[None, :]", *between]
        begin = f"j_0 * {self.spec.cols}"
        lines = [f"from_0, to_0 = low_0 - {begin}, high_0 - {begin}"]
        return lines, ["(c[None, :] >= from_0[:, None])", "(c[None, :] < to_0[:, None])"]

    # -- scores
    def score(self, raw: str, transposed: bool = False) -> Iterator[str]:
        """s (rows, cols) in units of log2, except that a linear score is left unscaled: the scale joins exp2."""
        spec = self.spec
        yield f"s = {raw}"
        if spec.softcap:
            yield "capped = tanh(s * (scale / softcap))"
            yield f"s = capped * (softcap * {LOG2E})"
        elif not spec.linear:
            yield f"s = s * (scale * {LOG2E})"
        if spec.alibi:
            shift = "- shift" if transposed else "+ shift"
            yield f"s -= slope * tl.abs(token_r[:, None] {shift} - token[None, :]).to(tl.float32)"
        if spec.rank > 1 and not spec.linear:
            yield f"s += {self.penalty}"

    @property
    def exponent(self) -> str:
        return "s * scale2" if self.spec.linear else "s"


class KeyWalk(Fragments):
    """What forward and dQ share: queries stay, and keys and values of one head are walked."""

    def keys_of_head(self) -> Iterator[str]:
        yield f"k_at = {self.head_of('K', 'kv_head')}"
        yield f"v_at = {self.head_of('V', 'kv_head')}"

    def per_part(self) -> Iterator[str]:
        if self.spec.terms > 1:  # steps differ
            return
        yield f"k_off = ({self.inside('K', 'token_c')})[:, None]"
        yield f"v_off = ({self.inside('V', 'token_c')})[:, None]"

    def per_head(self, walk: Iterator[str]) -> Iterator[str]:
        yield from walk
