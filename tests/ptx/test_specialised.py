"""dQ by warp groups that specialise (benchmarks/experiments), as PTX: right in every order, never stuck, and
seen to be wrong or stuck where something is missing.
"""

import re
import sys
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.tiers import every

from weft.settings import interpreted

from .memory import Global
from .parse import Fault, parse
from .run import without_machine_code
from .specialised import Map, launch
from .threads import Order

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "experiments"))
import specialised_warps

pytestmark = pytest.mark.skipif(interpreted(), reason="Triton interprets, and compiles nothing")

HEADS, D = 2, 64
PROGRAMS = 1  # which takes all blocks in turn: groups of warps may then be a whole ring apart
ORDERS = {  # what comes late; the slowest warps are those that need most of what the others give back
    "late": Order(late_copies=True, late_products=True),
    "warps backwards": Order(warps=tuple(reversed(range(20)))),
}


@cache
def text_of(compiled, *how):
    """(PTX, bytes of shared memory)"""
    with without_machine_code():
        built = compiled(*how)
    return built.asm["ptx"], built.metadata.shared


class Problem:
    """Random tensors of terms of queries, and what is right."""

    def __init__(self, terms, length):
        self.terms, self.length = terms, length
        generator = torch.Generator().manual_seed(1)
        make = partial(torch.randn, length, D, generator=generator)
        tensors = [torch.stack([make() for _ in range(HEADS)]).to(torch.bfloat16) for _ in range(4)]
        self.q, self.k, self.v, self.do = tensors
        q, k, v, do = (x.double() for x in tensors)
        scores = (q @ k.mT * D**-0.5).masked_fill(~dense(terms, length), -torch.inf)
        weights = scores.softmax(-1).nan_to_num()
        self.lse, self.out = scores.logsumexp(-1).float(), (weights @ v).to(torch.bfloat16)
        self.delta = (do * self.out.double()).sum(-1)
        ds = weights * (do @ v.mT - self.delta[..., None])
        self.dq = ds @ k * D**-0.5

    def run(self, kernel, text, numbers, order, more):
        """dQ by a kernel. text: see `text_of`; more: tensors beside."""
        given = {"q_desc": self.q, "k_desc": self.k, "v_desc": self.v, "do_desc": self.do, "o_desc": self.out}
        dq = torch.full_like(self.q, torch.nan)
        given |= {"Lse": self.lse, "dq_desc": dq} | more
        values = []
        for name in kernel.arg_names:
            if name in given and specialised_warps.is_box(name):  # a descriptor, and then its sizes and strides
                x = given[name].view(torch.int16).numpy()
                values += [Map(x, 64, width=2 * x.shape[-1]), *x.shape, *(stride // 2 for stride in x.strides)]
            elif name in given:
                values.append(given[name].data_ptr())
            elif name in numbers:
                values.append(numbers[name])
        storages = {(x.untyped_storage().data_ptr(), x.untyped_storage().nbytes()) for x in given.values()}
        launch(parse(text[0]), PROGRAMS, values, (Global(sorted(storages)), text[1]), order)
        return dq.double()


def dense(terms, n):
    """Which query sees which key."""
    sees = torch.zeros(n, n, dtype=torch.bool)
    for term in terms:
        for row in range(n):
            sees[row, term.first + term.step * np.arange(term.low[row], term.high[row])] = True
    return sees


def off(found, meant):
    return float((found - meant).norm() / meant.norm())


# ---- dQ --------------------------------------------------------------------------------------------------------------
PATTERNS = {  # terms of queries, tokens
    "window": (specialised_warps.window(400, 70, 30), 400),
    "strided": (specialised_warps.strided(448, 32), 448),
}


@cache
def problem(name):
    return Problem(*PATTERNS[name])


def query_gradient(it, form, order, change=lambda text: text):
    """(dQ, Stats)"""
    text, shared = text_of(specialised_warps.compiled, form, len(it.terms))
    records, bounds = specialised_warps.tables(it.terms, it.length, form.wide)
    far = it.terms[-1]
    stats = torch.full((HEADS, it.length, 16), torch.nan, dtype=torch.bfloat16)
    more = {"Stats": stats, "Table": torch.from_numpy(records), "Bounds": torch.from_numpy(bounds)}
    more |= {"k_far": it.k[:, far.first :: far.step], "v_far": it.v[:, far.first :: far.step]}
    numbers = {"items": HEADS * len(records), "blocks": len(records), "heads": HEADS, "length": it.length,
               "scale": D**-0.5}  # fmt: skip
    found = it.run(specialised_warps.backward, (change(text), shared), numbers, order, more)
    return found, stats.double()


@pytest.mark.parametrize(("name", "order"), every(2, [("window", "late"), ("strided", "warps backwards")]))
@pytest.mark.parametrize("form", specialised_warps.FORMS[::2], ids=str)
def test_dq(name, form, order):
    it = problem(name)
    dq, stats = query_gradient(it, form, ORDERS[order])
    assert off(dq, it.dq) < 6e-3
    torch.testing.assert_close(stats[..., :3].sum(-1), -it.lse.double() * D**0.5, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(stats[..., 8:11].sum(-1), -it.delta, rtol=1e-4, atol=1e-4)


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
    """The first barrier of two tiles is told of one of them."""
    assert "], 16384;" in text
    return text.replace("], 16384;", "], 8192;", 1)


OF_QUERIES = {  # what is changed, and what is said then
    "tiles are passed over at once": (partial(without_waits, r"[^{]{0,400}mbarrier\.arrive\.shared::cta"), "."),
    "bytes that nobody waits for": (fewer_bytes, "nobody can go on|is off"),
    "results are not waited for": (partial(without_every, "cp.async.bulk.wait_group"), "is off"),
}


def said_of(attempt):
    """What is wrong with what a changed kernel writes, in the first order that shows it."""
    for order in ORDERS.values():
        try:
            found, meant = attempt(order)
        except Fault as fault:
            return str(fault)
        if not off(found, meant) < 6e-3:
            return "it is off"
    return "nothing"


@pytest.mark.parametrize("name", every(3, OF_QUERIES))
def test_what_is_missing_is_seen_in_dq(name):
    change, said = OF_QUERIES[name]
    it, form = problem("window"), specialised_warps.FORMS[0]
    found = said_of(lambda order: (query_gradient(it, form, order, change)[0], it.dq))
    assert found != "nothing"
    assert re.search(said, found)
