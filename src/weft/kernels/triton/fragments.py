"""What a tile does, in lines of source: loads, scores, masks. The two sides of a tile are named as in `emit`."""

from __future__ import annotations

from collections.abc import Iterator

from weft.kernels.triton.spec import KernelSpec, chunks


def indented(lines: Iterator[str]) -> Iterator[str]:
    """The lines of a block."""
    for line in lines:
        yield "    " + line if line else line


class Fragments:
    """What one direction does with a tile; lines of source."""

    def __init__(self, spec: KernelSpec) -> None:
        self.spec = spec
        self.d, self.dv = chunks(spec.d), chunks(spec.dv)

    # -- loads
    def columns(self, dims: tuple[tuple[int, int, int], ...], name: str) -> Iterator[str]:
        """Index vectors of the chunks of a head dimension."""
        for n, (first, width, _) in enumerate(dims):
            yield f"{name}_{n} = {first} + tl.arange(0, {width})"

    def pointer(self, tensor: str, rows: str, column: str) -> str:
        dim = "" if self.spec.aligned else f" * {tensor}_dim"
        return f"{rows}[:, None] + {column}[None, :]{dim}"

    def load(self, target: str, tensor: str, rows: str, mask: str, kind: str) -> Iterator[str]:
        """(rows, d) in chunks target_0, target_1; dead columns of a padded chunk and masked rows read as 0."""
        dims, column = (self.d, "d") if kind == "d" else (self.dv, "dv")
        for n, (first, width, live) in enumerate(dims):
            inside = f"({column}_{n} < {first + live})[None, :]" if live < width else ""
            where = " & ".join(x for x in (f"{mask}[:, None]" if mask else "", inside) if x)
            option = f", mask={where}, other=0.0" if where else ""
            at = self.pointer(tensor, rows, f"{column}_{n}")
            yield f"{target}_{n} = tl.load({at}{option}){self.upcast}  # {width}"

    def load_tile(self, target: str, tensor: str, at: str, kind: str) -> Iterator[str]:
        """(cols, d) of the box: one pointer and the offsets of a tile, which are the same for all boxes of a part."""
        dims, column = (self.d, "d") if target in ("q", "k") else (self.dv, "dv")
        dim = "" if self.spec.aligned else f" * {tensor}_dim"
        if self.spec.listed:
            yield f"{at}_box, {at}_inside = {at}_at, (token.to(tl.int64) * {tensor}_row)[:, None]"
        else:
            yield f"{at}_box, {at}_inside = {at}_at + at.to(tl.int64) * {tensor}_row, {at}_off"
        for n, (first, width, live) in enumerate(dims):
            tests = ["there[:, None]"] * (kind != "full" or self.spec.listed) + [
                f"({column}_{n} < {first + live})[None, :]"
            ] * (live < width)
            option = f", mask={' & '.join(tests)}, other=0.0" if tests else ""
            place = f"{at}_box + ({at}_inside + {column}_{n}[None, :]{dim})"
            yield f"{target}_{n} = tl.load({place}{option}){self.upcast}  # {width}"

    def store(self, source: str, tensor: str, rows: str, mask: str, kind: str) -> Iterator[str]:
        dims, column = (self.d, "d") if kind == "d" else (self.dv, "dv")
        for n, (first, width, live) in enumerate(dims):
            inside = f" & ({column}_{n} < {first + live})[None, :]" if live < width else ""
            at = self.pointer(tensor, rows, f"{column}_{n}")
            yield f"tl.store({at}, {source}_{n}.to({tensor}.dtype.element_ty), mask={mask}[:, None]{inside})"

    @property
    def wide(self) -> str:
        """Offsets inside a tile are 32 bits wide where that is known to be enough."""
        return "" if self.spec.aligned else ".to(tl.int64)"

    @property
    def narrow(self) -> str:
        return ".to(tl.int32)" if self.spec.aligned else ""

    @property
    def upcast(self) -> str:
        return ".to(tl.float32)" if self.spec.upcast else ""

    @property
    def precision(self) -> str:
        if self.spec.dtype == "float32":
            return f', input_precision="{"tf32" if self.spec.tf32 else "ieee"}"'
        return ""

    def dot(self, a: str, b: str, dims: tuple) -> str:
        """Sum over the chunks of a product over a head dimension: a (rows, d), b (cols, d) -> (rows, cols)."""
        text = ""
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

    # -- the geometry of one step
    def locate(self, kind: str) -> Iterator[str]:
        """there (cols,): whether a column exists; at: the first token of the box."""
        spec = self.spec
        if spec.rank == 0:
            yield f"at = tl.load(columns + block) * {spec.cols}"
            yield "there = c < their_length - at"
        elif spec.rank == 1:
            if kind != "full" or spec.listed:
                yield f"there = c < count_0 - j_0 * {spec.cols}"
            yield "at = base + j_0 * pace_0"
            if spec.listed:
                yield f"place = first_0 + step_0 * (j_0 * {spec.cols} + c)"
                yield "coordinate = place"
                yield "if keys_at != 0:  # listed keys"
                yield "    coordinate = tl.load(Tables + keys_at + place, mask=there, other=0)"
                yield "token = tl.load(here) + coordinate"
                return
        else:
            yield "there = " + " & ".join(f"(c_{a} < count_{a} - (j_{a} << log_{a}))" for a in range(spec.rank))
            yield "at = base + " + " + ".join(f"j_{a} * pace_{a}" for a in range(spec.rank))
        if spec.alibi or spec.listed:
            yield "token = at + token_c"

    def mask_edge(self, score: str, dead: str, kind: str) -> Iterator[str]:
        """Pairs outside the bounds of their row become `dead`."""
        spec = self.spec
        if kind == "full":
            return
        if spec.rank == 0:
            yield "place = tl.load(places + block)"
            yield "if place >= 0:"
            yield "    word_0 = tl.load(bits + place * 128 + 2 * r)"
            yield "    word_1 = tl.load(bits + place * 128 + 2 * r + 1)"
            yield "    word = tl.where((c < 32)[None, :], word_0[:, None], word_1[:, None])"
            yield f"    {score} = tl.where(((word >> (c & 31)[None, :]) & 1) != 0, {score}, {dead})"
            yield f"{score} = tl.where(there[None, :], {score}, {dead})"
            return
        lines, live = (self.live_on_axis if spec.rank == 1 else self.live_in_box)()
        if spec.listed:
            lines.append("col_is_out = is_out(Tables, cols_out, token)")
            live += " & (row_is_out[:, None] == 0) & (col_is_out[None, :] == 0)"
        lines.append(f"{score} = tl.where({live}, {score}, {dead})")
        yield from self.at_edges(lines, kind)

    def at_edges(self, lines: list[str], kind: str) -> Iterator[str]:
        """What is done in tiles with an edge only."""
        if kind == "full":
            return
        if kind == "edge" or self.spec.rank == 0:
            yield from lines
            return
        outer = " | ".join(f"(j_{a} < left_{a}) | (j_{a} >= full_{a})" for a in range(self.spec.rank))
        yield f"if {outer}:  # a tile with an edge"
        yield from indented(iter(lines))

    def live_on_axis(self) -> tuple[list[str], str]:
        """Lines, and an expression (rows, cols): the column lies between the bounds of the row."""
        if self.spec.listed:
            between = "(coordinate[None, :] >= low_0[:, None]) & (coordinate[None, :] < high_0[:, None])"
            return [], f"there[None, :] & {between}"
        begin = f"j_0 * {self.spec.cols}"
        lines = [f"from_0, to_0 = low_0 - {begin}, high_0 - {begin}"]
        return lines, "(c[None, :] >= from_0[:, None]) & (c[None, :] < to_0[:, None])"

    def live_in_box(self) -> tuple[list[str], str]:
        """The same on a grid, by two words of bits for each row: of the slower axes together, and of the last one."""
        last = self.spec.rank - 1
        bits = [
            f"bits_of(low_{a} - (j_{a} << log_{a}), high_{a} - (j_{a} << log_{a}), log_{a}, " for a in range(last + 1)
        ]
        lines = [f"slow, fast = {bits[0]}{'log_1' if last == 2 else '0'}), {bits[last]}0)  # (rows,)"]
        if last == 2:
            lines.append(f"slow = slow & ({bits[1]}0) * repeat)")
        return lines, "(((slow[:, None] >> c_slow[None, :]) & (fast[:, None] >> c_fast[None, :]) & 1) != 0)"

    # -- scores
    def score(self, raw: str, transposed: bool = False) -> Iterator[str]:
        """s (rows, cols) in units of log2, except that a linear score is left unscaled: the scale joins exp2."""
        spec = self.spec
        yield f"s = {raw}"
        if spec.softcap:
            yield "capped = tanh(s * (scale / softcap))"
            yield "s = capped * (softcap * 1.4426950408889634)"
        elif not spec.linear:
            yield "s = s * (scale * 1.4426950408889634)"
        if spec.alibi:
            shift = "- shift" if transposed else "+ shift"
            yield f"s -= slope * tl.abs(token_r[:, None] {shift} - token[None, :]).to(tl.float32)"

    @property
    def exponent(self) -> str:
        return "s * scale2" if self.spec.linear else "s"
