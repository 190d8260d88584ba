"""How attention is divided among devices: by mapped elements, batch rows and key/value heads, each on its own.

Heads of a group and features are gathered, since gradients of keys add over them. So are batch rows and heads that the
mask tells apart, since its tables say which they are. So are all where gradients of tables of score functions are
wanted, which add over everything. A divided sequence is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec, use_abstract_mesh

from weft.errors import UnsupportedError
from weft.jax.structure import Structure

# Dimensions by kind of array: mapped elements, batch rows, key/value heads, heads of a group, queries, keys, features.
DIMENSIONS = {"q": "lbkgmd", "row": "lbkgm", "k": "lbknd", "batch": "b", "heads": "kg"}

UNNAMED = "part of one"  # instead of a mesh axis


def partitioned(
    function: Callable[..., Any], given: Sequence[str], made: Sequence[str], ranks: tuple[Sequence[int], Sequence[int]],
    structure: Structure,
) -> Callable[..., Any]:  # fmt: skip
    """`function` with a rule for its division. given, made: kinds of its first arguments and of its first results;
    ranks: of the tables that follow as arguments, and of sums over all batch rows and heads that follow as results.
    """
    first = [
        [" ".join(f"d{side}{at}" if one == "d" else one for one in DIMENSIONS[kind]) for at, kind in enumerate(kinds)]
        for side, kinds in enumerate((given, made))
    ]
    tables, sums = (
        [" ".join(f"{letter}{at}_{axis}" for axis in range(rank)) for at, rank in enumerate(some)]
        for letter, some in zip("tu", ranks, strict=True)
    )
    found = custom_partitioning(function)

    def local(*arguments: Any) -> Any:
        with use_abstract_mesh(AbstractMesh((), ())):
            return function(*arguments)

    def partition(mesh: Any, arguments: Sequence[Any], results: Sequence[Any]) -> Any:
        specs = [_spec_of(argument) for argument in arguments[: len(given)]]
        for kind, spec in zip(given, specs, strict=True):
            check_sequence(kind, spec)
        whole = {} if sums else _divided(specs[0], structure)
        ins, outs = ([NamedSharding(mesh, _spec(kind, whole)) for kind in kinds] for kinds in (given, made))
        ins += [NamedSharding(mesh, PartitionSpec())] * len(tables)
        outs += [NamedSharding(mesh, PartitionSpec())] * len(sums)
        return mesh, local, tuple(outs), tuple(ins)

    rule = f"{', '.join([*first[0], *tables])} -> {', '.join([*first[1], *sums])}"
    found.def_partition(partition=partition, infer_sharding_from_operands=None, sharding_rule=rule)
    return found


def _spec_of(argument: Any) -> tuple[Any, ...]:
    """The mesh axes of each dimension; of a division that the mesh has no name for only what it divides."""
    spec = getattr(argument.sharding, "spec", None)
    if spec is not None:
        return tuple(spec)
    local = argument.sharding.shard_shape(argument.shape)
    return tuple(UNNAMED if here < size else None for here, size in zip(local, argument.shape, strict=True))


def check_sequence(kind: str, spec: Any) -> None:
    """Raise UnsupportedError if an array's tokens are divided among devices."""
    for name, axis in zip(DIMENSIONS[kind], spec, strict=False):
        if name in "mn" and axis is not None:
            raise UnsupportedError(
                f"attention with its {'queries' if name == 'm' else 'keys'} divided over the mesh axis {axis!r}",
                "every device needs the keys that its queries see, and this function sends none",
                "divide batch rows and heads only, or call weft.jax.distributed_attention(..., axis_name=...) inside "
                "jax.shard_map",
            )


def _divided(spec: Any, structure: Structure) -> dict[str, Any]:
    """The mesh axes of each dimension, by those of q."""
    found = dict(zip(DIMENSIONS["q"], spec, strict=False))
    # a division without a name is that of part of a mesh axis: the rest of it would have nothing to do
    kept = {name: None if found.get(name) == UNNAMED else found.get(name) for name in "lbk"}
    if structure.batch is not None:
        kept["b"] = None
    if structure.heads is not None:
        kept["k"] = None
    return kept


def _spec(kind: str, axes: dict[str, Any]) -> PartitionSpec:
    return PartitionSpec(*(axes.get(name) for name in DIMENSIONS[kind]))


def explicit_specs(tensors: Sequence[Any], kinds: Sequence[str]) -> list[PartitionSpec]:
    """The explicit part of the shardings of some arrays; raises UnsupportedError where it divides a sequence."""
    specs = [jax.typeof(x).sharding.spec for x in tensors]
    for kind, spec in zip(kinds, specs, strict=True):
        check_sequence(kind, spec)
    return specs
