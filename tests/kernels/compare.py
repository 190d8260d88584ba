"""Weft beside dense attention on the same numbers, through the one tolerance policy."""

import os
import zlib
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from unittest import mock

import torch

import weft
from weft.settings import interpreted
from weft.testing.tolerance import assert_close
from weft.torch import eager

from . import dense, rounding

# name -> device; a backend joins here. Under TRITON_INTERPRET=1 kernels of a GPU are interpreted, and tested alone.
BACKENDS = {"triton": "cpu"} if interpreted() else {"cpu": "cpu"}
if torch.cuda.is_available():
    BACKENDS = {"triton": "cuda:0"}
WIDEST = torch.float64 if "cpu" in BACKENDS else torch.float32
if interpreted():
    rounding.as_gpus_do()
# The interpreter takes a second for what a GPU does in a millisecond: WEFT_TESTS=few leaves rows that meet every
# pattern, option and layout once, with few heads.
FEW = os.environ.get("WEFT_TESTS") == "few"


def generator(text):
    """The same numbers for the same case, whichever cases run."""
    return torch.Generator().manual_seed(zlib.crc32(text.encode()))


def normal(shape, random, dtype=torch.float64):
    """Normal variates of any dtype, drawn in float64."""
    return torch.randn(shape, generator=random, dtype=torch.float64).to(dtype)


def qkv(random, at, dtype=WIDEST, heads=(4, 2), dims=(16, 16), batch=2):
    """q (batch, heads[0], M, dims[0]), k (batch, heads[1], N, dims[0]), v (batch, heads[1], N, dims[1]); at: (M, N)."""
    shapes = (heads[0], at[0], dims[0]), (heads[1], at[1], dims[0]), (heads[1], at[1], dims[1])
    return [normal((batch, *shape), random, dtype) for shape in shapes]


def wide(dtype):
    """What lse and the gradient of sinks are kept in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


@contextmanager
def one_kernel():
    """Triton's gradients of q, k and v by one kernel meanwhile, where they need not be deterministic."""
    select = import_module("weft.kernels.gpu.select")
    _forget_gradients()
    with mock.patch.object(select, "lists_one_kernel", lambda plan: True):
        yield
    _forget_gradients()


def _forget_gradients():
    """Programs of gradients are kept by plan and layout, and by calls, and would be found again."""
    import_module("weft.torch.gpu").bound_backward.cache_clear()
    eager._calls.clear()


@dataclass
class Case:
    """Attention to be computed twice. live: (M, N) or (B, H, M, N), the mask by other means than the pattern's.

    options: as for weft.attention, sinks in the dtype of q. shift: what alignment adds to a query's index.
    deterministic: else all gradients are of one kernel.
    """

    pattern: object
    tensors: list
    live: torch.Tensor = None
    options: dict = field(default_factory=dict)
    shift: int = 0
    with_lse: bool = True
    backend: str = "cpu"
    deterministic: bool = True

    def __post_init__(self):
        q, k, _ = self.tensors
        live = torch.from_numpy(self.pattern.to_dense(q.shape[2], k.shape[2])) if self.live is None else self.live
        self.live = live.expand(*q.shape[:3], k.shape[2])

    def seeds(self):
        """Gradients of out and, if it is differentiated, of lse."""
        q, _, v = self.tensors
        random = generator(f"seeds {tuple(q.shape)}")
        out = normal((*q.shape[:3], v.shape[3]), random, q.dtype)
        return [out, normal(q.shape[:3], random, wide(q.dtype))] if self.with_lse else [out]

    def weft(self):
        """{name: tensor} of weft's results, on the CPU."""
        if self.deterministic:
            return self._weft()
        with one_kernel():
            return self._weft()

    def _weft(self):
        device = BACKENDS[self.backend]
        options = {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in self.options.items()}
        leaves = [x.detach().to(device).requires_grad_() for x in self.tensors]
        if "sinks" in options:
            leaves.append(options["sinks"].to(wide(self.tensors[0].dtype)).requires_grad_())
            options["sinks"] = leaves[3]
        options |= {"return_lse": self.with_lse, "backend": self.backend, "deterministic": self.deterministic}
        given = weft.attention(*leaves[:3], self.pattern, **options)
        outputs = given if self.with_lse else (given,)
        found = torch.autograd.grad(outputs, leaves, [x.to(device) for x in self.seeds()])
        names = ("out", "lse")[: len(outputs)] + ("dq", "dk", "dv", "dsinks")[: len(found)]
        return {name: x.detach().cpu() for name, x in zip(names, (*outputs, *found), strict=True)}

    def dense(self, dtype, more=None):
        """{name: tensor} of dense attention in `dtype`. more: added to the gradient of lse."""
        sinks = self.options.get("sinks")
        dout, dlse = [*(x.to(dtype) for x in self.seeds()), None][:2]
        if more is not None:
            dlse = more if dlse is None else dlse + more
        options = {name: x for name, x in self.options.items() if name != "sinks"}
        return dense.with_gradients(
            [x.to(dtype) for x in self.tensors],
            None if sinks is None else sinks.to(dtype),
            [dout, dlse],
            (self.live, options, self.shift),
        )


def check(case):
    """Raise AssertionError unless weft computes what dense attention does; returns weft's results."""
    dtype = case.tensors[0].dtype
    got, truth, plain = case.weft(), case.dense(torch.float64), case.dense(dtype)
    if dtype in (torch.float16, torch.bfloat16):
        plain |= with_rounded_out(case, truth, plain)
    for name, x in got.items():
        assert x.dtype == (wide(dtype) if name in ("lse", "dsinks") else dtype), f"{name} is {x.dtype}"
        assert_close(name, x, truth[name], plain[name])
    _check_the_unseen(case, got)
    return got


def with_rounded_out(case, truth, plain):
    """dq and dk in float64 but for out, which is rounded first, as in all backwards; those that plain is worse in are
    left out. In a row of one key plain rounds one product for both sides of a difference, and its error is small.
    """
    dtype, found = plain["out"].dtype, {}
    rounded = truth["out"] - truth["out"].to(dtype)
    begun = case.dense(torch.float64, more=(case.seeds()[0].double() * rounded).sum(-1))
    for name in ("dq", "dk"):
        other, error = begun[name].to(dtype), (plain[name].double() - truth[name]).abs()
        if error.numel() and (other.double() - truth[name]).abs().max() > error.max():
            found[name] = other
    return found


def _check_the_unseen(case, got):
    """Rows without keys and keys without rows: exact, not only close."""
    rows = ~case.live.any(-1)
    assert (got["out"][rows] == 0).all()
    assert (got["dq"][rows] == 0).all()
    if "lse" in got:
        sinks = case.options.get("sinks")
        alone = torch.tensor(-torch.inf) if sinks is None else sinks[None, :, None]
        assert torch.equal(got["lse"][rows], alone.to(got["lse"].dtype).expand(rows.shape)[rows])
    keys = ~case.live.any(2).unflatten(1, (got["dk"].shape[1], -1)).any(2)
    assert (got["dk"][keys] == 0).all()
    assert (got["dv"][keys] == 0).all()
