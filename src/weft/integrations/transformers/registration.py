"""`register`: the name under which transformers finds weft."""

from __future__ import annotations

import re

from transformers import AttentionInterface, AttentionMaskInterface

from weft.errors import OptionError
from weft.integrations.transformers.bypass import watch
from weft.integrations.transformers.forward import forward
from weft.integrations.transformers.masks import mask

NAME = re.compile(r"[a-z0-9_-]+")


def register(name: str = "weft") -> str:
    """Make `attn_implementation=name` known to transformers, in this process, and return the name.

    Registering twice changes nothing. A model takes the name when it is made, or afterwards by
    `model.set_attn_implementation(name)`. A model whose attention does not go through transformers' interface refuses
    the name by an UnsupportedError. Raises OptionError for a name that transformers reads otherwise. Example::

        register()
        model.set_attn_implementation("weft")
    """
    if not isinstance(name, str) or not NAME.fullmatch(name) or "flash" in name or name in ("eager", "sdpa"):
        raise OptionError(
            f"register(name={name!r})", "transformers gives such a name another meaning, or none",
            'pass lower-case letters, digits, "_" and "-", without the word flash, e.g. register("weft")',
        )  # fmt: skip
    AttentionInterface.register(name, forward)
    AttentionMaskInterface.register(name, mask)
    watch(name)
    return name
