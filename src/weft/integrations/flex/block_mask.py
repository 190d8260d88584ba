"""BlockMask: torch's with a pattern, which is recognised first; lists of blocks are made when somebody reads them."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy.ma
import numpy.random  # noqa: F401 - numpy loads both late: now, and not while the first mask waits
import torch
from torch.nn.attention import flex_attention as flex

from weft.errors import InputError
from weft.pattern.algebra import Pattern
from weft.recognition import grid_forms, recognize_mask  # noqa: F401 - the first is loaded late too
from weft.torch.blockmask import computed_by_kernels, kinds_of_blocks, ordered
from weft.torch.fingerprint import UnseenError, fingerprint
from weft.torch.masks import recognized

LISTS = tuple(flex.BlockMask._TENSOR_ATTRS)
MEANING = frozenset((*LISTS, "mask_mod", "seq_lengths", "BLOCK_SIZE"))
Sizes = tuple[int, int, int, int]  # B, H, M, N
DENSE = 1 << 33  # pairs of a mask that are held as booleans where it cannot be recognised from its function


class Unmade(NamedTuple):
    """What lists of blocks are made for, besides the pattern."""

    batch: int
    heads: int
    device: torch.device
    separate: bool  # whether full blocks are listed apart


class BlockMask(flex.BlockMask):
    """torch's BlockMask, and a pattern of weft's. Made by `create_block_mask` or `BlockMask.from_kv_blocks`.

    It has all attributes and methods of torch's; kv_indices and the other lists are made when they are first read. Its
    meaning is that of FlexAttention's kernels: mask_mod inside of listed blocks, and full blocks whole. Example::

        block_mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 8192, 8192)
        print(block_mask.pattern)
    """

    def __getattr__(self, name: str) -> Any:
        if name not in LISTS or "_unmade" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        self._make()
        return self.__dict__[name]

    def __setattr__(self, name: str, value: Any) -> None:
        """The blocks stay those of the mask as it was, as in torch."""
        if name in MEANING and "_pattern" in self.__dict__:
            self._make()
            del self.__dict__["_pattern"]
        super().__setattr__(name, value)

    @property
    def pattern(self) -> Pattern:
        """The mask as a pattern; found again where its lists, or tensors that mask_mod captured, changed in place."""
        now = key_of(self.mask_mod), self._versions()
        if "_pattern" not in self.__dict__ or self.__dict__.setdefault("_seen", now) != now:
            self._make()
            self.__dict__.update(_pattern=computed_by_kernels(self, self._recognize), _seen=(now[0], self._versions()))
        return self.__dict__["_pattern"]

    @property
    def device(self) -> torch.device:
        """Where the lists of blocks are, or will be."""
        unmade = self.__dict__.get("_unmade")
        return self.kv_num_blocks.device if unmade is None else unmade.device

    @property
    def batch_and_heads(self) -> tuple[int, ...]:
        """The axes before those of the blocks."""
        unmade = self.__dict__.get("_unmade")
        return tuple(self.kv_indices.shape[:-2]) if unmade is None else (unmade.batch, unmade.heads)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.batch_and_heads + tuple(self.seq_lengths)

    def __getitem__(self, index: Any) -> BlockMask:
        return like(super().__getitem__(index))

    def _adjust(self, new_q_len: int, new_kv_len: int) -> BlockMask:
        """The mask at other lengths: of the same function where the blocks are its own, else the blocks cropped."""
        unmade = self.__dict__.get("_unmade")
        if unmade is None:
            cropped = super()._adjust(new_q_len, new_kv_len)
            cropped.seq_lengths = new_q_len, new_kv_len  # torch 2.11 rounds them up
            return cropped
        sizes = (unmade.batch, unmade.heads, new_q_len, new_kv_len)
        made = copy.copy(self)
        made.__dict__.update(seq_lengths=sizes[2:], _seen=(key_of(self.mask_mod), ()))
        made.__dict__["_pattern"] = made._recognize(self.mask_mod)
        return made

    def to(self, device: torch.device | str) -> BlockMask:
        """A copy whose lists are on that device."""
        made = copy.copy(self)
        if "_unmade" in self.__dict__:
            made.__dict__["_unmade"] = self._unmade._replace(device=located(device))
        else:
            lists = {name: getattr(self, name) for name in LISTS}
            made.__dict__.update({name: x if x is None else x.to(device) for name, x in lists.items()})
        return made

    def _make(self) -> None:
        """The lists of blocks, if they are not there."""
        unmade = self.__dict__.pop("_unmade", None)
        if unmade is None:
            return
        kinds = kinds_of_blocks(self.__dict__["_pattern"], self.seq_lengths, self.BLOCK_SIZE)
        shape = (unmade.batch, unmade.heads, *kinds[0].shape[2:])
        partial, full = (torch.from_numpy(x).to(unmade.device).expand(shape) for x in kinds)
        lists = (*ordered(partial), *ordered(full)) if unmade.separate else ordered(partial | full)
        made = flex.BlockMask.from_kv_blocks(*lists, BLOCK_SIZE=self.BLOCK_SIZE)
        self.__dict__.update({name: getattr(made, name) for name in LISTS})
        self.__dict__["_seen"] = self._seen[0], self._versions()

    def _versions(self) -> tuple[int, ...]:
        """How often each list of keys' blocks was changed in place; nothing while there are none."""
        lists = () if "_unmade" in self.__dict__ else (self.__dict__[name] for name in LISTS[:4])
        return tuple(-1 if x is None or x.is_inference() else x._version for x in lists)

    def _recognize(self, mask_mod: Callable[..., Any]) -> Pattern:
        batch, heads, m, n = (1, 1, *self.shape)[-4:]
        found, self.__dict__["_reads"] = recognize(mask_mod, (batch, heads, m, n), self.device)
        return found


def located(device: torch.device | str) -> torch.device:
    """The device that tensors made there name: "cuda" is the current GPU, such as cuda:0."""
    asked = torch.device(device)
    if asked.index is not None or asked.type in ("cpu", "meta"):
        return asked
    return torch.device(asked.type, torch.get_device_module(asked.type).current_device())


def like(mask: flex.BlockMask) -> BlockMask:
    """torch's BlockMask as one of these, with the same lists."""
    made = BlockMask.__new__(BlockMask)
    made.__dict__.update(mask.__dict__)
    return made


_met: WeakKeyDictionary[flex.BlockMask, BlockMask] = WeakKeyDictionary()


def as_weft(mask: flex.BlockMask) -> BlockMask:
    """Any BlockMask as one of these, whose pattern is found again while torch's holds the same objects."""
    if isinstance(mask, BlockMask):
        return mask
    known = _met.get(mask)
    if known is None or any(vars(mask).get(name) is not vars(known).get(name) for name in MEANING):
        known = _met[mask] = like(mask)
    return known


def key_of(mask_mod: Callable[..., Any]) -> Any:
    """What tells that a mask function has changed; None where that cannot be seen."""
    try:
        return fingerprint(mask_mod).key
    except UnseenError:
        return None


def recognize(mask_mod: Callable[..., Any], sizes: Sizes, device: Any) -> tuple[Pattern, str]:
    """The pattern of a mask function at (B, H, M, N): from what it computes, else from all its pairs, as torch does.

    And which of b and h it reads although there is to be one of them, "" for none: known where there is a closed form.
    """
    found = _alike(mask_mod, sizes, "bh")
    if found is not None:
        return found, ""
    try:
        found = recognized(mask_mod, sizes, "create_block_mask").pattern
    except InputError:
        if math.prod(sizes) > DENSE:
            raise
        mask = flex.create_mask(lambda b, h, q, k: mask_mod(b, h, q, k), *sizes, device)  # noqa: PLW0108 - torch counts self too
        return recognize_mask(mask.expand(sizes)).pattern, ""
    return found, "".join(name for name in "bh" if _alike(mask_mod, sizes, name) is None)


def _alike(mask_mod: Callable[..., Any], sizes: Sizes, names: str) -> Pattern | None:
    """The pattern for any number of batch rows (b) and heads (h) of which there is one; None where it reads them."""
    rows = [None if name in names and size == 1 else size for name, size in zip("bh", sizes, strict=False)]
    asked: Any = (*rows, *sizes[2:])
    try:
        found: Pattern = recognized(mask_mod, asked, "create_block_mask").pattern
    except InputError:
        return None
    return found if all(told in (None, size) for told, size in zip(found.extent(), rows, strict=True)) else None
