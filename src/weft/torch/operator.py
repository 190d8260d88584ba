"""The registered operators weft::attention, weft::attention_backward and weft::record.

A pattern crosses as a structure (a constant of a compiled graph) and one int64 CPU tensor of numbers (data). So another
window, length or split of documents compiles nothing (docs/decisions/0003). The Autograd kernel is our own, because
torch.library.register_autograd answers forward-mode differentiation with silent zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active, _len_torch_dispatch_stack
from torch._C._functorch import is_legacy_batchedtensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad

from weft.errors import AlignmentError, UnsupportedError
from weft.kernels.backend import Backend
from weft.kernels.options import ACCUMULATE, Dropping, Modifiers, rows_in_order_of
from weft.pattern import crossing
from weft.pattern.algebra import Pattern
from weft.pattern.leaves import has_grid
from weft.planning.attention_plan import AttentionPlan
from weft.runtime.pipeline import arrived
from weft.score.evaluate import Rule
from weft.score.value import expressions
from weft.torch.inputs import problem_of
from weft.torch.reads import check_reads

# cudagraph_unsafe: inductor would capture an operator that reads a CPU tensor and replay yesterday's numbers.
TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides, torch.Tag.cudagraph_unsafe)
OPTIONS = (
    "Tensor? sinks, Tensor? slopes, float? scale, float? softcap, str backend, bool deterministic, "
    "str score, Tensor[] tables, float dropout, Tensor? seed"
)
LIB = torch.library.Library("weft", "DEF")  # kept: the operators go when it goes
LIB.define("record(SymInt[] own, Tensor[] tables) -> Tensor", tags=TAGS[:1])
LIB.define(
    f"attention(Tensor q, Tensor k, Tensor v, str structure, Tensor numbers, {OPTIONS}, bool with_lse) "
    "-> (Tensor, Tensor)", tags=TAGS,
)  # fmt: skip
LIB.define(
    "attention_backward(Tensor? dout, Tensor? dlse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, "
    f"str structure, Tensor numbers, {OPTIONS}, bool[] wanted) -> (Tensor, Tensor, Tensor, Tensor, Tensor[])",
    tags=TAGS,
)  # fmt: skip


# ---- patterns made inside a compiled function --------------------------------------------------------------------
class Tracer:
    """What `weft.pattern.crossing` does under torch.compile and torch.export."""

    is_compiling = staticmethod(torch.compiler.is_compiling)

    @staticmethod
    def tensor_of(numbers: Any) -> Tensor | None:
        """The record of a pattern made outside a graph; None inside a mode or a transform.

        Tensors of a mode may be fake, and those of a transform must not outlive it.
        """
        if _len_torch_dispatch_stack() or _are_functorch_transforms_active():
            return None
        with torch.inference_mode(False):
            return torch.from_numpy(numbers)

    @staticmethod
    def record(own: list[Any], tables: list[Any]) -> Tensor:
        """One record of a pattern, made when the graph runs."""
        tables = [as_tensor(t) for t in tables]
        return torch.ops.weft.record([1 + len(own) + sum([t.shape[0] for t in tables]), *own], tables)

    @staticmethod
    def column(values: Any) -> Tensor:
        """A list of integers as a table, made when the graph runs."""
        return torch.ops.weft.record(list(values), [])

    @staticmethod
    def call(name: str, args: list[tuple[str, Any]]) -> Written:
        """A call of the library, written down."""
        return Written(name, args)


class Written:
    """A pattern made inside a compiled function: written down, evaluated and checked when the graph runs."""

    def __init__(self, name: str, args: list[tuple[str, Any]]) -> None:
        self.structure, self.numbers = crossing.cross(name, args)

    def __and__(self, other: object) -> Written:
        return Written("and_", [("", self), ("", other)])

    def __or__(self, other: object) -> Written:
        return Written("or_", [("", self), ("", other)])

    def __rand__(self, other: object) -> Written:
        return Written("and_", [("", other), ("", self)])

    def __ror__(self, other: object) -> Written:
        return Written("or_", [("", other), ("", self)])

    def __invert__(self) -> Written:
        return Written("invert", [("", self)])

    def shift(self, q: int = 0, k: int = 0) -> Written:
        """See `Pattern.shift`."""
        return Written("shift", [("", self), ("q", q), ("k", k)])

    def aligned(self, align: str) -> Written:
        """See `Pattern.aligned`."""
        return Written("aligned", [("", self), ("align", align)])

    def pattern(self) -> Pattern:
        """The pattern itself, for code outside of the graph that was given this."""
        found: Pattern = crossing.decode(self.structure, np.asarray(self.numbers).tobytes())
        return found


crossing.tracer = Tracer
crossing.integers = (int, torch.SymInt)  # non-strict export hands real SymInts to the library


def as_tensor(numbers: Any) -> Tensor:
    """Numbers as the operator takes them. Under torch.compile an ndarray becomes an input of the graph."""
    return numbers if isinstance(numbers, Tensor) else torch.from_numpy(numbers)


def numbers_of(mask: Pattern | Written, q: Tensor) -> Tensor:
    """Those of a pattern as the operator takes them beside q, which may be fake: then they are, as constants become."""
    # never both: a graph would take the array, whose guards fail in inference mode, for one of its inputs
    numbers = mask.tensor if hasattr(mask, "tensor") else as_tensor(mask.numbers)
    if torch.compiler.is_compiling():
        return numbers
    with q.fake_mode if isinstance(q, FakeTensor) and not _len_torch_dispatch_stack() else nullcontext():
        copied = torch.ops.aten.lift_fresh_copy(numbers)
    copied.record = mask.numbers  # what is counted by where numbers are fake
    return copied


def _record(own: list[int], tables: list[Tensor]) -> Tensor:
    return torch.cat([torch.tensor(own, dtype=torch.int64), *(t.to("cpu", torch.int64) for t in tables)])


def _record_fake(own: list[int], tables: list[Tensor]) -> Tensor:
    return torch.empty(len(own) + sum([t.shape[0] for t in tables]), dtype=torch.int64)


# ---- forward and backward ----------------------------------------------------------------------------------------
class Options(NamedTuple):
    """The options as they follow the pattern in both schemas. score: the text of score functions, "" for none; tables:
    theirs, one after the other; seed: one int64 number, of dropout.
    """

    sinks: Tensor | None
    slopes: Tensor | None
    scale: float | None
    softcap: float | None
    backend: str
    deterministic: bool
    score: str = ""
    tables: Sequence[Tensor] = ()
    dropout: float = 0.0
    seed: Tensor | None = None

    @property
    def extras(self) -> tuple[str, ...]:
        """The names of options that not every backend has."""
        return ("score",) * bool(self.score) + ("dropout",) * bool(self.dropout)


def _forward(q: Tensor, k: Tensor, v: Tensor, structure: str, numbers: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    *options, with_lse = rest
    chosen = Options(*options)
    plan, backend = _arrived(structure, numbers, (q, k, v), chosen)
    how = modifiers(plan, chosen)
    check_reads(plan, how.rules, how.shift)
    out, lse = backend.load().forward((q, k, v), plan, how, chosen.sinks, with_lse)
    return out, lse if with_lse or not lse.shape[2] else lse.new_empty((*q.shape[:2], 0))


def _backward(dout: Tensor | None, dlse: Tensor | None, *saved: Any) -> tuple[Any, ...]:
    q, k, v, out, lse, structure, numbers, *options, wanted = saved
    chosen = Options(*options)
    plan, backend = _arrived(structure, numbers, (q, k, v), chosen)
    how = modifiers(plan, chosen, wanted)
    kept = (q, k, v, out, lse, chosen.sinks)
    *found, dsinks, dtables = gradients(backend.load(), plan, how, (dout, dlse), kept, chosen.deterministic)
    return *found, q.new_empty(0) if dsinks is None else dsinks, [q.new_empty(0) if x is None else x for x in dtables]


def _arrived(
    structure: str, numbers: Tensor, qkv: tuple[Tensor, Tensor, Tensor], chosen: Options
) -> tuple[AttentionPlan, Backend]:
    return arrived(structure, numbers.numpy().tobytes(), problem_of(*qkv), chosen.backend, chosen.extras)


def gradients(
    kernels: ModuleType, plan: AttentionPlan, how: Modifiers, given: tuple[Tensor | None, Tensor | None],
    saved: tuple[Any, ...], deterministic: bool,
) -> tuple[Any, ...]:  # fmt: skip
    """(dq, dk, dv, dsinks, dtables): None without sinks; None of each table whose gradient is not wanted. given: dout,
    dlse; saved: q, k, v, out, lse, and sinks if their gradient is wanted.
    """
    (dout, dlse), (q, k, v, out, lse, sinks) = given, saved
    dout = torch.zeros_like(out) if dout is None else dout
    wanted = sinks is not None
    found = kernels.backward((q, k, v), (out, dout, lse, dlse), plan, how, deterministic, wanted)
    dq, dk, dv, delta, *dtables = found
    return dq, dk, dv, None if sinks is None else kernels.sink_gradient(sinks, lse, delta), dtables


def modifiers(plan: AttentionPlan, options: Options, wanted: Sequence[bool] = ()) -> Modifiers:
    """What is done to scores and weights; slopes in float64. wanted: of which tables gradients are. Raises where
    distances have no meaning.
    """
    scale = plan.problem.d**-0.5 if options.scale is None else options.scale
    rules, dropout = _rules(options, wanted), None
    if options.dropout and options.seed is not None:
        dropout = Dropping(options.dropout, options.seed)
    option = "alibi_slopes" if options.slopes is not None else "bias"
    by_distance = options.slopes is not None or any("shift" in rule.expression.leaves for rule in rules)
    if by_distance and has_grid(plan.pattern):
        what = "ALiBi" if options.slopes is not None else "a bias by k - q"
        raise UnsupportedError(
            f"attention({option}=...) under {plan.pattern}", f"{what} has no meaning on a grid of several axes",
            "leave it out, or use weft.bias.grid, or a pattern of one axis",
        )  # fmt: skip
    shift = _shift(plan.pattern, plan, option) if by_distance else 0
    slopes = None if options.slopes is None else options.slopes.to(torch.float64)
    return Modifiers(scale, options.softcap, slopes, shift, rules, dropout)


def _rules(options: Options, wanted: Sequence[bool]) -> tuple[Rule, ...]:
    found, first = [], 0
    for one in expressions(options.score):
        last = first + len(one.tables)
        found.append(Rule(one, tuple(options.tables[first:last]), tuple(wanted[first:last])))
        first = last
    return tuple(found)


def _shift(pattern: Pattern, plan: AttentionPlan, option: str) -> int:
    """What alignment adds to query indices in distances."""
    m, n = plan.problem.m, plan.problem.n
    if m == n:
        return 0
    declared = set(pattern.alignments())
    if len(declared) != 1 or None in declared:
        raise AlignmentError(
            f"attention({option}=...) under {pattern} at M={m}, N={n}",
            "the pattern does not declare one alignment, so distances are not defined",
            'declare the same one for all parts, as .aligned("bottom-right") does where none does; where nothing '
            'relates q to k, & weft.window(left=2**31, align="bottom-right")',
        )
    return n - m if declared == {"bottom-right"} else 0


def _forward_fake(
    q: Tensor, k: Tensor, v: Tensor, structure: str, numbers: Tensor, *options: Any
) -> tuple[Tensor, Tensor]:
    with_lse = options[-1]
    lse = q.new_empty((*q.shape[:2], q.shape[2] if with_lse else 0), dtype=ACCUMULATE.get(q.dtype, torch.float32))
    return rows_in_order_of(q, v.shape[3], q.dtype), lse


def _backward_fake(dout: Tensor | None, dlse: Tensor | None, *saved: Any) -> tuple[Any, ...]:
    q, k, v, _, _, _, _, *options, wanted = saved
    chosen = Options(*options)
    dsinks = q.new_empty(0) if chosen.sinks is None else torch.empty_like(chosen.sinks)
    dtables = [x.new_empty(x.shape) if w else q.new_empty(0) for x, w in zip(chosen.tables, wanted, strict=True)]
    return *(rows_in_order_of(x, x.shape[3], x.dtype) for x in (q, k, v)), dsinks, dtables


def by_operator(given: tuple[Any, Any], saved: tuple[Any, ...]) -> tuple[Any, ...]:
    """`weft::attention_backward`, one call after the other for a batch of gradients (is_grads_batched): torch's own
    fallback takes no lists of tensors apart. given: dout, dlse.
    """
    if torch.compiler.is_compiling() or not any(x is not None and is_legacy_batchedtensor(x) for x in given):
        return tuple(torch.ops.weft.attention_backward(*given, *saved))
    level = torch._C._vmapmode_increment_nesting() - 1
    torch._C._vmapmode_decrement_nesting()
    parts = [x if x is None else torch._remove_batch_dim(x, level, 1, 0) for x in given]
    count = max(x.shape[0] for x in parts if x is not None)
    parts = [x if x is None else x.expand(count, *x.shape[1:]) for x in parts]
    found = [
        torch.ops.weft.attention_backward(*(None if x is None else x[i] for x in parts), *saved) for i in range(count)
    ]

    def together(xs: Sequence[Tensor]) -> Tensor:
        return torch._add_batch_dim(torch.stack(tuple(xs)), 0, level)

    *rest, dtables = zip(*found, strict=True)
    return *(together(xs) for xs in rest), [together(xs) for xs in zip(*dtables, strict=True)]


# ---- autograd ----------------------------------------------------------------------------------------------------
def _below_autograd(*args: Any) -> tuple[Tensor, Tensor]:
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.weft.attention.default(*args)


def _check_order(
    structure: str, numbers: Tensor, qkv: tuple[Tensor, Tensor, Tensor], options: Options, wanted: Sequence[bool]
) -> None:
    """Raise before anything runs where gradients of tables will have no fixed order, and one is asked for."""
    plan, backend = _arrived(structure, numbers, qkv, options)
    check = getattr(backend.load(), "check_order", None)
    if check is not None:
        check(plan, modifiers(plan, options, wanted))


class Attention(torch.autograd.Function):
    """The Autograd kernel of weft::attention. One forward(ctx, ...) costs less than setup_context.

    Tables come last, one by one, so that autograd sees them; seed, score and dropout before them.
    """

    @staticmethod
    def forward(ctx: Any, *args: Any) -> tuple[Tensor, Tensor]:
        q, k, v, structure, numbers, *rest = args
        options, tables = Options(*rest[: len(Options._fields)]), rest[len(Options._fields) :]
        wanted = ctx.needs_input_grad[len(ctx.needs_input_grad) - len(tables) :] if tables else ()
        if (
            options.deterministic
            and any(wanted)
            and type(q) in (Tensor, torch.nn.Parameter)
            and type(numbers) is Tensor
        ):
            _check_order(structure, numbers, (q, k, v), options._replace(tables=tables), wanted)
        out, lse = _below_autograd(q, k, v, structure, numbers, *options._replace(tables=tables), True)
        ctx.structure, ctx.options = structure, options._replace(sinks=None, slopes=None, seed=None)
        # lse has the sinks in it: they are read again for their own gradient alone
        sinks = options.sinks if ctx.needs_input_grad[5] else None
        ctx.save_for_backward(q, k, v, out, lse, numbers, sinks, options.slopes, options.seed, *tables)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse, numbers, sinks, slopes, seed, *tables = ctx.saved_tensors
        if dout is None and dlse is None:
            return (None,) * len(ctx.needs_input_grad)
        options = ctx.options._replace(sinks=sinks, slopes=slopes, seed=seed, tables=tables)
        wanted = list(ctx.needs_input_grad[len(ctx.needs_input_grad) - len(tables) :]) if tables else []
        saved = (q, k, v, out, lse, ctx.structure, numbers, *options, wanted)
        dq, dk, dv, dsinks, dtables = by_operator((dout, dlse), saved)
        of_tables = [x if w else None for x, w in zip(dtables, wanted, strict=True)]
        nothing = (None,) * (len(Options._fields) - 1)
        return dq, dk, dv, None, None, None if sinks is None else dsinks, *nothing, *of_tables

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> None:
        raise refusal("forward-mode differentiation", *DERIVATIVES)


def _autograd(q: Tensor, k: Tensor, v: Tensor, structure: str, numbers: Tensor, *rest: Any) -> Any:
    if _are_functorch_transforms_active():
        raise refusal("a torch.func transform", *TRANSFORMS)
    *given, with_lse = rest
    options = Options(*given)
    wanted = (q, k, v, *options.tables, *(() if options.sinks is None else (options.sinks,)))
    recorded = torch.is_grad_enabled() and any(x.requires_grad for x in wanted)
    if recorded or forward_ad._current_level >= 0:
        return Attention.apply(q, k, v, structure, numbers, *options._replace(tables=()), *options.tables)
    return _below_autograd(q, k, v, structure, numbers, *options, with_lse)


DENSE = "use weft.attention outside it, or dense attention where it is needed"
# What is wrong, and what to do.
DERIVATIVES = ("only the first derivative, in reverse mode, is implemented", DENSE)
TRANSFORMS = ("transforms are those of weft.attention, and not of its operator", "call weft.attention")
BATCHING = (
    "it has no rule for a mapped dimension",
    "fold that dimension into the batch of q, k and v, or loop over it",
)


def refusal(what: str, wrong: str, cure: str) -> UnsupportedError:
    """What says that something of attention is not implemented."""
    return UnsupportedError(f"{what} of weft.attention", wrong, cure)


def _refuse(what: str, wrong: str, cure: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise refusal(what, wrong, cure)

    return refuse


for _name, _real, _fake in (
    ("record", _record, _record_fake),
    ("attention", _forward, _forward_fake),
    ("attention_backward", _backward, _backward_fake),
):
    LIB.impl(_name, _real, "CompositeExplicitAutograd")
    torch.library.register_fake(f"weft::{_name}", _fake, lib=LIB)
LIB.impl("attention", _autograd, "Autograd")
torch.library.register_autograd("weft::attention_backward", _refuse("double backward", *DERIVATIVES), lib=LIB)
for _name in ("attention", "attention_backward"):
    torch.library.register_vmap(f"weft::{_name}", _refuse("torch.vmap", *BATCHING), lib=LIB)
