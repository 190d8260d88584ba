"""Models whose attention does not go through transformers' interface are refused when they are told to take weft."""

from __future__ import annotations

import inspect
import re
import sys
from functools import cache, wraps
from typing import Any

from transformers import PreTrainedModel

from weft.errors import UnsupportedError

ATTENTION = re.compile(r"^class (\w*Attention\w*)\((?:nn\.|torch\.nn\.)?Module\):", re.MULTILINE)
INTERFACE = ("ALL_ATTENTION_FUNCTIONS", "AttentionInterface")
METHODS = {
    "get_correct_attn_implementation": "requested_attention",
    "set_attn_implementation": "attn_implementation",
}
BLOCKS = "isinstance(attention_mask, BlockMask)"  # Doge adds masks to its own, except such
_names: set[str] = set()


def watch(name: str) -> None:
    """Refuse `attn_implementation=name` from now on where a model's source shows that nothing would read it.

    transformers accepts any name for such models, and computes what they did before. So this asks where transformers
    checks a name, and where it sets one in a model that is there; both methods are wrapped once.
    """
    if not _names:
        for method, argument in METHODS.items():
            setattr(PreTrainedModel, method, _checked(getattr(PreTrainedModel, method), argument))
    _names.add(name)


def _checked(asked: Any, argument: str) -> Any:
    """A method that refuses; argument: what it calls the name."""

    @wraps(asked)
    def checked(self: Any, *args: Any, **options: Any) -> Any:
        kind: Any = type(self)
        name = args[0] if args else options.get(argument)
        layer = past_interface(kind) if isinstance(name, str) and name in _names else None
        if layer is not None:
            raise UnsupportedError(
                f"attn_implementation={name!r} in {kind.__name__}",
                f"its {layer} does not go through transformers' attention interface, or not with masks",
                'load it with attn_implementation="eager"; weft.integrations.transformers.swap(model) knows some of '
                "these models",
            )
        return asked(self, *args, **options)

    return checked


@cache
def past_interface(kind: Any) -> str | None:
    """A class of attention in the module of a model. None if its source names the interface, and takes masks that are a
    BlockMask, as weft's are.
    """
    try:
        source = inspect.getsource(sys.modules[kind.__module__])
    except (KeyError, OSError, TypeError):  # its source is not there to be read
        return None
    found = ATTENTION.search(source)
    through = any(word in source for word in INTERFACE) and BLOCKS not in source
    return found.group(1) if found and not through else None
