"""`weft napkin layer`: a whole layer of a model, what it moves before and after fusion, and what that is predicted to
take.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from weft.errors import InputError, OptionError
from weft.fusion.known import MODELS, facts, layer
from weft.fusion.model import breaks_even, cost
from weft.fusion.operators import Layer
from weft.fusion.picture import lines, svg
from weft.fusion.search import search
from weft.fusion.segments import segments, unfused
from weft.pattern.parse import parse
from weft.target import GPUS

BATCH, TOKENS = 16, 2048  # where none are given
NOTE = "(predicted from bytes, launches and arithmetic; weft has kernels for some of these segments: docs/fusion.md)"


@dataclass(frozen=True)
class Wanted:
    """What the command line asked for. length: tokens."""

    algorithm: str
    target: str
    length: int | None
    dim: int | None
    dtype: str
    pattern: str | None
    model: str | None
    batch: int | None

    def __post_init__(self) -> None:
        if self.model is None:
            raise OptionError("weft napkin layer", "no model is named", f"add --model NAME, one of {', '.join(MODELS)}")
        if self.dim is not None:
            raise OptionError(
                f"weft napkin layer --dim {self.dim}", "a model has its own head dimension", "leave --dim out"
            )
        if self.dtype != "fp16":
            raise OptionError(
                f"weft napkin layer --dtype {self.dtype}", "layers are counted in 16 bits", "leave --dtype out"
            )

    def layer(self) -> Layer:
        """The layer; attention computes the pattern's pairs."""
        tokens, share = self.length or TOKENS, 1.0
        if self.pattern is not None:
            share = parse(self.pattern).acsr(tokens, tokens).nnz / tokens**2
        return layer(self.model or "", self.batch or BATCH, tokens, share)


def refuse_without_layer(algorithm: str, given: dict[str, Any]) -> None:
    """Raise OptionError if an algorithm that is no layer got a layer's options."""
    for name, x in given.items():
        if x is not None:
            raise OptionError(
                f"weft napkin {algorithm} --{name} {x}", "only a layer has it", f"leave --{name} out, or ask for layer"
            )


def report(wanted: Wanted, out: Path | None) -> tuple[str, dict[str, Any]]:
    """(text, the same as JSON has it); the picture goes to `out`."""
    one, target = wanted.layer(), wanted.target
    gpu = GPUS[target]
    found, before = search(one, gpu), cost(one, unfused(one), gpu)
    text = [*lines(found, gpu), NOTE]
    width = one.operators[0].reads[0].width
    text.append(
        f"an activation in the epilogue of a product over {width} pays while that is less than "
        f"{breaks_even(width, gpu):.0%} slower than cuBLAS"
    )
    told = {
        **facts(one), "target": target, "scheme": found.scheme, "before": asdict(before), "after": asdict(found.cost),
        "segments": [[one.operators[i].name for i in part] for part in segments(found.scheme)],
        "evaluations": found.evaluations,
    }  # fmt: skip
    if out is not None:
        try:
            out.write_text(svg(found, gpu), encoding="utf-8")
        except OSError as error:
            raise InputError(f"write {out}", str(error.strerror), "name a file that can be written") from None
        text.append(f"written: {out}")
        told["out"] = str(out)
    return "\n".join(text), told
