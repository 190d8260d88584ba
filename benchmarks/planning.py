"""What a pattern costs before any kernel runs, at about a million tokens, against the bars it has to meet.

    python benchmarks/planning.py [--only TEXT] [--tokens N] [--record]

For every pattern of the library, in a process of its own: time of the ACSR, the plan and the transposed plan, each
from empty caches (median of five), bytes of tables, time of verify(), and the peak memory of the whole process. Times
are processor times of one thread. numpy only; a minute or two. Bars: less than 100 ms together, less than 1 MB of
tables (the remainder, which is not affine, apart), verify() in less than 10 s and 500 MB.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median

import numpy as np

import weft
from weft.acsr.build import build
from weft.planning.attention_plan import AttentionPlan, plan_attention
from weft.planning.heads import distinct_heads
from weft.planning.problem import Problem

TOKENS = 1 << 20
REPEATS = 5
LIMIT = 60  # seconds for one pattern
BARS = {"together_ms": 100.0, "table_bytes": 1e6, "verify_s": 10.0, "peak_mb": 500.0}
RESULTS = Path(__file__).parent / "results"
COLUMNS = (
    "date", "machine", "python", "numpy", "commit", "pattern", "tokens", "live_pairs", "acsr_ms", "plan_ms",
    "transposed_ms", "table_bytes", "remainder_bytes", "verify_s", "peak_mb",
)  # fmt: skip


# ---- where a figure comes from (shared with the other scripts of this folder) --------------------------------------
def machine() -> str:
    """Processor model and number of cores."""
    name = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.exists():
        models = [line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
        name = models[0] if models else name
    return f"{name or platform.machine()}, {os.cpu_count()} cores"


def commit() -> str:
    """The short hash of the commit, with + if files differ from it."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=here, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def provenance(package: str) -> dict[str, str]:
    """The first columns of every row: date, machine, Python, the package that matters, commit."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"), "machine": machine(),
        "python": platform.python_version(), package: version(package), "commit": commit(),
    }  # fmt: skip


def append(path: Path, columns: tuple[str, ...], rows: list[dict[str, object]]) -> None:
    """Add rows to a table, which is made with its header if it is not there."""
    path.parent.mkdir(exist_ok=True)
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, columns)
        if new:
            writer.writeheader()
        writer.writerows(rows)
    print(f"{len(rows)} rows added to {path}")


# ---- what is measured ----------------------------------------------------------------------------------------------
Make = Callable[[], weft.Pattern]


def patterns(n: int) -> dict[str, Make]:
    """Every pattern of the library at n tokens (a power of two from 2**18 on), by a name that fits a table."""
    return BY_SIZES | listed(n) | on_grids(n)


BY_SIZES: dict[str, Make] = {
    "full": weft.full,
    "nothing": weft.nothing,
    "causal": weft.causal,
    "window(256, 256)": lambda: weft.window(256, 256),
    "causal & window(1023)": lambda: weft.causal() & weft.window(left=1023),
    "~window(256, 256)": lambda: ~weft.window(256, 256),
    "dilated(256, 256, 4)": lambda: weft.dilated(256, 256, 4),
    "dilated(256, 256, 1000)": lambda: weft.dilated(256, 256, 1000),
    "periodic_keys(128)": lambda: weft.periodic_keys(128),
    "strided(128)": lambda: weft.strided(128),
    "strided(1024)": lambda: weft.strided(1024),
    "fixed(128)": lambda: weft.fixed(128),
    "fixed(128, summary=8)": lambda: weft.fixed(128, 8),
    "sparse_transformer(128, strided)": lambda: weft.sparse_transformer(128, 8),
    "sparse_transformer(128, fixed, 8)": lambda: weft.sparse_transformer(128, 8, "fixed", 8),
    "causal & chunks(8192)": lambda: weft.causal() & weft.chunks(8192),
    "prefix(1000) | causal": lambda: weft.prefix(1000) | weft.causal(),
    "prefix, 8 rows | causal": lambda: weft.prefix(range(1000, 9000, 1000)) | weft.causal(),
    "window(256, 256).shift(100, -100)": lambda: weft.window(256, 256).shift(100, -100),
    "global_tokens(64)": lambda: weft.global_tokens(64),
    "random_blocks(64, 3)": lambda: weft.random_blocks(64, 3),
    "random_blocks(4096, 3)": lambda: weft.random_blocks(4096, 3),
    "longformer(512, 64)": lambda: weft.longformer(512, 64),
    "longformer(512, 64, dilation=4)": lambda: weft.longformer(512, 64, 4),
    "bigbird()": weft.bigbird,
    "window(32, 0)": lambda: weft.window(32, 0),
    "per_batch, 2 windows": lambda: weft.per_batch([weft.window(256, 256), weft.window(1023, 0)]),
    "per_head, dilation 1 2 3 4": lambda: weft.per_head([weft.dilated(128, 128, s) for s in (1, 1, 1, 1, 2, 2, 3, 4)]),
}


def listed(n: int) -> dict[str, Make]:
    """Patterns that are given by lists."""
    lengths = _document_lengths(n)
    anywhere = np.random.default_rng(1).choice(n, 300, replace=False)
    chain = [(i, j) for i in range(n // 1024) for j in (i, i - 1) if j >= 0]
    return {
        "blocks(1024), two a row": lambda: weft.blocks(1024, chain),
        f"documents, {len(lengths)}": lambda: weft.documents(lengths),
        f"causal & documents, {len(lengths)}": lambda: weft.causal() & weft.documents(lengths),
        "documents(ids)": lambda: weft.documents(ids=np.repeat(np.arange(len(lengths)), lengths)),
        "documents(cu_seqlens)": lambda: weft.documents(cu_seqlens=np.cumsum([0, *lengths])),
        "padding(n - 77)": lambda: weft.padding(n - 77),
        "padding, 8 rows": lambda: weft.padding([n - 1000 * b for b in range(8)], rows=True),
        "global_tokens, 3 anywhere": lambda: weft.global_tokens([0, n // 3, n // 2 + 1]),
        "global_tokens, 16 anywhere": lambda: weft.global_tokens([i * i * n // 300 + i for i in range(16)]),
        "global_tokens, 16 apart": lambda: weft.global_tokens(range(0, n, n // 16)),
        "global_tokens, 300 anywhere": lambda: weft.global_tokens(anywhere),
        "window | 300 tokens anywhere": lambda: weft.window(256, 256) | weft.global_tokens(anywhere),
        "causal & (window | 300 tokens)": lambda: (
            weft.causal() & (weft.window(left=1023) | weft.global_tokens(anywhere))
        ),
        "dilated by 1000 | 300 tokens": lambda: weft.dilated(256, 256, 1000) | weft.global_tokens(anywhere),
        "causal without 300 keys": lambda: weft.causal() & ~weft.global_tokens(anywhere, rows=False),
    }


def on_grids(n: int) -> dict[str, Make]:
    """Patterns on two and three axes, and neighbourhoods on one."""
    side = 1 << (n.bit_length() // 2)
    flat, cube = (side, n // side), (32, side // 2, n // side // 16)
    image = (side // 2, n // 4 // (side // 2))
    cells = [[weft.causal(), None], [True, weft.neighborhood(image, 13)]]
    return {
        "segments, text + image": lambda: weft.segments([n - n // 4, n // 4], cells),
        "neighborhood 1-D 513": lambda: weft.neighborhood(n, 513),
        "neighborhood 2-D 7x7": lambda: weft.neighborhood(flat, 7),
        "neighborhood 2-D | 300 tokens": lambda: (
            weft.neighborhood(flat, 7) | weft.global_tokens(np.random.default_rng(1).choice(n, 300, replace=False))
        ),
        "neighborhood 2-D 80x80, stride 16": lambda: weft.neighborhood(flat, 80, 16),
        "neighborhood 2-D 13x13, dilation 4": lambda: weft.neighborhood(flat, 13, dilation=4),
        "neighborhood 3-D 18x24x24": lambda: weft.neighborhood(cube, (18, 24, 24)),
        "neighborhood 3-D, causal, dilated": lambda: weft.neighborhood(
            cube, (4, 9, 9), 1, (1, 2, 3), (True, False, False)
        ),
        "product, causal x window": lambda: weft.product([weft.causal(), weft.window(16, 16)], flat),
    }


def _document_lengths(n: int) -> list[int]:
    """About a thousand documents of log-normal lengths, n tokens in all."""
    weights = np.random.default_rng(0).lognormal(0, 1, 1000)
    ends = np.rint(np.cumsum(weights) / weights.sum() * n).astype(int)
    return np.diff(ends, prepend=0).tolist()


def problem_for(name: str, n: int) -> Problem:
    batch = 8 if "8 rows" in name else 2 if "per_batch" in name else 1
    return Problem(batch, 8, 8, n, n, 64, 64)


@dataclass(frozen=True)
class Row:
    """One pattern. live_pairs: of all batch rows and heads."""

    live_pairs: int
    acsr_ms: float
    plan_ms: float
    transposed_ms: float
    table_bytes: int
    remainder_bytes: int
    verify_s: float
    peak_mb: float

    @property
    def together_ms(self) -> float:
        return self.acsr_ms + self.plan_ms + self.transposed_ms

    def missed(self) -> list[str]:
        return [name for name, bar in BARS.items() if not getattr(self, name) < bar]


def clear_caches() -> None:
    """Empty every cache of weft's modules."""
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "weft":
            for value in list(vars(module).values()):
                if hasattr(value, "cache_clear"):
                    value.cache_clear()


def planned(name: str, n: int) -> tuple[AttentionPlan, list[float]]:
    """(the plan, milliseconds of ACSR, plan and transposed plan), from empty caches and a new pattern."""
    clear_caches()
    pattern, problem = patterns(n)[name](), problem_for(name, n)
    times = [time.process_time()]
    for batch, head in distinct_heads(pattern, problem):
        build(pattern, n, n, batch, head)
    times.append(time.process_time())
    plan = plan_attention(pattern, problem)
    times.append(time.process_time())
    _ = plan.transposed
    times.append(time.process_time())
    return plan, [1e3 * float(x) for x in np.diff(times)]


def table_bytes(plan: AttentionPlan) -> tuple[int, int]:
    """(bytes of the ACSR's terms and of both plans, bytes of the remainders and of the launches over their blocks)"""
    plans = {id(share.plan): share.plan for share in plan.forward + plan.transposed}.values()  # each is held once
    rest = sum(one.acsr.remainder.nbytes + (one.blocks.nbytes if one.blocks else 0) for one in plans)
    return sum(one.acsr.nbytes + one.nbytes for one in plans) - rest, rest


def measure(name: str, n: int) -> Row:
    """What the process of one pattern does."""
    runs = []
    for _ in range(REPEATS):
        plan, times = planned(name, n)  # one plan is held at a time
        runs.append(times)
    times = [median(run[stage] for run in runs) for stage in range(3)]
    begin = time.process_time()
    plan.verify()
    seconds = time.process_time() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    return Row(plan.nnz, *times, *table_bytes(plan), seconds, peak)


def in_process(name: str, n: int) -> Row | str:
    """The row of one pattern, or what went wrong."""
    command = [sys.executable, __file__, "--one", name, "--tokens", str(n)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return f"not done after {LIMIT} s"
    except subprocess.CalledProcessError as failure:
        return " ".join(line.strip() for line in failure.stderr.strip().splitlines()[-3:])
    return Row(**json.loads(done.stdout))


# ---- report --------------------------------------------------------------------------------------------------------
def line(name: str, row: Row | str) -> str:
    if isinstance(row, str):
        return f"{name:35s} {row}"
    return (
        f"{name:35s}{row.live_pairs:9.1e}{row.acsr_ms:8.1f}{row.plan_ms:8.1f}{row.transposed_ms:7.1f}"
        f"{row.together_ms:7.1f}{row.table_bytes / 1e3:10.1f}{row.remainder_bytes / 1e3:10.1f}{row.verify_s:9.2f}"
        f"{row.peak_mb:8.0f}{'  misses ' + ', '.join(row.missed()) if row.missed() else ''}"
    )


def verdicts(found: dict[str, Row | str]) -> None:
    """Each bar with the worst pattern."""
    rows = {name: row for name, row in found.items() if isinstance(row, Row)}
    for bar, limit in BARS.items() if rows else ():
        worst = max(rows, key=lambda name: getattr(rows[name], bar))
        missed = sum(bar in row.missed() for row in rows.values())
        value = f"{getattr(rows[worst], bar):,.1f}, the most, in {worst}"
        print(f"{'MISS' if missed else 'PASS'}  {bar} below {limit:,.0f}: {value}; {missed} of {len(rows)} miss it")
    for name in found.keys() - rows.keys():
        print(f"MISS  {name}: {found[name]}")


def csv_row(name: str, tokens: int, row: Row) -> dict[str, object]:
    return provenance("numpy") | {
        "pattern": name, "tokens": tokens, "live_pairs": row.live_pairs, "acsr_ms": round(row.acsr_ms, 2),
        "plan_ms": round(row.plan_ms, 2), "transposed_ms": round(row.transposed_ms, 2), "table_bytes": row.table_bytes,
        "remainder_bytes": row.remainder_bytes, "verify_s": round(row.verify_s, 3), "peak_mb": round(row.peak_mb),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="Planning time, table bytes and verify() for every library pattern")
    parser.add_argument("--only", default="", help="patterns with this text in their name")
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--record", action="store_true", help="append to results/planning.csv")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(asdict(measure(asked.one, asked.tokens))))
        return
    print(f"{asked.tokens} tokens; {machine()}; commit {commit()}")
    print(f"{'pattern':35s}{'live':>9s}{'ACSR ms':>8s}{'plan':>8s}{'transp':>7s}{'all ms':>7s}{'tables kB':>10s}"
          f"{'rest kB':>10s}{'verify s':>9s}{'peak MB':>8s}")  # fmt: skip
    found = {}
    for name in patterns(asked.tokens):
        if asked.only in name:
            found[name] = in_process(name, asked.tokens)
            print(line(name, found[name]), flush=True)
    verdicts(found)
    if asked.record:
        rows = [csv_row(name, asked.tokens, row) for name, row in found.items() if isinstance(row, Row)]
        append(RESULTS / "planning.csv", COLUMNS, rows)


if __name__ == "__main__":
    main()
