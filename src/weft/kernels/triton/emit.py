"""KernelSpec -> the source of a kernel, from named fragments.

The side of a tile that stays is called rows ("mine"), the side that is walked columns ("theirs"): queries and keys in
`forward` and `dq`, keys and queries in `dkdv`. Fragments of one name do the same thing in all three.
"""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import indent

from weft.kernels.triton.spec import KernelSpec, chunks
from weft.kernels.triton.tables import AXIS, HEAD, PART

TENSORS = {
    "forward": ("Q", "K", "V", "Out", "Lse", "Sum", "Sinks", "Slopes"),
    "dq": ("Q", "K", "V", "DOut", "Lse", "Delta", "DQ", "Slopes"),
    "dkdv": ("Q", "K", "V", "DOut", "Lse", "Delta", "DK", "DV", "Slopes"),
}
STRIDED = {
    "forward": ("Q", "K", "V", "Out"),
    "dq": ("Q", "K", "V", "DOut", "DQ"),
    "dkdv": ("Q", "K", "V", "DOut", "DK", "DV"),
}
PLAIN = ("record", "parts", "parts_at", "items_at", "heads_at", "first_item", "all_heads", "my_length", "their_length",
         "shift")  # fmt: skip
FLOATS = ("scale", "softcap")



def arguments(spec: KernelSpec) -> tuple[str, ...]:
    """Names of the kernel's arguments, in order."""
    strides = [f"{x}_{part}" for x in STRIDED[spec.direction] for part in _stride_names(spec)]
    return (*TENSORS[spec.direction], "Tables", *PLAIN, *strides, *FLOATS)


def _stride_names(spec: KernelSpec) -> tuple[str, ...]:
    return ("batch", "head", "row") if spec.aligned else ("batch", "head", "row", "dim")


def unit(spec: KernelSpec) -> int:
    """Elements that strides count in: 16 bytes where rows are aligned."""
    return 16 // {"float64": 8, "float32": 4}.get(spec.dtype, 2) if spec.aligned else 1


def emit(spec: KernelSpec) -> str:
    """The source of a module with one kernel, `kernel`."""
    body = "\n".join(_kernel(spec))
    names = "".join(f"    {line}\n" for line in _wrapped(arguments(spec)))
    return (
        f'"""{spec.name}: emitted by weft; {spec.warps} warps, {spec.stages} stages."""\n\n'
        "import triton\nimport triton.language as tl\n\n"
        "from weft.kernels.triton.device import (\n    is_out, lower_formula, lower_table, positions, tanh, upper_formula, upper_table,\n)\n\n\n"
        f"@triton.jit\ndef kernel(\n{names}):\n{indent(body, '    ')}\n"
    )


def _wrapped(names: tuple[str, ...]) -> Iterator[str]:
    line = ""
    for name in names:
        if len(line) + len(name) > 100:
            yield line.rstrip()
            line = ""
        line += f"{name}, "
    yield line.rstrip()


# ---- the whole -----------------------------------------------------------------------------------------------------
def _kernel(spec: KernelSpec) -> Iterator[str]:
    fragments = {"forward": Forward, "dq": QueryGradient, "dkdv": KeyGradient}[spec.direction](spec)
    yield from _strides(spec)
    yield from _where_am_i(spec)
    yield from _my_rows(spec)
    yield from fragments.load_mine()
    yield from fragments.start()
    if spec.rank == 0:
        yield from _walk_blocks(spec, fragments)
    else:
        yield "for part in range(parts):"
        yield from _in(_part(spec))
        yield from _in(fragments.per_part())
        yield from _in(fragments.per_head(_walk(spec, fragments)))
    yield from fragments.finish()


def _in(lines: Iterator[str], depth: int = 1) -> Iterator[str]:
    for line in lines:
        yield "    " * depth + line if line else line


def _strides(spec: KernelSpec) -> Iterator[str]:
    if unit(spec) == 1:
        return
    yield f"# strides come in units of 16 bytes, {unit(spec)} elements: rows are aligned"
    for x in STRIDED[spec.direction]:
        yield "; ".join(f"{x}_{part} = {x}_{part} * {unit(spec)}" for part in _stride_names(spec))


def _where_am_i(spec: KernelSpec) -> Iterator[str]:
    yield "# which tile of which head: neighbouring heads go side by side, longest tiles first"
    yield "item = first_item + tl.program_id(1)"
    yield f"member = Tables + heads_at + {HEAD} * (tl.program_id(0) + tl.program_id(2) * tl.num_programs(0))"
    yield "batch = tl.load(member).to(tl.int64)"
    yield "kv_head = tl.load(member + 1).to(tl.int64)"
    if spec.direction == "dkdv":
        yield "first_head, group = tl.load(member + 2), tl.load(member + 3)"
    else:
        yield "head = tl.load(member + 2)"
    if spec.packed:
        yield "if item >= tl.load(member + 5):"
        yield "    return"
        yield "record, parts = tl.load(member + 6), tl.load(member + 7)"
        yield "parts_at, items_at = tl.load(member + 8), tl.load(member + 9)"
        yield "Tables += tl.load(member + 4)"
    yield "mine = Tables + items_at + item * record"


def _my_rows(spec: KernelSpec) -> Iterator[str]:
    yield "# my rows: coordinates i_a on every axis, and tokens"
    yield f"r = tl.arange(0, {spec.rows})"
    if spec.rank == 0:
        yield f"token_r = tl.load(mine) * {spec.rows} + r  # (rows,)"
        yield "valid = token_r < my_length"
        return
    yield "valid = r >= 0"
    yield "rest = r"
    for a in reversed(range(spec.rank)):
        box = f"tl.load(Tables + {2 + 3 * a})"
        if a:
            yield f"r_{a} = rest & ((1 << {box}) - 1)"
            yield f"rest = rest >> {box}"
        else:
            yield f"r_{a} = rest"
        yield f"i_{a} = tl.load(mine + {2 * a}) + tl.load(Tables + {3 + 3 * a}) * r_{a}"
        yield f"valid &= r_{a} < tl.load(mine + {2 * a + 1})"
    if spec.listed and spec.rank == 1:
        yield "if tl.load(Tables + 1) != 0:  # listed queries"
        yield "    i_0 = tl.load(Tables + tl.load(Tables + 1) + i_0, mask=valid, other=0)"
    token = "i_0"
    for a in range(1, spec.rank):
        token = f"({token}) * tl.load(Tables + {4 + 3 * a}) + i_{a}"
    yield f"token_r = tl.load(Tables) + {token}  # (rows,)"


def _part(spec: KernelSpec) -> Iterator[str]:
    """One part: bounds of my rows, and the columns of one box."""
    R = spec.rank
    yield f"here = Tables + parts_at + part * {PART + AXIS * R}"
    yield f"run = mine + {2 * R} + part * {4 * R}"
    yield f"c = tl.arange(0, {spec.cols})"
    yield "rest_c = c"
    for a in reversed(range(R)):
        axis = PART + AXIS * a
        yield f"first_{a} = tl.load(run + {4 * a})"
        yield f"count_{a} = tl.load(run + {4 * a + 1})"
        yield f"left_{a} = tl.load(run + {4 * a + 2})"
        yield f"full_{a} = left_{a} + tl.load(run + {4 * a + 3})"
        yield f"step_{a} = tl.load(here + {axis})"
        if R > 1:
            yield f"log_{a} = tl.load(here + {axis + 1})"
            yield f"c_{a} = rest_c & ((1 << log_{a}) - 1)" if a else f"c_{a} = rest_c"
            yield f"rest_c = rest_c >> log_{a}" if a else f"boxes_{a} = (count_{a} + (1 << log_{a}) - 1) >> log_{a}"
            if a:
                yield f"boxes_{a} = (count_{a} + (1 << log_{a}) - 1) >> log_{a}"
        else:
            yield "c_0 = c"
            yield f"boxes_0 = (count_0 + {spec.cols - 1}) // {spec.cols}"
        length = f"tl.load(here + {axis + 2})"
        if spec.formula:
            yield f"low = lower_formula(here + {axis + 4}, i_{a})"
            yield f"high = upper_formula(here + {axis + 20}, i_{a}, {length})"
        else:
            yield f"low = lower_table(Tables, here + {axis + 4}, i_{a}, item)"
            yield f"high = upper_table(Tables, here + {axis + 6}, i_{a}, item, {length})"
        if spec.listed and R == 1:
            yield "low_0, high_0 = low, high  # (rows,) coordinates"
        else:
            yield f"low_{a} = positions(low, first_{a}, step_{a})  # (rows,)"
            yield f"high_{a} = positions(high, first_{a}, step_{a})"
    base, inside = "first_0", "c_0 * step_0"
    for a in range(1, R):
        length = f"tl.load(here + {PART + AXIS * a + 2})"
        base = f"({base}) * {length} + first_{a}"
        inside = f"({inside}) * {length} + c_{a} * step_{a}"
    yield f"base = tl.load(here) + {base}  # the first token"
    yield f"token_c = {inside}  # (cols,) tokens of a box from its first one on"
    if spec.listed:
        yield "keys_at, rows_out, cols_out = tl.load(here + 1), tl.load(here + 2), tl.load(here + 3)"
        yield "row_is_out = is_out(Tables, rows_out, token_r)  # (rows,)"
    for a in reversed(range(R)):  # how far a box is from the next one along each axis, in tokens
        scale = "".join(f" * tl.load(here + {PART + AXIS * b + 2})" for b in range(a + 1, R))
        yield f"pace_{a} = (step_{a} << log_{a}){scale}" if R > 1 else f"pace_0 = step_0 * {spec.cols}"


def _walk(spec: KernelSpec, fragments: Fragments) -> Iterator[str]:
    if spec.apart and spec.rank == 1:
        yield "for j in range(boxes_0 - full_0 + left_0):  # tiles with an edge"
        yield "    j_0 = tl.where(j < left_0, j, j + full_0 - left_0)"
        yield from _in(fragments.step("edge"))
        yield "for j_0 in range(left_0, full_0):  # full tiles"
        yield from _in(fragments.step("full"))
        return
    if spec.rank == 1:
        yield "for j_0 in range(boxes_0):"
        yield from _in(fragments.step())
        return
    yield from (f"j_{a} = 0" for a in range(spec.rank))
    yield "for box in range(" + " * ".join(f"boxes_{a}" for a in range(spec.rank)) + "):"
    yield from _in(fragments.step())
    yield from _in(_carry(spec.rank))


def _carry(rank: int) -> Iterator[str]:
    yield "# the next box, last axis first"
    yield f"j_{rank - 1} += 1"
    for a in reversed(range(1, rank)):
        yield f"over = j_{a} == boxes_{a}"
        yield f"j_{a} = tl.where(over, 0, j_{a})"
        yield f"j_{a - 1} += tl.where(over, 1, 0)"


def _walk_blocks(spec: KernelSpec, fragments: Fragments) -> Iterator[str]:
    yield "columns, places, bits = Tables + tl.load(Tables), Tables + tl.load(Tables + 1), Tables + tl.load(Tables + 2)"
    yield f"c = tl.arange(0, {spec.cols})"
    yield "token_c = c"

    def walk() -> Iterator[str]:
        yield "for block in range(tl.load(mine + 1), tl.load(mine + 2)):"
        yield from _in(fragments.step())

    yield from fragments.per_part()
    yield from fragments.per_head(walk())


# ---- fragments -----------------------------------------------------------------------------------------------------
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
            yield f"{target}_{n} = tl.load({self.pointer(tensor, rows, f'{column}_{n}')}{option}){self.upcast}  # {width}"

    def load_tile(self, target: str, tensor: str, at: str, kind: str) -> Iterator[str]:
        """(cols, d) of the box: one pointer and the offsets of a tile, which are the same for all boxes of a part."""
        dims, column = (self.d, "d") if target in ("q", "k") else (self.dv, "dv")
        dim = "" if self.spec.aligned else f" * {tensor}_dim"
        if self.spec.listed:
            yield f"{at}_box, {at}_off = {at}_at, (token.to(tl.int64) * {tensor}_row)[:, None]"
        else:
            yield f"{at}_box = {at}_at + at.to(tl.int64) * {tensor}_row"
        for n, (first, width, live) in enumerate(dims):
            tests = ["there[:, None]"] * (kind != "full" or self.spec.listed) + [f"({column}_{n} < {first + live})[None, :]"] * (live < width)
            option = f", mask={' & '.join(tests)}, other=0.0" if tests else ""
            place = f"{at}_box + ({at}_off + {column}_{n}[None, :]{dim})"
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

    def dot(self, a: str, b: str, dims: tuple, acc: str = "") -> str:
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
        tests, lines = [], []
        for a in range(spec.rank):
            begin = f"j_{a} * {spec.cols}" if spec.rank == 1 else f"(j_{a} << log_{a})"
            lines.append(f"from_{a}, to_{a} = low_{a} - {begin}, high_{a} - {begin}")
            tests.append(f"(c_{a}[None, :] >= from_{a}[:, None]) & (c_{a}[None, :] < to_{a}[:, None])")
        if spec.listed and spec.rank == 1:
            lines = []
            tests = ["there[None, :]", "(coordinate[None, :] >= low_0[:, None])", "(coordinate[None, :] < high_0[:, None])"]
        if spec.listed:
            lines.append("col_is_out = is_out(Tables, cols_out, token)")
            tests += ["(row_is_out[:, None] == 0)", "(col_is_out[None, :] == 0)"]
        lines.append(f"{score} = tl.where({' & '.join(tests)}, {score}, {dead})")
        outer = " | ".join(f"(j_{a} < left_{a}) | (j_{a} >= full_{a})" for a in range(spec.rank))
        if kind == "edge":
            yield from lines
            return
        yield f"if {outer}:  # a tile with an edge"
        yield from _in(iter(lines))

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


class Forward(Fragments):
    """Out = softmax(scores) V by the online form, Lse its logarithm."""

    def load_mine(self) -> Iterator[str]:
        yield from self.columns(self.d, "d")
        yield from self.columns(self.dv, "dv")
        yield "q_at = Q + batch * Q_batch + head.to(tl.int64) * Q_head"
        yield "q_rows = q_at + token_r.to(tl.int64) * Q_row"
        yield from self.load("q", "Q", "q_rows", "valid", "d")
        if self.spec.linear:
            yield "scale2 = scale * 1.4426950408889634"
        if self.spec.alibi:
            yield "slope = tl.load(Slopes + head) * 1.4426950408889634"

    def start(self) -> Iterator[str]:
        yield from self.zeros("acc", self.dv)
        yield f'largest = tl.full(({self.spec.rows},), float("-inf"), tl.float32)'
        yield f"total = tl.zeros(({self.spec.rows},), tl.float32)"
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
        yield from self.score(self.dot("q", "k", self.d))
        yield from self.mask_edge("s", 'float("-inf")', kind)
        yield from self.online_softmax()
        yield from self.load_tile("v", "V", "v", kind)
        yield from (f"acc_{n} = acc_{n} * kept[:, None]" for n in range(len(self.dv)))
        yield "p = p.to(v_0.dtype)"
        yield from self.accumulate("acc", "p", "v", self.dv)

    def online_softmax(self) -> Iterator[str]:
        scale = " * scale2" if self.spec.linear else ""
        yield "new = tl.maximum(largest, tl.max(s, 1))"
        yield f'safe = tl.where(new == float("-inf"), 0.0, new{scale})'
        yield f"p = tl.exp2({self.exponent} - safe[:, None])  # (rows, cols)"
        yield f"kept = tl.exp2(largest{scale} - safe)"
        yield "total = total * kept + tl.sum(p, 1)"
        yield "largest = new"

    def finish(self) -> Iterator[str]:
        spec = self.spec
        scale = " * scale2" if spec.linear else ""
        yield f'top = tl.where(largest == float("-inf"), 0.0, largest{scale})'
        if spec.sinks:
            yield "# the sink joins the sum and has no value"
            yield "sink = tl.load(Sinks + head) * 1.4426950408889634"
            yield f'above = tl.maximum(tl.where(largest == float("-inf"), float("-inf"), top), sink)'
            yield "less = tl.where(total > 0, tl.exp2(top - above), 0.0)"
            yield "total = total * less + tl.exp2(sink - above)"
            yield from (f"acc_{n} = acc_{n} * less[:, None]" for n in range(len(self.dv)))
            yield "top = above"
        yield "inverse = tl.where(total > 0, 1.0 / total, 0.0)"
        yield from (f"acc_{n} = acc_{n} * inverse[:, None]" for n in range(len(self.dv)))
        yield 'lse = tl.where(total > 0, (top + tl.log2(total)) * 0.6931471805599453, float("-inf"))'
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
        yield "inverse = tl.where(both > 0, 1.0 / both, 0.0)"
        for n, (first, width, live) in enumerate(self.dv):
            inside = f" & (dv_{n} < {first + live})[None, :]" if live < width else ""
            yield f"sum_at = sum_rows[:, None] + dv_{n}[None, :]"
            yield f"was = tl.load(sum_at, mask=valid[:, None]{inside}, other=0.0)"
            yield f"acc_{n} = (acc_{n} * mine_w[:, None] + was * old_w[:, None]) * inverse[:, None]"
            yield f"tl.store(sum_at, acc_{n}, mask=valid[:, None]{inside})"
        yield 'lse = tl.where(both > 0, above + tl.log(both), float("-inf"))'


class Gradient(Fragments):
    """What both backward kernels share: p and ds of one tile, recomputed from lse."""

    def scores(self, raw: str, lse: str, kind: str) -> Iterator[str]:
        """p (rows, cols) of a tile; raw: its products, lse: in units of log2, as it broadcasts."""
        yield from self.score(raw, transposed=self.spec.direction == "dkdv")
        yield f"p = tl.exp2({self.exponent} - {lse})  # (rows, cols)"
        yield from self.mask_edge("p", "0.0", kind)

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
        yield "ds = ds.to(k_0.dtype)"
        yield from self.accumulate("dq", "ds", "k", self.d)

    def finish(self) -> Iterator[str]:
        yield "dq_rows = DQ + batch * DQ_batch + head.to(tl.int64) * DQ_head + token_r.to(tl.int64) * DQ_row"
        yield from (f"dq_{n} = dq_{n} * scale" for n in range(len(self.d)))
        if self.spec.accumulate:
            yield from _added(self, "dq", "DQ", "dq_rows", "d")
        yield from self.store("dq", "DQ", "dq_rows", "valid", "d")


class KeyGradient(Gradient):
    """dK = scale * sum of ds^T Q and dV = sum of p^T dO for a tile of keys, over queries and the heads of a group."""

    def load_mine(self) -> Iterator[str]:
        yield from self.columns(self.d, "d")
        yield from self.columns(self.dv, "dv")
        yield "k_rows = K + batch * K_batch + kv_head * K_head + token_r.to(tl.int64) * K_row"
        yield "v_rows = V + batch * V_batch + kv_head * V_head + token_r.to(tl.int64) * V_row"
        yield from self.load("k", "K", "k_rows", "valid", "d")
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

        yield from _in(inner())

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
        yield "ds = ds.to(q_0.dtype)"
        yield from self.accumulate("dk", "ds", "q", self.d)

    def finish(self) -> Iterator[str]:
        yield "dk_rows = DK + batch * DK_batch + kv_head * DK_head + token_r.to(tl.int64) * DK_row"
        yield "dv_rows = DV + batch * DV_batch + kv_head * DV_head + token_r.to(tl.int64) * DV_row"
        yield from (f"dk_{n} = dk_{n} * scale" for n in range(len(self.d)))
        if self.spec.accumulate:
            yield from _added(self, "dk", "DK", "dk_rows", "d")
            yield from _added(self, "dv_sum", "DV", "dv_rows", "dv")
        yield from self.store("dk", "DK", "dk_rows", "valid", "d")
        yield from self.store("dv_sum", "DV", "dv_rows", "valid", "dv")


def _added(fragments: Fragments, name: str, tensor: str, rows: str, kind: str) -> Iterator[str]:
    """name += what an earlier launch left in `tensor`, float32."""
    dims, column = (fragments.d, "d") if kind == "d" else (fragments.dv, "dv")
    for n, (first, width, live) in enumerate(dims):
        inside = f" & ({column}_{n} < {first + live})[None, :]" if live < width else ""
        at = fragments.pointer(tensor, rows, f"{column}_{n}")
        yield f"{name}_{n} += tl.load({at}, mask=valid[:, None]{inside}, other=0.0)"
