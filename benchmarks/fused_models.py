"""Models of transformers with a sparse mask: compiled by torch, with weft's attention by hand, and by `weft.fuse`.

    PYTHONPATH=src python benchmarks/fused_models.py --out rows.csv --wave bert-base     # within 200 s
    PYTHONPATH=src python benchmarks/fused_models.py --out rows.csv --only "llama-1b (8, 512)"

Random weights, fp16, inference; training in bfloat16, without dropout. The mask is BigBird's in blocks of 64, with
causal for gpt2 and llama-1b, or what follows the model's name. Every row has a process of its own. All compile at the
same time, but those that measure while they compile do so one by one; then all are measured one after the other. ms:
the median over batches of calls that follow each other, so the host's time counts where it is the longer. error: the
largest difference to eager float32 on the first batch row, relative to the largest number. --profile: kernels and
their times go to the logs, and us of parts to another file beside the rows. --try: small models on a CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from contextlib import contextmanager, nullcontext
from pathlib import Path
from queue import Empty, Queue
from statistics import median

import fused_parts
import fused_zoo as zoo
from table import append

FIELDS = ("model", "batch", "tokens", "how", "ms", "error", "notes", "card", "torch", "transformers", "weft")
BLOCK = zoo.BLOCK
DEFAULT, OVERHEAD = "compile, SDPA", "compile reduce-overhead, SDPA"
ALONE, FUSED, CAPTURED = "compile, weft attention", "weft.fuse", "weft.fuse reduce-overhead"
PLAIN = "weft.fuse without templates"
FLEX = "compile, FlexAttention"
TRAINED, TRAINED_DEFAULT = "weft.fuse, training", "compile, SDPA, training"
BY_WEFT, OF_TRAINING = (FUSED, PLAIN, CAPTURED, TRAINED), (TRAINED, TRAINED_DEFAULT)
MASKS = ("causal", "sliding", "Longformer")
LONG, MIDDLE, SHORT = (16, 2048), (8, 512), (1, 128)


def _long(model):
    return [(model, LONG, how) for how in (FUSED, CAPTURED, DEFAULT, OVERHEAD)]


def _all_of(model):
    return (
        _long(model)
        + [(model, size, how) for size in (MIDDLE, SHORT) for how in (CAPTURED, OVERHEAD)]
        + [(model, LONG, how) for how in (ALONE, PLAIN)]
    )


WAVES = (
    {model: _all_of(model) for model in ("bert-base", "gpt2", "llama-1b")}
    | {f"{model} long": _long(model) for model in ("bert-base", "gpt2", "llama-1b")}
    | {
        "training": [("bert-base", LONG, how) for how in OF_TRAINING],
        "masks": [(f"bert-base, {mask}", LONG, how) for mask in MASKS for how in (FUSED, DEFAULT)],
        "others": [(m, LONG, how) for m in ("ViT-base", "t5-base encoder") for how in (FUSED, DEFAULT)],
        "large": [("bert-large", LONG, how) for how in (FUSED, DEFAULT)],
        "more": [(m, LONG, FLEX) for m in ("bert-base", "llama-1b")]
        + [(m, size, DEFAULT) for m in ("bert-base", "gpt2", "llama-1b") for size in (MIDDLE, SHORT)],
    }
)
LISTED = list(dict.fromkeys(one for wave in WAVES.values() for one in wave))


# ---- one row, in a process of its own --------------------------------------------------------------------------------
def made(name, small, how, tokens):
    """(the model under one attention implementation, its mask)."""
    import torch
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    import weft

    pattern = zoo.pattern_of(name, tokens)

    def by_weft(module, query, key, value, attention_mask=None, scaling=None, **_):
        return weft.attention(query, key, value, pattern, scale=scaling).transpose(1, 2), None

    implementation = "sdpa"
    if how == ALONE:
        implementation = "weft_benchmark"
        AttentionInterface.register(implementation, by_weft)
        AttentionMaskInterface.register(implementation, sdpa_mask)
    if how == FLEX:
        implementation = "flex_attention"
    return zoo.made(name, small, implementation), torch.from_numpy(pattern.to_dense(tokens))


def truth_of(name, small, tokens, ids):
    """Eager float32, on the first batch row."""
    import torch

    model, live = made(name, small, DEFAULT, tokens)
    given = {"input_ids": ids[:1], "attention_mask": live[None, None].to(ids.device)}
    with torch.no_grad():
        return model(**given).last_hidden_state


@contextmanager
def one_by_one():
    """Of this driver's processes."""
    import fcntl

    with (Path(tempfile.gettempdir()) / f"fused_models_{os.getppid()}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def prepared(name, size, how, small):
    """(a call, the error of its result, notes)."""
    import torch

    import weft

    batch, tokens = (2, 2 * BLOCK * 4) if small else size
    device = "cpu" if small else "cuda"
    ids = torch.randint(5, 1000, (batch, tokens), generator=torch.Generator().manual_seed(1)).to(device)
    truth = truth_of(name, small, tokens, ids)
    model, live = made(name, small, how, tokens)
    trained = how in OF_TRAINING
    model = model if small else model.to(torch.bfloat16 if trained or name.startswith("t5") else torch.float16)
    mask = live[None, None].to(device)
    if how == FLEX:
        from torch.nn.attention.flex_attention import create_block_mask

        table = mask[0, 0]
        mask = create_block_mask(lambda b, h, q, k: table[q, k], None, None, tokens, tokens, device=device)
    options = {"weft.inner": "aot_eager", "weft.share": 1.0, "weft.least": 0} if small else {}
    if how == PLAIN:
        options["weft.templates"] = "off"
    backend = {"backend": "aot_eager"} if small else {}
    if how in BY_WEFT:
        mode = "reduce-overhead" if how == CAPTURED else None
        fast = weft.fuse(model, mode=mode, options=options, dynamic=False)
    elif how == OVERHEAD and not small:
        fast = torch.compile(model, mode="reduce-overhead", dynamic=False)
    else:
        fast = torch.compile(model, dynamic=False, **backend)

    def call():
        with torch.set_grad_enabled(trained):
            out = fast(input_ids=ids, attention_mask=mask).last_hidden_state
            if trained:
                out.float().square().mean().backward()
                model.zero_grad(set_to_none=True)
        return out

    with one_by_one() if how in BY_WEFT else nullcontext():
        for _ in range(3):
            found = call().detach()
    error = float((found[:1].float() - truth).abs().max() / truth.abs().max())
    notes = ""
    if how in BY_WEFT:
        notes = f"{len(fast.explanation.replaced)} replaced"
        print(fast.explanation, file=sys.stderr, flush=True)
    if not small:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    return call, error, notes


def milliseconds(call, cuda):
    """Median over batches of calls, one after the other."""
    import torch

    def batch(count):
        if cuda:
            torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            call()
        if cuda:
            torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - begin) / count

    batch(2)
    once = batch(2)
    count = max(1, min(50, int(60 / once)))
    return median(batch(count) for _ in range(9 if once < 50 else 5))


def profile(call, calls=3, shown=24):
    """us of each part of a call; kernels, the longest first, go to the log."""
    import torch

    try:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
            for _ in range(calls):
                call()
            torch.cuda.synchronize()
        rows = sorted(found.key_averages(), key=lambda row: -row.self_device_time_total)
        total = sum(row.self_device_time_total for row in rows)
        ran = [one.time_range for one in found.events() if one.device_type == torch.autograd.DeviceType.CUDA]
        span = (max(one.end for one in ran) - min(one.start for one in ran)) / calls
        print(f"\nkernels of a call: {total / calls:.0f} us, from first to last {span:.0f} us", file=sys.stderr)
        for row in rows[:shown]:
            took = row.self_device_time_total / calls
            print(f"{took:10.1f} us {row.count / calls:6.1f} of {row.key[:110]}", file=sys.stderr)
        return fused_parts.microseconds((row.key, row.self_device_time_total / calls) for row in rows)
    except Exception:
        traceback.print_exc()
        return {}


def worker(asked):
    """Prepare, say so, wait for a line, measure."""
    import torch
    import transformers

    import weft

    name, size, how = LISTED[asked.worker]
    torch.set_num_threads(1)
    with torch.no_grad():
        call, error, notes = prepared(name, size, how, asked.small)
        print(json.dumps({"ready": True}), flush=True)
        sys.stdin.readline()
        ms = milliseconds(call, not asked.small)
    row = (name, *size, how, f"{ms:.3f}", f"{error:.1e}", notes)
    row += (torch.cuda.get_device_name() if not asked.small else "CPU, small", torch.__version__)
    row += (transformers.__version__, weft.__version__)
    print(json.dumps(dict(zip(FIELDS, row, strict=True))), flush=True)
    if asked.profile:
        with torch.no_grad():
            parts = profile(call)
        print(json.dumps(parts), flush=True)


# ---- the driver ------------------------------------------------------------------------------------------------------
class Worker:
    """A process and its lines."""

    def __init__(self, index, asked, logs):
        self.name = " ".join(map(str, LISTED[index]))
        command = [sys.executable, "-X", "faulthandler", __file__, "--worker", str(index)]
        command += ["--try"] * asked.small + ["--profile"] * asked.profile
        self.log = logs / f"{index}.log"
        environment = os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": "4", "OMP_NUM_THREADS": "2"}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log.open("w"), text=True,
            env=environment,
        )  # fmt: skip
        self.lines = Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            if line.startswith("{"):
                self.lines.put(json.loads(line))
        self.lines.put(None)

    def answer(self, until):
        """The next line; None where there is none by then."""
        try:
            return self.lines.get(timeout=max(0.1, until - time.monotonic()))
        except Empty:
            return None

    def end(self, failed):
        """Stop it; what it wrote, and how it had ended, are printed if it failed."""
        ended = self.process.poll()
        self.process.kill()
        self.process.wait()
        if failed:
            how = "it was not done" if ended is None else f"it ended with {ended}"
            print(f"#### {self.name}: no row, {how}", *self.log.read_text().splitlines()[-40:], sep="\n", flush=True)


def run(indices, asked):
    logs = Path(tempfile.mkdtemp()) if asked.logs is None else asked.logs
    logs.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    workers = [Worker(i, asked, logs) for i in indices]
    ready = []
    for one in workers:
        if one.answer(begin + asked.compiling):
            ready.append(one)
        else:
            one.end(True)
    print(f"{len(ready)} of {len(workers)} ready after {time.monotonic() - begin:.0f} s", flush=True)
    for one in ready:
        one.process.stdin.write("go\n")
        one.process.stdin.flush()
        row = one.answer(time.monotonic() + 20)
        parts = one.answer(time.monotonic() + 10) if row is not None and asked.profile else None
        one.end(row is None)
        if row is None:
            continue
        print(*row.values(), sep=", ", flush=True)
        append(asked.out, FIELDS, row)
        if parts:
            told = {name: x for name, x in row.items() if name in fused_parts.FIELDS}
            append(asked.out.with_name(f"{asked.out.stem}-parts.csv"), fused_parts.FIELDS, told | parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("fused_models.csv"))
    parser.add_argument("--wave", default="bert-base", choices=tuple(WAVES))
    parser.add_argument("--only", default="", help="part of 'model (batch, tokens) how'; of all waves")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--compiling", type=float, default=150, help="seconds after which who is not ready is dropped")
    parser.add_argument("--logs", type=Path, help="a folder for what processes write, explanations for one")
    parser.add_argument("--try", dest="small", action="store_true")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.worker is not None:
        try:
            worker(asked)
        except Exception:
            traceback.print_exc()
            sys.exit(1)
        return
    named = [f"{model} {size} {how}" for model, size, how in LISTED]
    wave = [LISTED.index(one) for one in WAVES[asked.wave]]
    run([i for i, name in enumerate(named) if asked.only in name] if asked.only else wave, asked)


if __name__ == "__main__":
    main()
