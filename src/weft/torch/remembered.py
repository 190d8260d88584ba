"""What was made of a tensor's content: found again while it is the same object in the same version."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from weft.caching import emptied_by

T = TypeVar("T")


class Remembered(Generic[T]):
    """Values made of tensors. A tensor's values go with it; one of inference mode has no version, and keeps none."""

    def __init__(self) -> None:
        self._kept: Any = WeakIdKeyDictionary()
        emptied_by(self._kept.clear)

    def of(self, x: Tensor, question: Hashable, make: Callable[[], T]) -> T:
        """What `make` made of x for this question, now or before."""
        if x.is_inference():
            return make()
        known = self._kept.get(x)
        if known is None or known[0] != x._version:
            known = self._kept[x] = x._version, {}
        answers: dict[Hashable, T] = known[1]
        if question not in answers:
            answers[question] = make()
        return answers[question]
