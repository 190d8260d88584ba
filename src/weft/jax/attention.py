"""`weft.jax.attention` and `weft.jax.plan`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from weft.jax import implementations
from weft.jax.extras import Extras, extra_of, extras_of
from weft.jax.forward import accumulate
from weft.jax.inputs import (
    as_arrays,
    check_distances,
    check_flags,
    check_layout,
    check_like,
    check_mask,
    check_numbers,
    check_placement,
    check_planned,
    check_rows,
    problem_of,
    target_of,
)
from weft.jax.mask import PlannedMask
from weft.jax.operator import Call
from weft.jax.scores import Beside, Scoring
from weft.pattern.algebra import Pattern
from weft.pattern.library import full
from weft.planning.problem import Problem
from weft.score import Score
from weft.target import Gpu


def attention(  # noqa: PLR0913 - the public face; every option by name
    q: Any, k: Any, v: Any, mask: Pattern | PlannedMask, *, scale: float | None = None, softcap: float | None = None,
    sinks: Any = None, alibi_slopes: Any = None, return_lse: bool = False, layout: str = "bshd",
    implementation: str | Sequence[str] | None = None, deterministic: bool | None = None,
    score: Score | Callable[..., Any] | None = None, bias: Any = None, dropout: float = 0.0, seed: Any = None,
    extra_keys: Any = None, extra_values: Any = None, target: str | Gpu | None = None,
) -> Any:  # fmt: skip
    """Attention of q over the keys that `mask` lets each query see, at a cost that follows the live pairs.

    layout "bshd", jax.nn's: q (B, M, Hq, D), k (B, N, Hkv, D), v (B, N, Hkv, Dv); "bhsd": heads before tokens. B may be
    left out of all three. One dtype of float64, float32, bfloat16, float16; Hq is a multiple of Hkv, and query head h
    uses key head h // (Hq // Hkv). Returns out in q's layout and dtype. With return_lse also lse, (B, M, Hq) or (B, Hq,
    M): the natural logarithm of the sum of exponentiated scores, in float32 (float64 for float64). A query without keys
    gives out 0, lse -inf and zero gradients.

    The score of a pair is scale * (q . k), scale defaulting to D ** -0.5. Then it is softcap * tanh(score / softcap).
    Then comes `score`, a function of (score, b, h, q, k) made of Python's arithmetic and reads of arrays. Then plus
    `bias`, what weft.bias makes or an array (B, Hq, M, N). Then, with alibi_slopes (Hq,), minus slope * |q - k| on
    aligned token indices. A score of -inf masks its pair. sinks (Hq,) are logits that join every row's sum and have no
    value; lse includes them. dropout: the share of weights that is dropped. The others are scaled up, and lse is that
    of all. Which pairs go follows from (seed, b, h, q, k), as in `weft.attention`. seed: an int, one integer in an
    array, or a key of `jax.random`. Every query also sees the tokens of extra_keys (B, E, Hkv, D) and extra_values (B,
    E, Hkv, Dv), in the layout of k, without slopes.

    Reverse-mode gradients flow to q, k, v, sinks, slopes, the extra arrays and tables of score and bias, and from lse.
    deterministic: the same bits each time; blocks always give them. Works under jit, grad, vmap, scan, checkpoint and
    shard_map, where b and h are counted on each device.

    implementation: None, or the name of one, or several names, of which the first that can is used. "triton": weft's
    kernels on NVIDIA GPUs; "xla": blocks of jax.numpy anywhere; "cpu": the same, on CPUs alone. None: "triton" on a
    GPU, else "xla". By kernels one plan is made for each shape, and a mask is a constant: pass the pattern itself.
    target: the card that kernels are for, where JAX lowers for one that is not here: "h200" or another name of
    `weft.target.GPUS`, or a `weft.target.Gpu`; None: the card at hand.

    Raises InputError for arrays and masks that do not fit, OptionError for options, PatternError (AlignmentError,
    LengthError) for patterns. Raises UnsupportedError for second derivatives, sequences divided among devices, and
    score functions beside extra keys. Raises UnsupportedKernel if no implementation can run it.

        out = weft.jax.attention(q, k, v, weft.causal() & weft.window(left=1023))
    """
    options = Options(
        scale, softcap, sinks, alibi_slopes, return_lse, layout, implementation, deterministic, score, bias, dropout,
        seed, extra_keys, extra_values, target_of(target),
    )  # fmt: skip
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
    score: Any = None
    bias: Any = None
    dropout: float = 0.0
    seed: Any = None
    extra_keys: Any = None
    extra_values: Any = None
    target: Gpu | None = None

    @property
    def own(self) -> Options:
        """Those of the pairs of the mask: sinks and extra keys join their results."""
        return self._replace(sinks=None, extra_keys=None, extra_values=None)


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
    extras = extras_of(options, problem, mask)
    extra = extra_of(options, tensors.k, tensors.v, given.layout)
    if extra is not None:
        return partial(_with_extra_keys, tensors, extra, mask, given)
    structure = mask.structure if isinstance(mask, PlannedMask) else None
    platform = implementations.platform_of(tensors) if given.target is None else "gpu"
    chosen = implementations.choose(names, implementations.Request(problem, platform, structure))
    if chosen == "triton":
        return partial(_kernels, problem, mask, tensors, (given, extras))
    if isinstance(mask, Pattern):
        mask = implementations.IMPLEMENTATIONS[chosen].plan(mask, problem)
    check_planned(mask.structure, problem)
    return _prepared(chosen, tensors, mask, given, extras.with_slopes(given.alibi_slopes), problem)


def _prepared(
    chosen: str, tensors: Any, mask: PlannedMask, given: Options, extras: Extras, problem: Problem
) -> Callable[[], tuple[Array, Array]]:  # fmt: skip
    """What computes (out, lse) by blocks."""
    structure = mask.structure
    if extras.shifted:
        check_distances(structure, "alibi_slopes" if given.alibi_slopes is not None else "bias")
    how = Scoring(
        float(problem.d**-0.5 if given.scale is None else given.scale),
        None if given.softcap is None else float(given.softcap),
        structure.shift or 0, extras.score, extras.dropout,
    )  # fmt: skip
    kind = problem.dtype if given.sinks is None else str(jnp.dtype(accumulate(tensors.q.dtype)))
    call = Call(structure, how, kind)
    return partial(
        _run, call, chosen, given.layout, tuple(tensors), (given.sinks, extras.seed, extras.tables), mask.tables
    )


def _kernels(problem: Problem, mask: Pattern, tensors: Any, given: tuple[Options, Extras]) -> tuple[Array, Array]:
    """(out, lse) by weft's GPU kernels."""
    from weft.jax.gpu.front import attention as by_kernels

    return by_kernels(problem, mask, tuple(tensors), *given)


def _with_extra_keys(tensors: Any, extra: tuple[Array, Array], mask: Any, given: Options) -> tuple[Array, Array]:
    """The mask's keys, and those that every query sees, each by itself; then joined by their shares."""
    q, k, v = tensors
    own = given.own
    parts = [
        _checked(q, k, v, mask, own)(),
        _checked(q, *extra, full(), own._replace(alibi_slopes=None))(),
    ]
    most = lax.stop_gradient(jnp.maximum(parts[0][1], parts[1][1]))
    weights = [jnp.exp(lse - jnp.where(most == -jnp.inf, 0, most)) for _, lse in parts]
    total = sum(weights)
    out = sum(x * (w / total)[..., None] for (x, _), w in zip(parts, weights, strict=True))
    lse = most + jnp.log(total)
    if given.sinks is not None:
        sinks = jnp.asarray(given.sinks, lse.dtype)
        out, lse = _with_sinks(out, lse, sinks if given.layout == "bshd" else sinks[:, None])
    return out.astype(q.dtype), lse


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
    the one that suits it best. Raises InputError if the mask does not fit into it. implementation: as for `attention`,
    by default "xla", which a call with a plan names as well where arrays are on a GPU.

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
    call: Call, name: str, layout: str, tensors: tuple[Array, Array, Array], more: tuple[Any, Any, Any], tables: Any
) -> tuple[Array, Array]:
    """attention of checked arguments: arrays to (L, B, K, G, M, D) and back, and sinks. more: sinks, seed, and tables
    of score functions.
    """
    sinks, seed, read = more
    q, k, v = tensors if layout == "bhsd" else (x.swapaxes(1, 2) for x in tensors)
    (batch, heads), kv_heads = q.shape[:2], k.shape[1]
    grouped = (kv_heads, heads // kv_heads)
    q = q.reshape(batch, *grouped, *q.shape[2:])
    wide = accumulate(q.dtype)
    beside = Beside()
    if call.how.by_pairs:
        read = tuple(x.astype(wide) if jnp.issubdtype(x.dtype, np.floating) else x for x in read)
        numbers = jnp.arange(heads, dtype=jnp.int32).reshape(grouped)
        beside = Beside(jnp.arange(batch, dtype=jnp.int32), numbers, seed, read)
    attend = implementations.IMPLEMENTATIONS[name].attend
    out, lse = (x[0] for x in attend(call, q[None], k[None], v[None], beside, tables))
    if sinks is not None:
        out, lse = _with_sinks(out, lse, jnp.asarray(sinks, wide).reshape(*grouped, 1))
    out, lse = (x.reshape(batch, heads, *x.shape[3:]) for x in (out, lse))
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
