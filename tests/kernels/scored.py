"""Attention with a score function, a bias or dropout beside dense attention of torch, whose autograd differentiates
the same function.
"""

from dataclasses import dataclass, field

import numpy as np
import torch

import weft
from weft.score.dropout import Dropout, whole_indices
from weft.testing.score_functions import FUNCTIONS, At
from weft.testing.tolerance import assert_close
from weft.torch.call import attend
from weft.torch.extras import Extras

from .compare import BACKENDS, generator, normal, qkv

HEADS = (4, 2)
SEED = 0x123456789ABCDEF


@dataclass
class Scored:
    """function: of (score, b, h, q, k), on traced values and on tensors; tables: captured tensors, whose gradients are
    wanted. bias: what weft is given instead of the function. dropout: the share that is dropped; told: by which first
    head and which numbers of queries and keys.
    """

    pattern: object
    tensors: list
    function: object = None
    tables: tuple = ()
    bias: object = None
    dropout: float = 0.0
    told: tuple = ()
    options: dict = field(default_factory=dict)
    backend: str = "triton"

    def seeds(self):
        q, _, v = self.tensors
        random = generator(f"seeds {tuple(q.shape)}")
        return normal((*q.shape[:3], v.shape[3]), random), normal(q.shape[:3], random)

    def weft(self):
        """{name: tensor} of weft's results, on the CPU."""
        device = BACKENDS[self.backend]
        leaves = [x.detach().to(device).requires_grad_() for x in self.tensors]
        tables = [x.detach().to(device).requires_grad_() for x in self.tables]
        given = dict(self.options)
        if self.bias is not None:
            given["bias"] = self.bias(*tables)
        elif self.function is not None:
            score = weft.trace_score(self.function)
            own = {id(mine): moved for mine, moved in zip(self.tables, tables, strict=True)}
            # a table that the function computes of another one leads back to that one
            score.tables = tuple(own.get(id(x), x.to(device)) for x in score.tables)
            given["score"] = score
        if self.told:
            seed = torch.from_numpy(np.append(np.int64(SEED), whole_indices(*self.told))).to(device)
            extras = Extras("", (), self.dropout, seed)
            out, lse = attend(leaves, self.pattern, (None, None), (None, None, 0, self.backend, None), True, extras)
        else:
            if self.dropout:
                given |= {"dropout": self.dropout, "seed": SEED}
            out, lse = weft.attention(*leaves, self.pattern, return_lse=True, backend=self.backend, **given)
        dout, dlse = (x.to(device) for x in self.seeds())
        loss = (out * dout.to(out.dtype)).sum() + (lse * dlse).masked_fill(lse == -torch.inf, 0.0).sum()
        found = torch.autograd.grad(loss, (*leaves, *tables, *self.tables), allow_unused=True)
        found, through = found[: 3 + len(tables)], [None] * 3 + list(found[3 + len(tables) :])
        found = [x if x is not None else y for x, y in zip(found, through, strict=True)]
        names = ("dq", "dk", "dv", *(f"dtable{number}" for number in range(len(tables))))
        return {name: x.detach().cpu() for name, x in zip(("out", "lse", *names), (out, lse, *found), strict=True)}

    def dense(self, dtype):
        """The same of dense attention, computed in `dtype`; after a function scores are float32 at least."""
        q, k, v = (x.detach().to(dtype).requires_grad_() for x in self.tensors)
        m, n = q.shape[2], k.shape[2]
        s = self._scores(q, k).masked_fill(~self._live(m, n), -torch.inf)
        lse = s.logsumexp(-1)
        none = lse == -torch.inf
        p = torch.where(s == -torch.inf, 0.0, torch.exp(s - lse.masked_fill(none, 0.0)[..., None]))
        weights = p * self._factors(m, n) if self.dropout else p
        out = (weights.to(dtype) @ v.repeat_interleave(q.shape[1] // k.shape[1], 1)).to(dtype)
        dout, dlse = self.seeds()
        loss = (out * dout.to(dtype)).sum() + torch.where(none, 0.0, lse * dlse).sum()
        found = torch.autograd.grad(loss, (q, k, v, *self.tables), allow_unused=True)
        names = ("dq", "dk", "dv", *(f"dtable{number}" for number in range(len(self.tables))))
        found = (torch.zeros_like(x) if y is None else y for x, y in zip((q, k, v, *self.tables), found, strict=True))
        return dict(zip(("out", "lse", *names), (out, lse, *found), strict=True))

    def _scores(self, q, k):
        s = q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT * self.options.get("scale", q.shape[3] ** -0.5)
        if "softcap" in self.options:
            s = self.options["softcap"] * torch.tanh(s / self.options["softcap"])
        if self.function is None:
            return s
        with Float64Numbers():  # tables are float64, and so is what comes of them
            made = self.function(s, *self._indices(s.shape)).expand(s.shape)
        return made.to(torch.promote_types(s.dtype, torch.float32))

    @staticmethod
    def _indices(shape):
        return [torch.arange(n).view(*(-1 if i == axis else 1 for i in range(4))) for axis, n in enumerate(shape)]

    def _live(self, m, n):
        return torch.from_numpy(self.pattern.to_dense(m, n))

    def _factors(self, m, n):
        b, h, q, k = (x.numpy() for x in self._indices((*self.tensors[0].shape[:2], m, n)))
        if self.told:
            h, q, k = h + self.told[0], self.told[1][q], self.told[2][k]
        return torch.from_numpy(Dropout(self.dropout, SEED).factors(b, h, q, k))


class Float64Numbers:
    """Indices times numbers are float64 meanwhile."""

    def __enter__(self):
        torch.set_default_dtype(torch.float64)

    def __exit__(self, *error):
        torch.set_default_dtype(torch.float32)


def named(name, pattern, at, dtype=torch.float32, heads=HEADS, dims=(16, 16), gradients=True, **more):
    """A case of one of the forty functions. gradients: of its tables too."""
    made = FUNCTIONS[name](At(2, heads[0], *at))
    tensors = qkv(generator(f"{name} {at}"), at, dtype, heads, dims)
    return Scored(pattern, tensors, made.function, made.tables if gradients else (), **more)


def check(case):
    """Raise AssertionError unless weft computes what dense attention does; returns what it computes."""
    dtype = case.tensors[0].dtype
    got, truth, plain = case.weft(), case.dense(torch.float64), case.dense(dtype)
    for name, x in got.items():
        rule = "dtable" if name.startswith("dtable") else name
        assert_close(f"{name} {rule}", x, truth[name], plain[name].to(dtype))
    none = truth["lse"] == -torch.inf
    assert (got["out"][none] == 0).all()
    assert (got["dq"][none] == 0).all()
    return got
