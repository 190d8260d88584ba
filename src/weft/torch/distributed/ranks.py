"""What a rank computes on its own device: parts of its rows over keys that it has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from weft.distributed.local import Part
from weft.distributed.plan import Plan
from weft.score.value import Score
from weft.torch import call
from weft.torch.distributed.rows import Result
from weft.torch.distributed.scores import extras_of, of_part, own_tables, tokens_of, whole_of
from weft.torch.extras import Extras

__all__ = ["Rank", "Result"]


@dataclass(frozen=True)
class Rank:
    """One rank of one call. options: scale, softcap, backend and deterministic, as `weft.attention` has them. drop: the
    rate of dropout and its seed, None without; head: the first head's number, of which dropout is.
    """

    plan: Plan
    group: Any
    rank: int
    options: tuple[Any, ...]
    score: Score | None = None
    drop: tuple[float, Tensor] | None = None
    head: int = 0

    def attend(
        self, tensors: Sequence[Tensor], part: Part, sinks: Tensor | None = None, peer: int | None = None
    ) -> Result:  # fmt: skip
        """(out, lse) of a part's rows over its keys. peer: whose rows they are, if not this rank's."""
        q, k, v = tensors
        return call.attend((q, k, v), part.pattern, (sinks, None), self.given, True, self._extras(part, peer, q))

    def _extras(self, part: Part, peer: int | None, q: Tensor) -> Extras | None:
        if self.score is None and self.drop is None:
            return None
        place = self.plan, self.rank, part, self.rank if peer is None else peer
        rows, keys = tokens_of(*place)
        score = None if self.score is None else of_part(self.score, rows, keys, q.device)
        return extras_of(score, self.drop, whole_of(place, self.head, q.device) if self.drop else None)

    def gradients(
        self, tensors: Sequence[Tensor], part: Part, results: Result, grads: Sequence[Tensor | None],
        sinks: tuple[Tensor | None, bool] = (None, False), peer: int | None = None,
    ) -> tuple[Any, ...]:  # fmt: skip
        """(dq, dk, dv, dsinks, dtables) of a part, from the out and lse that its rows have in the end. sinks: and
        whether their gradient is wanted; dtables: as those of the score function, None without one.
        """
        saved, extras = (*tensors, *results), self._extras(part, peer, tensors[0])
        options, both = ((sinks[0], None), self.given), (grads[0], grads[1])
        *found, dtables = call.backward(saved, part.pattern, options, both, sinks[1], extras)
        return *found, None if self.score is None else own_tables(self.score, dtables)

    @property
    def given(self) -> tuple[Any, ...]:
        """The options in the order of `call.attend`."""
        scale, softcap, backend, deterministic = self.options
        return scale, softcap, 0, backend, deterministic
