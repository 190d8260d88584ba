"""Score functions, biases and dropout as callers give them, checked and made one: `Extras`."""

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn

import torch
from torch import SymFloat, SymInt, Tensor
from torch.compiler import is_compiling

from weft import bias as biases
from weft.errors import OptionError, UnsupportedError
from weft.score import Score
from weft.torch.inputs import is_dense

KINDS = {"real": "a floating dtype", "int": "integers", "bool": "booleans"}
OUTSIDE = "write score = weft.trace_score(f) outside of it, and pass score=score"


class Extras(NamedTuple):
    """What follows scale and softcap, as the operators take it: see `weft.torch.operator.Options`."""

    score: str
    tables: tuple[Tensor, ...]
    dropout: float
    seed: Tensor | None


def extras_of(options: dict[str, Any], q: Tensor, k: Tensor) -> tuple[Extras | None, Tensor | None]:
    """(score, bias, dropout and seed of a call on q and k (B, H, S, D), checked; alibi_slopes still to be passed).

    None where none of them is given. Slopes with a gradient become a bias. Draws the seed, if none is given.
    """
    slopes, drop = options["alibi_slopes"], options["dropout"]
    learned = isinstance(slopes, Tensor) and slopes.requires_grad and torch.is_grad_enabled()
    if options["score"] is None and options["bias"] is None and not learned and _is_off(drop):
        return None, slopes
    score = score_of(options, slopes if learned else None)
    if score is not None:
        _check(score, q)
        check_sizes(score, (*q.shape[:3], k.shape[2]))
    _check_alone(options)
    dropout = check_rate(drop)
    seed = seed_tensor(options["seed"], q) if dropout else None
    text, tables = ("", ()) if score is None else (score.text, score.tables)
    return Extras(text, tuple(tables), dropout, seed), None if learned else slopes


def _is_off(dropout: Any) -> bool:
    return isinstance(dropout, (int, float, SymInt, SymFloat)) and not isinstance(dropout, bool) and dropout == 0


def score_of(options: dict[str, Any], slopes: Tensor | None) -> Score | None:
    """The score function, then the bias, then slopes."""
    given = [
        None if options["score"] is None else _score(options["score"]),
        None if options["bias"] is None else _bias(options["bias"]),
        None if slopes is None else biases.alibi(slopes),
    ]
    made = None
    for one in given:
        if one is not None:
            made = one if made is None else made + one
    return made


def _score(score: Any) -> Score:
    if isinstance(score, Score):
        return score
    if not callable(score) or isinstance(score, (type, torch.nn.Module)):
        _refuse(f"score={type(score).__name__}", "it is no function", "pass a function of (score, b, h, q, k)")
    if is_compiling():
        _refuse("score=a function) inside a compiled function", "a graph cannot read what a function does", OUTSIDE)
    from weft.torch.tracing import score_of

    return score_of(score)


def _bias(bias: Any) -> Score:
    if isinstance(bias, Score):
        return bias
    if isinstance(bias, Tensor):
        if not bias.is_floating_point():
            cure = "pass booleans as mask=" if bias.dtype is torch.bool else "pass bias.float()"
            _refuse(f"bias={bias.dtype}", "a bias is added to scores, and is of a floating dtype", cure)
        return biases.dense(bias)
    cure = "pass a tensor (B, Hq, M, N), or what weft.bias makes, e.g. weft.bias.relative(table)"
    _refuse(f"bias={type(bias).__name__}", "it is neither a tensor nor one of weft.bias", cure)


# ---- checks ----------------------------------------------------------------------------------------------------------
def _check(score: Score, q: Tensor) -> None:
    for part in score.parts:
        kinds = [kind for one in part.expressions for kind in one.tables] if not is_compiling() else ()
        for number, table in enumerate(part.tables):
            _check_table(part, table, q)
            if kinds:
                _check_kind(part, table, kinds[number])


def _check_table(part: Score, table: Any, q: Tensor) -> None:
    if not isinstance(table, Tensor):
        _refuse(f"{part.name} with a {type(table).__name__}", "its table is no tensor of torch", "pass tensors")
    if not is_dense(table):
        _refuse(
            f"{part.name} with {table.layout}", "its table does not lie in memory by strides", "pass a dense tensor"
        )
    if table.device != q.device:
        _refuse(
            f"{part.name} on {table.device}",
            f"q is on {q.device}",
            f"move its table there: table.to({str(q.device)!r})",
        )


def _check_kind(part: Score, table: Tensor, kind: str) -> None:
    found = "real" if table.is_floating_point() else "bool" if table.dtype is torch.bool else "int"
    if table.is_complex() or found != kind:
        _refuse(
            f"{part.name} with {table.dtype}", f"its table is read as {KINDS[kind]}", f"pass a table of {KINDS[kind]}"
        )


def check_sizes(score: Score, sizes: tuple[int, int, int, int]) -> None:
    """Raise OptionError for a dense bias or a grid that does not fit (B, Hq, M, N)."""
    for part in score.parts:
        if part.tokens is not None and sizes[2:] != (part.tokens, part.tokens):
            wrong = f"its grid has {part.tokens} tokens, there are {sizes[2]} queries and {sizes[3]} keys"
            _refuse(part.name, wrong, "pass the shape of the grid that q and k are of")
        if part.dense:
            shape, wanted = tuple(part.tables[0].shape), sizes[4 - part.tables[0].dim() :]
            if any(length not in (1, size) for length, size in zip(shape, wanted, strict=True)):
                _refuse(
                    f"bias={shape}",
                    f"there are (B, Hq, M, N) = {sizes}",
                    f"pass a bias of shape {wanted}, or with axes of 1",
                )


def _check_alone(options: dict[str, Any]) -> None:
    if options["extra_keys"] is not None or options["extra_values"] is not None:
        raise UnsupportedError(
            "attention(extra_keys=...) with score, bias or dropout", "extra keys have no index that these could read",
            "concatenate them to k and v, and shift the pattern: mask.shift(k=E) | weft.prefix(E)",
        )  # fmt: skip


def check_rate(dropout: Any) -> Any:
    """The share of weights to drop as a float; raises OptionError outside of [0, 1)."""
    if isinstance(dropout, (Tensor, bool)) or not isinstance(dropout, (int, float, SymInt, SymFloat)):
        _refuse(
            f"dropout={type(dropout).__name__}", "a rate is a number of Python's", "pass a float from 0 on, below 1"
        )
    if not 0 <= dropout < 1:  # false for nan
        _refuse(f"dropout={dropout}", "a rate is at least 0 and below 1", "pass the share of weights to drop, e.g. 0.1")
    return dropout * 1.0


def seed_tensor(seed: Any, q: Tensor) -> Tensor:
    """One int64 number in a tensor on q's device; drawn if none is given."""
    if seed is None:
        return torch.randint(-(2**63), 2**63 - 1, (1,), dtype=torch.int64, device=q.device)
    if isinstance(seed, Tensor):
        if seed.dtype is not torch.int64 or seed.numel() != 1 or seed.device != q.device:
            wrong = f"it is {seed.dtype} of shape {tuple(seed.shape)} on {seed.device}"
            _refuse("seed=tensor", wrong, f"pass an int, or one int64 number on {q.device}")
        return seed.reshape(1)
    if isinstance(seed, bool) or not isinstance(seed, int):
        _refuse(f"seed={type(seed).__name__}", "a seed is an integer", "pass an int, or one int64 number in a tensor")
    if not -(2**63) <= seed < 2**64:
        _refuse(f"seed={seed}", "a seed has 64 bits", "pass an int below 2**64")
    seed = seed - 2**64 if seed >= 2**63 else seed
    return torch.full((1,), seed, dtype=torch.int64, device=q.device)


def _refuse(asked: str, wrong: str, cure: str) -> NoReturn:
    raise OptionError(f"attention({asked})", wrong, cure)
