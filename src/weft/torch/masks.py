"""Masks as callers hold them: a boolean tensor, a mask function, a BlockMask or a Recognized becomes a pattern, once.

What was recognised is found again by the mask's fingerprint (`weft.torch.fingerprint`), so a mask that was changed is
recognised anew. What has no fingerprint, and what recognition cannot do without being told more, is refused with the
line to write.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any
from weakref import ReferenceType, ref

import torch
from torch import Tensor
from torch.compiler import is_compiling

from weft.caching import emptied_by
from weft.errors import InputError, UnsupportedError
from weft.pattern.algebra import Pattern
from weft.pattern.arguments import LIBRARY
from weft.pattern.padded import padding
from weft.torch.blockmask import recognize_blocks
from weft.torch.call import unwrapped
from weft.torch.fingerprint import PLAIN, Fingerprint, UnseenError, fingerprint, name_of
from weft.torch.mask_cache import SIZES, MaskCache
from weft.torch.operator import Written
from weft.torch.unchanged import WATCHED, Unchanged, unchanged

if TYPE_CHECKING:
    from weft.recognition import Recognized

KEPT = 256  # patterns that masks became
Sizes = tuple[int, int, int, int]  # B, Hq, M, N
ANYWHERE = (0, 0, 0, 0)  # all sizes
OUTSIDE = "write pattern = weft.recognize({}).pattern outside of it, and pass the pattern"


_recognized: MaskCache[Recognized] = MaskCache()
_met: dict[int, Unchanged[Pattern]] = {}  # masks that were met more than once, by their identity
_once: dict[int, ReferenceType[Any]] = {}  # masks whose fingerprint was found once
_patterns: dict[Pattern, Pattern] = {}  # equal ones are one object, whose plans are found by its identity


def forget() -> None:
    """All masks, and the patterns that they became."""
    _recognized.clear()
    _met.clear()
    _once.clear()
    with _recognized.lock:
        _patterns.clear()


emptied_by(forget)


def pattern_of(mask: Any, sizes: Sizes, function: str = "attention") -> Any:
    """The pattern of a mask at the sizes of a call (B, Hq, M, N). What is no mask comes back as it is, for a check."""
    if not is_compiling():
        met = _met.get(id(mask))
        if met is not None and met.holds(mask):
            known = met.made.get(sizes)
            if known is not None:
                return known
    mask = unwrapped(mask)
    if isinstance(mask, Pattern):
        return mask
    if is_compiling():
        return _inside(mask, function)
    if isinstance(mask, Written):
        return mask.pattern()
    if type(mask) in PLAIN or type(mask) is FunctionType or is_block_mask(mask) or _is_function(mask):
        return recognized(mask, sizes, function).pattern
    return mask


def _meet(mask: Any, sizes: Sizes, found: Fingerprint, pattern: Pattern) -> None:
    """Have a mask found again by a look at what it reads, once its fingerprint was found a second time.

    A function that is new at every step is not worth it.
    """
    at = id(mask)
    once = _once.get(at)
    if once is None or once() is not mask:
        if len(_once) >= KEPT:
            _once.clear()
        _once[at] = ref(mask)
        return
    met = _met.get(at)
    if met is None or not met.holds(mask):
        met = unchanged(mask, found, partial(_drop, at))
        if met is None or fingerprint(mask).key != found.key:  # another thread may have changed it meanwhile
            return
        while len(_met) >= KEPT:
            _met.pop(next(iter(_met)), None)
        _met[at] = met
    if len(met.made) >= SIZES:
        met.made.clear()
    met.made[sizes] = pattern


def _drop(at: int, reference: ReferenceType[Any]) -> None:
    met = _met.get(at)
    if met is not None and met.mask is reference:
        _met.pop(at, None)


def recognized(mask: Any, sizes: Sizes, function: str = "attention") -> Recognized:
    """What a tensor, a function or a BlockMask was recognised as, at the sizes of a call."""
    try:
        found = fingerprint(_read(mask))
    except UnseenError as unseen:
        raise _no_fingerprint(mask, unseen, function) from None
    except RuntimeError:  # a tensor without memory, which recognition refuses
        return _recognize(mask, sizes, function)[0]
    at = _recognized.find(found, sizes, ANYWHERE)
    if at is not None:
        if type(mask) in WATCHED:
            _meet(mask, sizes, found, at.pattern)
        return at
    _refuse_capture(mask, function)
    made, everywhere = _recognize(mask, sizes, function)
    with _recognized.lock:
        made = _one_object(made)
        _recognized.keep(found, ANYWHERE if everywhere else sizes, made)
    return made


def said(mask: Any, sizes: Sizes) -> str:
    """How a mask that is no pattern became one, as lines of `explain`."""
    if unwrapped(mask) is not mask:
        return f"recognised: {mask}"
    made, found = recognized(mask, sizes), fingerprint(_read(mask))
    again = "while its tensors are the same objects in the same versions"
    if found.hashed:
        again = "by a hash of its content at each call, since made in inference mode, or by numpy, it has no version"
    elif not found.tensors:
        again = "while its code and all that it reads are the same"
    kind = "a BlockMask" if is_block_mask(mask) else f"the function {name_of(mask)}"
    kind = f"a tensor {tuple(mask.shape)}" if isinstance(mask, Tensor) else kind
    return f"recognised from {kind}: {made}\n  found again {again}"


def is_block_mask(mask: Any) -> bool:
    """Whether it is FlexAttention's; asked without importing that."""
    kind = getattr(sys.modules.get("torch.nn.attention.flex_attention"), "BlockMask", None)
    return kind is not None and isinstance(mask, kind)


def _is_function(mask: Any) -> bool:
    return callable(mask) and not isinstance(mask, (type, Tensor))


def _refuse_library(mask: Any, function: str) -> None:
    name = name_of(mask)
    if LIBRARY.get(name) is mask or mask is padding:
        raise InputError(
            f"{function}(..., mask=weft.{name})", "it is the function that makes a pattern, and was not called",
            f"call it: weft.{name}(...)",
        )  # fmt: skip


def _read(mask: Any) -> Any:
    """What of a mask its fingerprint is made of."""
    if type(mask) in PLAIN or type(mask) is FunctionType or not is_block_mask(mask):
        return mask
    lists = (mask.kv_num_blocks, mask.kv_indices, mask.full_kv_num_blocks, mask.full_kv_indices)
    return (mask.mask_mod, mask.seq_lengths, mask.BLOCK_SIZE, *lists)


def _no_fingerprint(mask: Any, unseen: UnseenError, function: str) -> InputError:
    _refuse_library(mask, function)
    name = _line(mask)
    return InputError(
        f"{function}(..., mask={name})", f"it cannot be told when it is another mask: {unseen}",
        f"recognise it once, pattern = weft.recognize({name}).pattern, and pass the pattern",
    )  # fmt: skip


def _line(mask: Any) -> str:
    """A mask as a line of code would name it."""
    if is_block_mask(mask):
        return "block_mask.mask_mod"
    name = "mask" if isinstance(mask, Tensor) else name_of(mask)
    return "mask" if "<" in name else name


def _inside(mask: Any, function: str) -> Any:
    """A mask of a compiled function: patterns alone can be read there."""
    if isinstance(mask, Written) or not (isinstance(mask, Tensor) or callable(mask)):
        return mask
    name = "a tensor" if isinstance(mask, Tensor) else "a function"
    raise InputError(
        f"{function}(..., mask={name}) inside a compiled function", "a graph cannot read what a mask says",
        OUTSIDE.format("mask"),
    )  # fmt: skip


def is_capturing() -> bool:
    """Whether a CUDA graph is captured on the current stream."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def _refuse_capture(mask: Any, function: str) -> None:
    if is_capturing():
        raise UnsupportedError(
            f"{function}(..., mask={_line(mask)}) while a CUDA graph is captured",
            "the mask was not met before, and a capture cannot read it",
            "call it once before the capture with the same mask, or " + OUTSIDE.format(_line(mask)),
        )  # fmt: skip


def _one_object(made: Recognized) -> Recognized:
    pattern = _patterns.get(made.pattern)
    if pattern is None:
        if len(_patterns) >= KEPT:
            _patterns.clear()
        pattern = _patterns[made.pattern] = made.pattern
    return replace(made, pattern=pattern)


# ---- recognition ----------------------------------------------------------------------------------------------------
def _recognize(mask: Any, sizes: Sizes, function: str) -> tuple[Recognized, bool]:
    """What it is at the sizes of a call, and whether it is that at all sizes."""
    from weft.recognition import recognize_mask

    if isinstance(mask, Tensor):
        check_boolean(mask, sizes, function)
        return recognize_mask(mask), False
    if is_block_mask(mask):
        return recognize_blocks(mask, sizes, lambda mod: _of_function(mod, sizes, function)), False
    alike = _for_any_row(mask, sizes, function)
    if alike is not None:
        return alike, alike.m is None and alike.n is None
    return _of_function(mask, sizes, function), False


def _for_any_row(mask: Any, sizes: Sizes, function: str) -> Recognized | None:
    """A function's pattern where it says the same of all batch rows and heads, however many; None where it may not."""
    try:
        made = _of_function(mask, (None, None, *sizes[2:]), function)
    except InputError:  # raised again where the numbers of rows and heads are no cure
        return None
    return made if made.pattern.extent() == (None, None) else None


def _of_function(mask: Any, sizes: tuple[int | None, int | None, int, int], function: str) -> Recognized:
    """By what it says; at the call's lengths where tables bound it to others."""
    from weft.recognition import recognize_function

    _refuse_library(mask, function)
    batch, heads, m, n = sizes
    try:
        made = recognize_function(mask, batch=batch, heads=heads)
        if made.m is not None and (made.m, made.n) != (m, n):
            made = recognize_function(mask, size=(m, n), batch=batch, heads=heads)
    except InputError as error:
        if "size=(M, N)" not in error.cure:
            raise
        line = f"weft.recognize({_line(mask)}, size=({m}, {n}), batch={batch}, heads={heads}).pattern"
        raise InputError(
            f"{function}(..., mask={name_of(mask)})", error.wrong,
            f"evaluate all {m} x {n} pairs once, pattern = {line}, and pass the pattern",
        ) from error  # fmt: skip
    return made


def check_boolean(mask: Tensor, sizes: Sizes, function: str) -> None:
    """Raise InputError unless a tensor is a boolean mask of a call's sizes."""
    batch, heads, m, n = sizes
    shape = tuple(mask.shape)
    asked = f"{function}(..., mask={shape})"
    if mask.is_floating_point():
        raise InputError(
            asked, f"the mask is {mask.dtype}: numbers that are added to scores are a bias, and skip no work",
            "pass it as bias=mask, and as mask the pattern of what it leaves, or weft.full(); of 0 and -inf alone "
            "pass mask == 0 as mask",
        )  # fmt: skip
    if mask.dtype is not torch.bool:
        raise InputError(
            asked, f"the mask is {mask.dtype}, and what its numbers mean is not known",
            "pass booleans, True = may attend: mask != 0 of one of 0 and 1",
        )  # fmt: skip
    if len(shape) in (2, 3, 4) and shape[-2:] == (m, n):
        told = (1,) * (4 - len(shape)) + shape[:-2]
        if len(told) == 2 and told[0] in (1, batch) and told[1] in (1, heads):
            return
        if len(shape) == 3 and shape[0] == batch:
            raise InputError(
                asked, f"three axes are (Hq, M, N), and there are {heads} heads", "pass mask[:, None] for (B, 1, M, N)"
            )
    if shape == (batch, n):
        cure = "pass weft.padding(mask=mask), joined to what else is asked: weft.causal() & weft.padding(mask=mask)"
        raise InputError(asked, f"it is (B, N), one row for each batch row, and no mask of {m} x {n} pairs", cure)
    if shape == (batch, 1, 1, n):
        cure = "pass weft.padding(mask=mask[:, 0, 0]), joined to what else is asked by &"
        raise InputError(asked, f"it is (B, 1, 1, N), one row for each batch row, and no mask of {m} x {n} pairs", cure)
    raise InputError(
        asked, f"it is none of (M, N) = ({m}, {n}), (Hq, M, N) = ({heads}, {m}, {n}), (B, Hq, M, N) with B = {batch}",
        "pass one of these; mask.expand(...) where it is broadcast",
    )  # fmt: skip
