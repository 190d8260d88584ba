"""What may be passed to attention: one clear exception for each thing that may not.

Only shapes, dtypes and placements are looked at, so arrays may be traced. The rules are those of `weft.attention`.
"""

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from weft.errors import AlignmentError, InputError, OptionError, UnsupportedError
from weft.jax.mask import PlannedMask
from weft.jax.partition import check_sequence
from weft.jax.structure import Structure
from weft.pattern.algebra import Pattern
from weft.planning.problem import DTYPES, Problem
from weft.planning.scores import check_scores
from weft.target import GPUS, Gpu

ASKED = "attention(q, k, v, ...)"
LAYOUTS = {"bshd": (1, 2), "bhsd": (2, 1)}  # -> the dimensions of tokens and of heads
SHAPES = {
    "bshd": "q (B, M, Hq, D), k (B, N, Hkv, D), v (B, N, Hkv, Dv)",
    "bhsd": "q (B, Hq, M, D), k (B, Hkv, N, D), v (B, Hkv, N, Dv)",
}


class Tensors(NamedTuple):
    """q, k and v as arrays, or as shapes and dtypes."""

    q: Any
    k: Any
    v: Any


def check_layout(layout: Any) -> None:
    """layout: one of LAYOUTS."""
    if layout not in LAYOUTS:
        _option(f"layout={layout!r}", "there is no such order of dimensions", "use 'bshd' or 'bhsd'")


def as_arrays(q: Any, k: Any, v: Any, layout: str, asked: str = ASKED) -> Tensors:
    """q, k, v as JAX sees them, with a batch dimension; raises InputError for what is no array of a floating dtype."""
    found = []
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Array | np.ndarray | jax.ShapeDtypeStruct):
            _wrong(asked, f"{name} is {type(x).__name__}, not an array", "pass arrays of JAX or numpy")
        if x.dtype == jax.dtypes.float0:
            cure = "differentiate with respect to floating arrays, and drop what jax.grad gives for integers"
            _wrong(asked, f"{name} is float0, the gradient of an integer", cure)
        if not jnp.issubdtype(x.dtype, np.floating):
            _wrong(asked, f"{name} is {x.dtype}", f"use one of {', '.join(DTYPES)}")
        if x.ndim not in (3, 4):
            _wrong(asked, f"{name} has {x.ndim} dimensions", f"pass {SHAPES[layout]}, or all three without B")
        found.append(jnp.asarray(x) if isinstance(x, np.ndarray) else x)
    if len({x.ndim for x in found}) > 1:
        _wrong(asked, "some have a batch dimension and some have none", f"pass {SHAPES[layout]}")
    for x in found:
        if str(x.dtype) not in DTYPES:
            _wrong(asked, f"q, k or v is {x.dtype}", f"use one of {', '.join(DTYPES)}")
    return Tensors(*(_batched(x) for x in found))


def _batched(x: Any) -> Any:
    if x.ndim == 4:
        return x
    return jax.ShapeDtypeStruct((1, *x.shape), x.dtype) if isinstance(x, jax.ShapeDtypeStruct) else x[None]


def problem_of(tensors: Tensors, layout: str, asked: str = ASKED) -> Problem:
    """The lengths, heads and dtype of three arrays that fit together; raises InputError where they do not."""
    tokens, heads = LAYOUTS[layout]
    q, k, v = tensors
    for name, x in (("k", k), ("v", v)):
        if x.dtype != q.dtype:
            _wrong(asked, f"q is {q.dtype}, {name} is {x.dtype}", "convert q, k and v to one dtype")
        if x.shape[0] != q.shape[0]:
            _wrong(asked, f"q has {q.shape[0]} batch rows, {name} has {x.shape[0]}", "give all three one batch size")
    if k.shape[:3] != v.shape[:3]:
        _wrong(asked, f"k is {k.shape} and v is {v.shape}", "give k and v the same heads and length")
    if q.shape[3] != k.shape[3]:
        _wrong(asked, f"q has head dimension {q.shape[3]}, k has {k.shape[3]}", "give q and k one head dimension")
    q_heads, kv_heads = q.shape[heads], k.shape[heads]
    if kv_heads == 0 or q_heads % kv_heads:
        cure = f"make Hq a multiple of Hkv; in layout {layout!r} pass {SHAPES[layout]}"
        _wrong(asked, f"{q_heads} query heads cannot share {kv_heads} key heads evenly", cure)
    if q.shape[3] == 0 or v.shape[3] == 0:
        _wrong(asked, "a head dimension is 0", "pass head dimensions of 1 or more")
    return Problem(
        q.shape[0], q_heads, kv_heads, q.shape[tokens], k.shape[tokens], q.shape[3], v.shape[3], str(q.dtype)
    )


def check_placement(tensors: Tensors, layout: str) -> None:
    """Raise UnsupportedError for concrete arrays whose tokens are divided among devices; of traced ones the operator
    finds out.
    """
    for kind, x in zip(("q", "k", "k"), tensors, strict=True):
        sharding = None if isinstance(x, jax.core.Tracer) else getattr(x, "sharding", None)
        if isinstance(sharding, jax.sharding.NamedSharding):
            spec = (*sharding.spec, *[None] * (4 - len(sharding.spec)))
            divided = spec[LAYOUTS[layout][0]]
            check_sequence(kind, (None,) * (4 if kind == "q" else 3) + (divided,))


# ---- the mask --------------------------------------------------------------------------------------------------------
def check_mask(mask: Any, asked: str) -> None:
    """Raise InputError unless `mask` is a pattern or a planned one."""
    if isinstance(mask, Pattern | PlannedMask):
        return
    if isinstance(mask, jax.core.Tracer):
        wrong = "the mask is a traced array, and a mask must be known when the function is traced"
    else:
        wrong = "a mask is a weft pattern made by library functions, not an array, a function or a bare leaf"
    raise InputError(
        f"{asked}(..., mask={type(mask).__name__})",
        wrong,
        "build it from weft's patterns, e.g. weft.causal() & weft.window(left=1023); or give a boolean mask to "
        "weft.recognize(mask) outside of jax.jit and pass its .pattern",
    )


def check_like(like: Any) -> None:
    """Raise InputError unless `like` is a planned mask or None."""
    if like is not None and not isinstance(like, PlannedMask):
        raise InputError(
            f"plan(mask, ..., like={type(like).__name__})", "a plan can only be like another plan",
            "pass what weft.jax.plan gave for the first mask",
        )  # fmt: skip


def check_planned(structure: Structure, problem: Problem) -> None:
    """Raise InputError unless a planned mask is for the lengths and heads of a problem."""
    planned, have = (structure.m, structure.n), (problem.m, problem.n)
    if planned != have:
        _planned("the mask was planned for {} queries and {} keys, there are {} and {}".format(*planned, *have))
    for name, told, there in (
        ("batch rows", structure.batch, problem.batch),
        ("query heads", structure.heads, problem.q_heads),
        ("key/value heads", structure.kv_heads, problem.kv_heads),
    ):
        if told is not None and told != there:
            _planned(f"the mask was planned for {told} {name}, and there are {there}")


def _planned(wrong: str) -> NoReturn:
    cure = "plan it for these: weft.jax.plan(mask, q, k, v), or pass the pattern itself"
    raise InputError("attention(q, k, v, planned_mask)", wrong, cure)


def check_distances(structure: Structure, name: str) -> None:
    """Raise where distances between tokens have no meaning. name: the option that reads them."""
    if structure.grid and name == "alibi_slopes":
        raise UnsupportedError(
            "attention(alibi_slopes=...) under a pattern on a grid", "ALiBi has no meaning on a grid of several axes",
            "leave the slopes out, or use a pattern of one axis",
        )  # fmt: skip
    if structure.shift is None:
        raise AlignmentError(
            f"attention({name}=...) at M={structure.m}, N={structure.n}",
            "the pattern does not declare one alignment, so distances are not defined",
            'declare the same one for all parts, as .aligned("bottom-right") does where none does; where nothing '
            'relates q to k, & weft.window(left=2**31, align="bottom-right")',
        )


# ---- options ---------------------------------------------------------------------------------------------------------
def check_numbers(options: dict[str, Any]) -> None:
    """scale and softcap as `check_scores` has them; absent ones are None."""
    scale, softcap = (_number(name, options.get(name)) for name in ("scale", "softcap"))
    check_scores(scale, softcap)


def _number(name: str, value: Any) -> Any:
    if isinstance(value, Array):
        traced = isinstance(value, jax.core.Tracer)
        raise UnsupportedError(
            f"attention({name}={'a traced array' if traced else 'an array'})",
            f"{name} is compiled into the program, and no gradient would reach the array",
            f"pass {name} as a number of Python's (static_argnames={name!r} under jax.jit), or multiply q by the array",
        )
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        cure = f"pass float({name})" if hasattr(value, "__float__") else "pass a float"
        _option(f"{name}={value!r}", f"{name} is {type(value).__name__}, not a number of Python's", cure)
    return value


def target_of(target: Any) -> Gpu | None:
    """The card of that name, or as given; raises OptionError for what is neither."""
    if target is None or isinstance(target, Gpu):
        return target
    if not isinstance(target, str) or target not in GPUS:
        cure = f"pass one of {', '.join(map(repr, GPUS))}, or a Gpu of your own"
        _option(f"target={target!r}", "there is no such card", cure)
    return GPUS[target]


def check_rows(options: dict[str, Any], heads: int) -> None:
    """sinks and alibi_slopes: (heads,) of real numbers, or None."""
    for name in ("sinks", "alibi_slopes"):
        x = options.get(name)
        if x is None:
            continue
        if not isinstance(x, Array | np.ndarray):
            _option(f"{name}={type(x).__name__}", "it is no array", f"pass {name} as an array of shape ({heads},)")
        if x.shape != (heads,):
            _option(f"{name}={x.shape}", f"there are {heads} query heads", f"pass {name} of shape ({heads},)")
        if x.dtype == jax.dtypes.float0 or not (
            jnp.issubdtype(x.dtype, np.floating) or jnp.issubdtype(x.dtype, np.integer)
        ):
            _option(f"{name} of {x.dtype}", "scores are real", f"pass {name} as real numbers")


def check_flags(options: dict[str, Any]) -> None:
    """deterministic: True, False or None; return_lse: True or False. Both decide what is compiled."""
    for name, words in (("deterministic", "neither True, False nor None"), ("return_lse", "neither True nor False")):
        value = options.get(name)
        if isinstance(value, jax.core.Tracer):
            cure = f"pass it as it is, or static_argnames={name!r} to jax.jit"
            _option(f"{name}=a traced array", "it decides what is compiled, so it must be known before", cure)
        if not isinstance(value, bool) and not (value is None and name == "deterministic"):
            _option(f"{name}={value!r}", f"it is {words}", "pass one of them")


def _wrong(asked: str, wrong: str, cure: str) -> NoReturn:
    raise InputError(asked, wrong, cure)


def _option(asked: str, wrong: str, cure: str) -> NoReturn:
    raise OptionError(f"attention({asked})", wrong, cure)
