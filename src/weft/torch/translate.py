"""What callers hold, as one call takes it: other layouts, masks that are no patterns, keys that every query sees."""

from __future__ import annotations

import sys
from typing import Any

from torch import Tensor
from torch.fx import Proxy

from weft.errors import InputError
from weft.pattern.algebra import Pattern
from weft.pattern.library import full
from weft.torch.call import attend, unwrapped
from weft.torch.eager import PLAIN
from weft.torch.extras import extras_of
from weft.torch.frameworks import leaf
from weft.torch.inputs import check_kind, check_tensors
from weft.torch.layouts import View, on_grid_of, tokens_viewed, viewed
from weft.torch.masks import pattern_of
from weft.torch.merging import merge

FULL = full()
EXTRA = ("extra_keys", "extra_values")


def attention(tensors: Any, mask: Any, options: dict[str, Any]) -> Tensor | tuple[Tensor, Tensor]:
    """`weft.attention` of anything that it takes. tensors: q, k, v. options: all its keywords by name."""
    q, k, v = tensors
    if type(q) not in PLAIN or type(k) not in PLAIN or type(v) not in PLAIN:
        if isinstance(q, Proxy):
            return _leaf(tensors, mask, options)
        if any(map(_is_dtensor, tensors)):
            from weft.torch.distributed import dtensors  # it imports torch.distributed.tensor, which takes a second

            return dtensors.attention(tensors, unwrapped(mask), options)
        for name, x in zip("qkv", tensors, strict=True):
            if isinstance(x, Tensor):
                check_kind(name, x)
    view = viewed(tensors, options["layout"])
    extra = extra_of(options, view)
    if not isinstance(mask, Pattern):
        mask = pattern_of(mask, sizes_of(*view.tensors))
    if view.grid:
        mask = on_grid_of(mask, view)
    extras, slopes = extras_of(options, *view.tensors[:2])
    rows = options["sinks"], slopes
    given = options["scale"], options["softcap"], options["dropout"], options["backend"], options["deterministic"]
    return_lse = options["return_lse"]
    out, lse = attend(view.tensors, mask, rows, given, return_lse or extra is not None, extras)
    if extra is not None:
        more, more_lse = attend((view.tensors[0], *extra), FULL, (None, None), given, True)
        out, lse = merge([out, more], [lse, more_lse])
    if return_lse:
        return view.back(out), view.back(lse)
    return view.back(out)


def _is_dtensor(x: Any) -> bool:
    module = sys.modules.get("torch.distributed.tensor")  # whoever has such a tensor has imported it
    return module is not None and isinstance(x, module.DTensor)


def _leaf(tensors: Any, mask: Any, options: dict[str, Any]) -> Any:
    """A call as a node of the graph that torch.fx traces."""
    from weft.torch.attention import attention as public

    mask = unwrapped(mask)
    if not isinstance(mask, (Pattern, Tensor, Proxy)):
        raise InputError(
            f"attention(..., mask={type(mask).__name__}) while torch.fx traces", "a graph cannot hold such a mask",
            "write pattern = weft.recognize(mask).pattern outside of it, and pass the pattern",
        )  # fmt: skip
    defaults = public.__kwdefaults__ or {}
    given = {name: x for name, x in options.items() if x is not defaults[name]}
    return leaf(public, (*tensors, mask), given)


def sizes_of(q: Tensor, k: Tensor, v: Tensor) -> tuple[int, int, int, int]:
    """(B, Hq, M, N) of q and k, (B, H, S, D)."""
    if type(q) not in PLAIN or type(k) not in PLAIN or k.dim() != 4:
        check_tensors(q, k, v)
    batch, heads, m, _ = q.shape
    return batch, heads, m, k.shape[2]


def extra_of(options: dict[str, Any], view: View) -> tuple[Tensor, Tensor] | None:
    """extra_keys and extra_values as (B, Hkv, E, D) and (B, Hkv, E, Dv); None where there are none."""
    if options["extra_keys"] is None and options["extra_values"] is None:
        return None
    given = [name for name in EXTRA if options[name] is not None]
    if len(given) == 1:
        missing = EXTRA[given[0] == "extra_keys"]
        _wrong(f"{given[0]}=...", f"{missing} is missing", "pass both of them, with as many tokens, or neither")
    keys, values = (tokens_viewed(options[name], view.layout, name) for name in EXTRA)
    _, k, v = view.tensors
    for name, x, like, of in (("extra_keys", keys, "k", k), ("extra_values", values, "v", v)):
        for what, axis in (("batch rows", 0), ("heads", 1), ("numbers a head", 3)):
            if x.shape[axis] != of.shape[axis]:
                said = f"it has {x.shape[axis]} {what}, {like} has {of.shape[axis]}"
                _wrong(f"{name}=...", said, f"give {name} the batch rows, heads and head dimension of {like}")
        if (x.dtype, x.device) != (of.dtype, of.device):
            said = f"it is {x.dtype} on {x.device}, {like} is {of.dtype} on {of.device}"
            _wrong(f"{name}=...", said, f"pass {name}.to({like})")
    if keys.shape[2] != values.shape[2]:
        said = f"there are {keys.shape[2]} keys and {values.shape[2]} values"
        _wrong("extra_keys=..., extra_values=...", said, "pass one value for each key")
    return (keys, values) if keys.shape[2] else None


def _wrong(asked: str, wrong: str, cure: str) -> None:
    raise InputError(f"attention(..., {asked})", wrong, cure)
