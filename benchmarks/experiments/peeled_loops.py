# ruff: noqa: PLR0913 - kernels take as many arguments as they need
"""How much do many peeled loops in one Triton kernel cost to compile, and in registers, spills and shared memory?

    python benchmarks/experiments/peeled_loops.py

Prints the table of docs/decisions/0002-peeled-loops-in-one-kernel.md in about two minutes: forward and dK/dV at head
dimension 128 in bfloat16 for sm_90, compiled with the installed Triton and read with the ptxas and nvdisasm inside it;
nothing is run. A term of a pattern is a run of tiles with an edge, a run of full tiles, and one with an edge again:

1 loop    one term, every tile masked            9 loops   three terms, written out one after the other
3 loops   one term: edge, interior, edge         rolled    any number of terms: a loop over terms around the three
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

D = 128
HOPPER = GPUTarget("cuda", 90, 32)
LN2 = tl.constexpr(0.6931471805599453)


# ---- fragments ---------------------------------------------------------------------------------------------------
@triton.jit
def stair(table, i):
    """A bound of row i, from six run-time integers: clip(rise * floor((i + shift) / run) + base)."""
    value = tl.load(table) * ((i + tl.load(table + 1)) // tl.load(table + 2)) + tl.load(table + 3)
    return tl.minimum(tl.maximum(value, tl.load(table + 4)), tl.load(table + 5))


@triton.jit
def rows(base, relayout, at, SIZE: tl.constexpr, D: tl.constexpr):
    """Pointers to SIZE rows from position `at` on: a 64-bit base, 32-bit offsets inside the tile."""
    first, step, stride = relayout
    inside = tl.arange(0, SIZE)[:, None] * (step * stride) + tl.arange(0, D)[None, :]
    return base + (first + at.to(tl.int64) * step) * stride + inside


@triton.jit
def load(pointers, here, EDGE: tl.constexpr):
    if EDGE:
        return tl.load(pointers, mask=here, other=0.0)
    return tl.load(pointers)


@triton.jit
def forward_run(state, mine, others, span, bounds, how, B: tl.constexpr, D: tl.constexpr, EDGE: tl.constexpr):
    """Attend to tiles of B keys in [span[0], span[1]). state: acc (BM, D), largest and total (BM,). mine: q (BM, D)."""
    acc, largest, total = state
    relayout, scale = how
    for at in range(span[0], span[1], B):
        position = at + tl.arange(0, B)
        here = position < span[1]
        k = load(rows(others[0], relayout, at, B, D), here[:, None], EDGE)  # (B, D)
        s = tl.dot(mine[0], k.T)  # (BM, B)
        if EDGE:
            s = tl.where((position >= bounds[0][:, None]) & (position < bounds[1][:, None]), s, -1.0e30)
        new = tl.maximum(largest, tl.max(s, 1) * scale)
        p = tl.exp2(s * scale - new[:, None])
        kept = tl.exp2(largest - new)
        v = load(rows(others[1], relayout, at, B, D), here[:, None], EDGE)  # (B, D)
        acc = tl.dot(p.to(v.dtype), v, acc * kept[:, None])
        total, largest = total * kept + tl.sum(p, 1), new
    return acc, largest, total


@triton.jit
def backward_run(state, mine, others, span, bounds, how, B: tl.constexpr, D: tl.constexpr, EDGE: tl.constexpr):
    """Take in tiles of B queries of [span[0], span[1]). state: dk, dv (BN, D). mine: k, v (BN, D)."""
    dk, dv = state
    k, v = mine
    relayout, scale = how
    for at in range(span[0], span[1], B):
        position = at + tl.arange(0, B)
        here, token = position < span[1], relayout[0] + position * relayout[1]
        q = load(rows(others[0], relayout, at, B, D), here[:, None], EDGE)  # (B, D)
        lse, delta = load(others[2] + token, here, EDGE), load(others[3] + token, here, EDGE)  # (B,)
        p = tl.exp2(tl.dot(k, q.T) * scale - lse[None, :])  # (BN, B), transposed
        if EDGE:
            p = tl.where((position >= bounds[0][:, None]) & (position < bounds[1][:, None]), p, 0.0)
        do = load(rows(others[1], relayout, at, B, D), here[:, None], EDGE)  # (B, D)
        dv = tl.dot(p.to(do.dtype), do, dv)
        ds = p * (tl.dot(v, do.T) - delta[None, :])
        dk = tl.dot(ds.to(q.dtype), q, dk)
    return dk, dv


@triton.jit
def walk(
    state, mine, others, record, i, how, B: tl.constexpr, D: tl.constexpr, PEELED: tl.constexpr, RUN: tl.constexpr
):
    """One term. Its record: start, ends of left edge, full tiles, all; first token, step; stairs at 8 and 16."""
    relayout = (tl.load(record + 4).to(tl.int64), tl.load(record + 5), how[0])
    bounds = (stair(record + 8, i), stair(record + 16, i))
    start, left, full, stop = tl.load(record), tl.load(record + 1), tl.load(record + 2), tl.load(record + 3)
    if PEELED:
        state = RUN(state, mine, others, (start, left), bounds, (relayout, how[1]), B, D, True)
        state = RUN(state, mine, others, (left, full), bounds, (relayout, how[1]), B, D, False)
        state = RUN(state, mine, others, (full, stop), bounds, (relayout, how[1]), B, D, True)
    else:
        state = RUN(state, mine, others, (start, stop), bounds, (relayout, how[1]), B, D, True)
    return state


# ---- kernels: TERMS terms written out, or with TERMS = 0 a loop over `terms` of them -------------------------------
@triton.jit
def forward(
    Q, K, V, Out, Lse, Records, stride8, q_step, m, terms, scale,
    BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr, TERMS: tl.constexpr, PEELED: tl.constexpr,
):  # fmt: skip
    """One tile of BM queries: Out = softmax(scale * Q K^T) V, Lse in base 2; scale comes times log2(e)."""
    stride = stride8 * 8  # rows begin on 16 bytes: the ALIGNED bit
    at, record = tl.program_id(0) * BM, Records + tl.program_id(0) * 128
    i = at + tl.arange(0, BM)
    relayout = (0, q_step, stride)
    q = load(rows(Q, relayout, at, BM, D), (i < m)[:, None], True)
    state = (tl.zeros((BM, D), tl.float32), tl.full((BM,), -1.0e30, tl.float32), tl.zeros((BM,), tl.float32))
    if TERMS:
        for term in tl.static_range(TERMS):
            state = walk(state, (q,), (K, V), record + 32 * term, i, (stride, scale), BN, D, PEELED, forward_run)
    else:
        for term in range(terms):
            state = walk(state, (q,), (K, V), record + 32 * term, i, (stride, scale), BN, D, PEELED, forward_run)
    acc, largest, total = state
    tl.store(rows(Out, relayout, at, BM, D), (acc / total[:, None]).to(Out.dtype.element_ty), mask=(i < m)[:, None])
    tl.store(Lse + i * q_step, largest + tl.log2(total), mask=i < m)


@triton.jit
def backward(
    Q, K, V, DO, Lse, Delta, DK, DV, Records, stride8, k_step, n, terms, scale,
    BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr, TERMS: tl.constexpr, PEELED: tl.constexpr,
):  # fmt: skip
    """dK and dV of one tile of BN keys."""
    stride = stride8 * 8
    at, record = tl.program_id(0) * BN, Records + tl.program_id(0) * 128
    i = at + tl.arange(0, BN)
    relayout, inside = (0, k_step, stride), (i < n)[:, None]
    mine = (load(rows(K, relayout, at, BN, D), inside, True), load(rows(V, relayout, at, BN, D), inside, True))
    others, how = (Q, DO, Lse, Delta), (stride, scale)
    state = (tl.zeros((BN, D), tl.float32), tl.zeros((BN, D), tl.float32))
    if TERMS:
        for term in tl.static_range(TERMS):
            state = walk(state, mine, others, record + 32 * term, i, how, BM, D, PEELED, backward_run)
    else:
        for term in range(terms):
            state = walk(state, mine, others, record + 32 * term, i, how, BM, D, PEELED, backward_run)
    tl.store(rows(DK, relayout, at, BN, D), (state[0] * (scale * LN2)).to(DK.dtype.element_ty), mask=inside)
    tl.store(rows(DV, relayout, at, BN, D), state[1].to(DV.dtype.element_ty), mask=inside)


# ---- compiling and reading ---------------------------------------------------------------------------------------
FORMS = {"1 loop": (1, False), "3 loops": (1, True), "9 loops": (3, True), "rolled": (0, True)}
TYPES = {"Lse": "*fp32", "Delta": "*fp32", "Records": "*i32", "scale": "fp32"}


@dataclass(frozen=True)
class Tile:
    queries: int
    keys: int
    warps: int
    stages: int

    def __str__(self) -> str:
        return f"{self.queries}x{self.keys} w{self.warps} s{self.stages}"


def cpu_seconds() -> float:
    """Processor time of this process and of what it has run: other programs on the machine do not disturb it."""
    return sum(os.times()[:4])


def compiled(kernel, form: str, tile: Tile):
    """(the compiled kernel, processor seconds)"""
    terms, peeled = FORMS[form]
    constants = {"BM": tile.queries, "BN": tile.keys, "D": D, "TERMS": terms, "PEELED": peeled}
    kinds = {name: TYPES.get(name, "*bf16" if name[0].isupper() else "i32") for name in kernel.arg_names}
    signature = kinds | dict.fromkeys(constants, "constexpr")
    aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(kernel.arg_names) if signature[name][0] == "*"}
    options = {"num_warps": tile.warps, "num_stages": tile.stages, "enable_fp_fusion": True}
    begin = cpu_seconds()
    built = triton.compile(ASTSource(kernel, signature, constants, aligned), target=HOPPER, options=options)
    return built, cpu_seconds() - begin


def tool(name: str, *arguments: str) -> str:
    path = Path(triton.__file__).parent / "backends/nvidia/bin" / name
    done = subprocess.run([path, *arguments], capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


def read(built) -> tuple[str, float, str]:
    """(what ptxas -v says, its processor seconds, the disassembly)"""
    with tempfile.TemporaryDirectory() as folder:
        ptx, cubin = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
        ptx.write_text(built.asm["ptx"])
        cubin.write_bytes(built.asm["cubin"])
        begin = cpu_seconds()
        log = tool("ptxas", "-v", "--gpu-name=sm_90a", str(ptx), "-o", str(ptx.with_suffix(".o")))
        return log, cpu_seconds() - begin, tool("nvdisasm", "-c", str(cubin))


def loops_of(listing: str) -> tuple[int, list[list[str]]]:
    """(number of instructions, those of each innermost loop that multiplies matrices, shortest loop first)"""
    code, labels, loops = [], {}, []
    for row in listing.splitlines():
        if found := re.match(r"(\.L_\w+):", row):
            labels[found[1]] = len(code)
        elif (found := re.search(r"/\*[0-9a-f]{4,}\*/\s+([^;]*);", row)) and found[1].strip() != "NOP":
            code.append(found[1])
            back = re.search(r"BRA.*?(\.L_\w+)", found[1])
            if back and back[1] in labels:
                loops.append((labels[back[1]], len(code)))
    inner = [(a, b) for a, b in loops if not any((a, b) != x and a <= x[0] and x[1] <= b for x in loops)]
    bodies = [code[a:b] for a, b in inner if any("HGMMA" in text for text in code[a:b])]
    return len(code), sorted(bodies, key=len)


def only(pattern: str, text: str) -> str:
    return re.search(pattern, text)[1]


def line(kernel, form: str, tile: Tile) -> str:
    built, seconds = compiled(kernel, form, tile)
    log, ptxas, listing = read(built)
    registers, warned = only(r"Used (\d+) registers", log), " ".join(re.findall(r"C75\d\d", log)) or "-"
    spilled = only(r"(\d+) bytes spill stores", log) + "/" + only(r"(\d+) bytes spill loads", log)
    total, loops = loops_of(listing)
    each = f"{len(loops[0])}..{len(loops[-1])}"
    local = max(sum("LDL" in text or "STL" in text for text in loop) for loop in loops)
    return (
        f"{kernel.__name__:9s}{form:9s}{tile!s:14s}{registers:>5s}{spilled:>11s}{built.metadata.shared / 1024:9.1f}"
        f"{len(loops):6d}{each:>12s}{local:6d}{total:8d}{len(built.asm['cubin']) / 1024:7.0f}{seconds:7.2f}{ptxas:7.2f}"
        f"  {warned}"
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as cache:
        os.environ |= {"TRITON_CACHE_DIR": cache, "TRITON_ALWAYS_COMPILE": "1"}
        report()


def report() -> None:
    print("triton", triton.__version__, "ptxas", only(r"V([\d.]+)", tool("ptxas", "--version")))
    print(f"{'kernel':9s}{'form':9s}{'tile':14s}{'regs':>5s}{'spilled B':>11s}{'smem KiB':>9s}{'loops':>6s}"
          f"{'each':>12s}{'local':>6s}{'in all':>8s}{'cubin':>7s}{'cpu s':>7s}{'ptxas':>7s}  warnings")  # fmt: skip
    compiled(forward, "1 loop", Tile(64, 64, 4, 1))  # what only the first compilation pays for
    tiles = [(forward, Tile(128, 64, 8, 3)), (forward, Tile(128, 128, 8, 2)), (backward, Tile(64, 128, 8, 2)),
             (backward, Tile(32, 128, 8, 2)), (backward, Tile(64, 64, 4, 2))]  # fmt: skip
    for kernel, tile in tiles:
        for form in FORMS:
            print(line(kernel, form, tile), flush=True)
    print("tile: queries x keys, warps, stages. each: instructions of the shortest (interior) and longest (edge) loop.")
    print("local: most accesses to spills in one loop. cpu s: processor time of one compilation, ptxas included")


if __name__ == "__main__":
    main()
