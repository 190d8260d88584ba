"""The search of `weft.fuse` beside an exhaustive one, on a layer of bert-base.

    PYTHONPATH=src python benchmarks/fused_search.py --out rows.csv    # what weft chooses, then all: within 150 s

The segments are the products of query, key and value, and the product with GELU. A candidate says for each the
tiling of weft's kernel, any that the card has room for, or that Inductor computes it. It is the whole layer, compiled,
in a CUDA graph. Each row: what a candidate is, and us of the layer. `ours` also says how many times were measured on
the way, of segments and of layers, and how long the choice took. It is measured again after all others.
"""

from __future__ import annotations

import argparse
import itertools
import time
import traceback
from functools import partial
from pathlib import Path

import fused_zoo as zoo
import torch
from table import append

from weft.fusion import choice, kernels, place, segment
from weft.fusion.choice import Choice
from weft.fusion.kernels import ProjectionsSpec
from weft.fusion.rewrite import rewrite
from weft.fusion.settings import Settings
from weft.fusion.timing import compiled_alone, in_turn, seconds_of
from weft.fusion.whole import Part
from weft.kernels.gpu.gemm.config import SINGLE

FIELDS = ("size", "part", "candidate", "us", "measured", "seconds", "card", "torch")


def tilings(found):
    """All of a segment, None first."""
    room = kernels.card_of(torch.device("cuda")).room
    qkv = isinstance(found.spec, ProjectionsSpec)
    return [None, *(c for c in SINGLE if c.shared(1) <= room and not (qkv and 768 % c.cols))]


class Layer:
    """A layer of a traced graph, and its segments."""

    def __init__(self, module, given):
        self.module, self.given = module, given
        found = place.segments_in(module.graph)
        self.part = Part.around(found[0].inner[0])
        self.found = [one for one in found if set(one.inner) <= set(self.part.nodes)]
        self.values = self.part.values(given)
        self.copies = in_turn(self.values)
        self.made = {}

    def microseconds(self, configs):
        """Of the layer, with these tilings. Layers that fuse the same segments are compiled once."""
        fused = tuple(config is not None for config in configs)
        if fused not in self.made:
            judged = [(one, Choice(config, "")) for one, config in zip(self.found, configs, strict=True)]
            module = self.part.copied(judged, place.put_all, self.module)
            names = [node.args[1] for node in module.graph.nodes if node.target is segment.FUSED]
            operators = {str(one.spec): one for one in map(segment._fused.named, names)}
            self.made[fused] = compiled_alone(module, self.values), operators
        made, operators = self.made[fused]
        for one, config in zip(self.found, configs, strict=True):
            if config is not None:
                operators[str(one.spec)].config = config
        found = 1e6 * seconds_of([partial(made, *some) for some in self.copies])
        torch.cuda.empty_cache()  # of the graph that is gone
        return found

    def compile_all(self):
        """All kernels, many at a time."""
        for one in self.found:
            tensors = choice._Measurement(one, "inductor").tensors
            launches = [segment.prepared(one.spec, config, tensors) for config in tilings(one)[1:]]
            for config, why in zip(tilings(one)[1:], kernels.compile_all(launches), strict=True):
                if why:
                    print(f"{one.where}: {config}: {why}", flush=True)

    def chosen(self):
        """(tilings that weft chooses, how many times it measured, seconds)."""
        counted = []

        def counting(function):
            def call(*args):
                counted.append(function)
                return function(*args)

            return call

        of_calls, of_layers = choice.seconds_of, place.layer_seconds
        choice.seconds_of, place.layer_seconds = counting(of_calls), counting(of_layers)
        begin = time.perf_counter()
        settings = Settings(templates="again")
        judged = [(one, choice.choose(one, settings)) for one in self.found]
        judged = place._settled(self.module, judged, self.given, True)
        taken = time.perf_counter() - begin
        choice.seconds_of, place.layer_seconds = of_calls, of_layers
        return [one.config for _, one in judged], len(counted), taken


def explore(layer, seconds):
    """(what a row is, tilings, us, measurements, seconds)."""
    configs, measured, taken = layer.chosen()
    for _ in range(2):
        yield "ours", configs, layer.microseconds(configs), measured, f"{taken:.1f}"
    begin = time.perf_counter()
    layer.compile_all()
    print(f"compiled in {time.perf_counter() - begin:.0f} s", flush=True)
    for some in itertools.product(*map(tilings, layer.found)):
        if time.perf_counter() > begin + seconds:
            print("no time for the others", flush=True)
            break
        try:
            yield "all", some, layer.microseconds(some), "", ""
        except Exception as error:
            print(f"{some}: {next(iter(str(error).splitlines()), '')}", flush=True)
    for _ in range(3):
        yield "ours again", configs, layer.microseconds(configs), measured, f"{taken:.1f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--seconds", type=float, default=100)
    asked = parser.parse_args()

    def explored(module, inputs):
        try:
            rewrite(module, inputs, Settings(templates="off"))
            nodes = [node for node in module.graph.nodes if node.op == "placeholder"]
            layer = Layer(module, dict(zip(nodes, inputs, strict=True)))
            for part, configs, us, measured, seconds in explore(layer, asked.seconds):
                said = "; ".join(map(str, configs))
                row = (f"({asked.batch}, {asked.tokens})", part, said, f"{us:.2f}", measured, seconds)
                row += (torch.cuda.get_device_name(), torch.__version__)
                print(*row, sep=", ", flush=True)
                append(asked.out, FIELDS, dict(zip(FIELDS, row, strict=True)))
        except Exception:
            traceback.print_exc()
        return module.forward

    model = zoo.made("bert-base", False, "sdpa").half()
    live = torch.from_numpy(zoo.pattern_of("bert-base", asked.tokens).to_dense(asked.tokens))[None, None].cuda()
    ids = torch.randint(5, 1000, (asked.batch, asked.tokens), device="cuda")
    with torch.no_grad():
        torch.compile(model, backend=explored, dynamic=False)(input_ids=ids, attention_mask=live)


if __name__ == "__main__":
    main()
