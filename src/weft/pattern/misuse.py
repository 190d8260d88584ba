"""What is said of calls that the library does not take: words of other libraries, and operands that are no patterns."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, NoReturn

from weft.errors import ArgumentError

_AXIS = "write weft.neighborhood({first}, {value}), whose argument is called size"
_CAUSAL = "join the two: weft.causal() & weft.{function}(...)"
_WIDTHS = ("size", "window", "width", "window_size", "sliding_window")  # for weft.window: one number for both sides
# (function, word of others) -> what to write; {value} is what was passed.
WORDS = {
    ("window", "causal"): _CAUSAL,
    ("window", "is_causal"): _CAUSAL,
    ("window", "dilation"): "write weft.dilated(left, right, step={value})",
    **dict.fromkeys([("neighborhood", word) for word in ("kernel_size", "kernel", "window", "window_size")], _AXIS),
    ("neighborhood", "is_causal"): "pass causal={value}",
    ("longformer", "window_size"): "pass window={value}, which counts both sides together",
    ("longformer", "attention_window"): "pass window={value}, which counts both sides together",
    ("longformer", "causal"): _CAUSAL,
    ("bigbird", "block_size"): "pass block={value}",
    ("bigbird", "num_random_blocks"): "pass random={value}",
    ("chunks", "chunk_size"): "pass size={value}",
    ("documents", "document_ids"): "pass ids={value}",
    ("documents", "seqlens"): "pass lengths={value}",
    ("causal", "window"): "write weft.causal() & weft.window(left={value})",
}


def refused(
    name: str, function: inspect.Signature, wrong: str, args: tuple[Any, ...], given: Mapping[str, Any]
) -> NoReturn:
    """Say why a library function cannot be called so: the first unknown word, or what Python finds wrong."""
    form = f"weft.{name}{_without_types(function)}"
    asked = f"{name}({', '.join([*map(_brief, args), *(f'{key}={_brief(value)}' for key, value in given.items())])})"
    for word, value in given.items():
        if word not in function.parameters:
            raise ArgumentError(asked, f"it takes no argument {word}", _cure(name, word, value, args, form)) from None
    raise ArgumentError(asked, wrong, f"write {form}") from None


def _cure(name: str, word: str, value: Any, args: tuple[Any, ...], form: str) -> str:
    if name == "window" and word in _WIDTHS:
        return _sides(value)
    if (name, word) in WORDS:
        first = _brief(args[0]) if args else "shape"
        return WORDS[name, word].format(function=name, value=_brief(value), first=first)
    from difflib import get_close_matches  # for this message alone

    near = get_close_matches(word, _names(form), n=1)
    return f"pass {near[0]}={_brief(value)}, as in {form}" if near else f"write {form}"


def _sides(width: Any) -> str:
    """Windows that one number, or a pair, may mean."""
    if isinstance(width, (tuple, list)) and len(width) == 2:
        return f"write weft.window({', '.join(_side(one) for one in width)})"
    if not isinstance(width, int) or width < 1:
        return "write weft.window(left, right), which count keys before and after the query's own"
    return (
        f"write weft.causal() & weft.window(left={width - 1}) for {width} keys up to the query's own, or "
        f"weft.window({width // 2}, {width // 2}) for {width // 2} either side of it"
    )


def _side(count: Any) -> str:
    """One side of FlashAttention's window_size, where -1 is no limit."""
    return "None" if count is None or count == -1 else str(count)


def two_sides(pair: tuple[int | None, int | None]) -> NoReturn:
    """Say why `window((left, right))` cannot be."""
    both = ", ".join(map(str, pair))
    wrong = "left and right are two arguments, and one pair is given"
    raise ArgumentError(f"window(({both}))", wrong, _sides(pair))


def _names(form: str) -> list[str]:
    """The arguments of a form."""
    inside = form.partition("(")[2].rpartition(")")[0]
    return [part.partition("=")[0].strip(" *") for part in inside.split(",")]


def _without_types(function: inspect.Signature) -> str:
    parameters = [one.replace(annotation=inspect.Parameter.empty) for one in function.parameters.values()]
    return str(inspect.Signature(parameters))


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 and "\n" not in text else f"{type(value).__name__}(...)"


def not_a_pattern(left: object, operator: str, other: object) -> Any:
    """Refuse `left & other` or `left | other`, where `other` is no pattern: mostly a mask that should be recognised.

    NotImplemented where `other` joins patterns by itself, as what a compiled function made does.
    """
    if hasattr(other, "structure"):
        return NotImplemented
    kind, joined = type(other).__name__, f"{left} {'&' if operator == 'and_' else '|'}"
    if hasattr(other, "pattern"):
        cure = f"join its pattern: {joined} found.pattern"
    elif callable(other) or hasattr(other, "shape"):
        cure = f"recognise it first: {joined} weft.recognize(mask).pattern"
    else:
        cure = f"join a pattern: {joined} weft.window(left=1023)"
    raise ArgumentError(f"{joined} {kind}", f"only patterns are joined, and {kind} is none", cure)
