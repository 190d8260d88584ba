"""Which kernels a call would launch, found without a GPU: the real planner and the real entry points, no launch."""

from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any
from unittest import mock

import torch

import weft
from weft.kernels.gpu import select
from weft.kernels.gpu.layout import Layout, Options, Vector
from weft.kernels.gpu.program import row_major
from weft.kernels.gpu.programs import backward
from weft.kernels.gpu.programs.forward import chosen_forward
from weft.kernels.gpu.spec import KernelSpec
from weft.planning.attention_plan import plan_attention
from weft.planning.problem import Problem
from weft.planning.tiling import Tiling
from weft.planning.tiling.gpu import plan_for_device
from weft.target import GPU, GPUS
from weft.testing.workloads import WORKLOADS
from weft.torch.gpu import IMAGINED


@dataclass(frozen=True)
class Call:
    """One call of attention. dims: (D, Dv). options: softcap, alibi, sinks, scale, and lse, which has a gradient, and
    tf32, which products may take. dense: rows lie densely, 16-byte aligned. one_kernel: dK, dV and dQ are of one.
    """

    pattern: Any
    m: int = 1000
    n: int = 1000
    dims: tuple[int, int] = (64, 64)
    dtype: torch.dtype = torch.bfloat16
    heads: tuple[int, int] = (4, 2)
    batch: int = 2
    options: dict = field(default_factory=dict)
    dense: bool = True
    one_kernel: bool = False

    def problem(self):
        """As the planner sees it on a GPU."""
        return Problem(
            self.batch, *self.heads, self.m, self.n, *self.dims, str(self.dtype).removeprefix("torch."), "cuda"
        )


def specs_of(call, gpu=GPU):
    """The KernelSpecs of one call on a card, forward and backward, in the order of their launches."""
    return [spec for spec in launched(call, gpu) if isinstance(spec, KernelSpec)]


def launched(call, gpu=GPU):
    """What one call launches, forward and backward: KernelSpecs, and for kernels by rows their sources."""
    found = [launch for program in programs_of(call, gpu) for launch in program.launches]
    return [launch.spec if isinstance(launch.spec, KernelSpec) else launch.kernel for launch in found]


def programs_of(call, gpu=GPU):
    """The programs of one call, forward and backward."""
    fixed = (("dkdv", tiling_with_dq(call)),) if call.one_kernel else ()
    plan = plan_attention(call.pattern, call.problem(), gpu, fixed)
    layout, options = layout_of(call, "qkv"), options_of(call)
    forward = chosen_forward(plan, layout, options, IMAGINED)
    options = options._replace(deterministic=not call.one_kernel, with_delta=bool(call.options.get("sinks")))
    with mock.patch.object(select, "lists_one_kernel", lambda plan: call.one_kernel):
        return forward, backward.backward_program(plan, layout_of(call, "gradients"), options)


def layout_of(call, of):
    """How the tensors of a call lie; of: "qkv", or "gradients", where out and dout lie alike."""
    q, k, v, dout = (_strides(shape, call) for shape in _shapes(call))
    row = Vector("float32", (1,))
    slopes = row if call.options.get("alibi") else None
    if of == "qkv":
        return Layout((q, k, v), True, sinks=row if call.options.get("sinks") else None, slopes=slopes)
    rows = row_major((call.batch, call.heads[0], call.m))
    dlse = Vector("float32", rows) if call.options.get("lse") else None
    return Layout((q, k, v, dout, dout), True, dlse=dlse, slopes=slopes)


def options_of(call):
    """The options of a call that programs are made for."""
    asked = call.options
    return Options(asked.get("scale", 0.1), asked.get("softcap"), tf32=asked.get("tf32", False))


SMALL = Tiling(16, 8, 4, 1)  # many tiles in few tokens


def small_nests(pattern, tokens, transposed=False):
    """The planner's nests of one direction of a square pattern, in tiles of SMALL."""
    problem = Problem(1, 1, 1, tokens, tokens, 64, 64, "bfloat16", "cuda")
    plan = plan_attention(pattern, problem, GPU)
    shares = plan.transposed if transposed else plan.forward
    return [x for share in shares for x in plan_for_device(share.plan.acsr, problem, GPU, SMALL).nests]


def has_room_for_dq(call):
    """Whether one kernel for all gradients is worth compiling: else no tile leaves registers for that of dQ."""
    return call.dtype != torch.float32 and max(call.dims) <= 128


def tiling_with_dq(call):
    """Tiles that leave registers for that of dQ, on sm_90."""
    if not has_room_for_dq(call):
        return Tiling(32, 32, 8, 2)
    grid = any(term.rank > 1 for term in call.pattern.acsr(call.m, call.n).terms)
    if max(call.dims) <= 64:
        return Tiling(128, 32 if grid else 64, 8, 3, apart=not grid)
    return Tiling(64, 32, 8, 3) if grid else Tiling(128, 32, 8, 2, apart=True)


# What a gradient takes; of SHORT "gradients" alone, of BESIDE it and two more.
DIRECTIONS = {"forward": ("forward",), "dq": ("dq",), "keys": ("dkdv",), "one kernel": ("delta", "dkdv")}


def specs_towards(call, direction, target="sm_90"):
    """The distinct KernelSpecs of one of DIRECTIONS, as planned for a card of that architecture."""
    call = replace(call, one_kernel=direction == "one kernel")
    return list(dict.fromkeys(spec for spec in specs_of(call, card(target)) if spec.direction in DIRECTIONS[direction]))


def gradients_of(call):
    """The KernelSpecs of a call's gradients on a Hopper card."""
    return [spec for spec in specs_of(call, card("sm_90")) if spec.direction != "forward"]


def card(architecture):
    """One of that architecture."""
    return next(gpu for gpu in GPUS.values() if gpu.architecture == architecture)


def _shapes(call):
    (d, dv), (q_heads, kv_heads) = call.dims, call.heads
    sizes = (q_heads, call.m, d), (kv_heads, call.n, d), (kv_heads, call.n, dv), (q_heads, call.m, dv)
    return [(call.batch, *size) for size in sizes]


def _strides(shape, call):
    """Of a tensor that is dense, or a part of one whose rows are one number longer."""
    return row_major((*shape[:3], shape[3] + (not call.dense)))


def square(pattern, **more):
    """A call whose length is a grid's."""
    length = more.pop("length")
    return Call(pattern, length, length, **more)


BAND = weft.causal() & weft.window(left=300)
SHORT = Call(weft.causal() & weft.window(left=127), m=4096, n=4096)  # one kernel makes all its gradients
BESIDE = replace(SHORT, pattern=weft.causal() & (weft.window(left=127) | weft.periodic_keys(step=128)))  # or three
# What reaches every fragment of the emitter: ranks 0 to 3, formulas and tables, merges, lists, every option.
CALLS = {
    "window": Call(BAND, dims=(128, 128)),
    "window, 64": Call(BAND),
    "window, by groups": Call(BAND, m=8192, n=8192, heads=(4, 4)),
    "window, 128, by groups": Call(BAND, m=8192, n=8192, heads=(4, 4), dims=(128, 128)),
    "two terms, 128, by groups": Call(
        weft.causal() & (weft.window(left=300) | weft.global_tokens(4)), m=8192, n=8192, heads=(4, 4), dims=(128, 128)
    ),
    "window, 256, by groups": Call(BAND, m=8192, n=8192, dims=(256, 256)),
    "window, 256": Call(BAND, m=4000, n=4000, dims=(256, 256)),  # fewer tokens are computed by rows
    "window, 192x128": Call(BAND, m=4000, n=4000, dims=(192, 128)),
    "window, 192": Call(BAND, m=4000, n=4000, dims=(192, 192)),
    "window, float32": Call(BAND, dims=(128, 128), dtype=torch.float32),
    "window, 256, float32": Call(BAND, dims=(256, 256), dtype=torch.float32),
    "window, sinks": Call(BAND, options={"sinks": True}),
    "window, softcap, alibi, sinks": Call(BAND, dims=(80, 80), options={"softcap": 5.0, "alibi": True, "sinks": True}),
    "window, scale below 0": Call(BAND, dims=(16, 96), options={"scale": -1.0}, dtype=torch.float16),
    "rows anywhere": Call(BAND, dims=(33, 40), dense=False, dtype=torch.float16),
    "documents": Call(weft.documents([300, 0, 200, 500]) & weft.causal(), dims=(128, 128)),
    "longformer": Call(weft.longformer(256, global_tokens=70, dilation=3)),
    "dilation by head": Call(weft.per_head([weft.dilated(9, 9, step) for step in (1, 2, 4, 4)]), dims=(128, 128)),
    "listed tokens": Call(weft.longformer(64) | weft.global_tokens([0, 77, 500, 501])),
    "random blocks": Call(weft.random_blocks(64, 3, seed=1), dims=(96, 96)),
    "2-D": square(weft.neighborhood((32, 40), (9, 11)), length=1280, dims=(128, 128)),
    "2-D, by groups": square(weft.neighborhood((96, 96), (61, 61)), length=9216, dims=(128, 128), heads=(8, 8)),
    "2-D, ungrouped": square(weft.neighborhood((32, 40), (9, 11)), length=1280, heads=(4, 4)),
    "3-D": square(weft.neighborhood((8, 12, 16), (3, 5, 5), dilation=(1, 2, 1)), length=1536),
    "two terms, by groups": Call(
        weft.causal() & (weft.window(left=255) | weft.periodic_keys(128)), m=16384, n=16384, heads=(16, 16), batch=1
    ),
    "chunks, gradient of lse": Call(weft.causal() & weft.chunks(128), heads=(4, 4), options={"lse": True}),
    "tf32, gradient of lse": Call(BAND, dtype=torch.float32, options={"lse": True, "tf32": True}),
    "rows anywhere, 192, softcap, alibi": Call(
        BAND, m=4000, n=4000, dims=(192, 192), dtype=torch.float16, options={"softcap": 5.0, "alibi": True}, dense=False
    ),
    "two terms": Call(weft.causal() & (weft.window(left=300) | weft.prefix(100))),
    "two terms, listed bounds": Call(
        weft.causal() & (weft.documents([2048, *[768] * 8]) | weft.prefix(2048)), m=8192, n=8192, dims=(128, 128),
        heads=(16, 16), batch=1,
    ),
    "three terms": Call(
        weft.causal() & (weft.window(left=127) | weft.periodic_keys(500) | weft.prefix(4)), heads=(4, 4)
    ),
    "longformer, one token": Call(weft.longformer(256, global_tokens=1), heads=(4, 4)),
    "strided": Call(weft.causal() & weft.strided(128)),
    "sparse transformer": Call(weft.sparse_transformer(128, 8), m=12288, n=12288, heads=(8, 8), batch=1),
    "sparse transformer, fixed": Call(
        weft.sparse_transformer(128, 8, kind="fixed", summary=32), m=12288, n=12288, heads=(8, 8), batch=1
    ),
    "bigbird": Call(weft.bigbird(64)),
}  # fmt: skip
# What walks full tiles of other terms in the loop of one (`more`), whose source chooses where the next tile is.
WITH_MORE = {
    "longformer, one loop": Call(weft.longformer(512, global_tokens=64), m=16384, n=16384, heads=(12, 12), batch=4),
    "longformer, packed": Call(weft.longformer(256, global_tokens=64), dims=(128, 128), dtype=torch.float16),
    "text and image": square(
        weft.segments([128, 1280], [[weft.full()] * 2, [weft.full(), weft.neighborhood((32, 40), (9, 11))]]),
        length=1408, dims=(128, 128), heads=(4, 4),
    ),
}  # fmt: skip

# What ordinary calls are made of. Beside each length and each type with its own heads.
PATTERNS = (
    weft.causal(), weft.full(), weft.window(64, 64), BAND, SHORT.pattern, weft.dilated(64, 64, 3),
    weft.causal() | weft.prefix(100), weft.chunks(100) & weft.causal(),
    weft.causal() & (weft.window(left=255) | weft.periodic_keys(128)),
    weft.causal() & (weft.window(left=127) | weft.periodic_keys(500) | weft.prefix(4)),
    weft.causal() & (weft.window(left=255) | weft.prefix(4)), weft.longformer(256, global_tokens=1),
    weft.longformer(256, global_tokens=64), weft.longformer(128, global_tokens=100, dilation=2),
    weft.longformer(64) | weft.global_tokens([0, 77, 500]), weft.random_blocks(64, 3, seed=1),
)  # fmt: skip
WAYS = (
    {"dims": (64, 64)},
    {"dims": (64, 64), "heads": (16, 16), "batch": 1},
    {"dims": (128, 128), "heads": (4, 4), "dtype": torch.float16},
    {"dims": (64, 64), "heads": (4, 4), "dtype": torch.float32},
)
OPTIONS = (
    {"softcap": 5.0}, {"alibi": True}, {"sinks": True}, {"lse": True}, {"scale": -1.0},
    {"softcap": 5.0, "alibi": True, "sinks": True, "lse": True},
)  # fmt: skip
LONGEST = 16384  # tokens of a workload: longer ones take long to plan, for kernels that others have too


def ordinary():
    """Calls as users make them: the workloads, and some patterns in many ways."""
    for w in WORKLOADS.values():
        if w.n <= LONGEST:
            dtype, options = getattr(torch, w.dtype), {"sinks": w.sinks}
            yield Call(w.make(), w.m, w.n, (w.d, w.dv), dtype, (w.q_heads, w.kv_heads), w.batch, options)
    for pattern, n, way in product(PATTERNS, (1000, 4096), WAYS):
        yield Call(pattern, n, n, **way)
    for options, dense, dtype in product(OPTIONS, (False, True), (torch.bfloat16, torch.float16, torch.float32)):
        yield Call(BAND, dtype=dtype, options=options, dense=dense)
    yield Call(BAND, dtype=torch.float32, options={"tf32": True})
