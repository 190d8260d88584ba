"""The search of `weft.fuse` beside an exhaustive one, on a layer of bert-base.

    PYTHONPATH=src python benchmarks/fused_search.py --out part-0.csv --part 0/3    # within 170 s of a card, each part
    PYTHONPATH=src python benchmarks/fused_search.py --out rows.csv --join part-0.csv part-1.csv part-2.csv

The segments are the products of query, key and value, and the product with GELU. A candidate says for each the
tiling of weft's kernel, any that the card has room for, or that Inductor computes it. It is the whole layer, compiled,
in a CUDA graph. First weft chooses. Then a part measures every candidate of its share of tilings of query, key and
value, and at last its three best and the choice in turn: only these times are compared. --join makes one row of all
parts: the largest of what the choice takes over the best of a part on the same card, how many times weft measured, of
segments and of layers, and its seconds beyond compiling.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import time
import traceback
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median

import fused_zoo as zoo
import torch
from table import append

from weft.fusion import choice, kernels, place, segment
from weft.fusion.choice import Choice
from weft.fusion.kernels import ProjectionsSpec
from weft.fusion.rewrite import rewrite
from weft.fusion.settings import Settings
from weft.fusion.timing import compiled_alone, in_turn, parameters_of, seconds_of
from weft.fusion.whole import Part
from weft.kernels.gpu.gemm.config import SINGLE

FIELDS = ("size", "part", "candidate", "us", "measured", "seconds", "card", "torch")
ROW = ("size", "candidates", "choice", "over_best", "measured", "seconds", "parts", "card", "torch")
BEST, TURNS = 3, 5  # candidates that are measured again, and how often
OURS, ALL, AGAIN = "ours", "all", "again"  # what a row of a part is


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
        self.copies = in_turn(self.values, parameters_of(self.values))
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

    def compile_all(self, share):
        """Kernels of all candidates, many at a time."""
        for one, some in zip(self.found, share, strict=True):
            tensors = choice._Measurement(one, "inductor").tensors
            own = [config for config in some if config is not None]
            launches = [segment.prepared(one.spec, config, tensors) for config in own]
            for config, why in zip(own, kernels.compile_all(launches), strict=True):
                if why:
                    print(f"{one.where}: {config}: {why}", flush=True)

    def chosen(self):
        """(tilings that weft chooses, how many times it measured, seconds beyond compiling)."""
        with counted() as (calls, compiling):
            begin = time.perf_counter()
            settings = Settings(templates="again")
            judged = [(one, choice.choose(one, settings)) for one in self.found]
            judged = place._settled(self.module, judged, self.given, True)
            taken = time.perf_counter() - begin
        print(f"chosen in {taken:.1f} s, {sum(compiling):.1f} of them compiling", flush=True)
        return [one.config for _, one in judged], len(calls), taken - sum(compiling)


@contextmanager
def counted():
    """(a list with an entry for each time that the choice measures, a list of seconds in which it compiles)."""
    measured, compiling = [], []

    def counting(function):
        def call(*args):
            measured.append(function)
            return function(*args)

        return call

    def timing(function):
        def call(*args):
            begin = time.perf_counter()
            made = function(*args)
            compiling.append(time.perf_counter() - begin)
            return made

        return call

    watched = [(choice, "compiled_alone", timing), (kernels, "compile_all", timing), (choice, "seconds_of", counting)]
    before = [(room, name, getattr(room, name)) for room, name, _ in watched]
    for room, name, watching in watched:
        setattr(room, name, watching(getattr(room, name)))
    try:
        yield measured, compiling
    finally:
        for room, name, function in before:
            setattr(room, name, function)


def share_of(found, part, parts):
    """The tilings of each segment that a part measures: of the first segment every `parts`-th, of the others all."""
    first, *others = map(tilings, found)
    return [first[part::parts], *others]


def explore(layer, part, parts, until):
    """(what a row is, tilings, us, measurements, seconds)."""
    configs, measured, taken = layer.chosen()
    yield OURS, configs, layer.microseconds(configs), measured, f"{taken:.1f}"
    share = share_of(layer.found, part, parts)
    begin = time.perf_counter()
    layer.compile_all(share)
    print(f"compiled in {time.perf_counter() - begin:.0f} s", flush=True)
    found = {}
    for some in itertools.product(*share):
        if time.perf_counter() > until:
            print("no time for the others", flush=True)
            break
        try:
            found[some] = layer.microseconds(some)
        except Exception as error:
            print(f"{some}: {next(iter(str(error).splitlines()), '')}", flush=True)
            continue
        yield ALL, some, found[some], "", ""
    compared = [tuple(configs), *(some for some in sorted(found, key=found.get)[:BEST] if some != tuple(configs))]
    for _ in range(TURNS):
        for some in compared:
            yield AGAIN, some, layer.microseconds(some), "", ""


def measure(asked, begin):
    part, parts = map(int, asked.part.split("/"))
    size = f"({asked.batch}, {asked.tokens})"

    def explored(module, inputs):
        try:
            rewrite(module, inputs, Settings(templates="off"))
            nodes = [node for node in module.graph.nodes if node.op == "placeholder"]
            layer = Layer(module, dict(zip(nodes, inputs, strict=True)))
            for what, configs, us, measured, seconds in explore(layer, part, parts, begin + asked.seconds):
                row = (size, what, "; ".join(map(str, configs)), f"{us:.2f}", measured, seconds)
                row += (torch.cuda.get_device_name(), torch.__version__)
                print(f"{time.perf_counter() - begin:.0f} s:", *row, sep=", ", flush=True)
                append(asked.out, FIELDS, dict(zip(FIELDS, row, strict=True)))
        except Exception:
            traceback.print_exc()
        return module.forward

    model = zoo.made("bert-base", False, "sdpa").half()
    model.encoder.layer = model.encoder.layer[:1]  # the others are alike
    live = torch.from_numpy(zoo.pattern_of("bert-base", asked.tokens).to_dense(asked.tokens))[None, None].cuda()
    ids = torch.randint(5, 1000, (asked.batch, asked.tokens), device="cuda")
    with torch.no_grad():
        torch.compile(model, backend=explored, dynamic=False)(input_ids=ids, attention_mask=live)


# ---- all parts as one row --------------------------------------------------------------------------------------------
def over_best(rows):
    """(the choice, its time over that of the best) in one part, by what was measured in turn."""
    ours = next(row["candidate"] for row in rows if row["part"] == OURS)
    again = {}
    for row in rows:
        if row["part"] == AGAIN:
            again.setdefault(row["candidate"], []).append(float(row["us"]))
    us = {candidate: median(some) for candidate, some in again.items()}
    return ours, us[ours] / min(us.values())


def joined(parts):
    """One row of the rows of all parts."""
    compared = [over_best(rows) for rows in parts]
    choices, first = sorted({ours for ours, _ in compared}), parts[0][0]
    chosen = [row for rows in parts for row in rows if row["part"] == OURS]
    seen = {row["candidate"] for rows in parts for row in rows if row["part"] == ALL}
    return {
        "size": first["size"], "candidates": len(seen), "choice": " | ".join(choices),
        "over_best": f"{max(over for _, over in compared):.4f}",
        "measured": max(int(row["measured"]) for row in chosen), "parts": len(parts),
        "seconds": max(float(row["seconds"]) for row in chosen), "card": first["card"], "torch": first["torch"],
    }  # fmt: skip


def read(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def main():
    begin = time.perf_counter()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--part", default="0/1", help="which of how many, from 0")
    parser.add_argument("--join", type=Path, nargs="+", help="files of parts, to be one row")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--seconds", type=float, default=150, help="after which no further candidate is measured")
    asked = parser.parse_args()
    if asked.join:
        row = joined([read(path) for path in asked.join])
        print(*row.values(), sep=", ")
        append(asked.out, ROW, row)
    else:
        measure(asked, begin)


if __name__ == "__main__":
    main()
