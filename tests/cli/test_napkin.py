"""`weft napkin`: lengths and options that depend on each other; the rest is in tests/napkin/test_cli.py."""

import json

import pytest
from click.testing import CliRunner

from weft.cli import main


def facts(*args):
    done = CliRunner().invoke(main, ["napkin", *map(str, args), "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.output)


@pytest.mark.parametrize(
    ("args", "length"),
    [
        ((), 8192),
        (("--pattern", "causal() & window(63)"), 8192),
        (("--pattern", "neighborhood((32, 64), (8, 8))"), 2048),
        (("--pattern", "causal() & window(63)", "--length", 512), 512),
    ],
)
def test_the_length_of_a_pattern_is_its_own(args, length):
    assert facts("attention", *args)["length"] == length


def test_only_attention_has_a_head_dimension():
    assert facts("attention")["dim"] == 128 and facts("attention", "--dim", 64)["dim"] == 64
    assert facts("matmul", "--length", 512)["dim"] is None
