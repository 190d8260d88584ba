"""All gradients in one walk that adds to dQ in memory, as PTX, on a card of one processor."""

from dataclasses import replace

import pytest
import torch
from tests.gpu.test_oracle_document_blocks import gradients_of
from tests.gpu.test_oracle_documents import sums
from tests.kernels.planned import results

import weft
from weft.kernels.gpu.oracle import run_program
from weft.kernels.gpu.programs.documents import apart
from weft.planning.families.hopper import LISTED, SUMMED, SUMMED_NARROW
from weft.settings import interpreted
from weft.torch.bind import Bound

from .problems import ORDERS, Call, check, unreached
from .run import Way, emulated
from .test_group_queries import few
from .threads import EAGER

pytestmark = pytest.mark.skipif(interpreted(), reason="Triton interprets, and compiles nothing")

WIDE, NARROW = (128, 128), (64, 64)
CALLS = {
    "causal": Call(weft.causal(), 300, WIDE, heads=(1, 1)),
    "heads share keys": Call(weft.causal() & weft.window(left=150), 300, WIDE, heads=(4, 2)),
    "window": Call(weft.window(70, 30), 250, WIDE, heads=(2, 2)),
    "full": Call(weft.full(), 200, WIDE, heads=(1, 1)),
    "documents": Call(weft.causal() & weft.documents([30, 100, 1, 129, 60]), 320, WIDE, heads=(1, 1)),
    "dilated": Call(weft.dilated(30, 30, 3), 300, WIDE, heads=(1, 1)),
    "keys that no query sees": Call(weft.window(20, 20) & weft.padding([150]), 250, WIDE, heads=(1, 1)),
    "prefix": Call(weft.causal() | weft.prefix(100), 300, WIDE, heads=(1, 1)),
    "float16": Call(weft.causal(), 200, WIDE, torch.float16, heads=(1, 1)),
    "list of blocks": Call(weft.random_blocks(64, 2), 320, WIDE, heads=(2, 1)),
    "narrow": Call(weft.causal() & weft.window(left=250), 400, NARROW, heads=(2, 1)),
    "narrow, full": Call(weft.full(), 300, NARROW, torch.float16, heads=(1, 1)),
}


def found_in(case, order=EAGER):
    """(names of kernels, results)"""
    with emulated(Way(90, order, lambda name, text: text)) as names:
        return names, results(case, few(1), (("dkdv", tiling_of(case)),))


def tiling_of(case):
    """The configuration of the walk that makes a case's gradients."""
    if case.pattern == CALLS["list of blocks"].pattern:
        return LISTED
    return SUMMED_NARROW if case.tensors[0].shape[-1] == NARROW[0] else SUMMED


@pytest.mark.more
@pytest.mark.parametrize("name", CALLS)
def test_right_in_every_order(name):
    """The order of sums is free, so dQ is only to be right."""
    case = replace(CALLS[name].case(), deterministic=False)
    names, found = found_in(case)
    assert any("_groups_" in one and "_with_dq_" in one for one in names)
    check(case, found)
    _, again = found_in(case, ORDERS["late, warps reversed"])
    check(case, again)


@pytest.mark.more
@pytest.mark.parametrize("made", ["softcap", "negative scale", "odd"])
def test_lists_elsewhere(made):
    """Other kernels walk lists of whole blocks where warp groups have no place for options or tensors."""
    case = Call(weft.random_blocks(64, 2), 192, WIDE, heads=(2, 1)).case()
    case = unreached(case, made) if made == "odd" else case
    case.options = {"softcap": {"softcap": 2.0}, "negative scale": {"scale": -0.1}}.get(made, {})
    case.deterministic = False
    with emulated(Way(90)) as names:
        found = results(case, few(1))
    assert names and not any("_groups_" in one for one in names)
    check(case, found)


@pytest.mark.more
@pytest.mark.parametrize("lengths", [[50, 0, 150], [5], [130]], ids=str)
def test_documents_of_device_lengths_beside_nan(lengths):
    """Tokens after the last document are NaN: the last block of keys holds some of them, and the last tile of queries.
    No gradient has any. No box of dQ begins before its first row.
    """
    tokens = 270
    program = gradients_of(weft.causal(), len(lengths), tokens, (1, 1))
    case = Call(weft.causal() & weft.documents(lengths), sum(lengths), WIDE, heads=(1, 1)).case()
    case = replace(case, deterministic=False, with_lse=False)
    truth = case.dense(torch.float64)
    rows = {"dout": case.seeds()[0], "out": truth["out"], "lse": truth["lse"]}
    rows |= dict(zip("qkv", case.tensors, strict=True))
    making, program = apart(program)
    given = run_program(making, dict.fromkeys(("of_queries", "of_keys"), sums(lengths)))
    slots = program.of_role("input")
    for slot in slots:
        if slot.name in rows:
            x = torch.full(slot.shape, torch.nan, dtype=getattr(torch, slot.dtype))
            x[:, :, : sum(lengths)] = rows[slot.name]
            given[slot.name] = x
    inputs = [torch.as_tensor(given[slot.name], dtype=getattr(torch, slot.dtype)) for slot in slots]
    with emulated(Way(90)) as names:
        dq, dk, dv = Bound(program, torch.device("cpu"))(inputs)
    assert any("_with_dq_" in one for one in names)
    found = {"dq": dq, "dk": dk, "dv": dv}
    check(case, {name: x[:, :, : sum(lengths)] for name, x in found.items()})
    assert all((x[:, :, sum(lengths) :] == 0).all() for x in found.values())
