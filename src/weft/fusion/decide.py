"""What computes a recognised attention: decided from its mask, and found again as long as the mask stays the same.

A mask is a function of tensors that a graph reads. While these are the same objects in the same versions, the decision
holds. Else their content is hashed, and only what was not met before is recognised.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b, sha256
from typing import Any, Literal

import torch
from torch import Tensor
from torch.fx import GraphModule

from weft.caching import emptied_by
from weft.errors import UnsupportedError, WeftError
from weft.fusion import faster
from weft.fusion.by_name import ByName
from weft.fusion.forms import by_blocks
from weft.fusion.settings import Settings
from weft.pattern import crossing
from weft.pattern.algebra import Pattern
from weft.planning.attention_plan import AttentionPlan
from weft.planning.problem import Problem
from weft.recognition import recognize_mask
from weft.runtime.pipeline import compiled
from weft.target import Gpu
from weft.torch.fingerprint import fingerprint
from weft.torch.inputs import problem_of
from weft.torch.mask_cache import MaskCache
from weft.torch.masks import is_capturing
from weft.torch.operator import Tracer

CHANGING = 16  # new masks one after the other, after which no more are recognised
KEPT = 64  # decisions by content
LONGEST = 120  # characters of a pattern in an explanation

Dead = Literal["zero", "zero without least", "other"]  # "least": where masks hold the least finite number


@dataclass(frozen=True)
class Decision:
    """pattern: what weft computes; None: the unfused graph computes it, and `reason` says why. share: of all pairs,
    what weft computes in tiles. mask: what was recognised, in words.
    """

    pattern: Pattern | None
    reason: str = ""
    share: float = 1.0
    mask: str = ""


@dataclass(eq=False)
class Replaced:
    """One attention that an operator computes, for all graphs in which it stands alike.

    masks: (*tensors, *numbers) -> the masks. unfused: (q, k, v, *sinks, *masks, *numbers) -> the result, as the graph
    had it; scaled_late: it takes the scale too. hows: how each mask is used. dead: in which case rows without a live
    key are 0 in the graph. trained: gradients may be asked for. met: decisions that were made when it ran, in words,
    and how often. unseen: new masks one after the other.
    """

    masks: GraphModule
    unfused: GraphModule
    hows: tuple[str, ...]
    scaled_late: bool
    softcap: float | None
    dead: Dead
    as_query: bool
    trained: bool
    sinks: bool
    settings: Settings
    met: Counter[str] = field(default_factory=Counter)
    unseen: int = 0

    @cached_property
    def name(self) -> str:
        """By content, so that the same attention of several layers and graphs is one."""
        said = (
            self.masks.code, self.unfused.code, self.hows, self.scaled_late, self.softcap, self.dead, self.as_query,
            self.trained, self.sinks, self.settings,
        )  # fmt: skip
        return sha256(repr(said).encode()).hexdigest()[:16]

    def given_masks(self, leaves: Sequence[Tensor], numbers: Sequence[int]) -> tuple[Tensor, ...]:
        """The masks as the graph computes them. numbers: those of the masks come first."""
        wanted = sum(node.op == "placeholder" for node in self.masks.graph.nodes) - len(leaves)
        return tuple(self.masks(*leaves, *numbers[:wanted]))

    def as_in_graph(
        self, tensors: Sequence[Tensor], leaves: Sequence[Tensor], numbers: Sequence[int], scale: float | None
    ) -> Tensor:
        """The unfused result. tensors: q, k, v, and sinks if there are."""
        late = (scale,) if self.scaled_late else ()
        out: Tensor = self.unfused(*tensors, *self.given_masks(leaves, numbers), *numbers, *late)
        return out


_replaced: ByName[Replaced] = ByName()
registered, named = _replaced.registered, _replaced.named
_met: MaskCache[Decision] = MaskCache()
_by_content: OrderedDict[tuple[Any, ...], Decision] = OrderedDict()


def forget() -> None:
    """All decisions."""
    _met.clear()
    _by_content.clear()


emptied_by(_by_content.clear)


def decide(
    one: Replaced, qkv: tuple[Tensor, Tensor, Tensor], leaves: Sequence[Tensor], numbers: Sequence[int], first: bool
) -> Decision:
    """What computes an attention on these tensors. first: whether no other layer asks for the same mask before."""
    found = fingerprint(tuple(leaves))
    sizes = _sizes_of(one, qkv, numbers)
    at = _met.find(found, sizes)
    if at is not None:
        one.unseen = 0 if first else one.unseen
        return at
    if is_capturing():
        raise UnsupportedError(
            "attention that weft's backend recognised, while a CUDA graph is captured",
            "its mask was not met before, and a capture cannot read it",
            "run the model once before the capture with the same mask tensors",
        )
    content = _content(sizes, leaves)
    at = _by_content.get(content)
    if at is not None:
        one.unseen = 0 if first else one.unseen
    else:
        one.unseen += first
        at = Decision(None, _ALWAYS_NEW) if one.unseen > CHANGING else made(one, qkv, leaves, numbers)
        _keep_content(content, at)
        one.met[at.mask if at.pattern is not None else at.reason] += 1
    with _met.lock:
        _met.keep(found, sizes, at)
    return at


def drop(
    one: Replaced, qkv: tuple[Tensor, Tensor, Tensor], leaves: Sequence[Tensor], numbers: Sequence[int], why: WeftError
) -> None:
    """Have the unfused graph compute what weft refused when it ran."""
    at = Decision(None, f"weft refused it when it ran: {why.wrong}")
    sizes = _sizes_of(one, qkv, numbers)
    one.met[at.reason] += 1
    with _met.lock:
        _keep_content(_content(sizes, leaves), at)
        _met.keep(fingerprint(tuple(leaves)), sizes, at)


_ALWAYS_NEW = f"its mask was a new one {CHANGING} times one after the other, and recognising costs more than it saves"


def _sizes_of(one: Replaced, qkv: tuple[Tensor, Tensor, Tensor], numbers: Sequence[int]) -> tuple[Any, ...]:
    """What a decision rests on, but the mask."""
    q, k, v = qkv
    return (one.name, tuple(q.shape), tuple(k.shape), tuple(v.shape), q.dtype, q.device, tuple(numbers))


def _content(sizes: tuple[Any, ...], leaves: Sequence[Tensor]) -> tuple[Any, ...]:
    return sizes, tuple(digest(x) for x in leaves)


def _keep_content(content: tuple[Any, ...], at: Decision) -> None:
    _by_content[content] = at
    while len(_by_content) > KEPT:
        _by_content.popitem(last=False)


def digest(x: Tensor) -> tuple[Any, ...]:
    """What a tensor holds, as a key; its content is read."""
    flat = x.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return tuple(x.shape), x.dtype, blake2b(flat.tobytes(), digest_size=16).digest()


class _Outside(Tracer):
    """Patterns are made, and not written down: a backend of torch.compile runs while torch says that it compiles."""

    @staticmethod
    def is_compiling() -> bool:
        return False


@contextmanager
def outside_of_graphs() -> Iterator[None]:
    """Compute with patterns and values while Dynamo compiles."""
    before, crossing.tracer = crossing.tracer, _Outside
    try:
        yield
    finally:
        crossing.tracer = before


def beforehand(
    one: Replaced, qkv: tuple[Tensor, Tensor, Tensor], leaves: Sequence[Tensor], numbers: Sequence[int]
) -> Decision:
    """The decision while a graph is compiled; kept for its first call. qkv: values are not read."""
    with outside_of_graphs():
        content = _content(_sizes_of(one, qkv, numbers), leaves)
        at = _by_content.get(content) or made(one, qkv, leaves, numbers, measured=True)
        _keep_content(content, at)
    return at


def made(
    one: Replaced, qkv: tuple[Tensor, Tensor, Tensor], leaves: Sequence[Tensor], numbers: Sequence[int],
    measured: bool = False,
) -> Decision:  # fmt: skip
    """The decision on values, without looking whether it was made before. measured: it may take its time."""
    with torch.no_grad():
        masks = one.given_masks(leaves, numbers)
        return of_masks(one, qkv, masks, Measured.if_asked(one, qkv[0], masks, numbers) if measured else None)


def of_masks(
    one: Replaced, qkv: tuple[Tensor, Tensor, Tensor], masks: Sequence[Tensor], measured: Measured | None = None
) -> Decision:
    """The decision from masks as the graph computes them. qkv: tensors whose values are not read."""
    live, batch, heads = None, *_sizes(qkv[0])[:2]
    _, _, m, _ = _sizes(qkv[0])
    n = _sizes(qkv[1])[2]
    for mask, how in zip(masks, one.hows, strict=True):
        kept = _kept(mask, how)
        if isinstance(kept, str):
            return Decision(None, kept)
        live = kept if live is None else live & kept
    assert live is not None
    live = _by_slices(live, (batch, heads, m, n))
    if live is None:
        return Decision(None, f"its mask does not fit to {m} queries and {n} keys")
    zero = one.dead == "zero" or (one.dead == "zero without least" and not any(map(_has_least, masks)))
    if not zero and not bool(live.any(-1).all()):
        return Decision(None, "some rows have no live key, and there the graph has another value than 0")
    return _weighed(one, qkv, live, measured)


def _kept(mask: Tensor, how: str) -> Tensor | str:
    """The pairs that a mask keeps, or why it is none."""
    if mask.dtype is torch.bool:
        if how == "add":
            return "its mask is boolean and is added as numbers"
        return ~mask if how == "fill" else mask
    if how in ("fill", "keep"):
        return f"its mask is {mask.dtype}, and not boolean"
    if not mask.is_floating_point():
        return f"its mask is {mask.dtype}, which is added as numbers"
    kept = mask == 0
    if not bool((kept | (mask <= torch.finfo(mask.dtype).min)).all()):
        return "its mask has other numbers than 0 and the least of its type, so it is a bias"
    return kept


def _has_least(mask: Tensor) -> bool:
    """Whether a mask holds the least finite number, by which a row without a live key becomes a mean."""
    return mask.is_floating_point() and bool((mask == torch.finfo(mask.dtype).min).any())


def _sizes(x: Tensor) -> tuple[int, int, int, int]:
    """(B, H, S, D), where three axes are (H, S, D)."""
    b, h, s, d = (1,) * (4 - x.dim()) + tuple(x.shape)
    return b, h, s, d


def _by_slices(live: Tensor, sizes: tuple[int, int, int, int]) -> Tensor | None:
    """Live pairs as (1 or B, 1 or H, M, N), without the axes that only repeat; None where they do not fit."""
    batch, heads, m, n = sizes
    if live.dim() > 4:
        return None
    live = live.reshape((1,) * (4 - live.dim()) + tuple(live.shape))
    for axis in (0, 1):
        live = live.narrow(axis, 0, 1) if live.stride(axis) == 0 and live.shape[axis] else live
    fits = live.shape[0] in (1, batch) and live.shape[1] in (1, heads)
    if not fits or live.shape[2] not in (1, m) or live.shape[3] not in (1, n):
        return None
    return live.expand(-1, -1, m, n)


Weighed = tuple[Pattern, AttentionPlan]


def _weighed(one: Replaced, qkv: tuple[Tensor, Tensor, Tensor], live: Tensor, measured: Measured | None) -> Decision:
    settings, device = one.settings, qkv[0].device.type
    share = float(live.sum()) / max(1, live.numel())
    most = float("inf") if measured else settings.most  # tiles may compute more pairs than there are
    if share > most:
        return Decision(None, f"its mask keeps {share:.0%} of the pairs, more than {most:.0%}", share)
    try:
        tensors = tuple(x if x.dim() == 4 else x[None] for x in qkv)
        forms = _forms(live, problem_of(*tensors))
        pattern, plan = min(forms, key=_predicted)
        plan.check_room("forward")
        if one.trained:
            plan.check_room("dkdv")
    except WeftError as error:
        return Decision(None, f"weft refuses it: {error.wrong}", share)
    problem = plan.problem
    pairs = problem.batch * problem.q_heads * problem.m * problem.n
    share = plan.visited / max(1, pairs)
    if share > most:
        return Decision(None, f"weft would compute {share:.0%} of the pairs, more than {most:.0%}", share)
    saved, least = pairs - plan.visited, settings.saved_at_least(device)
    if saved < least and not (measured and not least):
        return Decision(None, f"it is small: {saved:,} pairs would be saved, and {least:,} repay the call", share)
    if measured:
        return measured(one, tensors, forms, pairs)
    return Decision(pattern, "", share, _words(pattern))


def _forms(live: Tensor, problem: Problem) -> list[Weighed]:
    """What is recognised, and on a GPU other forms of it."""
    found = recognize_mask(live).pattern
    forms = [(found, compiled(found, problem)[0])]
    if isinstance(forms[0][1].target, Gpu):
        forms += [(other, compiled(other, problem)[0]) for other in by_blocks(live)]
    return forms


def _predicted(form: Weighed) -> float:
    """Seconds of its forward."""
    plan = form[1]
    return plan.forwards.taken.seconds if isinstance(plan.target, Gpu) else 0.0


class Measured:
    """Decides by measurement; for the masks with which a graph was traced. numbers: of the graph."""

    def __init__(self, masks: Sequence[Tensor], numbers: Sequence[int]) -> None:
        self.masks, self.numbers = masks, numbers

    @classmethod
    def if_asked(cls, one: Replaced, q: Tensor, masks: Sequence[Tensor], numbers: Sequence[int]) -> Measured | None:
        """None where rules decide: with gradients, sinks, three axes, and where options say so."""
        plain = not one.trained and not one.sinks and q.dim() == 4
        return cls(masks, numbers) if plain and one.settings.measures(q.device.type) else None

    def __call__(self, one: Replaced, like: Sequence[Tensor], forms: Sequence[Weighed], pairs: int) -> Decision:
        late = (like[0].shape[-1] ** -0.5,) if one.scaled_late else ()
        tensors = faster.like(like)
        graph = faster.of_graph(one.unfused, tensors, self.masks, (*self.numbers, *late))
        found = [(faster.of_pattern(pattern, tensors, one.softcap), i) for i, (pattern, _) in enumerate(forms)]
        seconds, best = min(found)
        pattern, plan = forms[best]
        share = plan.visited / max(1, pairs)
        words = f"{_words(pattern)}, {faster.said(seconds, graph)}"
        if seconds > faster.MARGIN * graph:
            return Decision(None, f"it is not faster as {words}", share)
        return Decision(pattern, "", share, words)


def _words(pattern: Pattern) -> str:
    said = str(pattern)
    return said if len(said) <= LONGEST else f"{said[:LONGEST]}..."
