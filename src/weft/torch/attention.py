"""`weft.attention`, `weft.plan` and `weft.explain` for torch tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, Unpack, overload

from torch import Tensor

from weft.errors import WeftError
from weft.pattern.algebra import Pattern
from weft.planning.attention_plan import AttentionPlan
from weft.runtime.pipeline import compiled
from weft.score import Score
from weft.torch import translate
from weft.torch.call import attend, check_mask
from weft.torch.eager import PLAIN
from weft.torch.inputs import check_choices, check_tensors, problem_of
from weft.torch.keywords import refuse_unknown
from weft.torch.layouts import View, check_layout, hint, on_grid_of, viewed
from weft.torch.masks import pattern_of, said
from weft.torch.operator import Written

if TYPE_CHECKING:
    from weft.recognition import Recognized

# A pattern, or what one is recognised from: a boolean tensor, a mask function, a BlockMask.
Mask: TypeAlias = "Pattern | Recognized | Tensor | Callable[..., Any]"


class SharedOptions(TypedDict, total=False):
    """The keywords that `attention` and `varlen_attention` share, but return_lse, for type checkers."""

    scale: float | None
    softcap: float | None
    sinks: Tensor | None
    alibi_slopes: Tensor | None
    backend: str
    deterministic: bool | None
    dropout: float
    extra_keys: Tensor | None
    extra_values: Tensor | None
    score: Score | Callable[..., Any] | None
    bias: Score | Tensor | None
    seed: int | Tensor | None


class Options(SharedOptions, total=False):
    """The keywords of `attention` but return_lse, for type checkers."""

    layout: str


@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, *, return_lse: Literal[False] = False, **options: Unpack[Options]
) -> Tensor: ...
@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, *, return_lse: Literal[True], **options: Unpack[Options]
) -> tuple[Tensor, Tensor]: ...
@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, *, return_lse: bool, **options: Unpack[Options]
) -> Tensor | tuple[Tensor, Tensor]: ...
def attention(  # noqa: PLR0913 - the public face; every option by name
    q: Tensor, k: Tensor, v: Tensor, mask: Mask | None = None, *, scale: float | None = None,
    softcap: float | None = None, sinks: Tensor | None = None, alibi_slopes: Tensor | None = None,
    return_lse: bool = False, backend: str = "auto", deterministic: bool | None = None,
    dropout: float = 0,  # an int: torch.compile would make a symbol of a float
    layout: str = "bhsd", extra_keys: Tensor | None = None, extra_values: Tensor | None = None,
    score: Score | Callable[..., Any] | None = None, bias: Score | Tensor | None = None,
    seed: int | Tensor | None = None, **unknown: Any,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """Attention of q over the keys that `mask` lets each query see, at a cost that follows the live pairs.

    - q, k, v: tensors of one floating dtype and device, any strides. Layout "bhsd": q (B, Hq, M, D), k (B, Hkv, N, D),
      v (B, Hkv, N, Dv). Layout "bshd": heads after tokens. Layout "thd": (T, H, D), one batch row. Tokens of a grid
      keep their axes: q (B, X, Y, Hq, D). Hq is a multiple of Hkv: query head h uses key head h // (Hq // Hkv).
    - mask: a pattern, or what weft.recognize returned. Other masks are recognised once: booleans, True = may attend, of
      shape (M, N), (Hq, M, N) or (B, Hq, M, N). Or functions of (q, k) or (b, h, q, k), or FlexAttention's BlockMask.
    - scale of q . k, D ** -0.5 if None; then softcap: score = softcap * tanh(score / softcap).
    - score: then a function of (score, b, h, q, k), as FlexAttention's score_mod, or what weft.trace_score made of one.
    - bias: then what weft.bias makes, or a tensor (B, Hq, M, N), is added; alibi_slopes (Hq,): slope * abs(q - k), on
      aligned token indices, is subtracted. A score of -inf masks its pair.
    - sinks (Hq,): logits that join every row's sum and have no value; lse includes them.
    - dropout: the share of weights that is dropped, the others are scaled up; lse is that of all. seed: an int, or one
      int64 number in a tensor; drawn from torch's generator if None. Which pairs go follows from (seed, b, h, q, k).
    - extra_keys (B, Hkv, E, D), extra_values (B, Hkv, E, Dv): tokens that every query sees too, without slopes.
    - return_lse: also the logarithm of the sum of exponentiated scores. backend: "auto", "cpu" or "triton".
    - deterministic: the same bits each time; None: as torch.use_deterministic_algorithms says.

    Returns out, as q with Dv for D, in its dtype and memory order. With return_lse it returns (out, lse), lse as out
    without its last axis, float32 (float64 for float64). A query without keys gives out 0, lse -inf, zero gradients.
    Reverse-mode gradients flow to q, k, v, sinks, slopes, tables of score and bias, and extra tensors; and from lse.

    Raises InputError for tensors, OptionError for options, and PatternError (AlignmentError, LengthError) for a mask
    that does not fit. Raises UnsupportedError for what is refused by name, and UnsupportedKernel if no backend can run
    it. Sources: Dao 2023, arXiv 2307.08691 (the online form); Press et al. 2022, arXiv 2108.12409 (ALiBi). Examples::

        out = weft.attention(q, k, v, weft.causal() & weft.window(left=1023))
        out, lse = weft.attention(q, k, v, weft.causal(), layout="bshd", softcap=50.0, return_lse=True)
    """
    try:
        if (
            layout != "bhsd" or extra_keys is not None or extra_values is not None
            or type(q) not in PLAIN or q.dim() != 4 or unknown
            or score is not None or bias is not None or dropout or seed is not None
            or (alibi_slopes is not None and getattr(alibi_slopes, "requires_grad", False))
        ):  # fmt: skip
            refuse_unknown("attention", unknown)
            return translate.attention((q, k, v), mask, {
                "scale": scale, "softcap": softcap, "sinks": sinks, "alibi_slopes": alibi_slopes,
                "return_lse": return_lse, "backend": backend, "deterministic": deterministic, "dropout": dropout,
                "layout": layout, "extra_keys": extra_keys, "extra_values": extra_values,
                "score": score, "bias": bias, "seed": seed,
            })  # fmt: skip
        rows, given = (sinks, alibi_slopes), (scale, softcap, dropout, backend, deterministic)
        if not isinstance(mask, Pattern):
            mask = pattern_of(mask, translate.sizes_of(q, k, v))
        out, lse = attend((q, k, v), mask, rows, given, return_lse)
        return (out, lse) if return_lse else out
    except WeftError as error:
        hint(error, (q, k, v), layout)
        raise


def plan(mask: Mask, q: Tensor, k: Tensor, v: Tensor, *, backend: str = "auto", layout: str = "bhsd") -> AttentionPlan:
    """The plan that `attention(q, k, v, mask)` would run: `.verify()`, `.interpret(q, k, v)`, `.explain()`, `str()`.

    The plan takes q, k, v as (B, H, S, D), whatever their layout here.
    """
    return _planned(mask, (q, k, v), backend, layout, "plan")[0]


def explain(mask: Mask, q: Tensor, k: Tensor, v: Tensor, *, backend: str = "auto", layout: str = "bhsd") -> str:
    """The pattern drawn, the bytes of its format, the plan and its predicted time, as text.

    Of a mask that is no pattern also what it was recognised as, and how it is found again.
    """
    made, view = _planned(mask, (q, k, v), backend, layout, "explain")
    text = made.explain()
    return text if isinstance(mask, (Pattern, Written)) else f"{text}\n{said(mask, translate.sizes_of(*view.tensors))}"


def _planned(mask: Any, tensors: Any, backend: str, layout: str, function: str) -> tuple[AttentionPlan, View]:
    check_layout(layout, function)
    view = viewed(tensors, layout)
    pattern = pattern_of(mask, translate.sizes_of(*view.tensors), function)
    check_mask(pattern, function)
    check_tensors(*view.tensors)
    check_choices(backend, None)
    return compiled(on_grid_of(pattern, view), problem_of(*view.tensors), backend)[0], view
