"""What every refusal of weft must say, held against what was raised."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from weft.errors import WeftError

PARTS = ("asked", "wrong", "cure")
# Modules behind the public face and their files: nothing that whoever reads the message could act on. Names in capitals
# are classes that users write, as weft.torch.SparseAttention; so are the functions of weft.jax and weft.bias.
OF_JAX = r"jax\.(?:attention|plan|dot_product_attention|distributed_attention)"
OVER_RANKS = r"distributed\.(?:attention|decode_attention|plan)"
PUBLIC = rf"(?!bias\.(?:relative|buckets|grid|dense|alibi)\b|{OF_JAX}\b|{OVER_RANKS}\b)"
INSIDE = re.compile(rf"\bweft\.{PUBLIC}\w+\.[a-z_]\w*|\w+\.py\b|src/weft|object at 0x")


def refused(call: Callable[[], Any], error: type[WeftError], words: Iterable[str] = ()) -> Any:
    """What `call` raises: `error`, in three different parts, all the words among them, nothing of weft's inside."""
    try:
        call()
    except error as raised:
        found = raised
    else:
        raise AssertionError(f"{error.__name__} was not raised")
    parts = [getattr(found, part) for part in PARTS]
    for part, text in zip(PARTS, parts, strict=True):
        assert isinstance(text, str) and text.strip(), f"{part} is empty"
        assert text.strip() in str(found), f"str() leaves out {part}"
    assert len({text.strip().lower() for text in parts}) == len(PARTS), f"two parts are the same:\n{found}"
    for word in words:
        assert word.lower() in str(found).lower(), f"{word!r} is not in:\n{found}"
    inside = INSIDE.search(str(found))
    assert inside is None, f"{inside[0]!r} is weft's inside:\n{found}"
    return found


def refuse(call: Callable[[], Any], error: type[WeftError], words: Iterable[str] = ()) -> Any:
    """As `refused`, for messages of one line a part."""
    found = refused(call, error, words)
    assert len(str(found).splitlines()) == len(PARTS), f"not three lines:\n{found}"
    return found
