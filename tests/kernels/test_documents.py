"""Documents whose running sums the device has: tables beside the oracle's, attention and gradients beside dense
attention in float64.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.gpu.test_oracle_document_blocks import OF_ITSELF
from tests.gpu.test_oracle_documents import MORE, PATTERNS, drawn, problem_of, programs, sums
from tests.tiers import every

import weft
from weft.errors import AlignmentError, InputError, UnsupportedError
from weft.kernels.gpu.documents.spec import group_places_of, known
from weft.kernels.gpu.oracle import run_program
from weft.kernels.gpu.program import LaunchProgram, Slot
from weft.kernels.gpu.programs.documents import Documents, group_tables_made
from weft.planning.attention_plan import plan_attention
from weft.planning.families.hopper import SUMMED, WIDE
from weft.planning.problem import Problem
from weft.target import GPU
from weft.testing.refusals import refuse
from weft.testing.tolerance import assert_close
from weft.torch import device_documents, varlen
from weft.torch.bind import Bound

from .compare import BACKENDS
from .documents import DEVICE, by_dense, by_device, check, in_pages, tensors_of

pytestmark = pytest.mark.skipif("triton" not in BACKENDS, reason="other backends have no such kernels")


# ---- tables ----------------------------------------------------------------------------------------------------------
def of_tables(pattern, count, problem, direction):
    """A program that makes the tables of one direction and nothing else."""
    program = programs(pattern, count, problem)[direction != "forward"]
    made, read = f"{direction}_tables_0", ("of_queries", "of_keys", f"{direction}_bounds")
    slots = [slot for slot in program.slots if slot.name in read]
    slots.append(replace(program.by_name[made], role="output"))
    launch = next(one for one in program.launches if made in one.written)
    return LaunchProgram("tables", tuple(slots), (launch,), {read[2]: program.tables[read[2]]})


@pytest.mark.parametrize("direction", ["forward", "dkdv"])
@pytest.mark.parametrize("name", MORE)
def test_one_program_makes_tables_for_all_lengths(name, direction):
    """Documents may be empty, and have fewer keys than queries; there are more of them than are counted at a time."""
    count, problem = 80, problem_of(9000, 11000)
    program = of_tables(MORE[name], count, problem, direction)
    bound = Bound(program, DEVICE)
    for seed, same in ((1, True), (2, False)):
        given = [sums(x) for x in drawn(seed, count, same)]
        (found,) = bound([torch.tensor(x, dtype=torch.int32, device=DEVICE) for x in given])
        (wanted,) = run_program(program, dict(zip(("of_queries", "of_keys"), given, strict=True))).values()
        np.testing.assert_array_equal(found.cpu().numpy(), wanted)


@pytest.mark.parametrize(("direction", "same"), [("forward", True), ("forward", False), ("dkdv", True)])
@pytest.mark.parametrize("name", every(2, OF_ITSELF))
def test_two_programs_make_tables_of_warp_groups(name, direction, same):
    """Items of tiles that there are, blocks in order, and all that is before them."""
    count, tokens, heads = 80, 9000, 6
    problem = Problem(1, heads, 2, tokens, tokens, 128, 128, "bfloat16", "cuda")
    tiling, members = (WIDE, heads) if direction == "forward" else (SUMMED, 2)
    asked = Documents(count, known(OF_ITSELF[name], tokens), {})
    made = group_tables_made(direction, plan_attention(weft.full(), problem, GPU), asked, tiling)
    at = group_places_of(count, tokens, tiling, members)
    slots = [Slot.dense(x, "input", "int32", (count + 1,)) for x in ("of_queries", "of_keys")]
    slots.append(made.bounds.slot(f"{direction}_bounds"))
    slots.append(Slot.dense(f"{direction}_tables_0", "output", "int32", (at.size,)))
    program = LaunchProgram("tables", tuple(slots), made.launches, {f"{direction}_bounds": made.bounds})
    given = [np.minimum(sums(x), tokens) for x in drawn(3, count, same)]
    (found,) = Bound(program, DEVICE)([torch.tensor(x, dtype=torch.int32, device=DEVICE) for x in given])
    (wanted,) = run_program(program, dict(zip(("of_queries", "of_keys"), given, strict=True))).values()
    there = ~np.isnan(wanted)
    np.testing.assert_array_equal(found.cpu().numpy()[there], wanted[there])
    blocks = int(wanted[at.blocks_at - 1])
    items = wanted[at.blocks_at :][: 2 * blocks : 2].astype(np.int64)
    assert blocks and there[at.items_at : at.heads_at].reshape(-1, at.record)[items].all()
    assert there[: at.items_at].all() and there[at.heads_at : at.works_at].all()


# ---- attention -------------------------------------------------------------------------------------------------------


def test_a_pattern_that_is_written_anew_is_planned_once():
    lengths = ([5, 9], [5, 9])
    q, k, v = (x.to(DEVICE) for x in tensors_of(lengths)[:3])
    ends = torch.tensor([0, 5, 14], dtype=torch.int32, device=DEVICE)
    device_documents._calls.clear()
    sums_of_both = device_documents.Sums(ends, ends, True, (9, 9))
    chosen = device_documents.Chosen(None, None, "triton")
    view = [x.transpose(0, 1)[None] for x in (q, k, v)]
    for _ in range(2):
        device_documents.attention(view, sums_of_both, weft.causal() & weft.window(3), (None, None), chosen)
    assert len(device_documents._calls) == 1


OPTIONS = {
    "none": {},
    "scale and softcap": {"scale": 0.4, "softcap": 1.5},
    "sinks": {"sinks": True},
    "slopes": {"alibi_slopes": torch.linspace(0.1, 0.4, 4)},
}


@pytest.mark.parametrize("same", [True, False], ids=["same", "other keys"])
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("name", every(3, MORE))
def test_attention_and_gradients(name, option, same):
    if option == "slopes" and not same:
        pytest.skip("distances are of the same tokens")
    pattern = MORE[name]
    if option == "slopes" and name == "full":
        pattern = weft.window(left=2**28, right=2**28, align="bottom-right")  # which says what distances are
    lengths = drawn(list(MORE).index(name) + 40, 4, same)
    check(lengths, pattern, OPTIONS[option], same)


@pytest.mark.parametrize(("dtype", "dims"), [(torch.bfloat16, (64, 64)), (torch.float16, (80, 32))])
def test_dtypes_and_dims(dtype, dims):
    check(drawn(7, 4, False), PATTERNS["causal window"], dtype=dtype, dims=dims, most=(200, 260))
    check(drawn(8, 4, True), weft.causal(), {"sinks": True}, same=True, dtype=dtype, dims=dims, most=(200, None))


def test_a_document_keeps_its_numbers_to_itself():
    """NaN in one document, or beyond all, reaches no other, forward and backward."""
    lengths = ([50, 40, 70], [50, 40, 70])
    tensors = tensors_of(lengths)
    found = by_device(lengths, tensors, weft.causal(), {}, True)
    for token in (0, 49, 95, 159):
        first, last = next((a, b) for a, b in ((0, 50), (50, 90), (90, 160)) if a <= token < b)
        spoilt = [x.clone() for x in tensors]
        for x in spoilt[:3]:
            x[token] = torch.nan
        again = by_device(lengths, spoilt, weft.causal(), {}, True)
        for name, x in again.items():
            same = torch.cat([x[:first], x[last:]]), torch.cat([found[name][:first], found[name][last:]])
            assert torch.equal(*same), f"{name}, token {token}"


def test_the_public_call(monkeypatch):
    """`weft.varlen_attention` with sums that are taken to be the device's: options, extra keys, pages and refusals."""
    monkeypatch.setattr(varlen, "on_device", lambda x: isinstance(x, torch.Tensor))
    lengths = drawn(9, 3, True)
    q, k, v, dout, _, sinks = (x.to(DEVICE) for x in tensors_of(lengths))
    leaves = [x.requires_grad_() for x in (q, k, v)]
    extra = [x[:3].to(DEVICE) for x in tensors_of(([3], [3]), seed=3)[1:3]]
    counted, host = (torch.tensor(sums(lengths[0]), dtype=torch.int32, device=x) for x in (DEVICE, "cpu"))

    def called(given):
        return weft.varlen_attention(
            *leaves, given, None, weft.causal(), sinks=sinks, extra_keys=extra[0], extra_values=extra[1],
            return_lse=True, backend="triton",
        )  # fmt: skip

    out, lse = called(counted)
    found = torch.autograd.grad(out, leaves, dout)
    refuse(lambda: weft.varlen_attention(q, k, v, counted, None, CAUSAL, dropout=0.5), UnsupportedError, (".cpu()",))
    monkeypatch.undo()
    wanted, wanted_lse = called(host)
    for x, y in zip((out, lse, *found), (wanted, wanted_lse, *torch.autograd.grad(wanted, leaves, dout)), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("lengths", [[], [0], [0, 0], [1], [0, 1, 0]], ids=str)
def test_hardly_anything(lengths):
    check((lengths, lengths), weft.causal(), same=True)


# ---- keys in pages ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("page", "heads_first"), [(16, True), (48, False)])
@pytest.mark.parametrize("name", every(3, PATTERNS))
def test_keys_in_pages(name, page, heads_first):
    lengths = drawn(list(PATTERNS).index(name) + 80, 4, False)
    tensors = tensors_of(lengths)
    truth, plain = (by_dense(lengths, tensors, PATTERNS[name], {}, one) for one in (torch.float64, torch.float32))
    for what, x in in_pages(lengths, tensors, PATTERNS[name], page, heads_first).items():
        assert_close(what, x, truth[what], plain[what])


# ---- refused ---------------------------------------------------------------------------------------------------------
CU, CAUSAL = torch.tensor([0, 30, 70], dtype=torch.int32, device=DEVICE), weft.causal()


def call(pattern=CAUSAL, counted=(CU, CU), same=True, rows=(None, None), most=(None, None)):
    tensors = tuple(x.to(DEVICE).transpose(0, 1)[None] for x in tensors_of(([70], [70]))[:3])
    given = device_documents.sums_of(counted, same, most, [x[0].transpose(0, 1) for x in tensors])
    chosen = device_documents.Chosen(None, None, "triton")
    return device_documents.attention(tensors, given, pattern, rows, chosen)


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"counted": (CU.float(), CU)}, InputError, ("cu_seqlens_q is (3,) of torch.float32",)),
        ({"counted": (CU, CU[None])}, InputError, ("cu_seqlens_k is (1, 3)",)),
        ({"counted": (CU, CU[:2])}, InputError, ("2 documents of queries and 1 of keys",)),
        ({"counted": (CU, [0, 70])}, InputError, ("cu_seqlens_k is list",)),
        ({"most": (None, 70.0)}, InputError, ("max_seqlen_k is float", "an int of Python")),
        ({"same": False}, AlignmentError, ('.aligned("bottom-right")',)),
        ({"pattern": weft.dilated(9, 0, 3)}, UnsupportedError, ("cu_seqlens.cpu()",)),
        ({"pattern": weft.per_head([weft.causal()] * 4)}, UnsupportedError, ("heads apart", "cu_seqlens.cpu()")),
        (
            {"same": False, "pattern": weft.causal(align="top-left"), "rows": (None, torch.ones(4, device=DEVICE))},
            UnsupportedError, ("alibi_slopes", "cu_seqlens.cpu()"),
        ),
    ],
    ids=lambda x: ", ".join(x) if isinstance(x, dict) else "",
)  # fmt: skip
def test_refused(given, error, words):
    refuse(lambda: call(**given), error, words)


def test_no_second_derivative():
    tensors = tuple(x.to(DEVICE).transpose(0, 1)[None].requires_grad_() for x in tensors_of(([70], [70]))[:3])
    counted = device_documents.Sums(CU, CU, True, (None, None))
    out, _ = device_documents.attention(
        tensors, counted, weft.causal(), (None, None), device_documents.Chosen(None, None, "triton")
    )
    refuse(lambda: torch.autograd.grad(out.sum(), tensors, create_graph=True), UnsupportedError, ("double backward",))
