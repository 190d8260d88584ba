"""`weft.jax.attention` and `weft.jax.plan`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from weft.jax import implementations
from weft.jax.forward import accumulate
from weft.jax.inputs import (
    as_arrays,
    check_alibi,
    check_flags,
    check_layout,
    check_like,
    check_mask,
    check_numbers,
    check_placement,
    check_planned,
    check_rows,
    problem_of,
)
from weft.jax.mask import PlannedMask
from weft.jax.operator import Call
from weft.jax.scores import Scoring
from weft.pattern.algebra import Pattern
from weft.planning.problem import Problem


def attention(  # noqa: PLR0913 - the public face; every option by name
    q: Any,
    k: Any,
    v: Any,
    mask: Pattern | PlannedMask,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Any = None,
    alibi_slopes: Any = None,
    return_lse: bool = False,
    layout: str = "bshd",
    implementation: str | Sequence[str] | None = None,
    deterministic: bool | None = None,
    dropout: float = 0.0,
) -> Any:
    """Attention of q over the keys that `mask` lets each query see, at a cost that follows the live pairs.

    layout "bshd", jax.nn's: q (B, M, Hq, D), k (B, N, Hkv, D), v (B, N, Hkv, Dv); "bhsd": heads before tokens. B may be
    left out of all three. One dtype of float64, float32, bfloat16, float16; Hq is a multiple of Hkv, and query head h
    uses key head h // (Hq // Hkv). Returns out in q's layout and dtype; with return_lse also lse, (B, M, Hq) or (B, Hq,
    M), the natural logarithm of the sum of exponentiated scores, in float32 (float64 for float64). A query without
    keys gives out 0, lse -inf and zero gradients.

    The score of a pair is scale * (q . k), scale defaulting to D ** -0.5; then softcap * tanh(score / softcap); then,
    with alibi_slopes (Hq,), minus slope * |q - k| on aligned token indices. sinks (Hq,) are logits that join every
    row's sum and have no value; lse includes them. Reverse-mode gradients flow to q, k, v and sinks, and from lse;
    they are deterministic whatever `deterministic` says. Works under jit, grad, vmap, scan, checkpoint and shard_map.

    implementation: None, or the name of one, or several names, of which the first that can is used. "triton": weft's
    kernels on NVIDIA GPUs; "xla": blocks of jax.numpy anywhere; "cpu": the same, on CPUs alone. None: "triton" on a
    GPU, else "xla". By kernels one plan is made for each shape, and a mask is a constant: pass the pattern itself.

    Raises InputError for arrays and masks that do not fit, OptionError for options, PatternError (AlignmentError,
    LengthError) for patterns, UnsupportedError for what is refused by name (dropout, second derivatives, sequences
    divided among devices), UnsupportedKernel if no implementation can run it.

        out = weft.jax.attention(q, k, v, weft.causal() & weft.window(left=1023))
    """
    options = Options(scale, softcap, sinks, alibi_slopes, return_lse, layout, implementation, deterministic, dropout)
    out, lse = _checked(q, k, v, mask, options)()
    if q.ndim == 3:
        out, lse = out[0], lse[0]
    return (out, lse) if return_lse else out


class Options(NamedTuple):
    """The options of `attention`, as they were given."""

    scale: float | None
    softcap: float | None
    sinks: Any
    alibi_slopes: Any
    return_lse: bool
    layout: str
    implementation: str | Sequence[str] | None
    deterministic: bool | None
    dropout: float


def _checked(q: Any, k: Any, v: Any, mask: Any, given: Options) -> Callable[[], tuple[Array, Array]]:
    """What computes (out, lse); raises for what may not be passed."""
    options = given._asdict()
    check_mask(mask, "attention")
    check_layout(given.layout)
    check_numbers(options)
    check_flags(options)
    names = implementations.names_of(given.implementation)
    tensors = as_arrays(q, k, v, given.layout)
    problem = problem_of(tensors, given.layout)
    check_rows(options, problem.q_heads)
    check_placement(tensors, given.layout)
    structure = mask.structure if isinstance(mask, PlannedMask) else None
    request = implementations.Request(problem, implementations.platform_of(tensors), structure)
    chosen = implementations.choose(names, request)
    if chosen == "triton":
        return partial(_kernels, problem, mask, tensors, given)
    if isinstance(mask, Pattern):
        mask = implementations.IMPLEMENTATIONS[chosen].plan(mask, problem)
    check_planned(mask.structure, problem)
    if given.alibi_slopes is not None:
        check_alibi(mask.structure)
    how = Scoring(
        float(problem.d**-0.5 if given.scale is None else given.scale),
        None if given.softcap is None else float(given.softcap),
        mask.structure.shift or 0,
    )
    kind = problem.dtype if given.sinks is None else str(jnp.dtype(accumulate(tensors.q.dtype)))
    call = Call(mask.structure, how, kind)
    rows = given.sinks, given.alibi_slopes
    return partial(_run, call, chosen, given.layout, tuple(tensors), rows, mask.tables)


def _kernels(problem: Problem, mask: Pattern, tensors: Any, given: Options) -> tuple[Array, Array]:
    """(out, lse) by weft's GPU kernels."""
    from weft.jax.gpu.front import attention as by_kernels

    return by_kernels(problem, mask, tuple(tensors), given)


def plan(  # noqa: PLR0913 - the public face; every option by name
    mask: Pattern,
    q: Any,
    k: Any,
    v: Any,
    *,
    layout: str = "bshd",
    implementation: str | Sequence[str] | None = None,
    like: PlannedMask | None = None,
) -> PlannedMask:
    """The plan that `attention(q, k, v, mask)` runs without kernels, as a pytree: an argument of a jitted function.

    q, k, v: arrays or jax.ShapeDtypeStruct; only their shapes are looked at, and of a mask that tells no heads apart
    only the lengths. Masks whose plans have the same `structure` share one compilation: windows, offsets and bounds of
    documents are data, sizes are rounded up to buckets. like: a plan whose structure this one is to have, rather than
    the one that suits it best; InputError if the mask does not fit into it. implementation: as for `attention`, by
    default "xla", which a call with a plan names as well where arrays are on a GPU.

        step = jax.jit(lambda q, k, v, mask: weft.jax.attention(q, k, v, mask))
        out = step(q, k, v, weft.jax.plan(weft.documents([100, 28]), q, k, v))
        out = step(q, k, v, weft.jax.plan(weft.documents([64, 64]), q, k, v))
    """
    check_mask(mask, "plan")
    check_like(like)
    if isinstance(mask, PlannedMask):
        return mask
    check_layout(layout)
    names = implementations.names_of(implementation) or ("xla",)  # kernels take patterns alone
    tensors = as_arrays(q, k, v, layout, "plan(mask, q, k, v)")
    problem = problem_of(tensors, layout, "plan(mask, q, k, v)")
    structure = None if like is None else like.structure
    platform = implementations.platform_of(tensors)
    request = implementations.Request(problem, platform, structure, planning=True)
    return implementations.IMPLEMENTATIONS[implementations.choose(names, request)].plan(mask, problem, structure)


def _blocks(
    call: Call, name: str, layout: str, tensors: tuple[Array, Array, Array], rows: tuple[Any, Any], tables: Any
) -> tuple[Array, Array]:
    """attention of checked arguments: arrays to (L, B, K, G, M, D) and back, and sinks."""
    sinks, slopes = rows
    q, k, v = tensors if layout == "bhsd" else (x.swapaxes(1, 2) for x in tensors)
    kv_heads = k.shape[1]
    grouped = (kv_heads, q.shape[1] // kv_heads)
    q = q.reshape(q.shape[0], *grouped, *q.shape[2:])
    wide = accumulate(q.dtype)
    if slopes is not None:
        slopes = jnp.asarray(slopes, wide).reshape(1, *grouped)
    attend = implementations.IMPLEMENTATIONS[name].attend
    out, lse = (x[0] for x in attend(call, q[None], k[None], v[None], slopes, tables))
    if sinks is not None:
        out, lse = _with_sinks(out, lse, jnp.asarray(sinks, wide).reshape(*grouped, 1))
    out, lse = (x.reshape(x.shape[0], grouped[0] * grouped[1], *x.shape[3:]) for x in (out, lse))
    if layout == "bshd":
        out, lse = out.swapaxes(1, 2), lse.swapaxes(1, 2)
    return out.astype(tensors[0].dtype), lse


def _with_sinks(out: Array, lse: Array, sinks: Array) -> tuple[Array, Array]:
    """Output (..., M, Dv) and lse (..., M) after the sinks have joined every row. Shares add up to one at any lse."""
    largest = lax.stop_gradient(jnp.maximum(lse, sinks))
    base = jnp.where(largest == -jnp.inf, 0, largest)
    keys = jnp.exp(lse - base)
    total = keys + jnp.exp(sinks - base)
    safe = jnp.where(total == 0, 1, total)
    return out * (keys / safe)[..., None], jnp.where(total == 0, -jnp.inf, base + jnp.log(safe))


_run: Any = jax.jit(_blocks, static_argnums=(0, 1, 2))
