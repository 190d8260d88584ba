"""Problems, computed by weft's kernels as `run.emulated` runs them, and held to the tolerance policy."""

from dataclasses import dataclass, field, replace

import torch
from tests.kernels.compare import Case, generator, normal, qkv
from tests.kernels.planned import results
from tests.triton.specs import card

from weft.testing.tolerance import assert_close

from .parse import Fault
from .run import emulated
from .threads import EAGER, Order

# After EAGER: as different from it, and from each other, as hardware may be.
ORDERS = {
    "late, warps reversed": Order(late_copies=True, late_products=True, warps=tuple(reversed(range(32)))),
    "products late, warps in order": Order(late_products=True, warps=tuple(range(32))),
}


# Of every four warps the first, which says for all that something is done, comes before the others.
AHEAD = Order(warps=(*range(0, 32, 4), *(i for i in range(32) if i % 4)))


def at_once(loads, last):
    """An order in which copies come at once, the warps that load go first, and four warps from `last` on are as slow as
    they may be: what others give back too early is lost to these.
    """
    slow = range(last, last + 4)
    return Order(warps=(*loads, *(i for i in range(32) if i not in loads and i not in slow), *slow))


@dataclass(frozen=True)
class Call:
    """One call of attention on so many tokens. options: names of those that are given. more: as of `Case`."""

    pattern: object
    tokens: int = 150
    dims: tuple[int, int] = (64, 64)
    dtype: torch.dtype = torch.bfloat16
    heads: tuple[int, int] = (4, 2)
    options: tuple[str, ...] = ()
    more: dict = field(default_factory=dict)

    def case(self):
        random = generator(f"{self.pattern}")
        tensors = qkv(random, (self.tokens, self.tokens), self.dtype, self.heads, self.dims, 1)
        known = {
            "softcap": 2.0,
            "sinks": normal(self.heads[:1], random, torch.float32),
            "alibi_slopes": torch.rand(self.heads[0], generator=random),
        }
        options = {name: known[name] for name in self.options}
        return Case(self.pattern, tensors, options=options, backend="triton", **self.more)


def check_in_every_order(case, way, tf32=False, backward=True):
    """Raise unless weft computes what dense attention does, and the same bits whatever is done early or late; sums of
    atomics in any order are only to be right. Returns the names of the kernels.
    """
    gpu = card(f"sm_{way.arch}")
    with emulated(replace(way, order=EAGER)) as names:
        found = results(case, gpu, backward=backward)
    check(case, found, tf32)
    for order in ORDERS.values():
        with emulated(replace(way, order=order)):
            again = results(case, gpu, backward=backward)
        if not case.deterministic:
            check(case, {"dq": again.pop("dq")}, tf32)
        for name, x in again.items():
            assert torch.equal(x, found[name]), f"{name} is another one in {order}"
    return names


def unreached(case, made):
    """The case with tensors that descriptors do not reach: they begin at odd elements, or one row stands for many."""
    if made == "odd":
        return replace(case, tensors=tuple(torch.cat([x, x], -1)[..., 1 : 1 + x.shape[-1]] for x in case.tensors))
    q, k, v = case.tensors
    return replace(case, tensors=(q, k[:, :1].expand_as(k), v))


def said_of(attempt):
    """What is wrong with attempt(order), in the first order that shows it."""
    for order in ORDERS.values():
        try:
            attempt(order)
        except Fault as fault:
            return str(fault)
        except AssertionError:
            return "it is off"
    return "nothing"


def check(case, found, tf32=False):
    """Raise AssertionError unless these are what dense attention gives."""
    truth, plain = case.dense(torch.float64), case.dense(case.tensors[0].dtype)
    for name, x in found.items():
        assert_close(name, x, truth[name], plain[name], tf32)
