"""The command line. Each command is a module with a click command named `command`, imported when it is called."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import Any, NamedTuple

import click

from weft import __version__
from weft.cli.say import harmless
from weft.errors import OptionError, WeftError


class Entry(NamedTuple):
    """What `weft --help` says of a command, and the examples that end its own help."""

    about: str
    examples: tuple[str, ...]
    ours: bool = False  # whether it serves those who develop weft rather than those who use it


COMMANDS = {
    "bench": Entry("Measure weft beside its peers.", ("bench --list", "bench cpu --device cpu --rounds 5"), True),
    "cache": Entry(
        "Look after compiled kernels on disk: list, size, verify, clear.", ("cache list", "cache verify --json")
    ),
    "compile": Entry(
        "Compile kernels for a card that need not be here, into the cache.",
        (
            'compile "causal() & window(1023)" --shape 1,16,32768,128 --target h200',
            "compile --workloads core --target sm_90 --triton 3.6.0",
            "compile --calls calls.txt --target h200 --forward-only",
        ),
    ),
    "demo": Entry(
        "Run the main job on real input, or write a page of every pattern.", ("demo --quick", "demo --html weft.html")
    ),
    "doctor": Entry("Say what this machine can run, and what to install.", ("doctor", "doctor --json")),
    "explain": Entry(
        "Explain a plan: format, launches, times, generated source.",
        (
            'explain "causal() & window(1023)" --shape 1,8,16384,64',
            'explain "longformer(512, 16)" --shape 1,8,8192,128 --device cuda --source forward',
        ),
    ),
    "fuse": Entry(
        "Say which attention of a model weft computes, and why not the rest.",
        ("fuse my_models:bert --explain", "fuse my_models:bert --out layer.svg --json"),
    ),
    "napkin": Entry(
        "Derive a tiling from a diagram, with the bytes it sends and holds.",
        (
            "napkin attention --target h200 --out flash.svg",
            'napkin attention --pattern "neighborhood((64, 64), (8, 8))" --length 4096',
            'napkin layer --model bert-base --pattern "window(127, 127)" --out layer.svg',
        ),
        True,
    ),
    "plan": Entry(
        "Plan a pattern: launches, tiles, bytes, useful share.",
        (
            'plan "causal() & window(1023)" --shape 1,8,16384,64',
            'plan "neighborhood((64, 64), (7, 7))" --shape 2,16,4096,128 --device cuda --verify',
        ),
    ),
    "recognize": Entry(
        "Find the pattern of a mask file or a mask function.",
        ("recognize mask.npy", "recognize my_masks:sliding --size 1024 1024"),
    ),
    "show": Entry(
        "Draw a pattern and its tiles: in the terminal, as PNG, as SVG.",
        (
            'show "causal() & window(15)" --size 64',
            'show "neighborhood((16, 16), (5, 5))" --tiles --out tiles.png',
            'show "longformer(512, 16)" --size 1000000',
        ),
    ),
    "tune": Entry(
        "Measure kernels on this GPU and keep what wins.",
        (
            'tune "causal() & window(1023)" --shape 1,8,16384,64 --budget 60',
            "tune --share h200.json",
            "tune --adopt h200.json",
        ),
    ),
}


class Refused(click.ClickException):
    """A weft error as the command line says it: its three sentences, and exit code 2."""

    exit_code = 2


class LazyGroup(click.Group):
    """Knows its commands by name, so that `weft --help` imports none of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = import_module(f"weft.cli.{name}").command
        examples = "\n".join(f"  weft {example}" for example in COMMANDS[name].examples)
        command.epilog = f"\b\nExamples:\n{examples}"
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            near = get_close_matches(args[0], COMMANDS, n=1)
            begin = ctx.command_path
            cure = f"write {begin} {near[0]}" if near else f"write {begin} --help, which lists the commands"
            raise OptionError(f"{begin} {args[0]}", "there is no such command", cure)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, ours in (("Commands", False), ("For those who develop weft", True)):
            with formatter.section(title):
                formatter.write_dl([(name, e.about) for name, e in sorted(COMMANDS.items()) if e.ours is ours])

    def invoke(self, ctx: click.Context) -> Any:
        with harmless():
            try:
                return super().invoke(ctx)
            except WeftError as error:
                raise Refused(str(error)) from None

    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **options: Any) -> click.Context:
        with harmless():
            return super().make_context(info_name, args, *rest, **options)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="weft")
def main() -> None:
    """weft: a just-in-time compiler for regular sparse attention."""
