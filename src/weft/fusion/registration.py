"""The name "weft" among the backends of torch.compile, where weft is not installed as a package with its entry point.

Importing Dynamo takes seconds, so the name is given when Dynamo's registry is there: at once, or once it is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

NAME = "weft"
REGISTRY = "torch._dynamo.backends.registry"


def register() -> None:
    """Register the backend, now or as soon as torch.compile is first used."""
    registry = sys.modules.get(REGISTRY)
    if registry is not None:
        _give_name(registry)
    elif not any(isinstance(one, _Watch) for one in sys.meta_path):
        sys.meta_path.insert(0, _Watch())


def _give_name(registry: ModuleType) -> None:
    if NAME not in registry._COMPILER_FNS:
        registry.register_backend(_backend, name=NAME)


def _backend(*args: Any, **options: Any) -> Any:
    """`weft.fusion.backend.weft`, which is imported when a graph is first compiled."""
    from weft.fusion.backend import weft

    return weft(*args, **options)


class _Watch(MetaPathFinder):
    """Waits for the registry to be imported."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != REGISTRY:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Registering(spec.loader)
        return spec


class _Registering(Loader):
    """Loads the registry, and then registers."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        _give_name(module)

    def __getattr__(self, name: str) -> Any:  # get_source and others, which belong to the loader of a file
        return getattr(self.loader, name)
