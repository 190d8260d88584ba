"""Programs of calls with score functions, run on the oracle, beside the definition in float64."""

import zlib
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np
import torch

from weft.acsr import interpret
from weft.kernels.gpu.layout import TableForm
from weft.kernels.gpu.oracle import run_program
from weft.kernels.gpu.program import row_major
from weft.kernels.gpu.programs.backward import backward_program
from weft.kernels.gpu.programs.forward import chosen_forward
from weft.kernels.gpu.score.slots import number_of
from weft.score.dropout import Dropout
from weft.score.evaluate import Rule
from weft.score.text import SEPARATOR
from weft.score.value import expressions
from weft.torch.entries import gradients_of_tables

from .checked import EXACT, Call, given_to

SEED = -0x123456789ABCDEF
KINDS = {"real": "float32", "int": "int32", "bool": "bool"}


@dataclass(frozen=True)
class Scored(Call):
    """A call with score functions. text: theirs; shapes: of their tables; most: what tables of integers are below."""

    text: str = "score"
    shapes: tuple = ()
    most: int = 3
    dtypes: dict = field(default_factory=dict)

    @property
    def kinds(self):
        return [kind for one in expressions(self.text) for kind in one.tables]

    def then(self, text):
        """With another function, without tables, of the result."""
        return replace(self, text=f"{self.text}{SEPARATOR}{text}")

    @property
    def how(self):
        wanted = tuple(kind == "real" for kind in self.kinds)
        dropout = self.options.get("dropout", 0.0)
        return super().how._replace(
            score=self.text, wanted=wanted, deterministic="ordered" in self.options, dropout=dropout
        )

    def tables(self):
        random = np.random.default_rng(zlib.crc32(f"{self}".encode()))
        made = {"real": random.normal, "int": lambda size: random.integers(0, self.most, size)}
        made["bool"] = lambda size: random.integers(0, 2, size).astype(bool)
        return [made[kind](size=shape) for kind, shape in zip(self.kinds, self.shapes, strict=True)]

    def layout(self, of_gradients):
        forms = [
            TableForm(self.dtypes.get(number, KINDS[kind]), shape, row_major(shape))
            for number, (kind, shape) in enumerate(zip(self.kinds, self.shapes, strict=True))
        ]
        return super().layout(of_gradients)._replace(tables=tuple(forms))


def computed(call, arrays):
    """{name: array} of what the programs leave."""
    found = run_program(*_with_inputs(chosen_forward(call.plan, call.layout(False), call.how, 132), arrays))
    of_gradients = backward_program(call.plan, call.layout(True), call.how)
    found |= run_program(*_with_inputs(of_gradients, arrays | found))
    sums = {name: torch.from_numpy(x) for name, x in found.items() if number_of(name) is not None}
    tables = tuple(torch.from_numpy(x) for x in call.tables())
    made = gradients_of_tables(call.how, tables, sums, call.plan)
    return found | {f"dtable_{number}": x for number, x in enumerate(made) if x is not None}


def _with_inputs(program, arrays):
    return program, given_to(program, arrays)


def rules_of(call, tables):
    found, first = [], 0
    for one in expressions(call.text):
        found.append(Rule(one, tuple(tables[first : first + len(one.tables)])))
        first += len(one.tables)
    return tuple(found)


def expected(call, arrays, tables):
    """{name: array} by three loops over rows."""
    p, have = call.problem, call.options
    found = {name: np.zeros_like(arrays[x]) for name, x in {"out": "dout", "dq": "q", "dk": "k", "dv": "v"}.items()}
    found["lse"] = np.zeros((p.batch, p.q_heads, p.m))
    rules, d_tables = rules_of(call, tables), [np.zeros(x.shape) for x in tables]
    scoring = interpret.Scoring(call.how.scale, have.get("softcap"), 0.0, call.how.shift, None, rules, _dropping(call))
    for b, h in np.ndindex(p.batch, p.q_heads):
        kv, acsr = h // p.group, call.pattern.acsr(p.m, p.n, b, h)
        mine = replace(scoring, b=b, h=h, slope=float(arrays["slopes"][h]) if "slopes" in arrays else 0.0)
        qkv = arrays["q"][b, h], arrays["k"][b, kv], arrays["v"][b, kv]
        found["out"][b, h], found["lse"][b, h] = interpret.forward(acsr, *qkv, mine)
        dlse = arrays["dlse"][b, h] if "dlse" in arrays else np.zeros(p.m)
        made = interpret.backward(acsr, qkv, arrays["dout"][b, h], dlse, mine)
        found["dq"][b, h] = made.dq
        found["dk"][b, kv] += made.dk
        found["dv"][b, kv] += made.dv
        d_tables = [total + x for total, x in zip(d_tables, chain.from_iterable(made.d_tables), strict=True)]
    return found | {f"dtable_{n}": x for n, x in enumerate(d_tables) if call.kinds[n] == "real"}


def _dropping(call):
    return Dropout(call.how.dropout, SEED) if call.how.dropout else None


def check(call):
    """Raise AssertionError unless the programs compute what the definition says."""
    arrays, tables = call.arrays(), call.tables()
    wanted = expected(call, arrays, tables)
    given = {"seed": np.array([SEED])} | {f"table_{number}": x for number, x in enumerate(tables)}
    found = computed(call, arrays | given)
    for name, x in wanted.items():
        np.testing.assert_allclose(found[name], x, **EXACT, err_msg=f"{name} of {call}")
