"""Run a launch program from its first step to its last."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.kernels.gpu.components.spec import ComponentSpec
from weft.kernels.gpu.documents.spec import TablesSpec
from weft.kernels.gpu.oracle import backward, components, documents, forward, fused, hopper, rows, scaling, sinks
from weft.kernels.gpu.oracle.memory import Call, Memory, Reals
from weft.kernels.gpu.program import Convert, Fill, Launch, LaunchProgram, Step
from weft.kernels.gpu.spec import KernelSpec
from weft.kernels.gpu.split_kv.spec import SplitKVSpec

Kernel = Callable[[Call], None]
OF_TILES: Mapping[str, Kernel] = {
    "forward": forward.forward,
    "dq": backward.query_gradient,
    "dkdv": backward.key_gradients,
    "delta": backward.row_sums,
}
OF_GROUPS: Mapping[str, Kernel] = {
    "forward": hopper.forward,
    "dq": hopper.query_gradient,
    "dkdv": hopper.key_gradients,
    "fused": fused.gradients,
    "sparse_keys": fused.sparse_keys,
    "reduce_partials": fused.reduce_partials,
}
OF_SINKS: Mapping[str, Kernel] = {"sink_gradient": sinks.gradient, "sink_gradient_sum": sinks.gradient_sum}


def run_program(
    program: LaunchProgram, arrays: Mapping[str, NDArray[Any]], scalars: Mapping[str, int | float] | None = None
) -> dict[str, Reals]:
    """The outputs of a program, float64 by slot.

    arrays: inputs by slot, of the slot's shape; 16-bit types are float64 here, integers are integers. Where the host
    gives the number of keys, k and v may have fewer tokens than their slots. scalars: what the host gives, by name.

    Raises ValueError where an input or a scalar is missing, is not asked for, or has another shape. Raises BrokenLaw
    where a program breaks a promise to its kernels.
    """
    given = dict(scalars or {})
    if set(given) != set(program.given):
        raise ValueError(f"{program.name} takes the scalars {sorted(program.given)}, and was given {sorted(given)}")
    memory = Memory(program, arrays)
    with np.errstate(over="ignore", invalid="ignore"):  # in pairs that a mask replaces
        for step in program.steps:
            _step(step, memory, given)
    return {slot.name: memory.arrays[slot.name] for slot in program.of_role("output")}


def _step(step: Step, memory: Memory, scalars: Mapping[str, int | float]) -> None:
    if isinstance(step, Fill):
        memory.arrays[step.slot][...] = step.value
    elif isinstance(step, Convert):
        memory.arrays[step.target][...] = memory.arrays[step.source] * step.scale
    else:
        kernel_of(step)(Call(step, memory, scalars))


def kernel_of(launch: Launch) -> Kernel:
    """What a launch computes. Raises NotImplementedError for a kernel that has no oracle."""
    spec = launch.spec
    found: Kernel | None = None
    if isinstance(spec, SplitKVSpec):
        found = rows.combine if spec.combine else rows.rows
    elif isinstance(spec, TablesSpec):
        of_groups = documents.blocks if spec.blocks else documents.items
        found = of_groups if spec.groups else documents.tables
    elif isinstance(spec, ComponentSpec):
        found = components.forward if spec.direction == "forward" else components.gradients
    elif isinstance(spec, KernelSpec):
        found = (OF_GROUPS if spec.groups else OF_TILES).get(spec.direction)
    elif isinstance(spec, str):
        by_name = {"join_sinks": sinks.join_sinks, "scaled": scaling.scaled}
        found = next((one for name, one in by_name.items() if spec.startswith(f"{name}_")), OF_SINKS.get(spec))
    if found is None:
        raise NotImplementedError(f"the oracle has no kernel {launch.kernel.name}")
    return found
