"""What the first call of a process costs: kernels compiled, or taken from a store that another machine filled.

    python benchmarks/first_call.py [--checkout PATH] [--store DIR] [--problems NAME ...] [--out FILE.csv]

Each problem is a process of its own with an empty Triton cache. It times a forward and its gradients, from the moment
that torch, weft and the GPU are ready. Without --store weft's store is empty too; with it the directory is copied and
nothing may be compiled. Columns: seconds of the call; kernels that it compiled, the slowest of them, all of them one
after the other; entries that the store gained. Bars: 1.2 times the slowest kernel and 0.3 s; from a store 0.15 s.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PROBLEMS = ("causal_window_1024", "window_pm256", "longformer_w512_g64", "na2d_128x128_k21", "document_causal")
COLUMNS = ("problem", "store", "seconds", "kernels", "slowest", "together", "compiled")


def worker(name: str) -> None:
    """One first call; prints seconds and how long each kernel in the store took to compile."""
    import torch

    import weft
    from weft.testing.workloads import WORKLOADS

    work = WORKLOADS[name]
    p = work.problem("cuda")
    pattern, dtype = work.make(), getattr(torch, p.dtype)
    sizes = [(p.batch, p.q_heads, p.m, p.d), (p.batch, p.kv_heads, p.n, p.d), (p.batch, p.kv_heads, p.n, p.dv)]
    q, k, v = (torch.randn(size, device="cuda", dtype=dtype, requires_grad=True) for size in sizes)
    dout = torch.randn_like(q)
    x = torch.ones(4, device="cuda", requires_grad=True)
    torch.autograd.grad((x @ x) * x.sum(), x)  # torch imports sympy at the first gradient: seconds that are not weft's
    torch.cuda.synchronize()
    began = time.perf_counter()
    out = weft.attention(q, k, v, pattern)
    torch.autograd.grad(out, (q, k, v), dout)
    torch.cuda.synchronize()
    print(json.dumps(time.perf_counter() - began))


def facts(folder: Path) -> list[dict[str, Any]]:
    """What the store says of its entries."""
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("*/facts.json"))]
    return [one for one in found if "compile_seconds" in one]


def first_call(checkout: Path, name: str, store: Path | None) -> dict[str, Any]:
    """A row of one problem."""
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder) / "weft"
        if store is not None:
            shutil.copytree(store, cache)
        before = set(cache.glob("*")) if store is not None else set()
        path = f"{checkout / 'src'}:{os.environ.get('PYTHONPATH', '')}"
        environment = {**os.environ, "PYTHONPATH": path, "WEFT_CACHE_DIR": str(cache)}
        environment["TRITON_CACHE_DIR"] = str(Path(folder) / "triton")
        command = [sys.executable, str(Path(__file__).resolve()), "--worker", name]
        run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if run.returncode:
            raise SystemExit(run.stderr[-2000:])
        new = [one for one in cache.glob("*") if one not in before and (one / "facts.json").exists()]
        times = [one["compile_seconds"] for one in facts(cache)] if store is None else []
        values = (
            name, store is not None, float(run.stdout.split()[-1]), len(times), max(times, default=0.0), sum(times),
            len(new),
        )  # fmt: skip
        return dict(zip(COLUMNS, values, strict=True))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--checkout", type=Path, default=Path(__file__).resolve().parents[1])
    parser.add_argument("--store", type=Path)
    parser.add_argument("--problems", nargs="*", default=PROBLEMS)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker")
    asked = parser.parse_args()
    if asked.worker:
        worker(asked.worker)
        return
    rows = []
    for name in asked.problems:
        row = first_call(asked.checkout.resolve(), name, asked.store)
        rows.append(row)
        print("  ".join(f"{x:.3f}" if isinstance(x, float) else f"{x!s:22}" for x in row.values()), flush=True)
    if asked.out:
        with asked.out.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
