"""The command line. Each command is a module with a click command named `command`, imported when it is called."""

from __future__ import annotations

from importlib import import_module

import click

COMMANDS = {
    "bench": "Measure weft beside its peers.",
    "recognize": "Find the pattern of a mask file or a mask function.",
}


class LazyGroup(click.Group):
    """Knows its commands by name, so that `weft --help` imports none of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        return import_module(f"weft.cli.{name}").command if name in COMMANDS else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="weft")
def main() -> None:
    """weft: a just-in-time compiler for regular sparse attention."""
