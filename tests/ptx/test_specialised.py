"""Kernels whose warp groups specialise (benchmarks/experiments/specialised_warps.py), as PTX: right in every order,
never stuck, and seen to be wrong or stuck where something is missing.
"""

import re
import sys
from functools import cache, partial
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from triton.backends.nvidia.compiler import CUDABackend

from weft.settings import interpreted

from .memory import Global
from .parse import Fault
from .specialised import Map, launch, parsed
from .test_controls import without
from .threads import EAGER, Order

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "experiments"))
import specialised_warps as experiment

pytestmark = pytest.mark.skipif(interpreted(), reason="Triton interprets, and compiles nothing")

HEADS, D = 2, 64
PROGRAMS = 1  # which takes four blocks in turn: groups of warps may then be a whole ring apart
LATE = Order(late_copies=True, late_products=True)
BACKWARDS = Order(warps=tuple(reversed(range(20))))
ORDERS = {"eager": EAGER, "late": LATE, "warps backwards": BACKWARDS}
PATTERNS = {"window": (experiment.window(400, 70, 30), 400), "strided": (experiment.strided(448, 32), 448)}


@cache
def text_of(kernel, form, terms):
    """(PTX, bytes of shared memory) without machine code."""
    with mock.patch.object(CUDABackend, "make_cubin", lambda *_, **__: b"none"):
        built = experiment.compiled(kernel, *form, terms)
    return built.asm["ptx"], built.metadata.shared


class Problem:
    """Random tensors of a pattern, and what is right."""

    def __init__(self, name):
        self.terms, self.n = PATTERNS[name]
        generator = torch.Generator().manual_seed(1)
        make = partial(torch.randn, HEADS, self.n, D, generator=generator)
        self.q, self.k, self.v, self.do = (make().to(torch.bfloat16) for _ in range(4))
        sees = np.zeros((self.n, self.n), bool)
        for i, (term, row) in enumerate((term, row) for term in self.terms for row in range(self.n)):
            keys = term.first + term.step * np.arange(term.low[row], term.high[row])
            assert not sees[row, keys].any(), i
            sees[row, keys] = True
        q, k, v, do = (x.double() for x in (self.q, self.k, self.v, self.do))
        scores = (q @ k.mT * D**-0.5).masked_fill(~torch.from_numpy(sees), -torch.inf)
        weights = scores.softmax(-1)
        self.lse, self.out = scores.logsumexp(-1).float(), (weights @ v).to(torch.bfloat16)
        delta = (do * self.out.double()).sum(-1)
        self.dq = (weights * (do @ v.mT - delta[..., None])) @ k * D**-0.5
        self.delta = delta

    def run(self, kernel, form, order, change=lambda text: text):
        """What a kernel writes: (result, numbers of rows)."""
        text, shared = text_of(kernel, form, len(self.terms))
        records, bounds = experiment.tables(self.terms, self.n, form[0])
        result = torch.full((HEADS, self.n, D), torch.nan, dtype=torch.bfloat16)
        rows = torch.full((HEADS, self.n), torch.nan) if kernel is experiment.forward else self.lse.clone()
        stats = torch.full((HEADS, self.n, 16), torch.nan, dtype=torch.bfloat16)
        far = self.terms[-1]
        boxes = {"q_desc": self.q, "k_desc": self.k, "v_desc": self.v, "o_desc": self.out, "do_desc": self.do}
        boxes |= {"out_desc": result, "dq_desc": result}
        boxes |= {"k_far": self.k[:, far.first :: far.step], "v_far": self.v[:, far.first :: far.step]}
        known = {"Lse": rows, "Stats": stats, "Table": torch.from_numpy(records), "Bounds": torch.from_numpy(bounds)}
        numbers = {"items": HEADS * len(records), "blocks": len(records), "heads": HEADS, "length": self.n,
                   "scale": D**-0.5}  # fmt: skip
        values = []
        for name in kernel.arg_names:
            if name in boxes:  # a descriptor, and then its sizes and strides
                x = boxes[name].view(torch.int16).numpy()
                values += [Map(x, 64), *x.shape, *(stride // 2 for stride in x.strides)]
            elif name in known:
                values.append(known[name].data_ptr())
            elif name in numbers:
                values.append(numbers[name])
        tensors = [*boxes.values(), *known.values()]
        storages = {(x.untyped_storage().data_ptr(), x.untyped_storage().nbytes()) for x in tensors}
        launch(parsed(change(text)), PROGRAMS, values, (Global(sorted(storages)), shared), order)
        return result.double(), stats if kernel is experiment.backward else rows


@cache
def problem(name):
    return Problem(name)


def off(found, meant):
    return float((found - meant).norm() / meant.norm())


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("wide", [3, 4])
@pytest.mark.parametrize("name", PATTERNS)
def test_forward(name, wide, order):
    form = next(tuple(form) for kernel, *form in experiment.FORMS if kernel is experiment.forward and form[0] == wide)
    it = problem(name)
    out, lse = it.run(experiment.forward, form, ORDERS[order])
    assert off(out, it.out.double()) < 4e-3
    assert (lse - it.lse).abs().max() < 1e-5


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("wide", [2, 3])
@pytest.mark.parametrize("name", PATTERNS)
def test_dq(name, wide, order):
    form = next(tuple(form) for kernel, *form in experiment.FORMS if kernel is experiment.backward and form[0] == wide)
    it = problem(name)
    dq, stats = it.run(experiment.backward, form, ORDERS[order])
    assert off(dq, it.dq) < 6e-3
    found = stats.double()
    torch.testing.assert_close(found[..., :3].sum(-1), -it.lse.double() * D**0.5, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found[..., 8:11].sum(-1), -it.delta, rtol=1e-4, atol=1e-4)


# ---- that this sees what is wrong ------------------------------------------------------------------------------------
WAIT = re.compile(r"\{\s*\.reg \.pred complete;\s*waitLoop:.*?waitLoop;\s*\}", re.S)


def without_waits(before, text):
    """Waits that are followed by `before`, and soon, are left out."""
    found = [wait for wait in WAIT.finditer(text) if re.match(before, text[wait.end() :], re.S)]
    assert found
    for wait in reversed(found):
        text = text[: wait.start()] + text[wait.end() :]
    return text


def without_every(what, text):
    """All lines with it are left out."""
    assert what in text
    return "".join(line for line in text.splitlines(keepends=True) if what not in line)


def fewer_bytes(text):
    """The first barrier of keys and values is told of one of them."""
    assert "], 16384;" in text
    return text.replace("], 16384;", "], 8192;", 1)


CHANGES = {  # and what is said then
    "tiles are not given back": (partial(without_every, "mbarrier.arrive.shared::cta"), "nobody can go on"),
    "tiles are passed over at once": (partial(without_waits, r"[^{]{0,400}mbarrier\.arrive\.shared::cta"), "."),
    "keys are not waited for": (partial(without_waits, r"[^{]{0,900}wgmma\.fence"), "is off"),
    "bytes that nobody waits for": (fewer_bytes, "nobody can go on|is off"),
    "no fence before results go": (partial(without_every, "fence.proxy.async"), "without a fence"),
    "results are not waited for": (partial(without_every, "cp.async.bulk.wait_group"), "is off"),
    "no wait for products": (partial(without, "wgmma.wait_group"), r"before the product .* is waited for"),
}


def said_of(change):
    """What is wrong with the forward of a changed text, in the first order that shows it."""
    it, form = problem("window"), (4, 8, 112, 96)
    for order in ORDERS.values():
        try:
            out, _ = it.run(experiment.forward, form, order, change)
        except Fault as fault:
            return str(fault)
        if not off(out, it.out.double()) < 4e-3:
            return "it is off"
    return "nothing"


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_missing_is_seen(name):
    change, said = CHANGES[name]
    found = said_of(change)
    assert found != "nothing"
    assert re.search(said, found)
