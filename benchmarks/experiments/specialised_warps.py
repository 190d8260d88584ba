"""Are short runs of tiles faster where warp groups specialise: one loads, the others compute?

    python benchmarks/experiments/specialised_warps.py

Forward, dQ, dK and dV at head dimension 64 in bfloat16 for sm_90, in Gluon (`specialised/`); what came out is in
docs/decisions/0010-warp-groups-that-specialise.md. Without a Hopper GPU it prints registers, spills and shared memory
of what Triton compiles, and what the assembler serialises; on one, each kernel's error and time beside weft's own.

A program lives as long as the launch and takes blocks of WIDE x 64 queries in turn (dK and dV: keys). One warp asks for
tiles through tensor descriptors, as far ahead as there are stages; each of WIDE groups of four warps has 64 rows of the
block and passes over those tiles that none of them sees. One or two terms: a window, and keys at a step.
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

from specialised.forward import forward  # noqa: E402
from specialised.keys import backward_keys  # noqa: E402
from specialised.queries import backward  # noqa: E402

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


def tables(terms: list[Term], n: int, wide: int, tile: int = 64) -> tuple[np.ndarray, np.ndarray]:
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
            records[b, 1 + 2 * t : 3 + 2 * t] = start, -(-(stop - start) // tile)
            bounds[2 * t, b], bounds[2 * t + 1, b] = low - start, high - start
            for c in range(wide):
                of = slice(64 * c, 64 * c + 64)
                mine = 8 + 6 * c
                places = [mine + 2 * t, mine + 2 * t + 1, mine + 4 + t]
                records[b, places] = _edges(low[of] - start, high[of] - start, tile)
    return records, bounds


def _edges(low: np.ndarray, high: np.ndarray, tile: int) -> tuple[int, int, int]:
    """(first tile, end, tiles that low bounds cut below | those that high bounds cut from << 16) of 64 rows."""
    sees = high > low
    if not sees.any():
        return 0, 0, 0
    end = -(-int(high[sees].max()) // tile)
    return int(low[sees].min()) // tile, end, -(-int(low.max()) // tile) | max(0, int(high.min()) // tile) << 16


# ---- compiling -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Form:
    """wide: warp groups. registers: of a thread of each but the first; most: before they specialise. tile: of queries,
    where keys stay. ahead: see `walk_ahead`. apart: see `number`.
    """

    wide: int
    stages: int
    registers: int
    most: int
    tile: int = 64
    ahead: bool = False
    apart: bool = False

    def __str__(self) -> str:
        more = f" of {self.tile}" * (self.tile != 64) + ", ahead" * self.ahead + ", numbers apart" * self.apart
        return f"{self.wide} warp groups, {self.stages} stages{more}"

    def constants(self, kernel, terms: int) -> dict[str, int]:
        known = {
            "WIDE": self.wide, "STAGES": self.stages, "REGISTERS": self.registers, "TILE": self.tile,
            "AHEAD": self.ahead, "APART": self.apart, "TERMS": terms,
        }  # fmt: skip
        return {name: value for name, value in known.items() if name in kernel.arg_names}

    def box(self, name: str) -> list[int]:
        """Of a descriptor."""
        return [1, self.tile if name in ("q_desc", "do_desc", "stats_desc") else 64, 16 if name == "stats_desc" else D]


FORMS = [
    (forward, Form(4, 8, 112, 96)), (forward, Form(4, 8, 112, 96, ahead=True)), (forward, Form(3, 8, 160, 128)),
    (forward, Form(3, 8, 160, 128, ahead=True)), (backward, Form(3, 4, 160, 128)),
    (backward, Form(2, 8, 232, 168)), (backward, Form(2, 8, 192, 128, apart=True)),
    (backward_keys, Form(2, 4, 232, 168)), (backward_keys, Form(3, 8, 160, 128, 32)),
]  # fmt: skip
KINDS = {"Lse": "*fp32", "Stats": "*bf16", "Table": "*i32", "Bounds": "*i32", "scale": "fp32"}


def is_box(name: str) -> bool:
    return name.endswith(("desc", "far"))


def layout_of(box: list[int]):
    return gl.NVMMASharedLayout.get_default_for(box, gl.bfloat16)


def compiled(kernel, form: Form, terms: int):
    """The kernel for sm_90; needs no GPU."""
    constants, names = form.constants(kernel, terms), kernel.arg_names
    boxes = {name: form.box(name) for name in names if is_box(name)}
    kinds = {name: KINDS.get(name, "i32") for name in names} | dict.fromkeys(constants, "constexpr")
    kinds |= {name: f"tensordesc<bf16{box},{layout_of(box)!r}>" for name, box in boxes.items()}
    aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if kinds[name][0] == "*"}
    values = {(names.index(name),): value for name, value in constants.items()}
    source = GluonASTSource(kernel, kinds, values, aligned)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4, "maxnreg": form.most})


# ---- running ---------------------------------------------------------------------------------------------------------
def launched(kernel, tensors, terms: list[Term], form: Form, programs: int):
    """What launches a kernel; tensors: (heads, tokens, D), or numbers of rows, by the names of its arguments."""
    heads, n, _ = tensors["q_desc"].shape
    records, bounds = (torch.from_numpy(x).to(tensors["q_desc"].device) for x in tables(terms, n, form.wide, form.tile))
    far = terms[-1]
    given = dict(tensors)
    for name, of in (("k_far", "k_desc"), ("v_far", "v_desc")):
        given[name] = given[of][:, far.first :: far.step]
    for name in filter(is_box, given):
        x, box = given[name], form.box(name)
        given[name] = TensorDescriptor(x, list(x.shape), list(x.stride()), box, layout_of(box))
    numbers = {"items": heads * len(records), "blocks": len(records), "heads": heads, "length": n, "scale": D**-0.5}
    given |= {"Table": records, "Bounds": bounds, **numbers}
    values = [given[name] for name in kernel.arg_names if name in given]
    return lambda: kernel[(programs,)](*values, **form.constants(kernel, len(terms)), num_warps=4, maxnreg=form.most)


CASES = {  # a workload or a pattern, and sizes -> terms of queries, terms of keys where there is one of them
    "window_pm256 @ 4,12,16384,64": (window(16384, 256, 256), window(16384, 256, 256)),
    "causal() & window(left=127) @ 1,16,16384,64": (window(16384, 127, 0), window(16384, 0, 127)),
    "strided_l128_s128 @ 1,16,16384,64": (strided(16384, 128), None),
}
WAYS = {"forward": forward, "dq": backward, "dkdv": backward_keys}


def compare() -> None:
    """Errors and times beside weft's own kernels on the GPU at hand."""
    sys.path[:0] = [str(ROOT / "benchmarks")]
    from prediction.problems import Case

    from weft.kernels.triton import measure
    from weft.planning.attention_plan import plan_attention
    from weft.target import GPUS

    for text, (queries, keys) in CASES.items():
        case = Case.of(text)
        plan = plan_attention(case.make(), case.problem, GPUS["h200"])
        subject = measure.Subject.of(plan)
        for direction, kernel in WAYS.items():
            terms = keys if kernel is backward_keys else queries
            if terms is None:
                continue
            own = subject.call(direction, plan)
            meant = [x.flatten(0, 1).float() for x in own()]
            calls, said = [own], ["weft"]
            for form in (form for of, form in FORMS if of is kernel):
                call, results = _call(kernel, subject, terms, form)
                errors = [float((x.float() - y).norm() / y.norm()) for x, y in zip(results, meant, strict=False)]
                calls.append(call)
                said.append(f"{form}, off by {' and '.join(f'{x:.0e}' for x in errors)}")
            times = measure.timings_of(calls, rounds=6)
            for what, time in zip(said, times, strict=True):
                over = time.seconds / times[0].seconds
                print(f"{text:45s}{direction:9s}{time.seconds * 1e6:8.1f} us {over:6.3f}  {what}", flush=True)


def _call(kernel, subject, terms: list[Term], form: Form):
    """(what launches a kernel, what it writes), launched once."""
    names = {"q_desc": "q", "k_desc": "k", "v_desc": "v", "o_desc": "out", "do_desc": "d_out"}
    given = {name: getattr(subject, of).flatten(0, 1) for name, of in names.items()}
    lse, stats = subject.lse.flatten(0, 1), subject.made[-1].flatten(0, 1)
    if kernel is forward:
        given |= {"out_desc": torch.empty_like(given["q_desc"]), "Lse": torch.empty_like(lse)}
    elif kernel is backward:
        given |= {"dq_desc": torch.empty_like(given["q_desc"]), "Lse": lse, "Stats": torch.empty_like(stats)}
    else:
        given |= {"dk_desc": torch.empty_like(given["k_desc"]), "dv_desc": torch.empty_like(given["v_desc"])}
        given |= {"stats_desc": stats}
    launch = launched(kernel, given, terms, form, torch.cuda.get_device_properties(0).multi_processor_count)
    launch()
    written = [given[name] for name in ("out_desc", "dq_desc", "dk_desc", "dv_desc") if name in given]
    return lambda: [launch()], written


def serialised(built) -> bool:
    """Whether the assembler runs products one by one, as it says (C7510 to C7519)."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.ptx"
        path.write_text(built.asm["ptx"])
        told = [knobs.nvidia.ptxas.path, "-v", "--gpu-name=sm_90a", path, "-o", path.with_suffix(".o")]
        return "C751" in subprocess.run(told, capture_output=True, text=True, check=True).stderr


def report() -> None:
    """Registers, spills and shared memory of each form, and whether products overlap."""
    sys.path[:0] = [str(ROOT)]
    from tests.triton.resources import resources

    print("triton", triton.__version__)
    for kernel, form in FORMS:
        for terms in (1, 2) if "TERMS" in kernel.arg_names else (1,):
            built = compiled(kernel, form, terms)
            found = resources(built, "sm_90")
            print(f"{built.name:14s}{form!s:40s}{terms} terms: {found.registers} registers, {found.spilled} bytes "
                  f"spilled, {built.metadata.shared / 1024:.1f} KiB{', serialised' * serialised(built)}")  # fmt: skip


if __name__ == "__main__":
    if torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9:
        compare()
    else:
        report()
