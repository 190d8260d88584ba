"""Kernels whose warp groups specialise (benchmarks/experiments/specialised_warps.py), as PTX: right in every order,
never stuck, and seen to be wrong or stuck where something is missing.
"""

import re
import sys
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
import torch

from weft.settings import interpreted

from .memory import Global
from .parse import Fault, parse
from .run import without_machine_code
from .specialised import Map, launch
from .test_controls import without
from .threads import Order

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "experiments"))
import specialised_warps as experiment

pytestmark = pytest.mark.skipif(interpreted(), reason="Triton interprets, and compiles nothing")

HEADS, D = 2, 64
PROGRAMS = 1  # which takes four blocks in turn: groups of warps may then be a whole ring apart
ORDERS = {  # what comes late; the slowest warps are those that need most of what the others give back
    "late": Order(late_copies=True, late_products=True),
    "warps backwards": Order(warps=tuple(reversed(range(20)))),
}
LONELY = np.arange(320)  # every third query sees no key, every third one
PATTERNS = {  # terms of queries, of keys, tokens
    "few keys": ([experiment.Term(np.minimum(LONELY, 310), np.minimum(LONELY, 310) + LONELY % 3 * 4 // 3)], None, 320),
    "window": (experiment.window(400, 70, 30), experiment.window(400, 30, 70), 400),
    "sides": (experiment.window(320, 0, 100), experiment.window(320, 100, 0), 320),
    "strided": (experiment.strided(448, 32), None, 448),
}


@cache
def text_of(kernel, form, terms):
    """(PTX, bytes of shared memory)"""
    with without_machine_code():
        built = experiment.compiled(kernel, form, terms)
    return built.asm["ptx"], built.metadata.shared


class Problem:
    """Random tensors of a pattern, and what is right."""

    def __init__(self, name, loud):
        self.terms, self.keys, self.n = PATTERNS[name]
        generator = torch.Generator().manual_seed(1)
        make = partial(torch.randn, HEADS, self.n, D, generator=generator)
        self.q, self.k, self.v, self.do = (make().to(torch.bfloat16) for _ in range(4))
        self.q[:, ::5] *= loud
        q, k, v, do = (x.double() for x in (self.q, self.k, self.v, self.do))
        scores = (q @ k.mT * D**-0.5).masked_fill(~dense(self.terms, self.n), -torch.inf)
        weights = scores.softmax(-1).nan_to_num()
        self.lse, self.out = scores.logsumexp(-1).float(), (weights @ v).to(torch.bfloat16)
        self.delta = (do * self.out.double()).sum(-1)
        ds = weights * (do @ v.mT - self.delta[..., None])
        self.dq, self.dk, self.dv = ds @ k * D**-0.5, ds.mT @ q * D**-0.5, weights.mT @ do
        self.stats = torch.cat([in_three(-self.lse.double() * D**0.5), in_three(-self.delta)], -1)

    def run(self, kernel, form, order, change=lambda text: text):
        """What a kernel writes: its results, and numbers of rows."""
        terms = self.keys if kernel is experiment.backward_keys else self.terms
        text, shared = text_of(kernel, form, len(terms))
        records, bounds = experiment.tables(terms, self.n, form.wide, form.tile)
        results = [torch.full((HEADS, self.n, D), torch.nan, dtype=torch.bfloat16) for _ in range(2)]
        lse = torch.full_like(self.lse, torch.nan) if kernel is experiment.forward else self.lse.clone()
        stats = self.stats if kernel is experiment.backward_keys else torch.full_like(self.stats, torch.nan)
        far = terms[-1]
        boxes = {"q_desc": self.q, "k_desc": self.k, "v_desc": self.v, "o_desc": self.out, "do_desc": self.do}
        boxes |= dict.fromkeys(("out_desc", "dq_desc", "dk_desc"), results[0])
        boxes |= {"dv_desc": results[1], "stats_desc": stats}
        boxes |= {"k_far": self.k[:, far.first :: far.step], "v_far": self.v[:, far.first :: far.step]}
        known = {"Lse": lse, "Stats": stats, "Table": torch.from_numpy(records), "Bounds": torch.from_numpy(bounds)}
        numbers = {"items": HEADS * len(records), "blocks": len(records), "heads": HEADS, "length": self.n,
                   "scale": D**-0.5}  # fmt: skip
        values = []
        for name in kernel.arg_names:
            if name in boxes:  # a descriptor, and then its sizes and strides
                x = boxes[name].view(torch.int16).numpy()
                values += [Map(x, form.box(name)[1]), *x.shape, *(stride // 2 for stride in x.strides)]
            elif name in known:
                values.append(known[name].data_ptr())
            elif name in numbers:
                values.append(numbers[name])
        storages = {
            (x.untyped_storage().data_ptr(), x.untyped_storage().nbytes()) for x in (*boxes.values(), *known.values())
        }
        launch(parse(change(text)), PROGRAMS, values, (Global(sorted(storages)), shared), order)
        return [x.double() for x in results], (lse, stats.double())


def in_three(x):
    """(..., 8): x as a sum of three numbers of bfloat16, and zeros."""
    found = torch.zeros(*x.shape, 8, dtype=torch.bfloat16)
    for i in range(3):
        found[..., i] = x - found.double().sum(-1)
    return found


def dense(terms, n):
    """Which query sees which key."""
    sees = torch.zeros(n, n, dtype=torch.bool)
    for term in terms:
        for row in range(n):
            sees[row, term.first + term.step * np.arange(term.low[row], term.high[row])] = True
    return sees


@cache
def problem(name, loud=1.0):
    """loud: what every fifth query's scores are multiplied by."""
    return Problem(name, loud)


def off(found, meant):
    return float((found - meant).norm() / meant.norm())


def forms_of(kernel):
    return [form for of, form in experiment.FORMS if of is kernel]


@pytest.mark.parametrize("name", ["window", "sides"])
def test_terms_of_keys_are_those_of_queries(name):
    queries, keys, n = PATTERNS[name]
    assert torch.equal(dense(queries, n), dense(keys, n).T)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("form", forms_of(experiment.forward), ids=str)
@pytest.mark.parametrize("name", ["window", "strided"])
def test_forward(name, form, order):
    it = problem(name)
    (out, _), (lse, _) = it.run(experiment.forward, form, ORDERS[order])
    assert off(out, it.out.double()) < 4e-3
    assert (lse - it.lse).abs().max() < 1e-5


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("form", forms_of(experiment.forward)[::3], ids=str)
@pytest.mark.parametrize("name", ["window", "strided"])
def test_scores_that_leave_the_range(name, form, order):
    """Some rows are walked again, and those beside them keep their bits."""
    it, usual = problem(name, 60.0), problem(name)
    (out, _), (lse, _) = it.run(experiment.forward, form, ORDERS[order])
    assert it.lse.abs().max() > 88  # beyond what float32 has exponentials for
    assert off(out, it.out.double()) < 4e-3
    torch.testing.assert_close(lse, it.lse, rtol=1e-5, atol=1e-5)
    rest = torch.arange(it.n) % 5 != 0
    (before, _), _ = usual.run(experiment.forward, form, ORDERS[order])
    assert torch.equal(out[:, rest], before[:, rest])


@pytest.mark.parametrize("form", [form for form in forms_of(experiment.forward) if not form.ahead], ids=str)
def test_rows_of_one_key_and_of_none(form):
    it = problem("few keys")
    count = (it.terms[0].high - it.terms[0].low).tolist()
    assert set(count) == {0, 1, 2}
    (out, _), (lse, _) = it.run(experiment.forward, form, ORDERS["late"])
    none, one = (torch.tensor([x == y for x in count]) for y in (0, 1))
    assert (out[:, none] == 0).all()
    assert (lse[:, none] == -torch.inf).all()
    assert torch.equal(out[:, one], it.v[:, it.terms[0].low[one.numpy()]].double())
    assert off(out, it.out.double()) < 4e-3


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("form", forms_of(experiment.backward), ids=str)
@pytest.mark.parametrize("name", ["window", "strided"])
def test_dq(name, form, order):
    it = problem(name)
    (dq, _), (_, stats) = it.run(experiment.backward, form, ORDERS[order])
    assert off(dq, it.dq) < 6e-3
    torch.testing.assert_close(stats[..., :3].sum(-1), -it.lse.double() * D**0.5, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(stats[..., 8:11].sum(-1), -it.delta, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("form", forms_of(experiment.backward_keys), ids=str)
@pytest.mark.parametrize("name", ["window", "sides"])
def test_dk_and_dv(name, form, order):
    it = problem(name)
    (dk, dv), _ = it.run(experiment.backward_keys, form, ORDERS[order])
    assert off(dk, it.dk) < 6e-3
    assert off(dv, it.dv) < 6e-3


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
    "keys are not waited for": (partial(without_waits, r"[^{]{0,900}wgmma\.fence"), "is off|more arrivals"),
    "bytes that nobody waits for": (fewer_bytes, "nobody can go on|is off"),
    "no fence before results go": (partial(without_every, "fence.proxy.async"), "without a fence"),
    "results are not waited for": (partial(without_every, "cp.async.bulk.wait_group"), "is off"),
    "no wait for products": (partial(without, "wgmma.wait_group"), r"before the product .* is waited for"),
}


def said_of(change):
    """What is wrong with the forward of a changed text, in the first order that shows it."""
    it, form = problem("window"), forms_of(experiment.forward)[0]
    for order in ORDERS.values():
        try:
            (out, _), _ = it.run(experiment.forward, form, order, change)
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
