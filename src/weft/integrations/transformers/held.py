"""`Mask`: what a model of transformers carries from where its mask is made to where attention is computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from torch.utils._pytree import tree_leaves

from weft.errors import UnsupportedError
from weft.integrations.transformers.packed import Packed
from weft.pattern.algebra import Pattern
from weft.pattern.library import causal, window
from weft.pattern.padded import hidden


class Slots:
    """Numbers of keys that the device alone knows: tensors of shape (1,) or (B,), one dtype.

    keys: of the cache, how many have come. window: how many keys a query sees up to its own, None for all.
    """

    def __init__(self, keys: Tensor, seen: Tensor | None) -> None:
        self.keys, self.window = keys, seen

    def on_host(self, m: int) -> tuple[int, Pattern]:
        """(keys that have come, what the last m queries see of them): the device is waited for."""
        keys = int(self.keys[0])
        if self.window is None:
            return keys, causal(align="bottom-right")
        if m > 1:
            return keys, causal(align="bottom-right") & window(left=int(self.window[0]) - 1, align="bottom-right")
        return keys, hidden(tuple([((0, keys - seen),) for seen in self.window.tolist()]))


class Mask(BlockMask):
    """Which query sees which key, as a pattern of weft, where transformers expects a mask.

    It is a BlockMask since models pass on a tensor of four axes or a BlockMask as it is, and refuse anything else. It
    holds no blocks: what reads or changes it as such is refused. sizes: B, M, N. offsets: positions of the first query
    and the first key. live: keys from there on are seen by no query, and are cut off; None: all are passed. In place of
    a pattern there are slots, where the device alone knows the number of keys, or packed documents. of_rows: makes the
    mask of some of the queries, from the first of them and how many.
    """

    of_rows: Callable[[int, int], Mask] | None = None

    def __init__(
        self, pattern: Any, sizes: tuple[int, int, int], offsets: tuple[Any, int], live: int | None = None,
        instead: Slots | Packed | None = None,
    ) -> None:  # fmt: skip
        self.sizes, self.offsets, self.live = sizes, offsets, live
        self.slots = instead if isinstance(instead, Slots) else None
        self.packed = instead if isinstance(instead, Packed) else None
        self._pattern = pattern

    @property
    def pattern(self) -> Any:
        """Of all batch rows; of packed documents it is made when it is first asked for."""
        if self._pattern is None and self.packed is not None:
            self._pattern = self.packed.whole()
        return self._pattern

    @property
    def shape(self) -> tuple[int, ...]:
        """(B, 1, M, N): all heads alike."""
        batch, m, n = self.sizes
        return batch, 1, m, n

    @property
    def ndim(self) -> int:
        """4, as of a mask that is a tensor."""
        return 4

    @property
    def device(self) -> torch.device:
        """Where a pattern is: nowhere, so that nothing has to be moved."""
        return torch.device("cpu" if self.slots is None else self.slots.keys.device)

    def to(self, *args: Any, **kwargs: Any) -> Mask:
        """Itself: a pattern is on no device and has no dtype."""
        return self

    def __getitem__(self, at: Any) -> Mask:
        """Of consecutive queries, as Gemma 4 keeps the last ones: mask[:, :, -1:, :], all keys kept."""
        at = (*at, slice(None)) if isinstance(at, tuple) and len(at) == 3 else at
        if not isinstance(at, tuple) or len(at) != 4 or not all(isinstance(one, slice) for one in at):
            self._refuse()
        *others, rows, keys = (range(*one.indices(length)) for one, length in zip(at, self.shape, strict=True))
        whole = [len(one) for one in (*others, keys)] == [self.sizes[0], 1, self.sizes[2]]
        if not whole or rows.step != 1 or not rows:
            self._refuse()
        if len(rows) == self.sizes[1]:
            return self
        return self._refuse() if self.of_rows is None else self.of_rows(rows.start, len(rows))

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        """Functions of torch read tensors."""
        found = next(x for x in tree_leaves((args, kwargs)) if isinstance(x, Mask))
        found._refuse()

    def __repr__(self) -> str:
        said = "counted" if self.slots is not None else self._pattern or "packed documents"
        return f"weft.integrations.transformers mask {self.shape}: {said}"

    __str__ = __repr__

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise UnsupportedError(
            f"a mask of attn_implementation='weft' {self.shape}, read as a tensor",
            "this model computes attention or changes its mask by code of its own, past the attention interface",
            'take attn_implementation="eager" or "sdpa" for it, or weft.integrations.transformers.swap(model) where '
            "that knows the model",
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __and__ = __or__ = __invert__ = _refuse
    __bool__ = __iter__ = __len__ = __lt__ = __gt__ = __le__ = __ge__ = _refuse
    to_dense = as_tuple = sparsity = numel = to_string = _adjust = _refuse
    bool = float = half = expand = view = reshape = unsqueeze = squeeze = masked_fill = repeat = _refuse
