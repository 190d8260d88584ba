"""Are gradients of short windows faster in one walk, which reads each tensor once and makes five products, not seven?

    python benchmarks/experiments/short_windows.py

dQ, dK and dV at head dimension 64 in bfloat16 for sm_90, in Gluon (`specialised/one_walk.py`). Without a Hopper GPU it
prints registers, spills and shared memory of what Triton compiles; on one, errors and times beside weft's own kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from specialised.one_walk import one_walk
from specialised_warps import D, descriptor, errors_of, for_hopper, given_by, is_box, on_hopper, report, subject_of

import weft

GROUPS = 3
NAMES = one_walk.arg_names


@dataclass(frozen=True)
class Form:
    """Tiles of keys and of queries under way; registers of a thread that computes and of one that loads."""

    keys: int = 5
    queries: int = 3
    registers: int = 160
    loads: int = 32

    def __str__(self) -> str:
        return f"{self.keys} and {self.queries} stages, {self.registers} and {self.loads} registers"

    def constants(self) -> dict[str, int]:
        return {
            "GROUPS": GROUPS, "KEYS": self.keys, "QUERIES": self.queries, "REGISTERS": self.registers,
            "LOADS": self.loads,
        }  # fmt: skip


FORMS = [Form(5, 3), Form(4, 3), Form(4, 4)]


def compiled(form: Form):
    """The kernel for sm_90; needs no GPU."""
    return for_hopper(one_walk, {"Lse": "*fp32", "scale": "fp32"}, form.constants(), 128)


def numbers(heads: tuple[int, int], length: int, window: tuple[int, int], programs: int) -> dict[str, float]:
    """Arguments of a window (left, right) over so many heads of queries, of keys, and tokens; a run for each program
    where there are as many.
    """
    share, heads = heads[0] // heads[1], heads[1]
    left, right = window
    shift = 64 * -(-left // 64)  # no tile of keys lies across the first key: boxes that begin before it are not written
    assert shift + right <= 64 * (GROUPS - 1), "too wide"
    count = -(-length // 64) + GROUPS - 1
    runs = max(1, programs // heads)
    per = -(-count // runs)
    runs = -(-count // per)
    return {
        "items": heads * runs, "runs": runs, "per": per, "count": count, "shift": shift, "length": length,
        "share": share, "left": left, "right": right, "scale": D**-0.5,
    }  # fmt: skip


def launched(tensors, window: tuple[int, int], form: Form, programs: int):
    """What launches it; tensors: (heads, tokens, D) by the names of its arguments, lse too."""
    heads, n = (tensors["q_desc"].shape[0], tensors["k_desc"].shape[0]), tensors["q_desc"].shape[1]
    given = {name: descriptor(x) if is_box(name) else x for name, x in tensors.items()}
    given |= numbers(heads, n, window, programs)
    values = [given[name] for name in NAMES if name in given]
    return lambda: one_walk[(programs,)](*values, **form.constants(), num_warps=4, maxnreg=128)


CASES = [  # left, right, (heads of queries, of keys), tokens
    (127, 0, (16, 16), 16384),
    (127, 0, (64, 64), 8192),
    (127, 0, (64, 8), 8192),
    (64, 64, (16, 16), 16384),
]


def walked(subject, window: tuple[int, int], form: Form):
    """(what launches it for a subject, the gradients that it writes)"""
    given = given_by(subject)
    made = {f"d{x}_desc": torch.empty_like(given[f"{x}_desc"]) for x in "qkv"}
    given |= made
    launch = launched(given, window, form, torch.cuda.get_device_properties(0).multi_processor_count)
    return lambda: [launch()], made.values()


def compare() -> None:
    """Errors and times beside weft's own kernels on the GPU at hand."""
    from weft.kernels.triton import measure

    for left, right, heads, tokens in CASES:
        text, window = f"{left} before, {right} after, {heads} heads, {tokens} tokens", (left, right)
        subject, plan = subject_of(weft.window(left, right), heads, tokens)
        queries, keys = (subject.call(direction, plan) for direction in ("dq", "dkdv"))
        meant = [x.flatten(0, 1).float() for x in (queries()[0], *keys()[:2])]
        calls, said = [queries, keys], ["dQ", "dK and dV"]
        for form in FORMS:
            launch, made = walked(subject, window, form)
            launch()
            calls.append(launch)
            said.append(f"{form}, off by {errors_of(made, meant)}")
        times = measure.timings_of(calls, rounds=6)
        both = times[0].seconds + times[1].seconds
        for what, time in zip(said, times, strict=True):
            print(f"{text:45s}{time.seconds * 1e6:8.1f} us {time.seconds / both:6.3f}  {what}", flush=True)


if __name__ == "__main__":
    if on_hopper():
        compare()
    else:
        print("triton", triton.__version__)
        for one in FORMS:
            report(compiled(one), str(one))
