"""Documents whose lengths the device has, forward by warp groups: programs beside documents planned on the host."""

import heapq
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.tiers import every, sample

import weft
from weft.kernels.gpu.documents.spec import known
from weft.kernels.gpu.layout import Layout, Options, Vector
from weft.kernels.gpu.oracle import run_program
from weft.kernels.gpu.program import LaunchProgram, row_major
from weft.kernels.gpu.programs.documents import (
    Documents,
    documents_backward_program,
    documents_forward_program,
)
from weft.planning.attention_plan import plan_attention
from weft.planning.families.hopper import WIDE, sums_of
from weft.planning.problem import Problem
from weft.settings import interpreted
from weft.target import GPU

from .test_oracle_documents import PATTERNS, by_host, sums

pytestmark = pytest.mark.skipif(interpreted(), reason="kernels by warp groups are not interpreted")
D = 128
LENGTHS = {
    "drawn": [300, 0, 77, 128, 1, 513, 0], "short": [3, 40], "one": [130], "even": [128, 128, 128],
    "last ones": [5, 600],
}  # fmt: skip
OF_ITSELF = {name: pattern for name, pattern in PATTERNS.items() if "top-left" not in name} | {
    "far window": (weft.causal() & weft.window(left=200)).aligned("bottom-right"),
}


def program_of(pattern, count, tokens, heads=(6, 2), sinks=False):
    """The forward by warp groups of packed tensors of so many tokens."""
    problem = Problem(1, *heads, tokens, tokens, D, D, "bfloat16", "cuda")
    sizes = (problem.q_heads, tokens, D), (problem.kv_heads, tokens, D), (problem.kv_heads, tokens, D)
    layout = Layout(tuple(row_major((1, *size)) for size in sizes), True)
    layout = layout._replace(sinks=Vector("float32", (1,)) if sinks else None)
    asked = Documents(count, known(pattern, tokens), {}, groups=WIDE)
    assert asked.pattern.sees_itself(tokens)
    return documents_forward_program(plan_attention(weft.full(), problem, GPU), layout, Options(D**-0.5), asked)


def gradients_of(pattern, count, tokens, heads=(6, 2), d=D):
    """The gradients by warp groups of the same tensors."""
    problem = Problem(1, *heads, tokens, tokens, d, d, "bfloat16", "cuda")
    of_q, of_k = ((1, one, tokens, d) for one in (problem.q_heads, problem.kv_heads))
    layout = Layout(tuple(map(row_major, (of_q, of_k, of_k, of_q, of_q))), True)
    asked = Documents(count, known(pattern, tokens), {}, sums=sums_of(problem))
    options = Options(d**-0.5, deterministic=False)
    return documents_backward_program(plan_attention(weft.full(), problem, GPU), layout, options, asked)


def tensors_of(tokens, heads=(6, 2), d=D):
    random = np.random.default_rng(tokens)
    return [random.standard_normal((1, h, tokens, d)) for h in (heads[0], heads[1], heads[1])]


def by_program(program, lengths, tensors, **rows):
    counted = dict.fromkeys(("of_queries", "of_keys"), sums(lengths))
    return run_program(program, dict(zip("qkv", tensors, strict=True)) | counted | rows)


@pytest.mark.parametrize("name", every(2, OF_ITSELF))
@pytest.mark.parametrize("lengths", every(2, LENGTHS))
def test_programs_are_what_the_host_plans(name, lengths):
    lengths, pattern = LENGTHS[lengths], OF_ITSELF[name]
    q, k, v = tensors_of(sum(lengths))
    found = by_program(program_of(pattern, len(lengths), sum(lengths)), lengths, (q, k, v))
    expected = by_host(pattern, (lengths, lengths), (q, k, v, np.ones_like(q), np.zeros(q.shape[:3])), {})
    for x in ("out", "lse"):
        np.testing.assert_allclose(found[x], expected[x], rtol=1e-9, atol=1e-9, err_msg=x)


@pytest.mark.parametrize("d", sample([64, D], D))
@pytest.mark.parametrize("name", every(2, OF_ITSELF))
@pytest.mark.parametrize("lengths", every(2, LENGTHS))
def test_gradients_are_what_the_host_plans(name, lengths, d):
    lengths, pattern = LENGTHS[lengths], OF_ITSELF[name]
    tokens = sum(lengths)
    q, k, v = tensors_of(tokens, d=d)
    dout = np.random.default_rng(1).standard_normal(q.shape)
    expected = by_host(pattern, (lengths, lengths), (q, k, v, dout, np.zeros(q.shape[:3])), {})
    rest = {name: expected[name] for name in ("out", "lse")} | {"dout": dout}
    found = by_program(gradients_of(pattern, len(lengths), tokens, d=d), lengths, (q, k, v), **rest)
    for x in ("dq", "dk", "dv"):
        np.testing.assert_allclose(found[x], expected[x], rtol=1e-9, atol=1e-9, err_msg=x)


@pytest.mark.parametrize("lengths", [[40, 0, 30], [5], [200, 100], []], ids=str)
def test_gradients_of_tokens_after_the_last_document(lengths):
    """Nothing is read of their queries, keys of none have no gradients, and their queries none."""
    pattern, tokens, after = weft.causal(align="bottom-right"), sum(lengths), 90
    q, k, v = tensors_of(tokens + after)
    dout = np.random.default_rng(1).standard_normal(q.shape)
    inside = [x[:, :, :tokens] for x in (q, k, v, dout)]
    given = {"out": np.zeros_like(q), "lse": np.full(q.shape[:3], -np.inf), "dout": dout}
    if tokens:
        expected = by_host(pattern, (lengths, lengths), (*inside, np.zeros(inside[0].shape[:3])), {})
        for name in ("out", "lse"):
            given[name][:, :, :tokens] = expected[name]
    for x in (q, k, v, dout):
        x[:, :, tokens:] = np.nan
    found = by_program(gradients_of(pattern, len(lengths), tokens + after), lengths, (q, k, v), **given)
    for x in ("dq", "dk", "dv"):
        assert (found[x][:, :, tokens:] == 0).all(), x
        if tokens:
            np.testing.assert_allclose(found[x][:, :, :tokens], expected[x], rtol=1e-9, atol=1e-9, err_msg=x)


def test_sinks():
    lengths, pattern = LENGTHS["drawn"], weft.causal(align="bottom-right")
    q, k, v = tensors_of(sum(lengths))
    sinks = np.linspace(-1, 1, 6)
    found = by_program(program_of(pattern, len(lengths), sum(lengths), sinks=True), lengths, (q, k, v), sinks=sinks)
    rest = (q, k, v, np.ones_like(q), np.zeros(q.shape[:3]))
    expected = by_host(pattern, (lengths, lengths), rest, {"sinks": torch.from_numpy(sinks)})
    np.testing.assert_allclose(found["out"], expected["out"], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("lengths", [[40, 0, 30], [5], [200, 100], []], ids=str)
def test_tokens_after_the_last_document_are_never_read(lengths):
    """They may hold anything: nothing of it reaches a result, and they see nothing."""
    tokens, after = sum(lengths), 90
    q, k, v = tensors_of(tokens + after)
    for x in (k, v):
        x[:, :, tokens:] = np.nan
    found = by_program(program_of(weft.causal(align="bottom-right"), len(lengths), tokens + after), lengths, (q, k, v))
    assert (found["out"][:, :, tokens:] == 0).all() and (found["lse"][:, :, tokens:] == -np.inf).all()
    if tokens:
        inside = [x[:, :, :tokens] for x in (q, k, v)]
        rest = np.ones_like(inside[0]), np.zeros(inside[0].shape[:3])
        expected = by_host(weft.causal(align="bottom-right"), (lengths, lengths), (*inside, *rest), {})
        np.testing.assert_allclose(found["out"][:, :, :tokens], expected["out"], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("wrong", [[0, 900, 950], [5, 20, 60], [0, -4, 60], [0, 60, 10**6]], ids=str)
def test_sums_that_do_not_fit_reach_no_other_memory(wrong):
    """The oracle stops at what lies outside of a tensor, and at what no launch wrote."""
    q, k, v = tensors_of(64)
    program = program_of(weft.causal(align="bottom-right"), 2, 64)
    counted = {"of_queries": np.array(wrong), "of_keys": np.array(wrong)}
    assert np.isfinite(run_program(program, {"q": q, "k": k, "v": v} | counted)["out"]).all()


def claimed(time, programs):
    """What each program has done, where who has done least takes the next block."""
    done = [0] * programs
    for one in time.tolist():
        heapq.heapreplace(done, done[0] + one)
    return np.array(done)


@pytest.mark.parametrize("make", [program_of, gradients_of])
def test_programs_have_about_as_much_to_do(make):
    """Of causal documents alike, and of some that are not: none has more than the mean and most of a longest block."""
    for lengths in ([2048] * 4, [512] * 16, [128, 256, 384, 512, 1024, 1536, 2048, 2304]):
        program = make(weft.causal(align="bottom-right"), len(lengths), sum(lengths), heads=(16, 16))
        last = [launch for launch in program.launches if not isinstance(launch.spec, str)][-1]
        name = next(slot.name for slot in program.slots if slot.name.endswith("_tables_0"))
        slots = [slot for slot in program.slots if slot.name.startswith("of_") or slot.name.endswith("_bounds")]
        slots.append(replace(program.by_name[name], role="output"))
        tables = LaunchProgram("tables", tuple(slots), program.launches[:2], program.tables)
        words = run_program(tables, dict.fromkeys(("of_queries", "of_keys"), sums(lengths)))[name]
        works, blocks = (program.launches[1].value(x) for x in ("works_at", "blocks_at"))
        found = words[blocks : blocks + 2 * int(words[blocks - 1]) : 2].astype(np.int64)
        time = np.maximum(words[works + found], 0)
        programs = last.grid[0]
        if last.spec.claims:
            done = claimed(time, programs)
        else:
            done = np.bincount(np.arange(time.size) % programs, time)
        assert done.max() <= 0.75 * time.max() + done.mean(), lengths
