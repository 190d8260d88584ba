"""Models whose ranks hold one sequence together: each rank computes its own tokens, and attention exchanges keys."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

import weft
from weft.distributed.shards import shards_of
from weft.errors import OptionError, UnsupportedError
from weft.integrations.transformers.held import Mask
from weft.pattern.algebra import Pattern
from weft.torch.distributed.call import attention
from weft.torch.distributed.groups import group_of

NAME = "weft_ranks"  # of a module of attention whose ranks hold its tokens together
TYPES = ("full_attention", "sliding_attention", "chunked_attention")
LAYOUTS = ("contiguous", "zigzag")  # which do not depend on a layer's pattern
POSITIONS = ("position_embeddings", "position_embeddings_global", "position_embeddings_local", "position_ids")


def shard(
    model: torch.nn.Module, *, group: Any = None, mesh: Any = None, dim: int | str = 0, shards: Any = "contiguous"
) -> Ranks:
    """Let the ranks of a group compute a decoder's layers together, each on its own tokens of the sequence.

    Every rank passes the whole input_ids, so that positions, documents and masks are those of the whole sequence. From
    the first layer on a rank has its own tokens alone, and it returns their hidden states or logits.

    - group: a ProcessGroup, None: the default one; or mesh and dim: a DeviceMesh and one of its dimensions.
    - shards: "contiguous", "zigzag", or for each rank the ranges [(first, after), ...] that it holds. All layers have
      this one layout, and each its own strategy, see `weft.distributed.plan`.

    Returns `Ranks`. Raises OptionError for other shards, UnsupportedError for a model that is not of weft's attention,
    or whose layers mix tokens otherwise. Pass use_cache=False, and compute the loss from `Ranks.mine`. Example::

        ranks = shard(model, group=torch.distributed.group.WORLD)
        logits = model(ids, use_cache=False).logits  # of this rank's tokens
        targets = ranks.mine(torch.nn.functional.pad(ids[:, 1:], (0, 1), value=-100))
    """
    if isinstance(shards, str) and shards not in LAYOUTS:
        raise OptionError(
            f"shard(shards={shards!r})", "layers with other patterns would hold other tokens",
            f"pass one of {', '.join(map(repr, LAYOUTS))}, or the ranges of each rank",
        )  # fmt: skip
    decoder = _decoder(model)
    config = getattr(decoder, "config", None)
    text = None if config is None else config.get_text_config()
    kinds = set(getattr(text, "layer_types", None) or ()) - set(TYPES)
    if kinds or not hasattr(decoder, "layers"):
        wrong = f"it has layers of {', '.join(sorted(kinds))}" if kinds else "it has no list `layers`"
        _refuse(f"shard({type(model).__name__})", wrong, "shard a decoder whose layers mix tokens by attention alone")
    return Ranks(decoder, group_of(group, mesh, dim, "shard"), shards)


class Ranks:
    """A model whose ranks hold sequences together. `remove()` makes it whole again."""

    def __init__(self, decoder: Any, group: Any, shards: Any) -> None:
        self.group, self.shards, self.length = group, shards, 0
        self._held: dict[int, Tensor] = {}
        self._modules = [module for layer in decoder.layers for module in layer.modules()]
        for module in self._modules:
            setattr(module, NAME, self)
        self._hooks = [
            layer.register_forward_pre_hook(self._first if i == 0 else self._later, with_kwargs=True)
            for i, layer in enumerate(decoder.layers)
        ]

    def remove(self) -> None:
        """Let each rank compute whole sequences again."""
        for hook in self._hooks:
            hook.remove()
        for module in self._modules:
            delattr(module, NAME)

    def tokens(self, length: int) -> Tensor:
        """The tokens of a sequence that this rank holds, ascending, on the CPU."""
        if length not in self._held:
            acsr = weft.causal().acsr(length)
            held = shards_of(self.shards, acsr, dist.get_world_size(self.group)).tokens[dist.get_rank(self.group)]
            self._held = {length: torch.from_numpy(held.array())}
        return self._held[length]

    def mine(self, x: Tensor, dim: int = 1) -> Tensor:
        """This rank's tokens of a tensor of all tokens."""
        return x.index_select(dim, self.tokens(x.shape[dim]).to(x.device))

    def attend(self, tensors: tuple[Tensor, Tensor, Tensor], mask: Pattern, **options: Any) -> Tensor:
        """`weft.distributed.attention` of this rank's tokens. mask: of the whole sequence."""
        if mask.extent()[0] == 1:
            mask = mask.at(0, 0)
        found = attention(*tensors, mask, group=self.group, shards=self.shards, **options)
        assert isinstance(found, Tensor)
        return found

    def seen(self, mask: Any) -> tuple[Any, int]:
        """(the mask, the tokens of the whole sequence); raises for a mask that is not of the whole sequence."""
        whole = mask is None or (isinstance(mask, Mask) and mask.slots is None)
        if not whole or (mask is not None and mask.sizes[1:] != (self.length, self.length)):
            _refuse(
                f"attention over ranks with attention_mask={mask if isinstance(mask, Mask) else type(mask).__name__}",
                f"it is no mask of the {self.length} tokens of the whole sequence",
                "pass input_ids of the whole sequence, no mask of four axes, and use_cache=False",
            )  # fmt: skip
        return mask, self.length

    # ---- hooks
    def _first(self, module: Any, args: Any, told: dict[str, Any]) -> Any:
        states = args[0] if args else told["hidden_states"]
        self.length = states.shape[1]
        states = self.mine(states)
        args, told = ((states, *args[1:]), told) if args else (args, {**told, "hidden_states": states})
        return args, self._placed(told)

    def _later(self, module: Any, args: Any, told: dict[str, Any]) -> Any:
        states = args[0] if args else told["hidden_states"]
        if states.shape[1] != len(self.tokens(self.length)):
            _refuse(
                f"{type(module).__name__} of {states.shape[1]} tokens over ranks",
                f"this rank holds {len(self.tokens(self.length))} of {self.length}",
                "shard a decoder whose layers follow each other, and nothing else",
            )  # fmt: skip
        return args, self._placed(told)

    def _placed(self, told: dict[str, Any]) -> dict[str, Any]:
        """Keywords of a layer with the positions of this rank's tokens."""
        for name in ("cache", "past_key_values", "past_key_value"):
            if told.get(name) is not None:
                _refuse(f"{name}=... over ranks", "a cache holds keys of this rank alone", "pass use_cache=False")
        return {name: self._rows(x) if name in POSITIONS else x for name, x in told.items()}

    def _rows(self, x: Any) -> Any:
        if isinstance(x, (tuple, list)):
            return type(x)(self._rows(one) for one in x)
        if isinstance(x, Tensor) and x.dim() > 1 and x.shape[1] == self.length:
            return self.mine(x)
        return x


def _decoder(model: Any) -> Any:
    """The module with the list of layers, where a model has one."""
    inner = model.get_decoder() if hasattr(model, "get_decoder") else None
    found = [x for x in (inner, getattr(model, "model", None)) if hasattr(x, "layers")]
    return found[0] if found else model


def ranks_of(module: torch.nn.Module) -> Ranks | None:
    """The ranks that hold a module's tokens together."""
    return getattr(module, NAME, None)


def _refuse(asked: str, wrong: str, cure: str) -> NoReturn:
    raise UnsupportedError(asked, wrong, cure)
