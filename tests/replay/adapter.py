"""The way from a case to its plan, its launches and their kernels: the gate's only module that knows the launch code.

A rewrite of the launch code re-implements this module. The rest of the gate depends on what `trace` and
`compile_kernel` return: a plan, the launches of each phase in their order, and kernels that pickle and compile.
"""

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from unittest import mock

import torch
from tests.triton.resources import TARGETS
from tests.triton.specs import card, launches, shapes_of, tiling_with_dq

from weft.kernels.options import Modifiers
from weft.kernels.triton import decode, launch, load, loaded, run, source
from weft.planning.attention_plan import AttentionPlan, plan_attention
from weft.planning.rowwise import decode_plan

HEX = 12  # digits of a digest


@dataclass(frozen=True)
class Launched:
    """One launch. kernel: what `compile_kernel` takes. grid: programs. tables: digests of the integer tables that the
    launch reads, in the order of its arguments.
    """

    kernel: Any
    grid: tuple[int, ...]
    tables: tuple[str, ...]


@dataclass(frozen=True)
class Trace:
    """plan: None for a decoding step, which has no plan of tiles. phases: name -> launches."""

    plan: AttentionPlan | None
    phases: dict[str, list[Launched]]


def trace(case, target):
    """What a case launches on a card of an architecture. Nothing is compiled, and no memory of tensors is touched."""
    gpu = card(target)
    with _without_gpu(gpu) as found:
        return _trace_step(case, found) if case.step else _trace_call(case, gpu, found)


def compile_kernel(kernel, target):
    """The compiled kernel, with `asm` and `metadata` as Triton names them. The store is not asked."""
    compile_for = source.compile_for if isinstance(kernel, source.Source) else load.compile_for
    return compile_for(kernel, TARGETS[target])


def _trace_call(case, gpu, found):
    call = case.call
    plan = plan_attention(call.pattern, call.problem(), gpu)
    phases = {"forward": _taken(found, lambda: _forward(call, plan))}
    for phase, deterministic in (("backward", False), ("deterministic", True)):
        phases[phase] = _taken(found, lambda always=deterministic: _backward(call, plan, always))
    if phases["deterministic"] == phases["backward"]:
        del phases["deterministic"]
    if case.one_kernel:
        fixed = plan_attention(call.pattern, call.problem(), gpu, (("dkdv", tiling_with_dq(call)),))
        with mock.patch.object(run, "in_one_kernel", lambda plan: True):
            phases["one kernel"] = _taken(found, lambda: _backward(call, fixed, False))
    return Trace(plan, phases)


def _trace_step(case, found):
    """A step of decoding, prepared for a growing number of keys."""
    call = case.call
    q, k, v, *_ = _tensors(call)
    slopes, sinks = _slopes(call), _sinks(call)
    plan = decode_plan(call.pattern, call.problem())
    strides = dict(zip("QKV", (x.stride() for x in (q, k, v)), strict=True))
    have = slopes is not None, sinks is not None
    numbers = decode.Numbers(0.1, call.options.get("softcap"), *have)
    step = decode.prepare_step(plan, strides, call.dense, numbers, q.device)
    return Trace(None, {"step": _taken(found, lambda: step((q, k, v), sinks, slopes))})


def _taken(found, act):
    """What is launched by an act."""
    before = len(found)
    act()
    return found[before:]


def _forward(call, plan):
    q, k, v, *_ = _tensors(call)
    _allow_tf32(call, lambda: run.forward((q, k, v), plan, _modifiers(call), _sinks(call)))


def _backward(call, plan, deterministic):
    q, k, v, d_out, lse = _tensors(call)
    rows = d_out, d_out, lse, lse if call.options.get("lse") else None
    has_sinks = _sinks(call) is not None
    _allow_tf32(call, lambda: run.backward((q, k, v), rows, plan, _modifiers(call), deterministic, has_sinks))


def _allow_tf32(call, act):
    with mock.patch.object(run, "tf32_wanted", lambda: bool(call.options.get("tf32"))):
        act()


def _tensors(call):
    """q, k, v, dout and lse without memory; rows lie densely, or one element apart."""
    wide = [(*shape[:3], shape[3] + (not call.dense)) for shape in shapes_of(call)]
    *tensors, lse = (torch.empty(shape, dtype=call.dtype, device="meta") for shape in wide)
    cut = [x[..., : shape[3]] for x, shape in zip(tensors, shapes_of(call), strict=False)]
    return (*cut, torch.empty(lse.shape[:3], device="meta"))


def _modifiers(call):
    slopes = _slopes(call)
    return Modifiers(call.options.get("scale", 0.1), call.options.get("softcap"), slopes)


def _slopes(call):
    group = call.heads[0] // call.heads[1]
    return torch.ones(call.heads[1], group, device="meta") if call.options.get("alibi") else None


def _sinks(call):
    return torch.zeros(call.heads[0], device="meta") if call.options.get("sinks") else None


@contextmanager
def _without_gpu(gpu):
    """The list of `Launched`; tables stay on the host, and rows are dealt out for the processors of that card."""
    patches = [mock.patch.object(module, "gpu_of", lambda device: None) for module in (run, decode, launch)]
    patches += [mock.patch.object(module, "put", _on_host) for module in (run, decode, loaded)]
    patches.append(mock.patch.object(decode, "_processors", lambda device: gpu.processors))
    forget = (run.prepared, run.prepared_gradients, loaded.loaded, decode._of_plan, decode._tables)
    with ExitStack() as stack:
        for one in patches:
            stack.enter_context(one)
        for one in forget:  # what others prepared, and what others must not find
            one.cache_clear()
            stack.callback(one.cache_clear)
        yield stack.enter_context(launches(_launched))


def _on_host(words, device):
    return torch.from_numpy(words)


def _launched(kernel, grid, values):
    tables = (x for x in values if isinstance(x, torch.Tensor) and x.device.type == "cpu")
    return Launched(kernel, tuple(grid), tuple(sha256(x.numpy().tobytes()).hexdigest()[:HEX] for x in tables))
