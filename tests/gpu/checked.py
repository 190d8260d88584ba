"""Programs of one call run on the oracle, beside dense attention in float64 on the same numbers."""

import zlib
from dataclasses import dataclass, field

import numpy as np

from weft.kernels.gpu.layout import Layout, Options, Vector
from weft.kernels.gpu.oracle import run_program
from weft.kernels.gpu.program import row_major
from weft.kernels.gpu.programs.backward import backward_program
from weft.kernels.gpu.programs.forward import forward_program
from weft.kernels.gpu.programs.sinks import sink_gradient_program
from weft.planning.attention_plan import plan_attention
from weft.planning.problem import Problem
from weft.target import GPUS

BLOCK = 512  # queries that dense attention takes together
EXACT = {"rtol": 1e-10, "atol": 1e-10}


@dataclass(frozen=True)
class Call:
    """One call of attention on a card.

    options: softcap, alibi, sinks, scale, shift, tf32; lse: it has a gradient; with_delta; free: the order of sums is.
    order: axes of q, k, v, out and dout in memory. fixed: tilings by direction, as for plan_attention.
    """

    pattern: object
    m: int = 150
    n: int = 0
    heads: tuple = (4, 2)
    batch: int = 2
    dims: tuple = (16, 16)
    dtype: str = "bfloat16"
    card: str = "h200"
    options: dict = field(default_factory=dict)
    order: tuple = (0, 1, 2, 3)
    aligned: bool = True
    fixed: tuple = ()

    @property
    def problem(self):
        return Problem(self.batch, *self.heads, self.m, self.n or self.m, *self.dims, self.dtype, "cuda")

    @property
    def plan(self):
        return plan_attention(self.pattern, self.problem, GPUS[self.card], self.fixed)

    @property
    def scale(self):
        return self.options.get("scale", 0.3)

    def to_options(self):
        have = self.options
        return Options(
            self.scale, have.get("softcap"), have.get("shift", 0), have.get("tf32", False),
            not have.get("free", False), have.get("with_delta", False),
        )  # fmt: skip

    def arrays(self):
        """What a call is given, float64 by slot: q, k, v, dout, and as options say dlse, sinks, slopes."""
        random, p = np.random.default_rng(zlib.crc32(f"{self}".encode())), self.problem
        sizes = {"q": (p.q_heads, p.m, p.d), "k": (p.kv_heads, p.n, p.d), "v": (p.kv_heads, p.n, p.dv)}
        sizes |= {"dout": (p.q_heads, p.m, p.dv), "dlse": (p.q_heads, p.m)}
        found = {name: random.normal(size=(p.batch, *size)) for name, size in sizes.items()}
        found |= {"sinks": random.normal(size=p.q_heads), "slopes": random.uniform(0.0, 0.2, p.q_heads)}
        absent = {"lse": "dlse", "sinks": "sinks", "alibi": "slopes"}
        return {x: y for x, y in found.items() if not any(x == name and not self.options.get(o)
                                                          for o, name in absent.items())}  # fmt: skip

    def layout(self, gradients):
        """How the arrays lie: rows as `order` says."""
        p, have = self.problem, self.options
        shapes = [(p.batch, h, length, d) for h, length, d in (
            (p.q_heads, p.m, p.d), (p.kv_heads, p.n, p.d), (p.kv_heads, p.n, p.dv),
            *(((p.q_heads, p.m, p.dv),) * 2 if gradients else ()),
        )]  # fmt: skip
        strides = tuple(permuted(shape, self.order) for shape in shapes)
        rows = row_major((p.batch, p.q_heads, p.m))
        return Layout(
            strides, self.aligned,
            dlse=Vector("float32", rows) if gradients and have.get("lse") else None,
            sinks=Vector(p.dtype, (1,)) if have.get("sinks") and not gradients else None,
            slopes=Vector("float32", (1,)) if have.get("alibi") else None,
        )  # fmt: skip


def permuted(shape, order):
    """Strides of a dense array whose axes lie in that order in memory."""
    strides = row_major(tuple(shape[axis] for axis in order))
    return tuple(strides[order.index(axis)] for axis in range(len(shape)))


# ---- by programs -----------------------------------------------------------------------------------------------------
def programs(call):
    """(of the forward, of gradients)"""
    plan, options = call.plan, call.to_options()
    return (
        forward_program(plan, call.layout(False), options),
        backward_program(plan, call.layout(True), options),
    )


def computed(call, arrays):
    """{name: array} of what the programs leave: out, lse, dq, dk, dv, delta and dsinks where they are wanted."""
    forward, backward = programs(call)
    found = run_program(forward, {name: arrays[name] for name in forward_inputs(arrays)})
    given = {name: x for name, x in arrays.items() if name != "sinks"} | found
    found |= run_program(backward, given)
    if "sinks" in arrays:
        p = call.problem
        sinks = sink_gradient_program((p.batch, p.q_heads, p.m), Vector(p.dtype, (1,)))
        found |= run_program(sinks, {name: (arrays | found)[name] for name in ("sinks", "lse", "delta")})
    return found


def forward_inputs(arrays):
    return [name for name in ("q", "k", "v", "sinks", "slopes") if name in arrays]


# ---- by definition ---------------------------------------------------------------------------------------------------
def dense(call, arrays):
    """{name: array} of dense attention under the pattern's mask."""
    p = call.problem
    live = np.broadcast_to(call.pattern.to_dense(p.m, p.n), (p.batch, p.q_heads, p.m, p.n))
    q, k, v, do = (arrays[name] for name in ("q", "k", "v", "dout"))
    found = {name: np.zeros_like(x) for name, x in (("out", do), ("dq", q), ("dk", k), ("dv", v))}
    found |= {name: np.zeros((p.batch, p.q_heads, p.m)) for name in ("lse", "delta")}
    found["dsinks"] = np.zeros(p.q_heads)
    for b in range(p.batch):
        for h in range(p.q_heads):
            for first in range(0, p.m, BLOCK):
                _add_rows(call, arrays, found, live, (b, h, slice(first, first + BLOCK)))
    return found


def _add_rows(call, arrays, found, live, where):
    """Some queries of one head."""
    (b, h, rows), have = where, call.options
    kv = h // call.problem.group
    q, do, k, v = arrays["q"][where], arrays["dout"][where], arrays["k"][b, kv], arrays["v"][b, kv]
    x, slope, cap = call.scale * q @ k.T, 1.0, have.get("softcap")
    if cap is not None:
        x, slope = cap * np.tanh(x / cap), 1.0 - np.tanh(x / cap) ** 2
    if "slopes" in arrays:
        query = np.arange(call.problem.m)[rows, None] + have.get("shift", 0)
        x = x - arrays["slopes"][h] * np.abs(query - np.arange(k.shape[0]))
    sink = arrays["sinks"][h] if "sinks" in arrays else -np.inf
    x = np.where(live[where], x, -np.inf)
    top = np.maximum(x.max(1, initial=-np.inf), sink)
    p = np.exp(x - np.where(top == -np.inf, 0.0, top)[:, None])
    total = p.sum(1) + np.exp(sink - np.where(top == -np.inf, 0.0, top))
    with np.errstate(divide="ignore"):
        lse = np.where(total == 0, -np.inf, top + np.log(total))
    p = p / np.where(total == 0, 1.0, total)[:, None]
    out = p @ v
    delta = (out * do).sum(1) - (np.where(lse == -np.inf, 0.0, arrays["dlse"][where]) if "dlse" in arrays else 0.0)
    ds = p * (do @ v.T - delta[:, None]) * slope * call.scale
    found["out"][where], found["lse"][where], found["delta"][where], found["dq"][where] = out, lse, delta, ds @ k
    found["dk"][b, kv] += ds.T @ q
    found["dv"][b, kv] += p.T @ do
    found["dsinks"][h] -= (np.where(lse == -np.inf, 0.0, np.exp(sink - np.where(lse == -np.inf, 0.0, lse))) * delta).sum()


def check(call, arrays=None, given=None):
    """Raise AssertionError unless the programs compute what dense attention does; returns what they leave.

    given: what the programs get instead of the arrays.
    """
    arrays = call.arrays() if arrays is None else arrays
    wanted, found = dense(call, arrays), computed(call, arrays if given is None else given)
    for name, x in found.items():
        if name == "delta":  # of a row without keys or sink it is anything
            seen = wanted["lse"] > -np.inf
            x, wanted[name] = x[seen], wanted[name][seen]
        np.testing.assert_allclose(x, wanted[name], **EXACT, err_msg=f"{name} of {call}")
    return found
