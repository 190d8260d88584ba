"""Boolean masks: read once into packed rows, searched slice by slice, and held against the result on every pair."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from weft import memory
from weft.acsr.blocks import Blocks
from weft.acsr.cover import covered, room
from weft.acsr.format import Term
from weft.errors import InputError
from weft.pattern import composites, pieces
from weft.pattern import library as lib
from weft.pattern.algebra import Pattern
from weft.recognition import mapped
from weft.recognition.bitrows import BitRows
from weft.recognition.names import cost
from weft.recognition.parts import LARGE, Known
from weft.recognition.raster import raster
from weft.recognition.result import Recognized
from weft.recognition.search import Found, as_bits, in_blocks, listed, search
from weft.recognition.terms import spelled
from weft.recognition.words import reworded

COVERED = 1 << 20  # pairs up to which fewer terms than a search found are looked for
LONGER = 4  # times as many bytes as fewer terms may have
RANKS = {2: "(M, N)", 3: "(H, M, N)", 4: "(B, H, M, N)"}


def recognize_mask(mask: Any, *, generalize: bool = False) -> Recognized:
    """The pattern of a boolean mask, True = may attend: (M, N), (H, M, N) or (B, H, M, N), numpy or torch.

    Equal to the mask on every pair, and bound to its size. At other lengths it raises LengthError. generalize=True
    hands the closed form back unbound, which the mask does not prove. Heads and batch rows that differ become per_head
    and per_batch; equal ones are shared.
    """
    array = as_array(mask)
    memory.check(
        f"recognize_mask of {' x '.join(map(str, array.shape))}", array.shape[-2] * array.shape[-1] // 8,
        "pass its function, or a part of it: a mask is read into one bit a pair", InputError,
    )  # fmt: skip
    stack = array.reshape((1,) * (4 - array.ndim) + array.shape) if array.ndim < 4 else array
    if mapped.mapping(array) is None:
        slices = (BitRows.pack(stack[at]) for at in np.ndindex(*stack.shape[:2]))
        return described(slices, stack.shape, generalize=generalize)
    guess = mapped.guessed(stack[0, 0]) if stack.shape[:2] == (1, 1) else None
    if guess is not None:
        said = f"closed form, {guess[1]} of {stack.shape[2]} x {stack.shape[3]} pairs live"
        return _bound(guess[0], stack.shape[2:], [said], generalize)
    if stack.shape[:2] == (1, 1):
        rows = mapped.packed(stack[0, 0])
        if mapped.noisy(stack[0, 0]):
            bits = as_bits(rows)
            return _result([bits], bits.pattern, stack.shape[2:], generalize)
        compact = mapped.compact(rows)
        if compact is not None:
            return _result([Found(compact, rows)], compact, stack.shape[2:], generalize)
        return described([rows], stack.shape, generalize=generalize)
    slices = (mapped.packed(stack[at]) for at in np.ndindex(*stack.shape[:2]))
    return described(slices, stack.shape, generalize=generalize)


def described(slices: Iterable[BitRows], shape: tuple[int, ...], *, generalize: bool) -> Recognized:
    """The pattern of B x H slices of M x N pairs, given one after the other; shape is (B, H, M, N)."""
    size = (shape[2], shape[3])
    if not (size[0] and size[1]):
        rows = BitRows(np.zeros((size[0], 0), np.uint64), size[1])
        return _result([Found(lib.nothing(), rows)], lib.nothing(), size, generalize)
    distinct, which = _distinct(slices, shape[:2])
    found = [proven(rows) for rows in distinct]
    return _result(found, spread([f.pattern for f in found], which), size, generalize)


def as_array(mask: Any) -> Any:
    """The mask as a boolean numpy array of 2 to 4 axes (a view where that is possible). A torch tensor is copied from
    its device.
    """
    asked = f"recognize_mask of a {type(mask).__name__}"
    if hasattr(mask, "detach") and hasattr(mask, "cpu"):
        _require_bool(asked, str(mask.dtype) == "torch.bool", mask.dtype)
        mask = _read(asked, mask)
    if not isinstance(mask, np.ndarray):
        raise InputError(asked, "it is neither a numpy array nor a torch tensor", "pass np.asarray(mask, dtype=bool)")
    _require_bool(asked, mask.dtype == np.bool_, mask.dtype)
    if mask.ndim not in RANKS:
        raise InputError(
            asked, f"it has shape {mask.shape}", f"pass {', '.join(RANKS.values())}: queries before keys, keys last"
        )
    if 0 in mask.shape[:-2]:
        raise InputError(asked, f"its shape {mask.shape} has no head or no batch row", "pass at least one of each")
    return mask


def _read(asked: str, mask: Any) -> Any:
    """The values of a torch tensor."""
    if mask.is_meta:
        raise InputError(asked, "it is on the meta device and has no values", "make it on the CPU or a GPU")
    if str(mask.layout) != "torch.strided":
        raise InputError(asked, f"its layout is {mask.layout}", "pass mask.to_dense()")
    try:
        return mask.detach().cpu().numpy()
    except (RuntimeError, TypeError) as error:  # of a subclass, or of what torch.compile and torch.func trace
        raise InputError(asked, f"its values cannot be read: {error}", "pass a plain dense tensor") from error


def _require_bool(asked: str, is_bool: bool, dtype: Any) -> None:
    if not is_bool:
        raise InputError(
            asked, f"its dtype is {dtype}, and what a number means (0 or -inf for dead) is not known",
            "pass booleans, True = may attend: `mask == 0` for an additive mask, `mask != 0` for one of 0 and 1",
        )  # fmt: skip


def _distinct(slices: Iterable[BitRows], shape: tuple[int, ...]) -> tuple[list[BitRows], np.ndarray]:
    """The slices that differ, and which of them each (batch row, head) is."""
    kept: list[BitRows] = []
    seen: dict[int, list[int]] = {}
    which = np.zeros(shape, np.int64)
    for at, rows in zip(np.ndindex(*shape), slices, strict=True):
        alike = seen.setdefault(hash(rows.words.tobytes()) if shape != (1, 1) else 0, [])
        same = [i for i in alike if kept[i].same(rows)]
        if not same:
            alike.append(len(kept))
            kept.append(rows)
        which[at] = same[0] if same else alike[-1]
    return kept, which


def proven(rows: BitRows) -> Found:
    """A description that equals `rows` on every pair, whatever the search came back with."""
    blocks = in_blocks(rows) if rows.m * rows.n >= LARGE else None  # looked at before matrices of all pairs are made
    found = search(Known(rows, rows.inverted())) if blocks is None else Found(blocks, rows)
    if rows.m != rows.n:
        found = Found(found.pattern.filled("top-left"), found.rows, found.loose)
    if not raster(found.pattern, rows.m, rows.n).same(rows):
        found = listed(Known(rows, rows.inverted()))
    return finished(found, rows)


def finished(found: Found, rows: BitRows) -> Found:
    """The description, or the terms that it becomes where these are shorter to write. Or a cover of all pairs, where
    that alone is closed or has fewer terms.
    """
    m, n = rows.m, rows.n
    acsr = found.pattern.acsr(m, n)
    terms: Sequence[Term] | None = acsr.terms
    better = found.loose is not None
    if len(acsr.remainder) or (len(acsr.terms) > 1 and m * n <= COVERED):
        most = room(len(acsr.remainder)) if len(acsr.remainder) else len(acsr.terms) - 1
        other = covered(Blocks.of_words(rows.words.view(np.int64), m, n), most)
        if len(acsr.remainder) or (other is not None and _nbytes(other) <= LONGER * acsr.nbytes):
            terms, better = other, True
    said = None if terms is None else spelled(terms, m, n)
    if said is None or not (better or cost(said) < found.cost):
        return found
    return Found(said, rows) if raster(said, m, n).same(rows) else found


def _nbytes(terms: Sequence[Term]) -> int:
    return sum(term.nbytes for term in terms)


def spread(patterns: list[Pattern], which: np.ndarray) -> Pattern:
    """One pattern, or per head, per batch row, or both."""
    if len(patterns) == 1:
        return patterns[0]
    rows = [
        patterns[row[0]] if (row == row[0]).all() else composites.per_head([patterns[i] for i in row]) for row in which
    ]
    return rows[0] if (which == which[0]).all() else composites.per_batch(rows)


def _result(found: list[Found], pattern: Pattern, size: tuple[int, int], generalize: bool) -> Recognized:
    why = [_said(f, f"mask {i}: " if len(found) > 1 else "") for i, f in enumerate(found)]
    return _bound(pattern, size, why, generalize)


def _bound(pattern: Pattern, size: tuple[int, int], why: list[str], generalize: bool) -> Recognized:
    """The pattern for the size that was seen, or on the caller's word for all."""
    if generalize:
        why.append(f"used at other lengths on your word: only {size[0]} x {size[1]} was seen")
    else:
        pattern = pieces.sized(reworded(pattern, size[1]), *size)
    return Recognized(pattern, True, f"evaluated at ({size[0]}, {size[1]})", "\n         ".join(why), *size)


def _said(found: Found, name: str) -> str:
    m, n = found.rows.m, found.rows.n
    if found.loose is None:
        return f"{name}closed form, {found.rows.count} of {m} x {n} pairs live"
    rows = np.flatnonzero(found.loose.queries)
    share = found.loose.count / (m * n)
    return (
        f"{name}{found.loose.count} pairs ({share:.3%} of {m} x {n}) follow no affine rows and are listed one by one; "
        f"they lie in {rows.size} rows, {rows[0]} to {rows[-1]}"
    )
