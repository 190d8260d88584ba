"""Layers of models by name, at a batch and a length, for diagrams and searches that need no framework."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from weft.errors import OptionError
from weft.fusion.operators import Array, Kind, Layer, Operator


@dataclass(frozen=True)
class Sizes:
    """A model's layer. hidden, inner: widths of the stream and of the feed-forward part. gated: SiLU(gate) * up."""

    hidden: int
    inner: int
    heads: int
    kv_heads: int
    before: bool  # norms stand before attention and the feed-forward part, and not after
    joined: bool = False  # one product makes query, key and value
    rope: bool = False
    gated: bool = False
    activation: str = "gelu"


MODELS = {
    "bert-base": Sizes(768, 3072, 12, 12, before=False),
    "bert-large": Sizes(1024, 4096, 16, 16, before=False),
    "gpt2": Sizes(768, 3072, 12, 12, before=True, joined=True),
    "t5-base": Sizes(768, 3072, 12, 12, before=True, activation="relu"),
    "vit-base": Sizes(768, 3072, 12, 12, before=True),
    "llama-1b": Sizes(2048, 8192, 32, 8, before=True, rope=True, gated=True, activation="silu"),
    "llama-7b": Sizes(4096, 11008, 32, 32, before=True, rope=True, gated=True, activation="silu"),
}


def layer(model: str, batch: int, tokens: int, share: float = 1.0, element: int = 2) -> Layer:
    """One layer of a known model. share: of all pairs, what attention computes. element: bytes of a number.

    Raises OptionError for an unknown model. Example::

        layer("bert-base", 16, 2048, share=0.13)
    """
    if model not in MODELS:
        raise OptionError(f"a layer of {model!r}", "the model is not known", f"name one of {', '.join(MODELS)}")
    if min(batch, tokens) < 1 or not 0 < share <= 1:
        raise OptionError(
            f"a layer of {model!r} at batch {batch}, {tokens} tokens, share {share}", "there is nothing to compute",
            "pass a batch and tokens from 1 on, and a share above 0 and up to 1",
        )  # fmt: skip
    return _Builder(model, batch, tokens, share, element).layer()


@dataclass
class _Builder:
    model: str
    batch: int
    tokens: int
    share: float
    element: int
    operators: list[Operator] = field(default_factory=list)

    @property
    def sizes(self) -> Sizes:
        return MODELS[self.model]

    def layer(self) -> Layer:
        """Attention and the feed-forward part, each with its residual."""
        stream = self._array("x", self.sizes.hidden)
        for part, residual in ((self._attention, "add 1"), (self._feed_forward, "add 2")):
            given = self._op(f"norm {residual[-1]}", "norm", [stream]) if self.sizes.before else stream
            result = part(given)
            stream = self._op(residual, "pointwise", [stream, result])
            if not self.sizes.before:
                stream = self._op(f"norm {residual[-1]}", "norm", [stream])
        name = f"{self.model} ({self.batch}, {self.tokens})"
        return Layer(name, tuple(self.operators), frozenset({stream.name}))

    def _attention(self, x: Array) -> Array:
        sizes = self.sizes
        width = sizes.hidden // sizes.heads
        kv = width * sizes.kv_heads
        if sizes.joined:
            qkv = [self._product("qkv", x, sizes.hidden + 2 * kv)]
        else:
            widths = (("q", sizes.hidden), ("k", kv), ("v", kv))
            qkv = [self._product(name, x, out) for name, out in widths]
        if sizes.rope:
            qkv = [self._op(f"rope {one.name[:1]}", "pointwise", [one]) for one in qkv[:2]] + qkv[2:]
        pairs = self.batch * self.tokens**2 * self.share
        out = self._op("attention", "attention", qkv, sizes.hidden, 4 * pairs * sizes.hidden)
        return self._product("out", out, sizes.hidden)

    def _feed_forward(self, x: Array) -> Array:
        sizes = self.sizes
        if sizes.gated:
            gate, up = (self._product(name, x, sizes.inner) for name in ("gate", "up"))
            inner = self._op("silu, mul", "pointwise", [gate, up])
        else:
            inner = self._op(sizes.activation, "pointwise", [self._product("up", x, sizes.inner)])
        return self._product("down", inner, sizes.hidden)

    def _product(self, name: str, x: Array, width: int) -> Array:
        weight = Array(f"weight of {name}", x.width * width * self.element, width, weight=True)
        flops = 2.0 * self.batch * self.tokens * x.width * width
        return self._op(name, "product", [x, weight], width, flops)

    def _op(self, name: str, kind: Kind, reads: list[Array], width: int = 0, flops: float = 0.0) -> Array:
        made = self._array(f"{name}'", width or reads[0].width)
        self.operators.append(Operator(name, kind, tuple(reads), made, flops))
        return made

    def _array(self, name: str, width: int) -> Array:
        return Array(name, self.batch * self.tokens * width * self.element, width)


def facts(one: Layer) -> dict[str, Any]:
    """What a layer is, as JSON has it."""
    return {
        "name": one.name, "fingerprint": one.fingerprint,
        "operators": [
            {
                "name": x.name, "kind": x.kind, "reads": [array.name for array in x.reads], "writes": x.writes.name,
                "bytes": x.writes.nbytes, "flops": x.flops,
            }
            for x in one.operators
        ],
    }  # fmt: skip
