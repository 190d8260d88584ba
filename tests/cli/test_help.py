"""Every command's help, and what asking for it loads."""

import json
import shlex
import subprocess
import sys

import pytest
from click.testing import CliRunner

import weft
from weft.cli import COMMANDS, main

HEAVY = ("torch", "triton", "jax", "matplotlib")
EXAMPLES = [example for entry in COMMANDS.values() for example in entry.examples]


def loaded_by(*args: str) -> list[str]:
    """Which heavy packages and commands are loaded after `weft ARGS`, in a process of its own."""
    code = (
        "import sys; from click.testing import CliRunner; from weft.cli import main;"
        f"done = CliRunner().invoke(main, {list(args)!r}); assert done.exit_code == 0, done.output;"
        f"print(*[m for m in sys.modules if m in {HEAVY!r} or m.startswith('weft.cli.')])"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def test_help_loads_no_command():
    assert loaded_by("--help") == ["weft.cli.say"]  # how all of them write


@pytest.mark.parametrize("name", ["demo", "doctor", "explain", "plan", "show"])
def test_help_of_a_command_loads_no_framework(name):
    assert not set(loaded_by(name, "--help")) & set(HEAVY)


def test_patterns_and_plans_need_no_framework():
    assert not set(loaded_by("show", "causal()", "--tiles")) & set(HEAVY)
    assert not set(loaded_by("plan", "causal()", "--shape", "1,1,64,32", "--verify")) & set(HEAVY)
    source = ("explain", "causal()", "--shape", "1,1,64,32", "--device", "cuda", "--source", "dq")
    assert not set(loaded_by(*source)) & set(HEAVY)


def test_help_lists_every_command_on_one_line():
    lines = CliRunner().invoke(main, ["--help"], prog_name="weft").output.splitlines()
    for name, entry in COMMANDS.items():
        assert any(line.split() == [name, *entry.about.split()] for line in lines), name


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_every_command_ends_in_examples(name):
    done = CliRunner().invoke(main, [name, "--help"], prog_name="weft")
    assert done.exit_code == 0
    assert [line.strip() for line in done.output.splitlines()[-len(COMMANDS[name].examples) :]] == [
        f"weft {example}" for example in COMMANDS[name].examples
    ]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_json(name):
    assert "--json" in CliRunner().invoke(main, [name, "--help"]).output


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_is_understood(example):
    name, *args = shlex.split(example)
    context = main.get_command(None, name).make_context(name, args)
    assert context.params


@pytest.mark.parametrize("example", [e for e in EXAMPLES if e.split()[0] in ("doctor", "explain", "plan", "show")])
def test_every_example_runs(example, tmp_path, monkeypatch):
    if "--out" in example:
        pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, shlex.split(example), catch_exceptions=False)
    assert done.exit_code == 0 and done.stdout and not done.stderr
    if "--json" in example:
        json.loads(done.stdout)


def test_the_version():
    assert weft.__version__ in CliRunner().invoke(main, ["--version"]).output


def test_an_unknown_command():
    for typed, cure in (("shwo", "weft show"), ("plna", "weft plan"), ("xyz", "weft --help")):
        done = CliRunner().invoke(main, [typed, "causal()"], prog_name="weft")
        assert done.exit_code == 2 and f"weft {typed}" in done.output and f"do:    write {cure}" in done.output


def test_devices_are_called_alike_by_every_command():
    for name in COMMANDS:
        found = [one for one in main.get_command(None, name).params if one.name == "device"]
        assert all(set(one.type.choices) == {"cpu", "cuda"} for one in found), name


def test_commands_for_developers_stand_apart():
    said = CliRunner().invoke(main, ["--help"], prog_name="weft").output
    users, _, ours = said.partition("For those who develop weft")
    assert "  bench " in ours and "  napkin " in ours and "  bench " not in users and "  plan " in users


@pytest.mark.parametrize("asked", [("bench", "--limit"), ("tune", "causal()", "--budget")])
def test_seconds_are_numbers(asked):
    for value in ("nan", "-1"):
        done = CliRunner().invoke(main, [*asked, value])
        assert done.exit_code == 2
        assert value in done.output
