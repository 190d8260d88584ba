"""What operators find by a name: attentions and segments of the graphs that this process compiled."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from weft.errors import UnsupportedError


class Named(Protocol):
    """Something whose name follows from its content."""

    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=Named)


class ByName(Generic[T]):
    """Things of one kind, each once."""

    def __init__(self) -> None:
        self._known: dict[str, T] = {}

    def registered(self, one: T) -> T:
        """The one of that content, be it this or an earlier one."""
        return self._known.setdefault(one.name, one)

    def named(self, name: str) -> T:
        """The one of a name. Raises UnsupportedError for what this process did not compile."""
        if name not in self._known:
            raise UnsupportedError(
                f"an operator of weft's backend named {name}", "its graph was compiled in another process",
                'compile the model in this one: torch.compile(model, backend="weft")',
            )  # fmt: skip
        return self._known[name]
