"""Which ranks hold a sequence together: a group, or one dimension of a mesh."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from weft.errors import OptionError


def group_of(group: Any, mesh: Any, dim: int | str, function: str = "attention") -> Any:
    """The process group that was given, the default one if none was; raises OptionError where there is none."""
    if mesh is not None:
        if group is not None:
            raise OptionError(
                f"distributed.{function}(group=..., mesh=...)", "both say which ranks hold the sequence",
                "pass one of them",
            )  # fmt: skip
        return mesh.get_group(dim)
    if not dist.is_initialized():
        raise OptionError(
            f"distributed.{function}(...)", "there is no process group",
            'call torch.distributed.init_process_group("nccl") first ("gloo" on CPUs), or use weft.attention',
        )  # fmt: skip
    return dist.group.WORLD if group is None else group
