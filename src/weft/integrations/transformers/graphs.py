"""Masks inside a compiled function, and masks of decoding whose offset the device alone knows: nothing is read."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.compiler import is_compiling

import weft
from weft.errors import UnsupportedError
from weft.integrations.transformers.held import Mask, Slots
from weft.integrations.transformers.reading import Seen, leaves, read
from weft.pattern.algebra import Align
from weft.pattern.relation import NDBool

NO_LABEL = -(2**62)  # of a query that belongs to no group


def in_graph(sizes: tuple[int, int, int], offsets: tuple[int, int], function: Any, padding: Tensor | None) -> Mask:
    """The mask as a pattern that is written down while a graph is traced. Tables are read when the graph runs."""
    (batch, m, n), k_offset = sizes, offsets[1]
    seen = read(function)
    live = live_keys(leaves(seen), (m, n), offsets)
    at = place((m, live), offsets)
    if at is None:
        _refuse("its queries are not the last of its keys")
    if padding is not None:
        seen = seen & Seen("kept", "k", _to_end(padding, k_offset + live))
    rows = [at.written(seen, b) for b in range(batch if by_row(seen) else 1)]
    pattern = rows[0] if len(rows) == 1 else weft.per_batch(rows)
    return Mask(pattern, sizes, offsets, live if live < n else None)


def live_keys(parts: list[Seen], sizes: tuple[int, int], offsets: tuple[int, int]) -> int:
    """How many keys some query may see. Raises UnsupportedError where positions are compared across documents."""
    if any(_moved(part) for part in parts) and not any(part.kind == "same" for part in parts):
        _refuse("positions of packed documents are compared without these")
    come = offsets[0] + sizes[0] - offsets[1]
    return come if _is_causal(parts) and come < sizes[1] else sizes[1]


def _to_end(padding: Tensor, length: int) -> Tensor:
    missing = length - padding.shape[1]
    return torch.nn.functional.pad(padding, (0, missing)) if missing > 0 else padding


def _moved(part: Seen) -> bool:
    if part.kind == "chunks":
        return part.parts[2][0] is not None
    return part.kind == "near" and bool(part.parts[2])


def _is_causal(parts: list[Seen]) -> bool:
    return any(part.kind == "near" and part.parts[1] is not None and part.parts[1] <= 0 for part in parts)


def by_row(seen: Seen) -> bool:
    """Whether it reads a table that has batch rows."""
    if seen.kind in ("and", "or"):
        return by_row(seen.parts[0]) or by_row(seen.parts[1])
    return seen.kind in ("same", "kept") or (seen.kind == "chunks" and (_moved(seen) or seen.parts[1] is not None))


class Place:
    """Where the queries and keys of a call are in the sequence, and patterns written for them."""

    def __init__(self, sizes: tuple[int, int], offsets: tuple[int, int], align: Align) -> None:
        (self.m, self.n), (self.q_offset, self.k_offset), self.align = sizes, offsets, align

    def written(self, seen: Seen, row: int) -> Any:
        """What a batch row sees."""
        kind, parts = seen.kind, seen.parts
        if kind == "and" or kind == "or":
            one, two = parts
            if kind == "and" and "all" in (one.kind, two.kind):
                return self.written(two if one.kind == "all" else one, row)
            if kind == "or" and "none" in (one.kind, two.kind):
                return self.written(two if one.kind == "none" else one, row)
            if kind == "and" and (one.kind, two.kind) == ("same", "kept") and two.parts[0] == "q":
                ids, key_ids = one.parts
                return self._labels(torch.where(two.parts[1].bool()[row], ids[row], NO_LABEL), key_ids[row])
            left, right = self.written(one, row), self.written(two, row)
            return left & right if kind == "and" else left | right
        if kind == "near":
            return self._near(parts[0], parts[1])
        if kind == "same":
            return self._labels(parts[0][row], parts[1][row])
        if kind == "kept":
            return self._kept(parts[0], parts[1][row])
        if kind == "chunks":
            return self._chunks(seen, row)
        return weft.full() if kind == "all" else weft.nothing()

    def _near(self, least: int | None, most: int | None) -> Any:
        if (least or 0) > 0 or (most is not None and most < 0):
            _refuse("a query does not see its own key")
        return weft.window(None if least is None else -least, most, align=self.align)

    def _labels(self, ids: Tensor, key_ids: Tensor) -> Any:
        queries = ids[self.q_offset : self.q_offset + self.m]
        return weft.documents(ids=queries, key_ids=key_ids[self.k_offset : self.k_offset + self.n])

    def _kept(self, side: str, table: Tensor) -> Any:
        ids = (~table.bool()).long()
        other = ids.new_zeros(self.q_offset + self.m if side == "k" else self.k_offset + self.n)
        return self._labels(other, ids) if side == "k" else self._labels(ids, other)

    def _chunks(self, seen: Seen, row: int) -> Any:
        size, first, (positions, of_keys) = seen.parts
        if first is None and positions is None and self.k_offset == 0:
            return weft.chunks(size, align=self.align)
        by = 0 if first is None else first[row]
        if positions is None:
            after = max(self.q_offset + self.m, self.k_offset + self.n)
            ids = (torch.arange(after, device=None if first is None else first.device) - by) // size
            return self._labels(ids, ids)
        return self._labels((positions[row] - by) // size, (of_keys[row] - by) // size)


def place(sizes: tuple[int, int], offsets: tuple[int, int], kind: type[Place] = Place) -> Place | None:
    """The place of a call; None where no alignment says it."""
    (m, n), (q_offset, k_offset) = sizes, offsets
    if q_offset == 0 and k_offset == 0:
        return kind(sizes, offsets, "top-left")
    return kind(sizes, offsets, "bottom-right") if n - m == q_offset - k_offset else None


def counted(
    sizes: tuple[int, int, int], offsets: tuple[Any, int], said: tuple[Any, Tensor | None], device: Any
) -> Mask | None:
    """The mask of a step of decoding, as numbers on the device that hold the offset; None where it takes more.

    said: the mask function, and padding. A query sees the last keys up to its own: as many as the window, its chunk and
    the padding on the left leave. Padding elsewhere is refused on the device.
    """
    (_, m, _), (q_offset, k_offset), (function, padding) = sizes, offsets, said
    parts = leaves(read(function))
    if not _is_causal(parts) or any(part.kind not in ("near", "chunks") or _moved(part) for part in parts):
        return None
    if m > 1 and (padding is not None or any(part.kind == "chunks" for part in parts)):
        return None
    if not isinstance(q_offset, Tensor):
        q_offset = torch.full((1,), q_offset, dtype=torch.int64, device=device)
    at = q_offset.reshape(1) + (m - 1)  # the position of the last query
    keys, window = at + (1 - k_offset), None
    for limit in _limits(parts, at, padding):
        window = limit if window is None else torch.minimum(window, limit)
    if window is not None:
        keys, window = (x.contiguous() for x in torch.broadcast_tensors(keys, window))
    return Mask(None, sizes, offsets, None, Slots(keys, window))


def _limits(parts: list[Seen], at: Tensor, padding: Tensor | None) -> list[Tensor]:
    """How many keys each part lets the query at a position see, its own among them."""
    found = [] if padding is None else [at + 1 - _first(padding, at)]
    for part in parts:
        if part.kind == "chunks":
            size, first, _ = part.parts
            found.append((at if first is None else at - first) % size + 1)
        elif part.parts[0] is not None:
            found.append(torch.full_like(at, 1 - part.parts[0]))
    return found


def _first(padding: Tensor, at: Tensor) -> Tensor:
    """The first token of each batch row; rows with padding after it are refused, on a GPU by the device."""
    if padding.is_cpu and not is_compiling():
        return _first_on_host(padding.numpy(), int(at))
    live = padding & (torch.arange(padding.shape[1], device=padding.device) <= at)
    first = live.long().argmax(1)
    torch._assert_async(
        (live.sum(1) == at + 1 - first).all(),
        "weft: a static cache with padding after the first token; use a dynamic cache",
    )
    return first


def _first_on_host(rows: NDBool, at: int) -> Tensor:
    first = rows.argmax(1)
    if rows.shape[1] <= at or not all(row[begin : at + 1].all() for row, begin in zip(rows, first, strict=True)):
        raise UnsupportedError("a static cache with padding after the first token", "it is no number of keys", "")
    return torch.from_numpy(first)


def _refuse(wrong: str) -> NoReturn:
    raise UnsupportedError(
        "a mask of attn_implementation='weft' inside a compiled function", wrong,
        "make the mask outside of it, or take a dynamic cache",
    )  # fmt: skip
