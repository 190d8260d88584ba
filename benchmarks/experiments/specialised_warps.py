"""Is dQ of short runs of tiles faster where warp groups specialise: one loads, the others compute?

    python benchmarks/experiments/specialised_warps.py

At head dimension 64 in bfloat16 for sm_90, in Gluon (`specialised/queries.py`); what came out is in
docs/decisions/0010-warp-groups-that-specialise.md, also of forwards, dK and dV, which are weft's own by now. Without a
Hopper GPU it prints registers, spills and shared memory of what Triton compiles, and what the assembler serialises; on
one, each form's error and time beside weft's own kernel.

A program lives as long as the launch and takes blocks of WIDE x 64 queries in turn. One warp asks for tiles through
tensor descriptors, as far ahead as there are stages; each of WIDE groups of four warps has 64 rows of the block and
passes over those tiles that none of them sees. One or two terms: a window, and keys at a step.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "src")]

from specialised.queries import backward  # noqa: E402

import weft  # noqa: E402
from weft.testing.workloads import WORKLOADS  # noqa: E402

D = 64
# Of a block's record: its first row, (first key, tiles) of two terms; from 8 on six numbers of each warp group.
WORDS = 32


# ---- patterns as tables ----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Term:
    """Of each query the keys first + step * j for low <= j < high."""

    low: np.ndarray
    high: np.ndarray
    first: int = 0
    step: int = 1


def window(n: int, left: int, right: int) -> list[Term]:
    i = np.arange(n)
    return [Term(np.maximum(i - left, 0), np.minimum(i + right + 1, n))]


def strided(n: int, step: int) -> list[Term]:
    """A causal window of `step`, and every step-th key before it."""
    i = np.arange(n)
    far = Term(0 * i, np.where(i >= 2 * step - 1, (i - 2 * step + 1) // step + 1, 0), step - 1, step)
    return [*window(n, step - 1, 0), far]


def tables(terms: list[Term], n: int, wide: int) -> tuple[np.ndarray, np.ndarray]:
    """(blocks, WORDS) records and (4, blocks, wide * 64) bounds of rows, from the block's first key on."""
    size = 64 * wide
    blocks = -(-n // size)
    records, bounds = np.zeros((blocks, WORDS), np.int32), np.zeros((4, blocks, size), np.int32)
    for b in range(blocks):
        first = records[b, 0] = min(b * size, n - size)
        for t, term in enumerate(terms):
            low, high = term.low[first : first + size], term.high[first : first + size]
            start = int(low[high > low].min(initial=n))
            stop = max(start, int(high[high > low].max(initial=0)))
            records[b, 1 + 2 * t : 3 + 2 * t] = start, -(-(stop - start) // 64)
            bounds[2 * t, b], bounds[2 * t + 1, b] = low - start, high - start
            for c in range(wide):
                of = slice(64 * c, 64 * c + 64)
                mine = 8 + 6 * c
                places = [mine + 2 * t, mine + 2 * t + 1, mine + 4 + t]
                records[b, places] = _edges(low[of] - start, high[of] - start)
    return records, bounds


def _edges(low: np.ndarray, high: np.ndarray) -> tuple[int, int, int]:
    """(first tile, end, tiles that low bounds cut below | those that high bounds cut from << 16) of 64 rows."""
    sees = high > low
    if not sees.any():
        return 0, 0, 0
    end = -(-int(high[sees].max()) // 64)
    return int(low[sees].min()) // 64, end, -(-int(low.max()) // 64) | max(0, int(high.min()) // 64) << 16


# ---- compiling -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Form:
    """wide: warp groups. registers: of a thread of each but the first; most: before they specialise. apart: see
    `number`.
    """

    wide: int
    stages: int
    registers: int
    most: int
    apart: bool = False

    def __str__(self) -> str:
        return f"{self.wide} warp groups, {self.stages} stages{', numbers apart' * self.apart}"

    def constants(self, terms: int) -> dict[str, int]:
        return {
            "WIDE": self.wide, "STAGES": self.stages, "REGISTERS": self.registers, "APART": self.apart, "TERMS": terms,
        }  # fmt: skip


FORMS = [Form(3, 4, 160, 128), Form(2, 8, 232, 168), Form(2, 8, 192, 128, apart=True)]
KINDS = {"Lse": "*fp32", "Stats": "*bf16", "Table": "*i32", "Bounds": "*i32", "scale": "fp32"}
BOX = [1, 64, D]


def is_box(name: str) -> bool:
    return name.endswith(("desc", "far"))


def layout_of(box: list[int]):
    return gl.NVMMASharedLayout.get_default_for(box, gl.bfloat16)


def for_hopper(kernel, kinds: dict[str, str], constants: dict[str, int], most: int):
    """A kernel compiled for sm_90; needs no GPU. kinds: of arguments that are neither int32 nor descriptors."""
    names = kernel.arg_names
    kinds = {name: kinds.get(name, "i32") for name in names} | dict.fromkeys(constants, "constexpr")
    kinds |= {name: f"tensordesc<bf16{BOX},{layout_of(BOX)!r}>" for name in names if is_box(name)}
    aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if kinds[name][0] == "*"}
    values = {(names.index(name),): value for name, value in constants.items()}
    source = GluonASTSource(kernel, kinds, values, aligned)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4, "maxnreg": most})


def compiled(form: Form, terms: int):
    """dQ of a form."""
    return for_hopper(backward, KINDS, form.constants(terms), form.most)


def descriptor(x: torch.Tensor) -> TensorDescriptor:
    """Of (heads, tokens, D), whose boxes are a head's 64 tokens."""
    return TensorDescriptor(x, list(x.shape), list(x.stride()), BOX, layout_of(BOX))


# ---- running ---------------------------------------------------------------------------------------------------------
def launched(tensors, terms: list[Term], form: Form, programs: int):
    """What launches it; tensors: (heads, tokens, D), or numbers of rows, by the names of its arguments."""
    heads, n, _ = tensors["q_desc"].shape
    records, bounds = (torch.from_numpy(x).to(tensors["q_desc"].device) for x in tables(terms, n, form.wide))
    far = terms[-1]
    given = dict(tensors)
    for name, of in (("k_far", "k_desc"), ("v_far", "v_desc")):
        given[name] = given[of][:, far.first :: far.step]
    given = {name: descriptor(x) if is_box(name) else x for name, x in given.items()}
    numbers = {"items": heads * len(records), "blocks": len(records), "heads": heads, "length": n, "scale": D**-0.5}
    given |= {"Table": records, "Bounds": bounds, **numbers}
    values = [given[name] for name in backward.arg_names if name in given]
    return lambda: backward[(programs,)](*values, **form.constants(len(terms)), num_warps=4, maxnreg=form.most)


CASES = {  # of 16,384 tokens: a pattern, its terms, heads
    "window of 256 either side": (weft.window(256, 256), window(16384, 256, 256), 48),
    "causal window of 128": (weft.causal() & weft.window(left=127), window(16384, 127, 0), 16),
    "local 128 and every 128th key": (WORKLOADS["strided_l128_s128"].make(), strided(16384, 128), 16),
}


def subject_of(pattern, heads: tuple[int, int], tokens: int, batch: int = 1):
    """(what weft computes of a pattern on the GPU at hand, its plan); heads: of queries, of keys."""
    from weft.planning.attention_plan import plan_attention
    from weft.planning.problem import Problem
    from weft.target import GPUS
    from weft.torch import measure

    problem = Problem(batch, *heads, tokens, tokens, D, D, "bfloat16", "cuda")
    plan = plan_attention(pattern, problem, GPUS["h200"])
    return measure.Subject.of(plan), plan


def given_by(subject) -> dict[str, torch.Tensor]:
    """What gradients are computed of, by the names of a kernel's arguments."""
    names = {"q_desc": "q", "k_desc": "k", "v_desc": "v", "o_desc": "out", "do_desc": "d_out", "Lse": "lse"}
    return {name: getattr(subject, of).flatten(0, 1) for name, of in names.items()}


def errors_of(found, meant) -> str:
    """How far results are off, each."""
    return ", ".join(f"{float((x.float() - y).norm() / y.norm()):.0e}" for x, y in zip(found, meant, strict=True))


def compare() -> None:
    """Errors and times beside weft's own kernel on the GPU at hand."""
    from weft.torch import measure

    programs = torch.cuda.get_device_properties(0).multi_processor_count
    for text, (pattern, terms, heads) in CASES.items():
        subject, plan = subject_of(pattern, (heads, heads), 16384)
        own, given = subject.call("dq", plan), given_by(subject)
        meant = [own()[0].flatten(0, 1).float()]
        calls, said = [own], ["weft"]
        for form in FORMS:
            dq = torch.empty_like(given["q_desc"])
            stats = torch.empty_like(subject.made[-1].flatten(0, 1))
            launch = launched(given | {"dq_desc": dq, "Stats": stats}, terms, form, programs)
            launch()
            calls.append(lambda launch=launch: [launch()])
            said.append(f"{form}, off by {errors_of([dq], meant)}")
        times = measure.timings_of(calls, rounds=6)
        for what, time in zip(said, times, strict=True):
            print(f"{text:45s}{time.seconds * 1e6:8.1f} us {time.seconds / times[0].seconds:6.3f}  {what}", flush=True)


def serialised(built) -> bool:
    """Whether the assembler runs products one by one, as it says (C7510 to C7519)."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.ptx"
        path.write_text(built.asm["ptx"])
        told = [knobs.nvidia.ptxas.path, "-v", "--gpu-name=sm_90a", path, "-o", path.with_suffix(".o")]
        return "C751" in subprocess.run(told, capture_output=True, text=True, check=True).stderr


def report(built, what: str) -> None:
    """Registers, spills and shared memory of a kernel, and whether its products overlap."""
    sys.path[:0] = [str(ROOT)]
    from tests.triton.resources import resources

    found = resources(built, "sm_90")
    print(f"{what:50s}{found.registers} registers, {found.spilled} bytes spilled, "
          f"{built.metadata.shared / 1024:.1f} KiB{', serialised' * serialised(built)}")  # fmt: skip


def on_hopper() -> bool:
    """Whether there is a GPU to time kernels on."""
    return torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9


if __name__ == "__main__":
    if on_hopper():
        compare()
    else:
        print("triton", triton.__version__)
        for one in FORMS:
            for terms in (1, 2):
                report(compiled(one, terms), f"{one}, {terms} terms")
