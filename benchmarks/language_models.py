"""Language models of transformers under weft, beside transformers' own sdpa and FlexAttention, with random weights.

    python benchmarks/language_models.py [--only NAME ...] [--small] [--rounds N] [--seconds S] [--profile] [--out CSV]

- step: one attention call of decoding inside a CUDA graph, over a static cache of 8192 keys under a causal mask, and of
  65536 keys with a window of 4096; 32 heads of queries, 8 of keys, 128 numbers each.
- gpt: GPT-2 with 125M parameters, trained by AdamW on packed documents, 8 to a sequence, that differ at every step.
  gpt-compiled: its MLPs, norms and loss are compiled by torch, so that attention is more of the step.
- modernbert, gemma3: layers of ModernBERT-base and Gemma 3 4B, local and global ones as there, forward alone.

All is bfloat16 on a GPU. Methods take turns; a figure is the median of the rounds. Under `nothing` attention returns
the values: no method can be faster. --profile prints where each method spends its time on the GPU. `apart` is the
largest difference from sdpa's result, relative to the largest number there. Every problem first runs once in a process
of its own, all at the same time, so that kernels are compiled. Without a GPU, --small sizes run, in float32.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from table import append
from torch import Tensor

from weft.integrations.transformers import register

SAID = ("problem", "method", "batch", "tokens", "direction", "ms", "tokens_per_s", "of_weft", "peak_mib", "apart")
ORIGIN = ("date", "machine", "driver", "python", "torch", "triton", "threads", "commit", "transformers")
COLUMNS = (*ORIGIN, *SAID)
CUDA = torch.cuda.is_available()
DEVICE, DTYPE = ("cuda", torch.bfloat16) if CUDA else ("cpu", torch.float32)
DOCUMENTS, STEPS, CACHES, CALLS, KERNELS = 8, 6, 4, 20, 40
FLEX, NOTHING, COMPILED = "flex_attention", "nothing", "-compiled"
Prepare = Callable[[str], tuple[Callable[[], Any], Tensor]]  # of a method: what is timed, and its result once


class Problem(NamedTuple):
    """What is run. tokens: of a sequence, or keys of a cache. window: of a step, None for all keys."""

    kind: str
    batch: int
    tokens: int
    window: int | None = None

    @property
    def name(self) -> str:
        """As rows have it, and --only takes it."""
        return f"{self.kind}-{self.tokens}" + (f"x{self.batch}" if self.kind == "step" else "")


PROBLEMS = [
    Problem("gemma3", 8, 4096), Problem("gemma3", 1, 32768),
    *(Problem(kind, *size) for kind in ("gpt", "gpt-compiled") for size in ((8, 2048), (2, 8192), (32, 512))),
    Problem("modernbert", 1, 32768), Problem("modernbert", 8, 4096),
    *(Problem("step", batch, *size) for size in ((8192, None), (65536, 4096)) for batch in (1, 32)),
]  # fmt: skip
SMALL = [
    Problem("step", 1, 128), Problem("step", 2, 256, 64), Problem("gpt", 2, 128), Problem("gpt-compiled", 2, 128),
    Problem("modernbert", 1, 256), Problem("gemma3", 1, 256),
]  # fmt: skip


# ---- a step of decoding ----------------------------------------------------------------------------------------------
def step(problem: Problem) -> Prepare:
    """Attention over static caches, one after the other; one alone where it is larger than a GPU's own cache."""
    from transformers import masking_utils
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    batch, keys, window = problem.batch, problem.tokens, problem.window
    heads, kv_heads, dim = (32, 8, 128) if CUDA else (4, 2, 16)
    module = torch.nn.Module().eval()
    module.num_key_value_groups, module.is_causal = heads // kv_heads, True
    torch.manual_seed(0)
    caches = [
        [torch.randn(batch, kv_heads, keys, dim, device=DEVICE, dtype=DTYPE) for _ in "kv"]
        for _ in range(CACHES if batch == 1 else 1)
    ]
    q = torch.randn(batch, heads, 1, dim, device=DEVICE, dtype=DTYPE)
    count = torch.tensor(keys - 1, device=DEVICE)
    function = masking_utils.causal_mask_function
    if window is not None:
        function = masking_utils.sliding_window_causal_mask_function(window)

    @torch.no_grad()
    def prepare(method: str) -> tuple[Callable[[], Any], Tensor]:
        mask = masking_utils.ALL_MASK_ATTENTION_FUNCTIONS[method](
            batch_size=batch, q_length=1, kv_length=keys, q_offset=count, kv_offset=0, mask_function=function,
            attention_mask=None, allow_is_causal_skip=False, device=torch.device(DEVICE), dtype=DTYPE,
        )  # fmt: skip
        calls = [partial(ALL_ATTENTION_FUNCTIONS[method], module, q, *kv, mask) for kv in caches]
        return _graph_of(calls), calls[0]()[0]

    return prepare


def _graph_of(calls: list[Callable[[], Any]]) -> Callable[[], Any]:
    """CALLS calls in one graph, over one cache after the other."""
    if not CUDA:
        return lambda: [calls[at % len(calls)]() for at in range(CALLS)]
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for at in range(CALLS):
            calls[at % len(calls)]()
    return graph.replay


class _Values(torch.autograd.Function):
    """The values in place of attention, with no gradient for queries and keys but zeros."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        ctx.group = query.shape[1] // value.shape[1]
        return value.repeat_interleave(ctx.group, 1) if ctx.group > 1 else value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *given: Any) -> Any:
        return None, None, given[0].unflatten(1, (-1, ctx.group)).sum(2) if ctx.group > 1 else given[0]


def _nothing(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **told: Any) -> tuple[Tensor, None]:
    """What transformers takes for an attention function."""
    out: Any = _Values.apply(query, key, value)
    return out.transpose(1, 2), None


def register_nothing() -> None:
    """Make it known to transformers, with a mask of nothing."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NOTHING, _nothing)
    AttentionMaskInterface.register(NOTHING, lambda *_, **__: None)


# ---- models ----------------------------------------------------------------------------------------------------------
def gpt(tokens: int) -> Any:
    """GPT-2 of 124M parameters, with positions for so many tokens."""
    from transformers import AutoModelForCausalLM, GPT2Config

    sizes = {"n_embd": 768, "n_layer": 12, "n_head": 12} if CUDA else {"n_embd": 32, "n_layer": 2, "n_head": 2}
    off = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    config = GPT2Config(
        **sizes, **off, vocab_size=50304 if CUDA else 64, n_positions=tokens, activation_function="gelu_pytorch_tanh",
        use_cache=False, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    made = AutoModelForCausalLM.from_config(config)
    type(made)._supports_flex_attn = True  # transformers does not say so, but its layers take any function
    return made


def compiled(model: Any) -> Any:
    """The model with all compiled by torch that is not attention or a product beside it."""
    for layer in model.transformer.h:
        for part in (layer.ln_1, layer.ln_2, layer.mlp):
            part.compile(dynamic=False)
    model.loss_function = torch.compile(model.loss_function, dynamic=False)
    return model


def modernbert(tokens: int) -> Any:
    """A global layer and two local ones, whose tokens see 64 on each side."""
    from transformers import AutoModel, ModernBertConfig

    sizes = {"hidden_size": 768, "intermediate_size": 1152, "num_attention_heads": 12}
    if not CUDA:
        sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2}
    config = ModernBertConfig(
        **sizes, num_hidden_layers=3, vocab_size=1024, max_position_embeddings=tokens, local_attention=128,
        global_attn_every_n_layers=3, reference_compile=False, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        cls_token_id=1, sep_token_id=2,
    )  # fmt: skip
    return AutoModel.from_config(config)


def gemma3(tokens: int) -> Any:
    """Five layers with a window of 1024 tokens, and one without."""
    from transformers import AutoModel, Gemma3TextConfig

    sizes = {"hidden_size": 2560, "intermediate_size": 10240, "head_dim": 256, "num_attention_heads": 8}
    if not CUDA:
        sizes = {"hidden_size": 32, "intermediate_size": 48, "head_dim": 16, "num_attention_heads": 4}
    config = Gemma3TextConfig(
        **sizes, num_key_value_heads=sizes["num_attention_heads"] // 2, num_hidden_layers=6, vocab_size=1024,
        max_position_embeddings=tokens, sliding_window=1024 if CUDA else 32, use_cache=False,
        layer_types=["sliding_attention"] * 5 + ["full_attention"],
    )  # fmt: skip
    return AutoModel.from_config(config)


def model(problem: Problem) -> Prepare:
    """One model, told to take one implementation of attention after the other."""
    torch.manual_seed(0)
    kind = problem.kind.removesuffix(COMPILED)
    made = {"gpt": gpt, "modernbert": modernbert, "gemma3": gemma3}[kind](problem.tokens).to(DEVICE, DTYPE)
    if kind != problem.kind:
        made = compiled(made)
    ids = torch.randint(3, made.config.vocab_size, (problem.batch, problem.tokens), device=DEVICE)
    run = _trained(made, ids) if kind == "gpt" else _forward(made, ids)

    def under(method: str) -> Any:
        made.set_attn_implementation(method)
        return run()

    @torch.no_grad()
    def prepare(method: str) -> tuple[Callable[[], Any], Tensor]:
        made.set_attn_implementation(method)
        told = {"position_ids": packed(*ids.shape, 0)} if kind == "gpt" else {}
        out = made.eval()(ids, **told)[0]
        return partial(under, method), out[:, :: max(1, problem.tokens // 512)].clone()

    return prepare


def _forward(model: Any, ids: Tensor) -> Callable[[], Any]:
    model.eval()

    @torch.no_grad()
    def run() -> Any:
        return model(input_ids=ids)

    return run


def _trained(model: Any, ids: Tensor) -> Callable[[], Any]:
    """STEPS steps of training, each on other documents."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=CUDA)
    rounds = iter(range(1, 1000))

    def run() -> None:
        model.train()
        begin = next(rounds) * STEPS
        for step in range(STEPS):
            loss = model(ids, labels=ids, position_ids=packed(*ids.shape, begin + step)).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    return run


def packed(batch: int, tokens: int, seed: int) -> Tensor:
    """position_ids that begin anew where documents do, 8 a sequence, of random lengths; drawn on the host."""
    draw = torch.Generator().manual_seed(seed)
    starts = torch.rand(batch, tokens - 1, generator=draw).topk(DOCUMENTS - 1).indices + 1
    first = torch.zeros(batch, tokens, dtype=torch.long).scatter_(1, starts, starts).cummax(1).values
    return (torch.arange(tokens) - first).to(DEVICE, non_blocking=True)


# ---- measuring -------------------------------------------------------------------------------------------------------
def measured(problem: Problem, rounds: int, profile: bool = False) -> Iterator[dict[str, Any]]:
    """Rows of one problem; with no rounds everything runs once. profile: print what ran on the GPU."""
    decoding = problem.kind == "step"
    prepare = step(problem) if decoding else model(problem)
    found: dict[str, dict[str, Any]] = {}
    runs: dict[str, Callable[[], Any]] = {}
    for method in ["sdpa", "weft", *([] if decoding else [FLEX, NOTHING] if CUDA else [NOTHING])]:
        with reported(f"{problem.name} {method}"):
            run, out = prepare(method)
            runs[method], found[method] = run, {"out": out, "ms": []}
    for method in list(runs):  # training changes the model: so after all results
        with reported(f"{problem.name} {method}"):
            runs[method]()
            continue
        del runs[method], found[method]
    for _ in range(rounds):
        for method, run in runs.items():
            ms, peak = timed(run)
            found[method]["ms"].append(ms)
            found[method]["peak"] = peak
    for method, run in runs.items() if profile and rounds else ():
        with reported(f"{problem.name} {method}"):
            print(f"{problem.name} {method}, {KERNELS} kernels:", spent(run), sep="\n", flush=True)
    if rounds:
        yield from _rows(problem, found)


def spent(run: Callable[[], Any]) -> str:
    """The kernels that took longest in one run, in milliseconds, with how often they ran; then all of them together."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA if CUDA else ProfilerActivity.CPU]) as seen:
        run()
        if CUDA:
            torch.cuda.synchronize()
    took = sorted(((_ms(one), one.count, one.key) for one in seen.key_averages()), reverse=True)
    lines = [f"{ms:10.3f} {count:6d}  {name[:110]}" for ms, count, name in took[:KERNELS]]
    return "\n".join([*lines, f"{sum(ms for ms, *_ in took):10.3f} {sum(count for _, count, _ in took):6d}  all"])


def _ms(event: Any) -> float:
    took = event.self_device_time_total if CUDA else event.self_cpu_time_total
    return float(took) / 1e3


@contextmanager
def reported(what: str) -> Iterator[None]:
    """Print what a failure was, and go on."""
    try:
        yield
    except Exception:
        print(f"{what} failed:\n{traceback.format_exc()}", file=sys.stderr, flush=True)


def timed(run: Callable[[], Any]) -> tuple[float, int]:
    """(milliseconds, the most bytes there were on the GPU at once)"""
    if not CUDA:
        begin = time.perf_counter()
        run()
        return 1e3 * (time.perf_counter() - begin), 0
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    held, begin = torch.cuda.memory_allocated(), time.perf_counter()
    run()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - begin), torch.cuda.max_memory_allocated() - held


def _rows(problem: Problem, found: dict[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    trained = problem.kind.startswith("gpt")
    of = {"step": CALLS}.get(problem.kind, STEPS if trained else 1)
    ours = median(found["weft"]["ms"]) if "weft" in found else float("nan")
    truth = found["sdpa"]["out"].float() if "sdpa" in found else None
    for method, one in found.items():
        ms = median(one["ms"])
        apart = float("nan")
        if truth is not None and method != NOTHING:
            apart = float((one["out"].float() - truth).abs().max() / truth.abs().max())
        tokens = problem.batch * (1 if problem.kind == "step" else problem.tokens)
        row = (
            problem.name, method, problem.batch, problem.tokens, "train" if trained else "fwd",
            f"{ms / of:.4f}", f"{1e3 * of * tokens / ms:.0f}", f"{ms / ours:.2f}", one["peak"] >> 20, f"{apart:.1e}",
        )  # fmt: skip
        yield origin() | dict(zip(SAID, row, strict=True))


@cache
def origin() -> dict[str, Any]:
    """Where rows come from."""
    import transformers

    from weft.bench.origin import commit, machine

    today = datetime.now(UTC).date().isoformat()
    return {"date": today, "commit": commit(), "transformers": transformers.__version__} | machine(DEVICE)


# ---- runs ------------------------------------------------------------------------------------------------------------
def warm(names: list[str], small: list[str], seconds: float) -> None:
    """Run each problem once, in processes at the same time: what is compiled is found on disk afterwards. What is not
    ready after so long is compiled where it is timed.
    """
    after = time.monotonic() + seconds
    told = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "2", "OMP_NUM_THREADS": "2"}
    jobs = [subprocess.Popen([sys.executable, __file__, "--rounds", "0", *small, "--only", name], env=told)
            for name in names]  # fmt: skip
    for name, job in zip(names, jobs, strict=True):
        try:
            job.wait(max(0, after - time.monotonic()))
        except subprocess.TimeoutExpired:
            print(f"{name}: not compiled after {seconds:.0f} s", flush=True)
            job.kill()
            job.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--only", nargs="+", help="names of problems, as rows have them")
    parser.add_argument("--small", action="store_true", help="sizes for a CPU")
    parser.add_argument("--rounds", type=int, default=3, help="0: run once, time nothing")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no problem after so long")
    parser.add_argument("--profile", action="store_true", help="print what each method runs on the GPU")
    parser.add_argument("--out", type=Path, help="append rows to this CSV file")
    asked = parser.parse_args()
    begin = time.perf_counter()
    warnings.filterwarnings("ignore")
    register()
    register_nothing()
    torch._dynamo.config.automatic_dynamic_shapes = False  # a kernel for each length, as the others have
    torch._dynamo.config.cache_size_limit = 64
    known = {one.name: one for one in (SMALL if asked.small or not CUDA else PROBLEMS)}
    names = asked.only or list(known)
    if asked.rounds and CUDA:
        warm(names, ["--small"] if asked.small else [], 0.6 * min(asked.seconds, 500))
        print(f"compiled after {time.perf_counter() - begin:.0f} s", flush=True)
    for name in names:
        if time.perf_counter() - begin > asked.seconds:
            print(f"{name}: left out, {asked.seconds:.0f} s are over", flush=True)
            continue
        with reported(name):
            for row in measured(known[name], asked.rounds, asked.profile):
                print("  ".join(f"{row[column]!s:>14}" for column in SAID), flush=True)
                append(asked.out, COLUMNS, row)
        if CUDA:
            torch.cuda.empty_cache()


if __name__ == "__main__":
    sys.exit(main())
