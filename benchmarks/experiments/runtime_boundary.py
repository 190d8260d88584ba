"""How may an immutable Python pattern enter a torch operator without recompilation?

    python benchmarks/experiments/runtime_boundary.py [compile] [traps] [checks] [eager]

Prints the tables of docs/decisions/0003-runtime-data-boundary.md, on the CPU, in about half a minute; the inductor
lines need a C++ compiler. A count is only printed when the operator also received the right numbers in every call.
"""

import dataclasses
import io
import logging
import operator
import statistics
import sys
import time
import warnings
from typing import Any

import numpy as np
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._library.opaque_object import get_opaque_type_name, register_opaque_type
from torch._opaque_base import OpaqueBase
from torch.autograd import forward_ad
from torch.utils import _pytree

LIB, OPS, SEEN = torch.library.Library("weft_exp", "FRAGMENT"), torch.ops.weft_exp, []
QKV, OUT = "Tensor q, Tensor k, Tensor v, ", ") -> (Tensor, Tensor)"
TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides, torch.Tag.cudagraph_unsafe)


class UnsupportedError(NotImplementedError):
    """Stands for weft.errors.UnsupportedError."""


def refuse(what):
    def refused(*args, **kwargs):
        raise UnsupportedError(what)

    return refused


# ---- patterns, as the numpy floor would write them: structure and numbers are computed when the pattern is made
def record(own, tables):
    """One int64 array that owns its data: its length, numbers, zeros; a length of 13 mod 16 is rarely a dimension."""
    size = 1 + len(own) + sum([len(t) for t in tables])
    if torch.compiler.is_compiling():  # the numpy floor would reach this through a hook that weft.torch sets
        return OPS.record([size, *own], [t if isinstance(t, torch.Tensor) else torch.from_numpy(t) for t in tables])
    out = np.zeros(size + (13 - size) % 16, np.int64)
    out[:size] = np.concatenate([np.array([len(out), *own], np.int64), *tables])
    return out


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Packed:
    structure: str
    numbers: Any


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Window:
    left: int
    structure: str = dataclasses.field(init=False)
    numbers: Any = dataclasses.field(init=False, repr=False)

    def __post_init__(self):
        if not isinstance(self.left, int) or self.left < 0:
            raise ValueError("left")
        object.__setattr__(self, "structure", "window")
        object.__setattr__(self, "numbers", record([self.left], []))

    def __and__(self, other):
        return Packed(f"({self.structure}&{other.structure})", record([], [self.numbers, other.numbers]))


@dataclasses.dataclass(frozen=True, eq=False)
class Plain:  # forms A and B
    structure: str
    params: Any
    tables: tuple


class Reference(OpaqueBase):  # forms D and E
    def __init__(self, structure, params, tables):
        self.structure, self.params, self.tables = structure, params, tables


class Value(Reference):
    def key(self):
        return self.structure, tuple(self.params), tuple(tuple(map(int, t)) for t in self.tables)

    def __eq__(self, other):
        return self.key() == other.key()

    def __hash__(self):
        return hash(self.key())

    def __fx_repr__(self):
        return f"Value{self.key()!r}", {"Value": Value}


register_opaque_type(Reference, typ="reference", guard_fn=lambda p: [p.structure])
register_opaque_type(Value, typ="value")
_pytree.register_pytree_node(Packed, lambda p: ([p.numbers], p.structure), lambda leaves, s: Packed(s, leaves[0]))


# ---- operators: `attention` is a band, so that gradients can be checked; the others only note what they received
def in_order_of(q, last):  # (B, H, M, last), its axes in q's memory order
    order = sorted(range(3), key=q.stride, reverse=True)
    return torch.empty_permuted((*q.shape[:3], last), (*order, 3), dtype=q.dtype, device=q.device)


def scores(q, k, left):
    distance = torch.arange(k.shape[2]) - torch.arange(q.shape[2])[:, None]
    return (q @ k.mT).masked_fill((distance > 0) | (distance < -left), -torch.inf)


def forward(q, k, v, structure, numbers):
    SEEN.append((structure, *numbers.tolist()))
    assert SEEN[-1][1] == len(numbers), "damaged record"
    score = scores(q, k, SEEN[-1][2])
    return in_order_of(q, v.shape[-1]).copy_(score.softmax(-1) @ v), score.logsumexp(-1)


def backward(dout, dlse, *saved):
    q, k, v, out, lse, _, numbers = saved
    p = (scores(q, k, int(numbers[1])) - lse[..., None]).exp()
    ds = p * (dout @ v.mT - (dout * out).sum(-1, keepdim=True) + dlse[..., None])
    found = zip((q, k, v), (ds @ k, ds.mT @ q, p.mT @ dout), strict=True)
    return tuple(in_order_of(x, x.shape[-1]).copy_(g) for x, g in found)


def note(q, k, v, structure, params, tables):
    SEEN.append((structure, *(int(x) for group in (params, *tables) for x in group)))
    return torch.empty_like(q), q.new_empty(q.shape[:3])


def define(name, schema, real, fake=lambda q, k, v, *rest: (in_order_of(q, v.shape[-1]), q.new_empty(q.shape[:3]))):
    LIB.define(name + "(" + schema, tags=TAGS)
    LIB.impl(name, real, "CompositeExplicitAutograd")
    torch.library.register_fake("weft_exp::" + name, fake, lib=LIB)


define("a", QKV + "str structure, SymInt[] params, Tensor[] tables" + OUT, note)
define("b", QKV + "str structure, Tensor params, Tensor[] tables" + OUT, note)
for cls in (Reference, Value):
    named = cls.__name__.lower(), QKV + get_opaque_type_name(cls) + " p" + OUT
    define(*named, lambda q, k, v, p: note(q, k, v, p.structure, p.params, p.tables))
define("attention", QKV + "str structure, Tensor numbers" + OUT, forward)
define("registered", QKV + "str structure, Tensor numbers" + OUT, forward)
torch.library.register_autograd("weft_exp::registered", refuse("not called"), lib=LIB)
define(
    "attention_backward",
    "Tensor dout, Tensor dlse, " + QKV + "Tensor out, Tensor lse, str s, Tensor n) -> (Tensor, Tensor, Tensor)",
    backward, lambda dout, dlse, *x: tuple(in_order_of(t, t.shape[-1]) for t in x[:3]),
)  # fmt: skip
define(
    "record", "SymInt[] own, Tensor[] tables) -> Tensor", lambda own, tables: torch.cat([torch.tensor(own), *tables]),
    lambda own, tables: torch.empty(len(own) + sum(t.shape[0] for t in tables), dtype=torch.int64),
)  # fmt: skip


def below_autograd(*args):
    with torch._C._AutoDispatchBelowAutograd():
        return OPS.attention(*args)


class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, structure, numbers):
        out, lse = below_autograd(q, k, v, structure, numbers)
        ctx.structure = structure
        ctx.save_for_backward(q, k, v, out, lse, numbers)
        return out, lse

    @staticmethod
    def backward(ctx, dout, dlse):
        *tensors, numbers = ctx.saved_tensors
        return *OPS.attention_backward(dout, dlse, *tensors, ctx.structure, numbers), None, None

    jvp = staticmethod(refuse("forward-mode AD"))


def autograd_kernel(q, k, v, structure, numbers):
    if torch._C._are_functorch_transforms_active():
        raise UnsupportedError("torch.func transform")
    recorded = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    if recorded or forward_ad._current_level >= 0:
        return Attention.apply(q, k, v, structure, numbers)
    return below_autograd(q, k, v, structure, numbers)


LIB.impl("attention", autograd_kernel, "Autograd")
torch.library.register_autograd("weft_exp::attention_backward", refuse("double backward"), lib=LIB)
for name in ("attention", "attention_backward"):
    torch.library.register_vmap("weft_exp::" + name, refuse("vmap"), lib=LIB)


# ---- the forms: (structure, params, tables) -> pattern, and (q, k, v, pattern) -> outputs
def attention(q, k, v, p):
    numbers = p.numbers
    if not isinstance(numbers, torch.Tensor):
        numbers = torch.from_numpy(numbers)
    return OPS.attention(q, k, v, p.structure, numbers)


def from_numpy(arrays):
    return [torch.from_numpy(a) for a in arrays]


@torch._dynamo.allow_in_graph
def allowed(q, k, v, p):
    return attention(q, k, v, p)


@torch.compiler.assume_constant_result
def read(p):
    return p.structure, tuple(p.numbers.tolist())


def constant(q, k, v, p):
    return OPS.attention(q, k, v, read(p)[0], torch.tensor(read(p)[1]))


@torch._dynamo.nonstrict_trace
def nonstrict(q, k, v, p):
    return attention(q, k, v, p)


def packed(s, p, t):
    return Packed(s, record(p, t))


def packed_tensor(s, p, t):
    return Packed(s, torch.tensor([1 + len(p) + sum(map(len, t)), *p, *(int(x) for y in t for x in y)]))


FORMS = {
    "A  SymInt[] and Tensor[]": (Plain, lambda q, k, v, p: OPS.a(q, k, v, p.structure, p.params, from_numpy(p.tables))),
    "B  Tensor and Tensor[]": (
        lambda s, p, t: Plain(s, np.array(p, np.int64), t),
        lambda q, k, v, p: OPS.b(q, k, v, p.structure, torch.from_numpy(p.params), from_numpy(p.tables)),
    ),
    "C  one Tensor, the record": (packed, attention),
    "D  opaque, by reference": (Reference, OPS.reference),
    "E  opaque, by value": (Value, OPS.value),
    "F  nonstrict_trace, pytree": (packed_tensor, nonstrict),
    "G  allow_in_graph": (packed, allowed),
    "H  assume_constant_result": (packed, constant),
    "I  compiler.disable": (packed, torch.compiler.disable(attention)),
}
WINDOWS = [("window", (left, right), ()) for left, right in ((1023, 0), (5, 0), (0, 0), (1, 1), (64, 3))]
DOCUMENTS = [
    ("documents", (3,), (np.cumsum([0, *lengths]),))
    for lengths in ((10, 20, 34), (32, 32), (64,), (1,) * 30 + (34,), (3, 0, 61))
]
LENGTHS = 64, 128, 96, 200, 7


def qkv(m, order=(0, 1, 2, 3), b=2, h=3, d=8, grad=False):
    shape = [(b, h, m, d)[i] for i in order]
    return [torch.randn(shape).permute(*np.argsort(order).tolist()).requires_grad_(grad) for _ in range(3)]


def count(function, calls, dynamic=True, backend="eager"):
    """Compilations of `function` over `calls`, or the name of the error that stopped it."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend(backend)
    try:
        compiled = torch.compile(function, backend=counter, fullgraph=True, dynamic=dynamic)
        for call in calls:
            call(compiled)
    except AssertionError as error:
        return "AssertionError" if "user code" in str(error) else str(error)
    except Exception as error:
        return type(error).__name__
    return counter.frame_count


CURRENT = None


def places(make, call):
    """place -> (function to compile, how to call it: compiled, [q, k, v], a pattern, its window)"""

    class Module(torch.nn.Module):
        def forward(self, q, k, v):
            return call(q, k, v, self.pattern)

    module, cell = Module(), None

    def closed(f, x, p, _):
        nonlocal cell
        cell = p
        f(*x)

    return {
        "argument": (lambda q, k, v, p: call(q, k, v, p), lambda f, x, p, _: f(*x, p)),  # noqa: PLW0108
        "closure": (lambda q, k, v: call(q, k, v, cell), closed),
        "global": (lambda q, k, v: call(q, k, v, CURRENT), lambda f, x, p, _: (globals().update(CURRENT=p), f(*x))),
        "module": (module, lambda f, x, p, _: (setattr(module, "pattern", p), f(*x))),
        "inside": (lambda q, k, v, a, b: call(q, k, v, make("window", (a, b), ())), lambda f, x, _, ab: f(*x, *ab)),
    }


def sweep(form, place, values, dynamic):
    """Compilations over five pairs of a pattern's parts and a length."""
    make, call = FORMS[form]
    function, apply = places(make, call)[place]
    SEEN.clear()
    calls = [lambda f, a=a, m=m: apply(f, qkv(m), make(*a), a[1]) for a, m in values]
    found = count(function, calls, dynamic)
    want = [(s, *p, *(int(x) for y in t for x in y)) for (s, p, t), _ in values]
    skip = 1 if form[0] in "ABDE" else 2  # a record begins with its length
    got = [(seen[0], *seen[skip : skip + len(w) - 1]) for seen, w in zip(SEEN, want, strict=False)]
    return "wrong numbers" if isinstance(found, int) and got != want else found


def table_compile():
    print("\ncompilations over five windows / document splits / lengths; a new pattern object for every call")
    print(f"{'form':28s}{'the pattern is':16s}{'dynamic=True':>26s}{'dynamic=None':>26s}")
    sweeps = [(a, 64) for a in WINDOWS], [(a, 64) for a in DOCUMENTS], [(WINDOWS[1], m) for m in LENGTHS]
    for form in FORMS:
        for place in ("argument", "closure", "global", "module", "inside"):
            cells = []
            for dynamic in (True, None):
                row = [str(sweep(form, place, x, dynamic)) for x in (sweeps[::2] if place == "inside" else sweeps)]
                cells.append(" / ".join(row) if row[0].isdigit() else row[0])
            print(f"{form:28s}{place:16s}{cells[0]:>26s}{cells[1]:>26s}", flush=True)


def table_traps():
    print("\ntraps: compilations under dynamic=True, dynamic=None")
    x, outside, call_b = qkv(64), Window(7), FORMS["B  Tensor and Tensor[]"][1]
    several = [lambda f, w=w: f(*x, w) for w in (1023, 5, 64, 0, 1)]

    def inside(transform):
        return lambda q, k, v, w: attention(q, k, v, Packed("window", OPS.record([2, transform(w)], [])))

    def frozen(i, view):
        a = np.array([i, 3, 4])
        a.setflags(write=False)
        return Plain("window", a[:] if view else a, ())

    cases = {
        "inside: Window(w)": (lambda q, k, v, w: attention(q, k, v, Window(w)), several),
        "inside: Window(w) & a global one": (lambda q, k, v, w: attention(q, k, v, Window(w) & outside), several),
        "inside: Window(q.shape[2] // 4)": (
            lambda q, k, v: attention(q, k, v, Window(q.shape[2] // 4)),
            [lambda f, m=m: f(*qkv(m)) for m in LENGTHS],
        ),
        "inside: documents from a list of ints": (
            lambda q, k, v, d: attention(q, k, v, packed("documents", d, [])),
            [lambda f, i=i: f(*x, [i, 40, 64]) for i in (3, 5, 0, 1, 40)],
        ),
        "inside: int(w)": (inside(int), several),
        "inside: operator.index(w)": (inside(operator.index), several),
        "inside: hash of w": (inside(lambda w: (w, hash((w, 0)))[0]), several),
        "inside: str of w": (inside(lambda w: (w, f"window({w})")[0]), several),
        "read-only ndarray owning its data": (call_b, [lambda f, i=i: f(*x, frozen(i, False)) for i in range(3)]),
        "read-only ndarray, a view": (call_b, [lambda f, i=i: f(*x, frozen(i, True)) for i in range(3)]),
        "B: a table first as long as D": (
            call_b,
            [lambda f, n=n: f(*x, Plain("", np.arange(2), (np.arange(n),))) for n in (8, 5, 9, 4)],
        ),
        "C: the same": (attention, [lambda f, n=n: f(*x, packed("", (1, 2), (np.arange(n),))) for n in (8, 5, 9, 4)]),
    }
    for name, (function, calls) in cases.items():
        print(f"  {name:42s}{count(function, calls)!s:>16s}{count(function, calls, None)!s:>16s}", flush=True)


def table_checks():  # noqa: C901
    print("\nform C under training, dynamic=True: compilations; out, lse, gradients right, out in q's memory order")
    x, w = qkv(16, grad=True), Window(3)
    still = [t.detach() for t in x]

    def close(a, b):
        return torch.allclose(a, b, atol=1e-4)

    def train(order, backend):
        good = []

        def step(f, left, m):
            x = qkv(m, order, grad=True)
            (out, lse), score = f(*x, Window(left)), scores(*x[:2], left)
            seeds = [torch.randn_like(out), torch.randn_like(lse)]
            want = [score.softmax(-1) @ x[2], score.logsumexp(-1)]
            got, want = [(*y, *torch.autograd.grad(y, x, seeds)) for y in ([out, lse], want)]
            good.append(all(map(close, got, want)) and out.stride() == x[0].stride())

        calls = [lambda f, a=a: step(f, *a) for a in ((1023, 64), (5, 32), (0, 48), (1, 17), (9, 96))]
        return count(attention, calls, True, backend), all(good)

    def twice(f=attention):
        (g,) = torch.autograd.grad(f(*x, w)[0].sum(), x[0], create_graph=True)
        return torch.autograd.grad(g.sum(), x[1])

    def dual(f=attention):
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(f(forward_ad.make_dual(still[0], still[0]), *still[1:], w)[0])

    def export(form, strict):
        make, call = FORMS[form]

        class Module(torch.nn.Module):
            def forward(self, q, k, v):
                return call(q, k, v, self.pattern)

        module, file = Module(), io.BytesIO()
        module.pattern = make("window", (3, 0), ())
        lengths = ({2: torch.export.Dim("m", min=2, max=4096)},) * 3
        torch.export.save(torch.export.export(module, tuple(still), dynamic_shapes=lengths, strict=strict), file)
        file.seek(0)
        loaded, other = torch.export.load(file).module(), qkv(40)
        module(*other), loaded(*other)
        return "the numbers arrive" if SEEN[-1] == SEEN[-2] else "wrong numbers"

    def opcheck(*args):
        return set(torch.library.opcheck(*args).values())

    def compiled(f=attention):
        torch._dynamo.reset()
        return torch.compile(f, backend="aot_eager", fullgraph=True)

    def only_q(q, op=OPS.attention):
        return op(q, *still[1:], "window", torch.from_numpy(w.numbers))[0]

    def jvp_registered():
        _, tangent = torch.func.jvp(lambda q: only_q(q, OPS.registered), (still[0],), (still[0],))
        return f"no error, largest tangent {float(tangent.abs().max())}"

    checks = {
        f"{backend}, q lies as {name}": lambda b=backend, o=order: train(o, b)
        for backend in ("aot_eager", "inductor")
        for name, order in {"BHMD": (0, 1, 2, 3), "BMHD": (0, 2, 1, 3), "MBHD": (2, 0, 1, 3)}.items()
    }
    checks |= {
        "opcheck": lambda: opcheck(OPS.attention.default, (*x, "window", torch.from_numpy(w.numbers))),
        "double backward": twice,
        "double backward, compiled": lambda: twice(compiled()),
        "forward mode": dual,
        "forward mode, compiled": lambda: dual(compiled()),
        "torch.func.jvp": lambda: torch.func.jvp(only_q, (still[0],), (still[0],)),
        "torch.func.jvp, compiled": lambda: compiled(lambda q: torch.func.jvp(only_q, (q,), (q,)))(still[0]),
        "torch.func.jvp, register_autograd": jvp_registered,
        "torch.func.grad": lambda: torch.func.grad(lambda q: only_q(q).sum())(still[0]),
        "torch.vmap": lambda: torch.vmap(only_q)(still[0][None]),
    } | {
        f"{f[0]}: export, save, load, strict={s}": lambda f=f, s=s: export(f, s)
        for f in list(FORMS)[:4]
        for s in (False, True)
    }
    for name, check in checks.items():
        try:
            result = check()
        except Exception as error:
            result = f"{type(error).__name__}: {' '.join(str(error).split())[:60]}"
        print(f"  {name:36s}{result}", flush=True)


def table_eager():
    print("\nmicroseconds per eager call, q (1, 1, 4, 4), median of 1000: no gradients, gradients recorded")
    torch.set_num_threads(1)
    bounds, params, window = np.array([0, 1, 2, 4]), np.array([3, 0]), Window(3)

    def kernel(q, k, v, *rest):
        return torch.empty_like(q), q.new_empty(q.shape[:3])

    def setup(ctx, inputs, output):
        ctx.save_for_backward(*inputs[:3], *output)

    def gradients(ctx, dout, dlse):
        raise AssertionError("not timed")

    forms = {
        "A": ("SymInt[] p, Tensor[] t", lambda: ("s", (3, 0), from_numpy([bounds]))),
        "B": ("Tensor p, Tensor[] t", lambda: ("s", torch.from_numpy(params), from_numpy([bounds]))),
        "C": ("Tensor p", lambda: ("s", torch.from_numpy(window.numbers))),
    }
    rows = {"Python function": (kernel, forms["C"][1])}
    for form, (schema, arguments) in forms.items():
        name, schema = "time_" + form, QKV + "str s, " + schema + OUT  # noqa: PLW2901
        define(name, schema, kernel)
        torch.library.register_autograd("weft_exp::" + name, gradients, setup_context=setup, lib=LIB)
        rows[f"{form}: define, impl, register_autograd"] = getattr(OPS, name), arguments
        custom = torch.library.custom_op("weft_exp::custom_" + form, kernel, mutates_args=(), schema="(" + schema)
        custom.register_autograd(gradients, setup_context=setup)
        rows[f"{form}: custom_op"] = custom, arguments
    LIB.impl("attention", kernel, "CPU")
    rows["C: define, impl, the Autograd kernel above"] = OPS.attention, forms["C"][1]
    for name, (op, arguments) in rows.items():
        cells = []
        for grad in (False, True):
            x, spans = qkv(4, b=1, h=1, d=4, grad=grad), []
            for _ in range(1200):
                begin = time.perf_counter()
                op(*x, *arguments())
                spans.append(time.perf_counter() - begin)
            cells.append(statistics.median(spans[200:]) * 1e6)
        print(f"  {name:44s}{cells[0]:8.1f}{cells[1]:8.1f}", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.getLogger("torch._dynamo").setLevel(logging.CRITICAL)
    print(f"torch {torch.__version__}, Python {sys.version.split()[0]}, numpy {np.__version__}")
    for part in sys.argv[1:] or ("compile", "traps", "checks", "eager"):
        globals()["table_" + part]()
