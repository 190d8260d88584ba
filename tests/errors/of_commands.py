"""Refusals of commands, pictures, diagrams and settings: rows of the table in test_table.py."""

from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from click import ClickException

import weft
from weft import plot, settings
from weft.cli import main
from weft.errors import InputError, OptionError, PatternError, RelabelError, UnsupportedError, UnsupportedKernel
from weft.napkin.builders import attention as attention_diagram
from weft.napkin.machine import machine, rate
from weft.napkin.relabel import Derivation
from weft.napkin.span import Span


@contextmanager
def absent(*modules):
    with mock.patch.dict("sys.modules", dict.fromkeys(modules)):
        yield


def without(modules, call):
    def less():
        with absent(*modules):
            call()

    return less


def command(*args):
    """The weft error behind what the command line says."""

    def call():
        try:
            main(list(map(str, args)), standalone_mode=False)
        except (ClickException, SystemExit) as said:
            assert isinstance(said, SystemExit) or str(said.__context__) in said.message
            raise said.__context__ from None

    return call


def at_limits(variable, value):
    with mock.patch.dict("os.environ", {variable: value}):
        settings.cache_bytes()
        settings.plans_bytes()


def other_columns(folder):
    path = folder / "rows.csv"
    path.write_text("date,case\n")
    return path


CAUSAL = weft.causal()
SMALL = ("--shape", "1,4,64,32")
CARD = ("--target", "h200")
DIAGRAM = Derivation(attention_diagram())

OF_COMMANDS = [
    # ---- pictures, diagrams, settings --------------------------------------------------------------------------------
    ("pattern_figure: size", OptionError, ("10000 x 10000",), lambda: plot.pattern_figure(CAUSAL, 10_000)),
    ("pattern_figure: matplotlib", UnsupportedError, ("matplotlib", ".[plot]"),
     without(("matplotlib.figure", "matplotlib.backends.backend_agg"), lambda: plot.pattern_figure(CAUSAL, 8))),
    ("save: kind", OptionError, ("picture.gif", "end its name in .png or .svg"),
     lambda: plot.save(None, Path("picture.gif"))),
    ("weft fuse: a function", InputError, ("nothing:here", "a module that can be imported"),
     command("fuse", "nothing:here")),
    ("napkin: axis", RelabelError, ("axis z", "shared"), lambda: DIAGRAM.group("z", "shared")),
    ("napkin: level", RelabelError, ("attic",), lambda: DIAGRAM.group("q", "attic")),
    ("napkin: operation", RelabelError, ("fuse melt",), lambda: DIAGRAM.fuse("melt")),
    ("napkin: machine", RelabelError, ("abacus", "h200"), lambda: machine("abacus")),
    ("napkin: rate", RelabelError, ("fp32", "h200"), lambda: rate(machine("h200"), "fp32")),
    ("napkin: span", RelabelError, ("8 queries and 9 keys", "closed form", "weft plan"),
     lambda: Span(weft.documents([5, 4]).body.relation, 8, 9).total(2)),
    ("napkin: relations", RelabelError, ("1 axes",), lambda: attention_diagram(relations=(None, None))),
    ("WEFT_CACHE_MIB: words", OptionError, ("WEFT_CACHE_MIB=much", "set a whole number"),
     lambda: at_limits("WEFT_CACHE_MIB", "much")),
    ("WEFT_PLANS_MIB: nothing", OptionError, ("WEFT_PLANS_MIB=0", "set a whole number"),
     lambda: at_limits("WEFT_PLANS_MIB", "0")),
    # ---- commands ----------------------------------------------------------------------------------------------------
    ("weft show: open bracket", PatternError, ("column 7", "closed"), command("show", "causal(")),
    ("weft show: no pair", OptionError, ("--size",), command("show", "causal()", "--size", 0)),
    ("weft show: tiles", OptionError, ("--tiles", "--size"), command("show", "causal()", "--size", 9999, "--tiles")),
    ("weft show: out", OptionError, ("--out",), command("show", "causal()", "--out", "/nowhere/at/all.svg")),
    ("weft plan: shape", OptionError, ("--shape 0,4,64,32",), command("plan", "causal()", "--shape", "0,4,64,32")),
    ("weft plan: heads", OptionError, ("--kv-heads 3",), command("plan", "causal()", *SMALL, "--kv-heads", 3)),
    ("weft explain: device", OptionError, ("--source", "cuda"), command("explain", "full()", *SMALL, "--source", "dq")),
    ("weft explain: two kernels", OptionError, ("--source dq", "--source dkdv"),
     command("explain", "causal()", *SMALL, "--device", "cuda", "--source", "fused")),
    ("weft explain: no kernel", UnsupportedKernel, ("--dtype",),
     command("explain", "causal()", *SMALL, "--device", "cuda", "--dtype", "float64", "--source", "dq")),
    ("weft explain: no room", UnsupportedKernel, ("blocks of 64 x 64", "bytes", "rtx4090", "head dimension"),
     command("explain", "random_blocks(64, 2, seed=1)", "--shape", "1,1,256,256", "--device", "cuda",
             "--dtype", "float32", "--target", "rtx4090")),
    ("weft compile: nothing", OptionError, ("PATTERN, --workloads NAME, --calls FILE",), command("compile", *CARD)),
    ("weft compile: shape", OptionError, ("sizes are missing", "--shape"), command("compile", "causal()", *CARD)),
    ("weft compile: file", OptionError, ("--calls nowhere", "a call on each line"),
     command("compile", "--calls", "nowhere", *CARD)),
    ("weft compile: triton", OptionError, ("--triton 1.2.3", "pip install triton==1.2.3"),
     command("compile", "causal()", *SMALL, *CARD, "--triton", "1.2.3")),
    ("weft tune: nothing", OptionError, ("PATTERN, --share FILE and --adopt FILE",), command("tune")),
    ("weft tune: shape", OptionError, ("sizes are missing", "--shape"), command("tune", "causal()")),
    ("weft recognize: module", InputError, ("nowhere:mask",), command("recognize", "nowhere:mask")),
    ("weft recognize: no function", InputError, ("sys:path",), command("recognize", "sys:path")),
    ("weft napkin: terms", RelabelError, ("strided", "2 affine terms"),
     command("napkin", "attention", "--length", 64, "--pattern", "strided(16)")),
    ("weft napkin: pattern", OptionError, ("matmul", "--pattern 'causal()'", "attention"),
     command("napkin", "matmul", "--pattern", "causal()")),
    ("weft napkin: head dimension", OptionError, ("mlp", "--dim 64"), command("napkin", "mlp", "--dim", 64)),
    ("weft napkin: out", InputError, ("all.svg",),
     command("napkin", "matmul", "--length", 512, "--out", "/nowhere/at/all.svg")),
    ("weft napkin: documents", RelabelError, ("documents([8000, 192])", "without an end", "closed form"),
     command("napkin", "attention", "--pattern", "documents([8000, 192])")),
    ("weft napkin: sizes", RelabelError, ("even",), command("napkin", "attention", "--dim", 1 << 16)),
    ("weft demo: torch", UnsupportedError, ("torch", "pip"), without(("torch",), command("demo", "--json"))),
    ("weft demo: html", OptionError, ("--html", "all.html"), command("demo", "--html", "/nowhere/at/all.html")),
    ("weft cache: nothing to ask", OptionError, ("list --yes",), command("cache", "list", "--yes")),
    ("weft bench: workload", OptionError, ("windw", "--list"), command("bench", "windw")),
    ("weft bench: peer", OptionError, ("--peers", "flax"), command("bench", "cpu", "--peers", "flax")),
    ("weft bench: rows", OptionError, ("rows.csv", "--out"),
     lambda folder: command("bench", "cpu", "--device", "cpu", "--out", other_columns(folder))()),
]  # fmt: skip
