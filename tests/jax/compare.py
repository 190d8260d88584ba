"""What weft.jax.attention must give: three loops in float64, `weft.acsr.interpret`, for every batch row and head."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import weft.jax
from weft.acsr import interpret
from weft.jax.attention import accumulate
from weft.score import Score
from weft.score.dropout import Dropout
from weft.score.evaluate import Rule
from weft.score.value import composed
from weft.testing.tolerance import assert_close

enable_x64 = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64


@dataclass
class Made:
    """Inputs in layout "bhsd", gradients for out and lse, and options; a bias or score is a Score of numpy's tables."""

    pattern: Any
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    dout: np.ndarray
    dlse: np.ndarray
    options: dict


def make(pattern, m, n, *, batch=2, heads=(4, 2), dims=(8, 5), dtype="float64", seed=0, **options):
    """Normal variates, rounded to `dtype`; options: "sinks" and "alibi_slopes" as True for drawn ones. seed: of these,
    and of dropout.
    """
    if "dropout" in options:
        options["seed"] = seed
    rng = np.random.default_rng(seed)

    def draw(*shape):
        return np.asarray(jnp.asarray(rng.normal(size=shape)).astype(dtype))

    (hq, hkv), (d, dv) = heads, dims
    for name in ("sinks", "alibi_slopes"):
        if options.get(name) is True:
            options[name] = rng.uniform(0.0, 0.5, size=hq)
    tensors = draw(batch, hq, m, d), draw(batch, hkv, n, d), draw(batch, hkv, n, dv)
    return Made(pattern, *tensors, draw(batch, hq, m, dv), rng.normal(size=(batch, hq, m)), options)


def truth(made):
    """out, lse, dq, dk, dv, dsinks, and dtable0, ... in float64."""
    q, k, v, dout = (np.asarray(x, np.float64) for x in (made.q, made.k, made.v, made.dout))
    (batch, hq, m, d), (hkv, n) = q.shape, k.shape[1:3]
    out, lse = np.zeros((batch, hq, m, v.shape[3])), np.full((batch, hq, m), -np.inf)
    dq, dk, dv, dsinks = np.zeros(q.shape), np.zeros(k.shape), np.zeros(v.shape), np.zeros(hq)
    declared = set(made.pattern.alignments())
    shift = n - m if m != n and declared == {"bottom-right"} else 0
    known = {}
    score = score_of(made.options)
    dtables = [] if score is None else [np.zeros(np.shape(x)) for x in score.tables]
    rules = () if score is None else (Rule(composed(score.text), score.tables),)
    rate = made.options.get("dropout")
    for b in range(batch):
        for h in range(hq):
            at = made.pattern.at(b, h) if made.pattern.extent() != (None, None) else made.pattern
            acsr = known.setdefault(at, made.pattern.acsr(m, n, b, h))
            sinks, slopes = made.options.get("sinks"), made.options.get("alibi_slopes")
            scoring = interpret.Scoring(
                made.options.get("scale", d**-0.5),
                made.options.get("softcap"),
                0.0 if slopes is None else float(slopes[h]),
                shift,
                None if sinks is None else float(sinks[h]),
                rules,
                Dropout(rate, made.options["seed"]) if rate else None,
                b,
                h,
            )
            g = h // (hq // hkv)
            one = q[b, h], k[b, g], v[b, g]
            out[b, h], lse[b, h] = interpret.forward(acsr, *one, scoring)
            grads = interpret.backward(acsr, one, dout[b, h], made.dlse[b, h], scoring)
            dq[b, h] = grads.dq
            dk[b, g] += grads.dk
            dv[b, g] += grads.dv
            dsinks[h] += grads.d_sink
            if dtables:
                dtables = [a + b for a, b in zip(dtables, grads.d_tables[0], strict=True)]
    found = {"out": out, "lse": lse, "dq": dq, "dk": dk, "dv": dv, "dsinks": dsinks}
    return found | {f"dtable{number}": x for number, x in enumerate(dtables)}


def score_of(options):
    """The score function and the bias of a call as one."""
    given = [options[name] for name in ("score", "bias") if options.get(name) is not None]
    return None if not given else given[0] if len(given) == 1 else given[0] + given[1]


def results(made, mask=None, *, layout="bhsd", attend=weft.jax.attention):
    """The same of weft, as jitted, in float64 numpy: arrays in layout "bhsd" whatever `layout` is computed in."""
    turn = (lambda x: x) if layout == "bhsd" else lambda x: jnp.swapaxes(x, 1, 2)
    mask = made.pattern if mask is None else mask
    options = dict(made.options)
    sinks, score = options.pop("sinks", None), score_of(options)
    options = {name: x for name, x in options.items() if name not in ("score", "bias")}

    def loss(q, k, v, sinks, tables):
        bias = None
        if score is not None:
            bias = Score(score.text, tables, score.name, score.tokens, score.dense)
        out, lse = attend(q, k, v, mask, sinks=sinks, return_lse=True, layout=layout, bias=bias, **options)
        assert out.dtype == q.dtype
        assert lse.dtype == accumulate(q.dtype)
        finite = jnp.where(lse == -jnp.inf, 0, lse) * turn(jnp.asarray(made.dlse, lse.dtype))
        return (out.astype(lse.dtype) * turn(made.dout.astype(lse.dtype))).sum() + finite.sum(), (out, lse)

    argnums = (0, 1, 2) + (3,) * (sinks is not None) + (4,) * (score is not None)
    run = jax.jit(jax.value_and_grad(loss, argnums, has_aux=True, allow_int=True))
    sinks = None if sinks is None else jnp.asarray(sinks, accumulate(made.q.dtype))
    tables = () if score is None else tuple(map(jnp.asarray, score.tables))
    (_, made_of), grads = run(*(turn(jnp.asarray(x)) for x in (made.q, made.k, made.v)), sinks, tables)
    found = [turn(x) for x in (*made_of, *grads[:3])]
    names = ["out", "lse", "dq", "dk", "dv", *["dsinks"] * (sinks is not None)]
    found = dict(zip(names, (*found, *jax.tree.leaves(grads[3 : 3 + (sinks is not None)])), strict=True))
    of_tables = enumerate(grads[-1] if score is not None else ())
    found |= {f"dtable{number}": x for number, x in of_tables if x.dtype != jax.dtypes.float0}
    return {name: np.asarray(x, np.float64) for name, x in found.items()}


def check(made, **how):
    """Hold weft in float64 against the truth; no plain computation is needed there."""
    want = truth(made)
    for name, got in results(made, **how).items():
        # the policy's units of float64, with no plain error to add
        assert_close(name.rstrip("0123456789"), got, want[name], want[name])
