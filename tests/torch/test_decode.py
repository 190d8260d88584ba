"""Steps of decoding: values against dense attention, one plan and one kernel for all lengths, and who goes elsewhere.

Without a GPU they run under Triton's interpreter, in a process of their own: tests/triton/test_rowwise_interpreted.py.
"""

from math import inf
from unittest import mock

import numpy as np
import pytest
import torch

import weft
from weft import caching, steps
from weft.errors import AlignmentError, InputError, OptionError, UnsupportedKernel
from weft.kernels.options import Modifiers
from weft.planning import rowwise
from weft.planning.attention_plan import plan_attention
from weft.planning.families import split_kv
from weft.planning.problem import Problem
from weft.planning.rowwise import LEAST_CAPACITY
from weft.settings import interpreted
from weft.target import GPU
from weft.testing.refusals import refuse
from weft.testing.tolerance import assert_close
from weft.torch import decode, eager

from ..kernels import dense
from ..kernels.compare import generator, normal
from ..kernels.layouts import LAYOUTS
from ..kernels.pairwise import dealt
from .helpers import check_unseen_keys_are_not_read, qkv

pytestmark = pytest.mark.skipif(not (interpreted() or torch.cuda.is_available()), reason="nothing runs Triton here")
DEVICE = "cpu" if interpreted() else "cuda"
END = "bottom-right"
PATTERNS = {
    "full": weft.full(),
    "causal": weft.causal(),
    "window": weft.causal() & weft.window(left=99),
    "both sides": weft.window(left=30, right=30),
    "dilated": weft.dilated(9, 0, 7),
    "strided": weft.strided(8),
    "fixed": weft.fixed(16),
    "chunks": weft.chunks(64) & weft.causal(),
    "sinks of a stream": weft.causal() & (weft.window(left=63) | weft.prefix(4)),
    "many bounds": weft.causal() & weft.window(left=70) & weft.padding(290, rows=True) & weft.causal(offset=-2),
    "step functions": steps("before", [2, 150, 200, 290], [3, 4, 40, 170, 260]),
    "listed keys": weft.causal() & (weft.window(left=40) | weft.global_tokens([0, 3, 4, 150], rows=False)),
    "listed tokens": weft.causal() & (weft.window(left=9) | weft.global_tokens([0, 3, 4, 69])),
    "no key": weft.causal() & weft.prefix(0),
    "heads": weft.per_head([weft.causal(), weft.strided(8), weft.nothing(), weft.prefix(20)]),
    "batch rows": weft.per_batch([weft.causal(), weft.causal() & weft.window(left=9)]),
}
OPTIONS = {
    "plain": {},
    "scale below 0": {"scale": -0.3},
    "softcap": {"softcap": 1.5},
    "sinks": {"sinks": True},
    "slopes": {"alibi_slopes": True},
    "all": {"scale": 0.2, "softcap": 1.5, "sinks": True, "alibi_slopes": True},
}
FACTORS = {
    "pattern": list(PATTERNS),
    "options": list(OPTIONS),
    "heads": [(4, 4), (4, 2), (4, 1)],
    "m": [1, 2, 3],
    "n": [5, 70, 300],
    "dims": [(16, 16), (33, 40), (80, 17)],
    "dtype": [torch.float32, torch.bfloat16, torch.float16],
    "layout": list(LAYOUTS),
    "filled": [0, 4],  # programs that a processor is thought to take: one share of all keys, or several shares
}


def allowed(row):
    """Distances need an alignment."""
    return row.get("pattern") != "full" or "alibi_slopes" not in OPTIONS[row.get("options", "plain")]


def label(row):
    words = (str(x).removeprefix("torch.").replace(" ", "_") for x in row.values())
    return "-".join(words)


@pytest.fixture(autouse=True)
def _alone():
    """No test finds what another one prepared."""
    with mock.patch.dict(decode._found, clear=True), mock.patch.dict(eager._calls, clear=True):
        yield


def attend(tensors, pattern, **options):
    """(out, lse) of a call that must be a prepared step, on the CPU."""
    moved = [x.to(DEVICE) for x in tensors]
    options = {name: x.to(DEVICE) if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    with mock.patch.object(eager, "prepare", side_effect=AssertionError("it went the ordinary way")):
        out, lse = weft.attention(*moved, pattern, return_lse=True, backend="triton", **options)
    return out.cpu(), lse.cpu()


def check(tensors, pattern, **options):
    (q, k, v), (m, n) = tensors, (tensors[0].shape[2], tensors[1].shape[2])
    out, lse = attend(tensors, pattern, **options)
    live = torch.from_numpy(pattern.to_dense(m, n)).expand(*q.shape[:3], n)
    truth, plain = (
        dense.attention(
            *(x.to(dtype) for x in (q, k, v)),
            live,
            {name: x.to(dtype) if isinstance(x, torch.Tensor) else x for name, x in options.items()},
            n - m,
        )
        for dtype in (torch.float64, q.dtype)
    )
    for name, got, a, b in zip(("out", "lse"), (out, lse), truth, plain, strict=True):
        assert_close(name, got, a, b)
    dead = ~live.any(-1)
    assert (out[dead] == 0).all()
    alone = options["sinks"].float()[None, :, None].expand(dead.shape)[dead] if "sinks" in options else -torch.inf
    assert (lse[dead] == alone).all()
    return out, lse


ROWS = dealt(FACTORS, "pattern", allowed)


@pytest.mark.parametrize("row", [pytest.param(row, id=label(row)) for row in ROWS])
def test_pairwise(row):
    random = generator(label(row))
    batch, heads = 2 if row["pattern"] == "batch rows" else 1, row["heads"]
    (d, dv), m, n = row["dims"], row["m"], row["n"]
    shapes = (batch, heads[0], m, d), (batch, heads[1], n, d), (batch, heads[1], n, dv)
    tensors = [normal(shape, random, row["dtype"]) for shape in shapes]
    tensors = [place(x) for place, x in zip(LAYOUTS[row["layout"]], tensors, strict=True)]
    rows = {"sinks": normal((4,), random), "alibi_slopes": torch.tensor([0.5, 0.25, 0.0, 0.0625])}
    options = {name: rows.get(name, x) for name, x in OPTIONS[row["options"]].items()}
    with mock.patch.object(split_kv, "FILLED", row["filled"]):
        out, _ = check(tensors, PATTERNS[row["pattern"]].aligned(END), **options)
    assert out.dtype == row["dtype"]


def test_many_queries():
    check(qkv(16, 90, batch=1, heads=(16, 2), dims=(16, 16)), weft.causal(align=END) & weft.window(left=70, align=END))


@pytest.mark.parametrize("step", [2, 4])
def test_queries_of_a_lane_are_walked_together(step):
    check(qkv(7, 90, batch=1, heads=(4, 2), dims=(16, 16)), weft.dilated(20, 0, step, align=END))


def test_more_heads_than_a_program_holds():
    tensors = qkv(3, 40, batch=1, heads=(70, 1), dims=(16, 16))
    check(tensors, weft.causal(align=END) & weft.window(left=20, align=END))


@pytest.mark.parametrize("places", [lambda x: torch.stack([x, -x], 1)[:, 0], lambda x: x[:1].expand(4)])
def test_sinks_and_slopes_lie_anywhere(places):
    """As a column of a table, or one number for all heads."""
    rows = {"sinks": torch.tensor([1.5, -0.5, 0.0, 2.0]), "alibi_slopes": torch.tensor([0.5, 0.25, 0.0, 0.0625])}
    tensors = qkv(1, 90, batch=1, heads=(4, 2), dims=(16, 16))
    check(tensors, weft.causal(align=END), **{name: places(x) for name, x in rows.items()})


def test_keys_that_no_query_sees_are_not_read():
    check_unseen_keys_are_not_read(attend)


# ---- a cache that grows ----------------------------------------------------------------------------------------------
def grown(lengths, pattern, **options):
    """Steps over views of one cache; yields (length, tensors, out, lse)."""
    q, keys, values = (x.to(DEVICE) for x in qkv(1, max(lengths), batch=1, dims=(16, 16)))
    for n in lengths:
        tensors = [q, keys[:, :, :n], values[:, :, :n]]
        yield n, [x.cpu() for x in tensors], *attend(tensors, pattern, **options)


def test_one_plan_and_one_kernel_for_all_lengths():
    from weft.torch import bind  # Triton is not everywhere

    pattern = weft.causal(align=END) & weft.window(left=40, align=END)
    planned = mock.patch.object(decode, "decode_plan", side_effect=decode.decode_plan)
    made = mock.patch.object(bind, "kernel_of", side_effect=bind.kernel_of)
    with planned as planned, made as made:
        for _, (q, k, v), out, _ in grown((1000, 1001, 1200), pattern):
            near = [q, k[:, :, -41:], v[:, :, -41:]]
            assert_close("out", out, dense.attention(*(x.double() for x in near), torch.tensor(True), {})[0], out)
        with mock.patch.object(bind.Started, "__call__") as started:  # the interpreter takes its time
            assert 2 * len(list(grown(range(1000, 1201), pattern))) == started.call_count
    assert planned.call_count == 1
    assert [call.args[0].name.split("_")[0] for call in made.call_args_list] == ["split", "combine"]
    assert len(decode._found) == 1


def test_a_cache_that_is_concatenated_is_planned_once():
    """Its strides are others at every length, and so is the step; its rows and its tables are the same."""
    q, keys, values = qkv(1, 40, batch=1, dims=(16, 16))
    pattern = (weft.causal() & weft.window(left=29)).aligned(END)
    with mock.patch.object(rowwise, "steady_relations", wraps=rowwise.steady_relations) as planned:
        for n in (33, 34, 40):
            check([q, *(x[:, :, :n].contiguous() for x in (keys, values))], pattern)
    assert planned.call_count == 1


def test_growing_past_the_capacity_plans_once_more():
    pattern = weft.causal(align=END) & weft.window(left=40, align=END)
    lengths = range(LEAST_CAPACITY - 1, LEAST_CAPACITY + 3)
    with mock.patch.object(decode, "decode_plan", side_effect=decode.decode_plan) as planned:
        for _, (q, k, v), out, _ in grown(lengths, pattern):
            near = [q, k[:, :, -41:], v[:, :, -41:]]
            assert_close("out", out, dense.attention(*(x.double() for x in near), torch.tensor(True), {})[0], out)
    assert planned.call_count == 2


def test_capacity_bounds_the_tokens_of_every_term():
    """A pattern whose terms change far out: the rows of another capacity are the same rows."""
    pattern = (weft.causal() & weft.window(left=9)).aligned(END) | (weft.prefix(3) & ~weft.window(left=9, align=END))
    short, long = (dict_of(grown([n], pattern)) for n in (500, LEAST_CAPACITY + 1))
    assert short[500][0].isfinite().all()
    assert long[LEAST_CAPACITY + 1][0].isfinite().all()


def dict_of(steps):
    return {n: (out, lse) for n, _, out, lse in steps}


# ---- one step is not another -----------------------------------------------------------------------------------------
PATTERN = weft.causal(align=END) & weft.window(left=15, align=END)
CHANGES = {
    "strides": lambda x, o: ([x[0], *(t.transpose(1, 2).contiguous().transpose(1, 2) for t in x[1:])], o),
    "where memory begins": lambda x, o: ([torch.cat([t.new_zeros(1), t.flatten()])[1:].view(t.shape) for t in x], o),
    "dtype": lambda x, o: ([t.half() for t in x], o),
    "queries": lambda x, o: ([x[0][:, :, :1].contiguous(), *x[1:]], o),
    "keys": lambda x, o: ([x[0], *(t[:, :, :25] for t in x[1:])], o),
    "heads": lambda x, o: ([x[0][:, :2], *x[1:]], o),
    "values": lambda x, o: ([*x[:2], x[2][..., :3]], o),
    "scale": lambda x, o: (x, o | {"scale": 2.0}),
    "softcap": lambda x, o: (x, o | {"softcap": 0.5}),
    "sinks": lambda x, o: (x, o | {"sinks": torch.linspace(-1, 1, 4)}),
    "slopes": lambda x, o: (x, o | {"alibi_slopes": torch.linspace(0, 1, 4)}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen(change):
    tensors = qkv(2, 40, dims=(8, 8))
    check(tensors, PATTERN)
    changed, options = CHANGES[change](tensors, {})
    check(changed, PATTERN, **options)
    check(tensors, PATTERN)


@pytest.mark.skipif(DEVICE != "cpu", reason="the copies of such rows on a GPU lie densely")
@pytest.mark.parametrize("rows", ["sinks", "alibi_slopes"])
def test_rows_that_lie_otherwise_are_seen(rows):
    """The same numbers, every second one of others; and of another dtype. A program is made for each."""
    tensors, plain = qkv(2, 40, dims=(8, 8)), torch.linspace(0.1, 1, 4)
    apart = torch.stack([plain, torch.full_like(plain, 9.0)], -1)[:, 0]
    for x in (plain, apart, plain.to(torch.float64), plain):
        check(tensors, PATTERN, **{rows: x})
    assert len(decode._found) == 3
    keys = {
        decode.key_of(tensors, PATTERN, (x, None) if rows == "sinks" else (None, x), (None,))
        for x in (plain, apart, plain.clone())
    }
    assert len(keys) == 2


def test_another_mask_of_the_same_id_is_another():
    tensors = qkv(2, 40, dims=(8, 8))
    check(tensors, PATTERN)
    check(tensors, weft.causal(align=END) & weft.window(left=2, align=END))


# ---- who goes the ordinary way ---------------------------------------------------------------------------------------
ORDINARY = {
    "an unsteady pattern": (weft.causal(align="top-left"), 2, 40, {}),
    "many listed tokens": (weft.global_tokens([x * x for x in range(20)], align=END), 2, 400, {}),
    "documents": (weft.documents([9, 7]) & weft.causal(), 16, 16, {}),
    "many queries": (PATTERN, 17, 40, {}),
    "more queries than keys": (PATTERN, 9, 5, {}),
    "slopes without an alignment": (weft.full(), 5, 5, {"alibi_slopes": torch.ones(4)}),
}


@pytest.mark.parametrize("name", ORDINARY)
def test_the_ordinary_way(name):
    pattern, m, n, options = ORDINARY[name]
    tensors = [x.to(DEVICE) for x in qkv(m, n, dims=(16, 16), batch=1)]
    options = {key: x.to(DEVICE) for key, x in options.items()}
    with mock.patch.object(eager, "prepare", side_effect=eager.prepare) as ordinary:
        out = weft.attention(*tensors, pattern, backend="triton", **options)
    assert ordinary.call_count == 1
    live = torch.from_numpy(pattern.to_dense(m, n))
    on_cpu = [x.cpu() for x in tensors]
    rows = {key: x.cpu() for key, x in options.items()}
    truth, plain = (dense.attention(*(x.to(t) for x in on_cpu), live, rows)[0] for t in (torch.float64, torch.float32))
    assert_close("out", out, truth, plain)


def test_gradients_go_the_ordinary_way():
    tensors = [x.to(DEVICE).requires_grad_() for x in qkv(2, 40, dims=(16, 16), batch=1)]
    out = weft.attention(*tensors, PATTERN, backend="triton")
    assert out.requires_grad
    with torch.no_grad():
        assert_close("out", attend([x.cpu() for x in tensors], PATTERN)[0], out.double(), out.float())
    assert len(decode._found) == 1


REFUSED = {
    "no alignment": (AlignmentError, {"mask": weft.causal()}),
    "distances without an alignment": (AlignmentError, {"mask": weft.full(), "alibi_slopes": torch.ones(4)}),
    "heads of another number": (InputError, {"mask": weft.per_head([weft.full()] * 3)}),
    "a scale that is no number": (OptionError, {"scale": float("nan")}),
    "an option without a hash": (OptionError, {"softcap": [1]}),
    "sinks of another number": (OptionError, {"sinks": torch.zeros(3)}),
    "sinks that are no tensor": (OptionError, {"sinks": 3}),
    "no mask": (InputError, {"mask": None}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    error, options = REFUSED[name]
    options = {"mask": PATTERN, "backend": "triton"} | options
    options = {key: x.to(DEVICE) if isinstance(x, torch.Tensor) else x for key, x in options.items()}
    for _ in range(2):  # no step was kept of the first
        with pytest.raises(error):
            weft.attention(*(x.to(DEVICE) for x in qkv(2, 40)), **options)
    assert all(found.step is None for found in decode._found.values())


def test_lengths_of_keys_and_values_are_compared():
    q, k, v = (x.to(DEVICE) for x in qkv(2, 40))
    weft.attention(q, k, v, PATTERN, backend="triton")
    with pytest.raises(InputError, match="length"):
        weft.attention(q, k, v[:, :, :39], PATTERN, backend="triton")


@pytest.mark.parametrize("option", ["sinks", "alibi_slopes"])
def test_complex_numbers_of_rows_are_refused_after_real_ones(option):
    tensors, real = [x.to(DEVICE) for x in qkv(2, 40)], torch.zeros(4, device=DEVICE)
    weft.attention(*tensors, PATTERN, backend="triton", **{option: real})
    with pytest.raises(OptionError, match="complex64"):
        weft.attention(*tensors, PATTERN, backend="triton", **{option: real.to(torch.complex64)})


def test_results_are_new_each_time():
    tensors = qkv(2, 40, dims=(8, 8))
    first = attend(tensors, PATTERN)[0]
    kept = first.clone()
    attend([2 * x for x in tensors], PATTERN)
    assert np.array_equal(first, kept)


# ---- problems with few rows, of any pattern --------------------------------------------------------------------------
FEW_ROWS = {
    "top-left": (weft.causal(align="top-left") & weft.window(left=20, align="top-left"), 70, 33),
    "bottom-right": (weft.strided(5, align=END), 21, 130),
    "documents": (weft.documents([9, 0, 30, 1, 50]) & weft.causal(), 90, 90),
    "lanes": (weft.dilated(4, 4, 3), 50, 50),
    "prefix": (weft.causal() | weft.prefix(20), 65, 65),
    "neighbours": (weft.neighborhood(40, 7, dilation=2), 40, 40),
    "heads": (weft.per_head([weft.causal(), weft.chunks(7), weft.causal(), weft.full()]), 33, 33),
}


@pytest.mark.parametrize("name", FEW_ROWS)
def test_few_rows(name):
    from weft.torch.gpu import by_rows

    pattern, m, n = FEW_ROWS[name]
    tensors = qkv(m, n, batch=1, heads=(4, 2), dims=(16, 24))
    slopes, sinks, shift = torch.tensor([0.1, 0.2, 0.0, 0.05]), torch.linspace(-1, 1, 4), 5
    problem = Problem(1, 4, 2, m, n, 16, 24, "float32", DEVICE)
    how = Modifiers(0.3, None, slopes.to(DEVICE, torch.float64), shift)
    got = by_rows(tuple(x.to(DEVICE) for x in tensors), plan_attention(pattern, problem, GPU), how, sinks.to(DEVICE))
    live = torch.from_numpy(pattern.to_dense(m, n)).expand(1, 4, m, n)
    options = {"scale": 0.3, "alibi_slopes": slopes, "sinks": sinks}
    truth, plain = (
        dense.attention(
            *(x.to(t) for x in tensors), live, {k: x.to(t) if k != "scale" else x for k, x in options.items()}, shift
        )
        for t in (torch.float64, torch.float32)
    )
    for quantity, x, a, b in zip(("out", "lse"), got, truth, plain, strict=True):
        assert_close(quantity, x.cpu(), a, b)


@pytest.mark.parametrize("name", FEW_ROWS)
def test_a_plan_that_takes_rows_has_a_backward_by_tiles(name, monkeypatch):
    """As `weft.attention` runs it, with gradients; at such sizes a plan takes tiles unless it has to take rows."""
    pattern, m, n = FEW_ROWS[name]
    monkeypatch.setattr(split_kv, "reasons_against", lambda asked: asked.rows if isinstance(asked.rows, str) else "")
    monkeypatch.setattr(split_kv, "WORTH", -inf)
    caching.clear()
    tensors = [x.to(DEVICE).requires_grad_() for x in qkv(m, n, batch=1, heads=(4, 2), dims=(16, 24))]
    from weft.kernels.gpu.programs import forward

    with mock.patch.object(forward, "split_kv_program", wraps=forward.split_kv_program) as by_rows:
        out, lse = weft.attention(*tensors, pattern, return_lse=True, backend="triton")
    caching.clear()
    assert by_rows.call_count == 1
    live = torch.from_numpy(pattern.to_dense(m, n)).expand(1, 4, m, n)
    d_out = normal(out.shape, generator(name), torch.float32).to(DEVICE)
    got = (out, lse, *torch.autograd.grad(out, tensors, d_out))
    results = []
    for dtype in (torch.float64, torch.float32):
        given = [x.detach().cpu().to(dtype).requires_grad_() for x in tensors]
        dense_out, dense_lse = dense.attention(*given, live, {"scale": 0.25})
        results.append((dense_out, dense_lse, *torch.autograd.grad(dense_out, given, d_out.cpu().to(dtype))))
    for quantity, x, a, b in zip(("out", "lse", "dq", "dk", "dv"), got, *results, strict=True):
        assert_close(quantity, x.detach().cpu(), a.detach(), b.detach())


def test_rows_without_a_formula_are_refused():
    from weft.torch.gpu import by_rows

    pattern, tensors = weft.random_blocks(16, 1), qkv(90, batch=1)
    plan = plan_attention(pattern, Problem(1, 4, 2, 90, 90, 8, 8, "float32", DEVICE), GPU)
    refuse(lambda: by_rows(tuple(tensors), plan, Modifiers(0.3)), UnsupportedKernel, ["block by block"])
