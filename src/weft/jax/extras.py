"""Score functions, biases, dropout and extra keys as callers give them, checked: `Extras`."""

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from weft import bias as biases
from weft.errors import InputError, OptionError, UnsupportedError
from weft.jax.reads import check_reads
from weft.pattern.algebra import Pattern
from weft.planning.problem import Problem
from weft.score import Score
from weft.score.tracer import traced
from weft.score.value import composed

KINDS = {"real": "a floating dtype", "int": "integers", "bool": "booleans"}
EXTRA = ("extra_keys", "extra_values")
SEED = "pass an int, a key of jax.random, or one integer in an array"


class Extras(NamedTuple):
    """What follows scale and softcap. score: functions as text, "" for none; tables: what they read, as given, those
    without axes as one entry. dropout: a share; seed: its low and its high 32 bits, (2,) uint32.
    """

    score: str = ""
    tables: tuple[Array, ...] = ()
    dropout: float = 0.0
    seed: Array | None = None

    @property
    def shifted(self) -> bool:
        """Whether distances between aligned tokens are read."""
        return bool(self.score) and "shift" in composed(self.score).leaves

    def with_slopes(self, slopes: Any) -> Extras:
        """These, then ALiBi."""
        if slopes is None:
            return self
        return self._with(biases.alibi(jnp.asarray(slopes, float)))

    def _with(self, more: Score) -> Extras:
        made = Score(self.score, self.tables) + more if self.score else more
        return self._replace(score=made.text, tables=tuple(map(_with_axes, made.tables)))


def extras_of(options: dict[str, Any], problem: Problem, mask: Any) -> Extras:
    """score, bias, dropout and seed of a call, checked. mask: a pattern, or a planned one."""
    found = Extras()
    for one in (options["score"] and _score(options["score"]), _bias(options["bias"])):
        if one is not None:
            _check(one, problem)
            found = found._with(one)
    if found.score:
        check_reads(found.score, found.tables, problem, mask if isinstance(mask, Pattern) else None)
    rate = _rate(options["dropout"])
    if not rate:
        return found
    return found._replace(dropout=rate, seed=seed_of(options["seed"]))


def _with_axes(table: Any) -> Array:
    table = jnp.asarray(table)
    if jnp.issubdtype(table.dtype, jnp.bool_):
        table = table.astype(jnp.int32)
    return table if table.ndim else table[None]


# ---- score functions -------------------------------------------------------------------------------------------------
def _score(score: Any) -> Score:
    if isinstance(score, Score):
        return score
    if not callable(score) or isinstance(score, type):
        _refuse(f"score={type(score).__name__}", "it is no function", "pass a function of (score, b, h, q, k)")
    return traced(score, lambda x: isinstance(x, Array | np.ndarray))[0]


def _bias(bias: Any) -> Score | None:
    if bias is None or isinstance(bias, Score):
        return bias
    if isinstance(bias, Array | np.ndarray):
        if not jnp.issubdtype(bias.dtype, np.floating):
            cure = "pass booleans as mask, recognised by weft.recognize" if bias.dtype == bool else "pass bias * 1.0"
            _refuse(f"bias={bias.dtype}", "a bias is added to scores, and is of a floating dtype", cure)
        return biases.dense(bias)
    cure = "pass an array (B, Hq, M, N), or what weft.bias makes, e.g. weft.bias.relative(table)"
    _refuse(f"bias={type(bias).__name__}", "it is neither an array nor one of weft.bias", cure)


def _check(score: Score, problem: Problem) -> None:
    sizes = problem.batch, problem.q_heads, problem.m, problem.n
    for part in score.parts:
        kinds = [kind for one in part.expressions for kind in one.tables]
        for table, kind in zip(part.tables, kinds, strict=True):
            _check_table(part, table, kind)
        if part.tokens is not None and sizes[2:] != (part.tokens, part.tokens):
            wrong = f"its grid has {part.tokens} tokens, there are {sizes[2]} queries and {sizes[3]} keys"
            _refuse(part.name, wrong, "pass the shape of the grid that q and k are of")
        if part.dense:
            shape, wanted = part.tables[0].shape, sizes[4 - part.tables[0].ndim :]
            if any(length not in (1, size) for length, size in zip(shape, wanted, strict=True)):
                cure = f"pass a bias of shape {wanted}, or with axes of 1"
                _refuse(f"bias={shape}", f"there are (B, Hq, M, N) = {sizes}", cure)


def _check_table(part: Score, table: Any, kind: str) -> None:
    if not isinstance(table, Array | np.ndarray):
        wrong = f"its table is a {type(table).__module__}.{type(table).__name__}, no array"
        _refuse(part.name, wrong, "pass arrays of JAX or numpy")
    found = "bool" if table.dtype == bool else "int" if jnp.issubdtype(table.dtype, np.integer) else "real"
    if found != kind or (kind == "real" and not jnp.issubdtype(table.dtype, np.floating)):
        _refuse(f"{part.name} with {table.dtype}", f"its table is read as {KINDS[kind]}", "convert the table")


# ---- dropout ---------------------------------------------------------------------------------------------------------
def _rate(dropout: Any) -> float:
    if isinstance(dropout, bool) or not isinstance(dropout, int | float):
        cure = "pass a float from 0 on, below 1; under jax.jit as static_argnames='dropout'"
        _refuse(f"dropout={type(dropout).__name__}", "a rate is a number of Python's", cure)
    if not 0 <= dropout < 1:  # false for nan
        _refuse(f"dropout={dropout}", "a rate is at least 0 and below 1", "pass the share of weights to drop, e.g. 0.1")
    return float(dropout)


def seed_of(seed: Any) -> Array:
    """The low and the high 32 bits of a seed, (2,) uint32. A key of jax.random gives 64 bits that follow from it."""
    if seed is None:
        _refuse("dropout=..., seed=None", "JAX has no generator of its own to draw a seed from", SEED)
    if isinstance(seed, Array) and _is_key(seed):
        if seed.size != (1 if jnp.issubdtype(seed.dtype, jax.dtypes.prng_key) else 2):
            _refuse(f"seed={seed.shape} keys", "one key drops for the whole call", "pass one key")
        return jax.random.bits(seed.reshape(()) if seed.size == 1 else seed, (2,), jnp.uint32)
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer | np.ndarray | Array):
        _refuse(f"seed={type(seed).__name__}", "a seed is an integer or a key", SEED)
    if isinstance(seed, int | np.integer):
        if not -(2**63) <= seed < 2**64:
            _refuse(f"seed={seed}", "a seed has 64 bits", "pass an int below 2**64")
        bits = int(seed) & (2**64 - 1)
        return jnp.asarray(np.array([bits & 0xFFFFFFFF, bits >> 32], np.uint32))
    if seed.size != 1 or not jnp.issubdtype(seed.dtype, np.integer):
        _refuse(f"seed={seed.dtype} of shape {seed.shape}", "it is neither one integer nor a key", SEED)
    if isinstance(seed, np.ndarray):
        return seed_of(int(seed.item()))
    one = seed.reshape(())
    if one.dtype.itemsize == 8:
        return jnp.stack([one.astype(jnp.uint32), (one >> 32).astype(jnp.uint32)])
    return jnp.stack([one.astype(jnp.uint32), jnp.where(one < 0, jnp.uint32(0xFFFFFFFF), jnp.uint32(0))])


def _is_key(x: Array) -> bool:
    """Whether an array is a key of jax.random, of its own dtype or as two raw numbers."""
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key) or (x.dtype == jnp.uint32 and x.shape == (2,))


# ---- extra keys ------------------------------------------------------------------------------------------------------
def extra_of(options: dict[str, Any], k: Any, v: Any, layout: str) -> tuple[Any, Any] | None:
    """extra_keys and extra_values, checked against k and v; None where there are none."""
    given = [name for name in EXTRA if options[name] is not None]
    if not given:
        return None
    if len(given) == 1:
        missing = EXTRA[given[0] == "extra_keys"]
        _wrong(f"{given[0]}=...", f"{missing} is missing", "pass both of them, with as many tokens, or neither")
    if options["score"] is not None or options["bias"] is not None or options["dropout"]:
        raise UnsupportedError(
            "attention(extra_keys=...) with score, bias or dropout", "extra keys have no index that these could read",
            "concatenate them to k and v, and shift the pattern: mask.shift(k=E) | weft.prefix(E)",
        )  # fmt: skip
    tokens = 1 if layout == "bshd" else 2
    found = []
    for name, like, of in zip(EXTRA, ("k", "v"), (k, v), strict=True):
        x = options[name]
        if not isinstance(x, Array | np.ndarray):
            _wrong(f"{name}={type(x).__name__}", "it is no array", "pass an array")
        x = jnp.asarray(x)
        x = x[None] if x.ndim == 3 else x
        same = x.ndim == 4 and all(a == b for axis, (a, b) in enumerate(zip(x.shape, of.shape, strict=True))
                                   if axis != tokens)  # fmt: skip
        if not same or x.dtype != of.dtype:
            said = f"it is {x.dtype} of shape {x.shape}, {like} is {of.dtype} of shape {of.shape}"
            _wrong(f"{name}=...", said, f"give {name} the dtype, batch rows, heads and head dimension of {like}")
        found.append(x)
    if found[0].shape[tokens] != found[1].shape[tokens]:
        said = f"there are {found[0].shape[tokens]} keys and {found[1].shape[tokens]} values"
        _wrong("extra_keys=..., extra_values=...", said, "pass one value for each key")
    return (found[0], found[1]) if found[0].shape[tokens] else None


def _refuse(asked: str, wrong: str, cure: str) -> NoReturn:
    raise OptionError(f"attention({asked})", wrong, cure)


def _wrong(asked: str, wrong: str, cure: str) -> NoReturn:
    raise InputError(f"attention(..., {asked})", wrong, cure)
