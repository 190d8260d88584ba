"""Programs of one call run on the oracle, beside dense attention in float64 on the same numbers."""

import zlib
from dataclasses import dataclass, field
from unittest import mock

import numpy as np

from weft.kernels.gpu import select
from weft.kernels.gpu.layout import Layout, Options, Vector
from weft.kernels.gpu.oracle import run_program
from weft.kernels.gpu.program import row_major
from weft.kernels.gpu.programs import backward
from weft.kernels.gpu.programs.forward import forward_program
from weft.kernels.gpu.programs.sinks import sink_gradient_program
from weft.planning.attention_plan import plan_attention
from weft.planning.problem import DTYPES, Problem
from weft.target import GPUS

from .dense import Scores, attend, gradients

BLOCK = 512  # queries that dense attention takes together
EXACT = {"rtol": 1e-10, "atol": 1e-10}
NONE = {"slopes": 0.0, "sinks": -np.inf}  # what a head has of them where there are none
ABSENT = {"dlse": "lse", "sinks": "sinks", "slopes": "alibi"}  # what a call is given if an option asks for it


@dataclass(frozen=True)
class Call:
    """One call of attention on a card.

    options: softcap, alibi, sinks, scale, shift, with_delta, one_argument; lse: it has a gradient; free: the order of
    sums is.
    order: axes of q, k, v, out and dout in memory. fixed: tilings by direction, as for plan_attention. one_kernel: the
    kernel of dk and dv makes dq too, whatever is faster.
    """

    pattern: object
    m: int = 150
    n: int | None = None
    heads: tuple = (4, 2)
    batch: int = 2
    dims: tuple = (16, 16)
    dtype: str = "bfloat16"
    card: str = "h200"
    options: dict = field(default_factory=dict)
    order: tuple = (0, 1, 2, 3)
    fixed: tuple = ()
    one_kernel: bool = False

    @property
    def problem(self):
        n = self.m if self.n is None else self.n
        return Problem(self.batch, *self.heads, self.m, n, *self.dims, self.dtype, "cuda")

    @property
    def plan(self):
        return plan_attention(self.pattern, self.problem, GPUS[self.card], self.fixed)

    @property
    def how(self):
        """The options of its programs. The gradient of sinks takes delta."""
        have, free = self.options, self.options.get("free", False) or self.one_kernel
        with_delta = have.get("with_delta", False) or have.get("sinks", False)
        scale, shift = have.get("scale", 0.3), have.get("shift", 0)
        alone = have.get("one_argument", False)
        return Options(scale, have.get("softcap"), shift, False, not free, with_delta, alone)

    def arrays(self):
        """What a call is given, float64 by slot: q, k, v, dout, and as options say dlse, sinks, slopes."""
        random, p = np.random.default_rng(zlib.crc32(f"{self}".encode())), self.problem
        sizes = {"q": (p.q_heads, p.m, p.d), "k": (p.kv_heads, p.n, p.d), "v": (p.kv_heads, p.n, p.dv)}
        sizes |= {"dout": (p.q_heads, p.m, p.dv), "dlse": (p.q_heads, p.m)}
        found = {name: random.normal(size=(p.batch, *size)) for name, size in sizes.items()}
        found |= {"sinks": random.normal(size=p.q_heads), "slopes": random.uniform(0.0, 0.2, p.q_heads)}
        return {name: x for name, x in found.items() if name not in ABSENT or self.options.get(ABSENT[name])}

    def layout(self, of_gradients):
        """How the arrays lie: rows as `order` says, on 16 bytes where their width allows it."""
        p, have = self.problem, self.options
        sizes = [(p.q_heads, p.m, p.d), (p.kv_heads, p.n, p.d), (p.kv_heads, p.n, p.dv)]
        sizes += [(p.q_heads, p.m, p.dv)] * 2 if of_gradients else []
        strides = tuple(permuted((p.batch, *size), self.order) for size in sizes)
        rows = Vector("float32", row_major((p.batch, p.q_heads, p.m)))
        return Layout(
            strides, not any(size * DTYPES[p.dtype] % 16 for size in (p.d, p.dv)),
            dlse=rows if of_gradients and have.get("lse") else None,
            sinks=Vector(p.dtype, (1,)) if have.get("sinks") and not of_gradients else None,
            slopes=Vector("float32", (1,)) if have.get("alibi") else None,
        )  # fmt: skip


def permuted(shape, order):
    """Strides of a dense array whose axes lie in that order in memory."""
    strides = row_major(tuple(shape[axis] for axis in order))
    return tuple(strides[order.index(axis)] for axis in range(len(shape)))


# ---- by programs -----------------------------------------------------------------------------------------------------
def programs(call):
    """(of the forward, of gradients)"""
    plan = call.plan
    forward = forward_program(plan, call.layout(False), call.how)
    in_one = select.lists_one_kernel
    with mock.patch.object(select, "lists_one_kernel", lambda plan: call.one_kernel or in_one(plan)):
        return forward, backward.backward_program(plan, call.layout(True), call.how)


def specs_of(call):
    """What the launches of a call were generated from; sinks' are names."""
    return [launch.spec for program in programs(call) for launch in program.launches]


def computed(call, arrays):
    """{name: array} of what the programs leave: out, lse, dq, dk, dv, delta and dsinks where they are wanted."""
    forward, of_gradients = programs(call)
    found = run_program(forward, given_to(forward, arrays))
    found |= run_program(of_gradients, given_to(of_gradients, arrays | found))
    if "sinks" in arrays:
        p = call.problem
        of_sinks = sink_gradient_program((p.batch, p.q_heads, p.m), Vector(p.dtype, (1,)))
        found |= run_program(of_sinks, given_to(of_sinks, arrays | found))
    return found


def given_to(program, arrays):
    """The inputs of a program among arrays by slot."""
    return {slot.name: arrays[slot.name] for slot in program.of_role("input")}


# ---- by definition ---------------------------------------------------------------------------------------------------
def expected(call, arrays):
    """{name: array} of dense attention under the pattern's mask."""
    p = call.problem
    live = np.broadcast_to(call.pattern.to_dense(p.m, p.n), (p.batch, p.q_heads, p.m, p.n))
    like = {"out": "dout", "dq": "q", "dk": "k", "dv": "v"}
    found = {name: np.zeros_like(arrays[x]) for name, x in like.items()}
    found |= {name: np.zeros((p.batch, p.q_heads, p.m)) for name in ("lse", "delta")} | {"dsinks": np.zeros(p.q_heads)}
    for b, h in np.ndindex(p.batch, p.q_heads):
        kv = h // p.group
        slope, sink = (float(arrays[name][h]) if name in arrays else none for name, none in NONE.items())
        scores = Scores(call.how.scale, call.how.softcap, slope, sink)
        for first in range(0, p.m, BLOCK):
            some = slice(first, first + BLOCK)
            qkv = arrays["q"][b, h, some], arrays["k"][b, kv], arrays["v"][b, kv]
            distance = np.abs(np.arange(p.m)[some, None] + call.how.shift - np.arange(p.n)) if slope else 0
            rows = attend(qkv, live[b, h, some], distance, scores)
            dlse = arrays["dlse"][b, h, some] if "dlse" in arrays else 0.0
            made = gradients(qkv, rows, arrays["dout"][b, h, some], dlse, scores)
            found["out"][b, h, some], found["lse"][b, h, some] = rows.out, rows.lse
            found["dq"][b, h, some], found["delta"][b, h, some] = made.dq, made.delta
            found["dk"][b, kv] += made.dk
            found["dv"][b, kv] += made.dv
            found["dsinks"][h] += made.dsink
    return found


def check(call, given=None):
    """Raise AssertionError unless the programs compute what dense attention does; returns what they leave.

    given: what the programs get instead of the call's arrays.
    """
    arrays = call.arrays()
    wanted, found = expected(call, arrays), computed(call, arrays if given is None else given)
    assert {"out", "lse", "dq", "dk", "dv"} <= set(found)
    if "delta" in found:  # of a row without keys or sink it is anything
        some = wanted["lse"] > -np.inf
        wanted["delta"] = np.where(some, wanted["delta"], found["delta"])
    for name, x in found.items():
        np.testing.assert_allclose(x, wanted[name], **EXACT, err_msg=f"{name} of {call}")
    return found
