"""torch.compile(fullgraph=True): from a cold process, and one graph for all windows, lengths, documents and batches.

Every count comes with a comparison: a graph that is compiled once and repeats the first call's numbers is worse than
one that is compiled again.
"""

import copy
import pickle
import subprocess
import sys

import pytest
import torch
from tests.tiers import every
from torch._dynamo.testing import CompileCounter, CompileCounterWithBackend

import weft
from weft.errors import LengthError, PatternError
from weft.testing.refusals import refuse
from weft.torch import SparseAttention

from .helpers import EARLY_DYNAMO, qkv, tokens_first

COLD = """
import torch
{imports}
{outside}

def block(q, k, v):
    {inside}
    return weft.attention(q, k, v, mask).sin()

q, k, v = (torch.randn(1, 2, 40, 8, requires_grad={grad}) for _ in range(3))
out = torch.compile(block, fullgraph=True, backend="{backend}")(q, k, v)
if {grad}:
    out.sum().backward()
    assert all(x.grad.isfinite().all() for x in (q, k, v))
live = torch.ones(40, 40, dtype=torch.bool).tril().triu(-3)
expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=live).sin()
torch.testing.assert_close(out, expected)
print("right")
"""
MAKE = "mask = weft.causal() & weft.window(left=3)"
FRONT_END = "import weft, weft.torch"


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def run_cold(**parts):
    """A process in which nothing was planned and no pattern was used when the compiled function is called."""
    code = COLD.format(**{"imports": "import weft", "outside": "", "inside": "pass"} | parts)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["right"]


@pytest.mark.more
def test_the_first_call_of_a_process_may_be_compiled():
    """weft.torch is not even imported before."""
    run_cold(outside=MAKE, grad=False, backend="eager")


@pytest.mark.more
def test_the_first_call_of_a_process_may_make_its_pattern():
    run_cold(imports=FRONT_END, inside=MAKE, grad=True, backend="aot_eager")


@pytest.mark.more
def test_the_first_call_of_a_process_may_make_its_pattern_if_torch_was_imported_before_weft():
    run_cold(inside=MAKE, grad=False, backend="eager")


# ---- one graph for all integers -------------------------------------------------------------------------------------
def attend(q, k, v, mask):
    return weft.attention(q, k, v, mask)


MASK = None


class Holder(torch.nn.Module):
    mask = None

    def forward(self, q, k, v):
        return weft.attention(q, k, v, self.mask)


def as_argument():
    return attend, lambda f, x, mask: f(*x, mask)


def as_closure():
    cell = None

    def put(f, x, mask):
        nonlocal cell
        cell = mask
        return f(*x)

    return lambda q, k, v: attend(q, k, v, cell), put


def as_global():
    def put(f, x, mask):
        globals()["MASK"] = mask
        return f(*x)

    return lambda q, k, v: attend(q, k, v, MASK), put


def as_attribute():
    module = Holder()

    def put(f, x, mask):
        module.mask = mask
        return f(*x)

    return module, put


def as_weft_module():
    module = SparseAttention(weft.full())

    def put(f, x, mask):
        module.pattern = mask
        return f(*x)

    return module, put


PLACES = [as_argument, as_closure, as_global, as_attribute, as_weft_module]


def compilations(place, calls, backend="eager"):
    """Graphs compiled over `calls` of ((q, k, v), mask), each result compared with eager.

    Sizes that are equal in the first call are taken by torch to be the same number, so tests that vary one make it
    unlike the others (8 dims, 4 query heads, 2 key heads, batch 2).
    """
    function, put = place()
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(function, backend=counter, fullgraph=True, dynamic=True)
    for x, mask in calls:
        assert torch.equal(put(compiled, x, mask), weft.attention(*x, mask)), mask
    return counter.frame_count


WINDOWS = [weft.causal() & weft.window(left=left) for left in (1023, 5, 0, 1, 17)]
DOCUMENTS = [weft.documents(x) & weft.causal() for x in ([10, 20, 34], [32, 32], [64], [1] * 30 + [34], [3, 0, 61])]


@pytest.mark.parametrize("place", every(2, PLACES))
def test_windows(place):
    assert compilations(place, [(qkv(64), mask) for mask in WINDOWS]) == 1


@pytest.mark.parametrize("place", every(2, PLACES))
def test_documents(place):
    """Also their number changes, from 1 to 31."""
    assert compilations(place, [(qkv(64), mask) for mask in DOCUMENTS]) == 1


@pytest.mark.parametrize("place", every(4, PLACES))
def test_lengths_with_windows(place):
    calls = [(qkv(m), mask) for m, mask in zip((64, 128, 96, 200, 7), WINDOWS, strict=True)]
    assert compilations(place, calls) == 1


def test_batches():
    assert compilations(as_argument, [(qkv(32, batch=b), WINDOWS[1]) for b in (5, 3, 7, 2)]) == 1


def test_lengths_of_queries_and_keys_apart():
    mask = weft.causal(align="bottom-right")
    # up to 16 queries an eager call is a step of decoding, with bits of its own
    assert compilations(as_argument, [(qkv(m, n), mask) for m, n in ((30, 60), (17, 60), (41, 41), (64, 200))]) == 1


PAIRS = {
    "offset": (weft.causal(offset=4), weft.causal(), weft.causal(offset=-1), weft.causal(offset=1)),
    "dilation": (weft.dilated(3, 0, 2), weft.dilated(0, 5, 7), weft.dilated(1, 1, 1)),
    "stride": (weft.strided(4), weft.strided(1), weft.strided(9)),
    "summary": (weft.fixed(8), weft.fixed(8, summary=3), weft.fixed(4, summary=4)),
    "chunks": (weft.chunks(7), weft.chunks(1), weft.chunks(64)),
    "padding": (weft.padding([9, 30]), weft.padding([0, 1]), weft.padding([40, 2])),
    "global tokens": (weft.longformer(4, global_tokens=2), weft.longformer(2), weft.longformer(9, dilation=2)),
    "seed": (weft.bigbird(block=8, seed=3), weft.bigbird(block=8), weft.bigbird(block=4, random=1)),
    "grid": (
        weft.neighborhood((5, 8), (3, 3)),
        weft.neighborhood((4, 10), (1, 5)),
        weft.neighborhood((8, 5), (3, 3), stride=2, dilation=1),
        weft.neighborhood((8, 5), (3, 1), dilation=2),
    ),
    "shift": (weft.causal().shift(q=3), weft.causal().shift(k=1), weft.causal().shift()),
    "heads": tuple(weft.per_head([weft.window(left=x), weft.dilated(x, 0, 2)] * 2) for x in (5, 0, 1)),
    "blocks": (weft.blocks(8, [(0, 0), (1, 3)]), weft.blocks(4, [(2, 2)]), weft.blocks(8, [(i, i) for i in range(5)])),
    "complement": (~weft.window(left=4, right=2), ~weft.window(left=0, right=0)),
}


@pytest.mark.parametrize("name", every(4, PAIRS))
def test_integers_of(name):
    assert compilations(as_argument, [(qkv(40), mask) for mask in PAIRS[name]]) == 1


def test_without_dynamic_shapes_one_more_for_a_changed_length():
    """torch's own step: what changes is taken to be dynamic from then on."""
    counter = CompileCounter()
    compiled = torch.compile(attend, backend=counter, fullgraph=True)
    for m, mask in ((64, WINDOWS[0]), (64, WINDOWS[1]), (96, WINDOWS[2]), (50, WINDOWS[3]), (64, WINDOWS[4])):
        x = qkv(m)
        assert torch.equal(compiled(*x, mask), weft.attention(*x, mask))
    assert counter.frame_count == 2


@pytest.mark.skipif(EARLY_DYNAMO, reason="this Dynamo compiles a graph for each structure")
def test_another_expression_is_the_same_graph_where_it_is_of_one_kind():
    """A call, and, or, not, shift: torch guards on the class of an object, and the expression is data."""
    masks = [weft.causal(), weft.window(left=0), weft.causal() | weft.window(left=0), weft.prefix(3) | weft.chunks(4)]
    assert compilations(as_argument, [(qkv(20), mask) for mask in masks]) == 2


def test_options_and_both_outputs():
    counter = CompileCounter()

    def function(q, k, v, mask, sinks, slopes):
        return weft.attention(q, k, v, mask, sinks=sinks, alibi_slopes=slopes, softcap=3.0, scale=0.5, return_lse=True)

    compiled = torch.compile(function, backend=counter, fullgraph=True, dynamic=True)
    for m, mask in zip((64, 33), WINDOWS, strict=False):
        x = [*qkv(m), mask, torch.randn(4), torch.rand(4)]
        for got, expected in zip(compiled(*x), function(*x), strict=True):
            assert torch.equal(got, expected)
    assert counter.frame_count == 1


# ---- patterns made inside -------------------------------------------------------------------------------------------
INSIDE_CALLS = {
    "window": (lambda a, b: weft.causal() & weft.window(left=a), [(1023, 0), (5, 0), (0, 0), (1, 0), (9, 0)]),
    "or, shift": (lambda a, b: weft.prefix(a) | weft.chunks(b).shift(q=a), [(3, 4), (0, 9), (1, 1)]),
    "keywords": (lambda a, b: weft.dilated(a, right=b, step=3), [(3, 4), (0, 9), (1, 1)]),
    "list": (lambda a, b: weft.documents([a, b, 40 - a - b]), [(3, 4), (0, 9), (1, 1), (20, 20)]),
    "bounds": (lambda a, b: weft.documents(cu_seqlens=[0, a, b, 40]), [(3, 4), (0, 9), (1, 1)]),
    "per_head": (
        lambda a, b: weft.per_head([weft.window(left=a), weft.causal()] + [weft.window(left=b)] * 2),
        [(3, 4), (0, 9), (1, 1)],
    ),
    "aligned": (lambda a, b: (weft.window(left=a) & weft.causal(offset=b)).aligned("top-left"), [(3, 4), (0, 9)]),
}


@pytest.mark.parametrize("name", every(3, INSIDE_CALLS))
def test_a_pattern_made_inside(name):
    make, arguments = INSIDE_CALLS[name]
    counter = CompileCounter()
    compiled = torch.compile(
        lambda q, k, v, a, b: attend(q, k, v, make(a, b)), backend=counter, fullgraph=True, dynamic=True
    )
    for a, b in arguments:
        x = qkv(40)
        assert torch.equal(compiled(*x, a, b), weft.attention(*x, make(a, b)))
    assert counter.frame_count == 1


def test_a_pattern_made_inside_of_a_length_and_one_from_outside():
    counter, outside = CompileCounter(), weft.prefix(3)

    def function(q, k, v):
        return weft.attention(q, k, v, (weft.window(left=q.shape[2] // 4) & weft.causal()) | outside)

    compiled = torch.compile(function, backend=counter, fullgraph=True, dynamic=True)
    for m in (64, 40, 7, 100):
        assert torch.equal(compiled(*qkv(m)), function(*qkv(m)))
    assert counter.frame_count == 1


def test_a_pattern_from_outside_comes_first():
    outside = weft.prefix(3)
    compiled = torch.compile(lambda q, k, v, a: attend(q, k, v, outside | weft.window(left=a)), fullgraph=True,
                             backend="eager")  # fmt: skip
    assert torch.equal(compiled(*qkv(20), 2), weft.attention(*qkv(20), outside | weft.window(left=2)))


def test_a_pattern_made_inside_and_used_after_the_graph():
    """Behind a break of the graph, or given away by the function."""

    def broken(q, k, v, a):
        mask = weft.window(left=a) & weft.causal()
        torch._dynamo.graph_break()
        return weft.attention(q, k, v, mask)

    x, expected = qkv(20), weft.window(left=3) & weft.causal()
    out = weft.attention(*x, expected)
    assert torch.equal(torch.compile(broken, backend="eager")(*x, 3), out)
    given = torch.compile(lambda a: weft.window(left=a), backend="eager")(3)
    for mask in (given & weft.causal(), weft.causal() & given):
        assert torch.equal(weft.attention(*x, mask), out)
    assert str(weft.plan(given & weft.causal(), *x)) == str(weft.plan(expected, *x))


def test_complement_inside_is_refused():
    """Dynamo does not trace `~` on an object; it says so, and the cure is to write that part outside."""
    compiled = torch.compile(lambda q, k, v: attend(q, k, v, ~weft.window(left=3)), backend="eager", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="invert"):
        compiled(*qkv(20))


@pytest.mark.parametrize("dynamic", [True, None, False])
def test_a_float_among_the_options_of_a_module(dynamic):
    module = SparseAttention(weft.causal(), scale=0.3, softcap=2.0)
    compiled = torch.compile(module, backend="eager", fullgraph=True, dynamic=dynamic)
    for m in (24, 40):
        assert torch.equal(compiled(*qkv(m)), module(*qkv(m)))


@pytest.mark.parametrize("dynamic", every(3, [True, None, False]))
def test_a_float_argument(dynamic):
    """Compiled for each value, says the decision; right for each."""

    def function(q, k, v, scale):
        return weft.attention(q, k, v, weft.causal(), scale=scale)

    compiled = torch.compile(function, backend="eager", fullgraph=True, dynamic=dynamic)
    for scale in (0.3, 0.5, 0.0, 1.0):
        assert torch.equal(compiled(*qkv(24), scale), function(*qkv(24), scale))


# ---- errors, training, layouts ---------------------------------------------------------------------------------------
def test_errors_are_the_library_s_own():
    """A mask that does not fit, from outside and from inside, and the graph is still good afterwards."""
    compiled = torch.compile(attend, backend="eager", fullgraph=True, dynamic=True)
    good, bad = weft.documents([10, 10]), weft.documents([10, 11])
    assert torch.equal(compiled(*qkv(20), good), weft.attention(*qkv(20), good))
    refuse(lambda: compiled(*qkv(20), bad), LengthError, ("documents", "21", "M=20"))
    assert torch.equal(compiled(*qkv(20), good), weft.attention(*qkv(20), good))

    inside = torch.compile(
        lambda q, k, v, a: attend(q, k, v, weft.window(left=a)), backend="eager", fullgraph=True, dynamic=True
    )
    assert torch.equal(inside(*qkv(20), 3), weft.attention(*qkv(20), weft.window(left=3)))
    refuse(lambda: inside(*qkv(20), -3), PatternError, ("window", "left", "-3"))
    assert torch.equal(inside(*qkv(20), 5), weft.attention(*qkv(20), weft.window(left=5)))


@pytest.mark.parametrize("layout", every(2, ["contiguous", "tokens_first"]))
@pytest.mark.parametrize("inside", [False, True], ids=["outside", "inside"])
def test_training_in_one_graph(inside, layout):
    counter = CompileCounterWithBackend("aot_eager")

    def step(q, k, v, mask, left, sinks):
        mask = weft.causal() & weft.window(left=left) if inside else mask
        out, lse = weft.attention(q, k, v, mask, sinks=sinks, return_lse=True)
        return out.square().sum() + lse.sum(), out

    compiled = torch.compile(step, backend=counter, fullgraph=True, dynamic=True)
    counts = []
    for m, left in ((64, 1023), (32, 5), (48, 0), (17, 1), (96, 9)):
        found = []
        for function in (compiled, step):
            x = [tokens_first(t) if layout == "tokens_first" else t for t in qkv(m, grad=True)]
            sinks = torch.linspace(-1.0, 1.0, 4, requires_grad=True)
            total, out = function(*x, weft.causal() & weft.window(left=left), left, sinks)
            found.append([out.detach(), *torch.autograd.grad(total, (*x, sinks))])
            assert out.stride() == x[0].stride()
        for got, expected in zip(*found, strict=True):
            torch.testing.assert_close(got, expected)
        counts.append(counter.frame_count)
    assert len(set(counts)) == 1, counts


@pytest.mark.parametrize("first", [torch.inference_mode, torch.no_grad])
def test_inference_mode(first):
    """Whose guards torch fails for arrays (2.13); after another mode and before, and of patterns that were copied."""
    compiled = torch.compile(weft.attention, backend="aot_eager", fullgraph=True)
    tensors = qkv(40)
    masks = weft.window(3, 0), copy.deepcopy(weft.window(9, 0)), pickle.loads(pickle.dumps(weft.window(5, 0)))
    for mode in (first, torch.inference_mode, torch.no_grad):
        for mask in masks:
            with mode():
                found = compiled(*tensors, mask)
            torch.testing.assert_close(found, weft.attention(*tensors, mask))
    module = torch.compile(SparseAttention(masks[0]), backend="aot_eager", fullgraph=True)
    with torch.inference_mode():
        torch.testing.assert_close(module(*tensors), weft.attention(*tensors, masks[0]))


def test_training_is_compiled_once_not_twice():
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(attend, backend=counter, fullgraph=True, dynamic=True)
    compiled(*qkv(20, grad=True), WINDOWS[1]).sum().backward()
    assert counter.frame_count == 1


def test_autocast_inside_and_outside():
    def inside(q, k, v, mask):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return weft.attention(q, k, v, mask)

    for function in (inside, attend):
        compiled = torch.compile(function, backend="eager", fullgraph=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            got, expected = compiled(*qkv(20), WINDOWS[1]), function(*qkv(20), WINDOWS[1])
        assert got.dtype == torch.bfloat16
        assert torch.equal(got, expected)


def test_inductor():
    """The one test of inductor: nothing but the operator, so that no C++ compiler is needed; strides are kept."""
    from torch._inductor import config

    with config.patch(force_disable_caches=True):
        compiled = torch.compile(attend, fullgraph=True, dynamic=True)
        for m, mask in ((24, WINDOWS[1]), (40, WINDOWS[3])):
            x = [tokens_first(t) for t in qkv(m)]
            got, expected = compiled(*x, mask), attend(*x, mask)
            assert torch.equal(got, expected)
            assert got.stride() == expected.stride()
