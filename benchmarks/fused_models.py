"""Models of transformers with a sparse mask: compiled by torch, with weft's attention by hand, and by `weft.fuse`.

    PYTHONPATH=src python benchmarks/fused_models.py --out rows.csv            # the first selection, within 120 s
    PYTHONPATH=src python benchmarks/fused_models.py --out rows.csv --wave 2   # the next one
    PYTHONPATH=src python benchmarks/fused_models.py --out rows.csv --only "llama-1b (8, 512)"

Random weights, fp16, inference. The mask is BigBird's in blocks of 64, with causal for gpt2 and llama-1b. Every row has
a process of its own. All compile at the same time; then they are measured one after the other. ms: the median over
batches of calls that follow each other, so the host's time counts where it is the longer. error: the largest
difference to eager float32 on the first batch row, relative to the largest number. --try: small models on a CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path
from queue import Empty, Queue
from statistics import median

from table import append

FIELDS = ("model", "batch", "tokens", "how", "ms", "error", "notes", "card", "torch", "transformers", "weft")
BLOCK, RANDOM_BLOCKS = 64, 3
DEFAULT, OVERHEAD = "compile, SDPA", "compile reduce-overhead, SDPA"
ALONE, FUSED, CAPTURED = "compile, weft attention", "weft.fuse", "weft.fuse reduce-overhead"
PLAIN = "weft.fuse without templates"
FLEX = "compile, FlexAttention"
LONG, MIDDLE, SHORT = (16, 2048), (8, 512), (1, 128)
WAVES = (
    [(m, LONG, how) for how in (FUSED, ALONE, DEFAULT) for m in ("bert-base", "llama-1b", "gpt2")]
    + [("bert-base", MIDDLE, how) for how in (CAPTURED, OVERHEAD)],
    [("bert-base", SHORT, how) for how in (CAPTURED, OVERHEAD, DEFAULT)]
    + [("llama-1b", size, how) for size in (MIDDLE, SHORT) for how in (CAPTURED, OVERHEAD)]
    + [("gpt2", size, how) for size in (MIDDLE, SHORT) for how in (CAPTURED, OVERHEAD)]
    + [(m, LONG, PLAIN) for m in ("bert-base", "llama-1b", "gpt2")],
    [(m, LONG, FLEX) for m in ("bert-base", "llama-1b", "gpt2")]
    + [("llama-1b", LONG, OVERHEAD), ("bert-base", MIDDLE, ALONE), ("llama-1b", MIDDLE, ALONE)]
    + [("bert-base", MIDDLE, DEFAULT), ("llama-1b", SHORT, DEFAULT), ("llama-1b", MIDDLE, DEFAULT)],
)
LISTED = [*WAVES[0], *WAVES[1], *WAVES[2]]


# ---- one row, in a process of its own --------------------------------------------------------------------------------
def configured(name, small):
    """(class of the model, its configuration)."""
    import transformers as t

    if name == "bert-base":
        sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
        return t.BertModel, t.BertConfig(**(sizes if small else {}), max_position_embeddings=2048)
    if name == "gpt2":
        sizes = {"n_embd": 64, "n_layer": 2, "n_head": 4} if small else {}
        return t.GPT2Model, t.GPT2Config(**sizes, n_positions=2048, use_cache=False)
    sizes = {"hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8}
    sizes |= {"intermediate_size": 8192}
    if small:
        sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
        sizes |= {"intermediate_size": 96}
    return t.LlamaModel, t.LlamaConfig(**sizes, vocab_size=32000, max_position_embeddings=2048, use_cache=False)


def pattern_of(name, tokens):
    import weft

    one = weft.bigbird(BLOCK, random=RANDOM_BLOCKS)
    return one if name == "bert-base" else one & weft.causal()


def made(name, small, how, tokens):
    """The model under one attention implementation, with the same weights in every process."""
    import torch
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    import weft

    pattern = pattern_of(name, tokens)

    def by_weft(module, query, key, value, attention_mask=None, scaling=None, **_):
        return weft.attention(query, key, value, pattern, scale=scaling).transpose(1, 2), None

    implementation = "sdpa"
    if how == ALONE:
        implementation = "weft_benchmark"
        AttentionInterface.register(implementation, by_weft)
        AttentionMaskInterface.register(implementation, sdpa_mask)
    if how == FLEX:
        implementation = "flex_attention"
    kind, config = configured(name, small)
    config._attn_implementation = implementation
    torch.manual_seed(0)
    with torch.device("cpu" if small else "cuda"):
        model = kind(config).eval()
    return model, torch.from_numpy(pattern.to_dense(tokens))


def truth_of(name, small, tokens, ids):
    """Eager float32, on the first batch row."""
    import torch

    model, live = made(name, small, DEFAULT, tokens)
    given = {"input_ids": ids[:1], "attention_mask": live[None, None].to(ids.device)}
    with torch.no_grad():
        return model(**given).last_hidden_state


def prepared(name, size, how, small):
    """(a call, the error of its result, notes)."""
    import torch

    import weft

    batch, tokens = (2, 2 * BLOCK * 4) if small else size
    device = "cpu" if small else "cuda"
    ids = torch.randint(5, 1000, (batch, tokens), generator=torch.Generator().manual_seed(1)).to(device)
    truth = truth_of(name, small, tokens, ids)
    model, live = made(name, small, how, tokens)
    model = model if small else model.half()
    mask = live[None, None].to(device)
    if how == FLEX:
        from torch.nn.attention.flex_attention import create_block_mask

        table = mask[0, 0]
        mask = create_block_mask(lambda b, h, q, k: table[q, k], None, None, tokens, tokens, device=device)
    options = {"weft.inner": "aot_eager", "weft.share": 1.0, "weft.least": 0} if small else {}
    if how == PLAIN:
        options["weft.templates"] = "off"
    backend = {"backend": "aot_eager"} if small else {}
    if how in (FUSED, PLAIN, CAPTURED):
        mode = "reduce-overhead" if how == CAPTURED else None
        fast = weft.fuse(model, mode=mode, options=options, dynamic=False)
    elif how == OVERHEAD and not small:
        fast = torch.compile(model, mode="reduce-overhead", dynamic=False)
    else:
        fast = torch.compile(model, dynamic=False, **backend)

    def call():
        return fast(input_ids=ids, attention_mask=mask).last_hidden_state

    for _ in range(3):
        found = call()
    error = float((found[:1].float() - truth).abs().max() / truth.abs().max())
    notes = ""
    if how in (FUSED, PLAIN, CAPTURED):
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


# ---- the driver ------------------------------------------------------------------------------------------------------
class Worker:
    """A process and its lines."""

    def __init__(self, index, small, logs):
        self.name = " ".join(map(str, LISTED[index]))
        command = [sys.executable, __file__, "--worker", str(index), *(["--try"] if small else [])]
        self.log = logs / f"{index}.log"
        environment = os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": "2", "OMP_NUM_THREADS": "2"}
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
        """Stop it; what it wrote is printed if it failed."""
        self.process.kill()
        self.process.wait()
        if failed:
            print(f"#### {self.name}: no row", *self.log.read_text().splitlines()[-40:], sep="\n", flush=True)


def run(indices, asked):
    import tempfile

    logs = Path(tempfile.mkdtemp()) if asked.logs is None else asked.logs
    logs.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    workers = [Worker(i, asked.small, logs) for i in indices]
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
        one.end(row is None)
        if row is None:
            continue
        print(*row.values(), sep=", ", flush=True)
        append(asked.out, FIELDS, row)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("fused_models.csv"))
    parser.add_argument("--wave", type=int, default=1, choices=(1, 2, 3))
    parser.add_argument("--only", default="", help="part of 'model (batch, tokens) how'; of all waves")
    parser.add_argument("--compiling", type=float, default=90, help="seconds after which who is not ready is dropped")
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
    before = sum(len(one) for one in WAVES[: asked.wave - 1])
    wave = range(before, before + len(WAVES[asked.wave - 1]))
    run([i for i, name in enumerate(named) if asked.only in name] if asked.only else list(wave), asked)


if __name__ == "__main__":
    main()
