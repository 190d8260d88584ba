"""The calls that the gate replays, at most 60, and for which cards and versions of Triton."""

from dataclasses import dataclass, replace

import torch
from tests.triton.specs import BESIDE, CALLS, SHORT, WITH_MORE, Call, has_room_for_dq

import weft
from weft.testing.workloads import WORKLOADS

MOST = 60


@dataclass(frozen=True)
class Case:
    """A call under a name. targets: beside sm_90. step: it is a step of decoding, at a growing number of keys.
    one_kernel: the backward in one kernel is replayed too, in tiles that leave it registers.
    """

    name: str
    call: Call
    targets: tuple[str, ...] = ()
    step: bool = False
    one_kernel: bool = False


CORE = tuple(name for name, w in WORKLOADS.items() if "core" in w.tags)
MODELS = ("gpt_oss_window_128", "gemma3_local_1024", "decode_128k", "decode_window_4096", "verify_8")
OTHERS = ("sm_80", "sm_100", "gfx942")
# Of each of these the kernels for other cards than Hopper's; one case for each emitted structure.
EVERYWHERE = ("window", "window, softcap, alibi, sinks", "rows anywhere", "documents", "2-D", "bigbird", "decode_128k")
SOMEWHERE = {
    "window, float32": ("gfx942",),
    "tf32, gradient of lse": ("sm_80", "sm_100"),
    "3-D": ("sm_100",),
    "longformer, packed": ("sm_80",),
    "text and image": ("gfx942",),
}
ONE_KERNEL = ("window", "2-D", "rows anywhere", "longformer, packed", "window, softcap, alibi, sinks")
# Other cases have kernels of these kinds; the last one is the call of a workload, longformer_w512_g64.
LEFT_OUT = ("window, 192", "two terms", "window, by groups", "longformer, one loop")
END = "bottom-right"
BAND = weft.causal() & weft.window(left=300)
STEP = Call(BAND.aligned(END), 1, 5000, (128, 128), torch.bfloat16, (32, 8))
STEPS = {
    "step": STEP,
    "step, all options": replace(
        STEP, heads=(8, 8), dims=(64, 64), dtype=torch.float16,
        options={"softcap": 5.0, "alibi": True, "sinks": True},
    ),
    "step, two terms": replace(STEP, pattern=weft.strided(64).aligned(END)),
    "step, rows anywhere": replace(STEP, dims=(33, 40), dtype=torch.float16, dense=False),
    "step, float32, 256": replace(STEP, dims=(256, 256), dtype=torch.float32, heads=(64, 1), m=4),
}  # fmt: skip


def _of_workload(name):
    w = WORKLOADS[name]
    heads, options = (w.q_heads, w.kv_heads), {"sinks": w.sinks}
    return Call(w.make(), w.m, w.n, (w.d, w.dv), getattr(torch, w.dtype), heads, w.batch, options)


def _cases():
    calls = {name: _of_workload(name) for name in CORE + MODELS}
    calls |= {name: call for name, call in (CALLS | WITH_MORE).items() if name not in LEFT_OUT}
    calls |= {"short window": SHORT, "short window, gradient of lse": replace(SHORT, options={"lse": True})}
    calls |= {"few keys beside": BESIDE}
    for name, call in calls.items():
        targets = OTHERS if name in EVERYWHERE else SOMEWHERE.get(name, ())
        one_kernel = name in ONE_KERNEL and has_room_for_dq(call)
        yield Case(name, call, targets, one_kernel=one_kernel)
    for name, call in STEPS.items():
        yield Case(name, call, step=True)


CASES = {case.name: case for case in _cases()}
# What `make replay` looks at: a kernel of each family, and the workloads that most depends on.
PART = (
    "causal_window_1024", "dense_d64", "strided_l128_s128", "document_causal", "na2d_128x128_k21", "random blocks",
    "window, softcap, alibi, sinks", "step",
)  # fmt: skip
